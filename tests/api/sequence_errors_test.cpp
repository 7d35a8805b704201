// Sequences of different lengths and pages: every refusal names the argument, its value and what is
// accepted, and writes nothing. Also: which backends are asked, and the problem's text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "c_views.h"
#include "small_call.h"

namespace fulmen {
namespace {

using testing::Bad;
using testing::SmallCall;

Tensor int32(std::vector<int>& values, int64_t rows = 1) {
  const int64_t columns = static_cast<int64_t>(values.size()) / rows;
  return {values.data(), DType::int32, {1, 1, rows, columns}, {0, 0, columns, 1}};
}

// Both sequences of a SmallCall packed, or its keys in pages of one key.
struct Tables {
  std::vector<int> cu_q{0, 5, 10}, cu_k{0, 7, 14}, used{7, 3}, leftpad{0, 1};
  std::vector<int> pages{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
};
Tables& tables() {
  static Tables all;
  return all;
}

void pack_q(SmallCall& c) {
  tables() = {};
  c.tensors.q = Tensor::bshd(c.q.data(), DType::fp32, 1, 10, SmallCall::kHeads, SmallCall::kDim);
  c.tensors.out =
      Tensor::bshd(c.out.data(), DType::fp32, 1, 10, SmallCall::kHeads, SmallCall::kDim);
  c.tensors.lse = {c.lse.data(), DType::fp32, {1, SmallCall::kHeads, 10, 1}, {0, 10, 1, 1}};
  c.tensors.cu_seqlens_q = int32(tables().cu_q);
  c.options.max_seqlen_q = 5;
}
void pack_k(SmallCall& c) {
  c.tensors.k = Tensor::bshd(c.k.data(), DType::fp32, 1, 14, SmallCall::kKvHeads, SmallCall::kDim);
  c.tensors.v = Tensor::bshd(c.v.data(), DType::fp32, 1, 14, SmallCall::kKvHeads, SmallCall::kDim);
  c.tensors.cu_seqlens_k = int32(tables().cu_k);
  c.options.max_seqlen_k = 7;
}
void pack(SmallCall& c) {
  pack_q(c);
  pack_k(c);
}
void pad(SmallCall& c) {
  tables() = {};
  c.tensors.seqlens_k = int32(tables().used);
  c.tensors.leftpad_k = int32(tables().leftpad);
}
void page(SmallCall& c) {
  pad(c);
  c.tensors.k = Tensor::bshd(c.k.data(), DType::fp32, 14, 1, SmallCall::kKvHeads, SmallCall::kDim);
  c.tensors.v = Tensor::bshd(c.v.data(), DType::fp32, 14, 1, SmallCall::kKvHeads, SmallCall::kDim);
  c.tensors.block_table = int32(tables().pages, 2);
}

using Setup = void (*)(SmallCall&);
Bad bad(const char* name, Setup setup, const std::function<void(SmallCall&)>& bend,
        const std::vector<std::string>& said) {
  return {name,
          [setup, bend](SmallCall& c) {
            setup(c);
            bend(c);
          },
          said};
}

class SequenceErrors : public ::testing::TestWithParam<Bad> {};

TEST_P(SequenceErrors, NameArgumentValueAndWhatIsAccepted) {
  SmallCall call;
  call.with_everything();
  call.tensors.bias = call.tensors.keep_mask = {};
  GetParam().bend(call);
  const Status status = attention(call.tensors, call.options);
  testing::expect_refused(status, GetParam());
  EXPECT_TRUE(call.untouched());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SequenceErrors,
    ::testing::Values(
        bad("Dtype", pack, [](SmallCall& c) { c.tensors.cu_seqlens_q.dtype = DType::fp32; },
            {"cu_seqlens_q.dtype is fp32", "int32"}),
        bad("CuShape", pack, [](SmallCall& c) { c.tensors.cu_seqlens_q.shape = {1, 1, 3, 1}; },
            {"cu_seqlens_q.shape is [1, 1, 3, 1]", "[1, 1, 1, batch + 1]"}),
        bad("CuEmpty", pack, [](SmallCall& c) { c.tensors.cu_seqlens_q.shape[3] = 0; },
            {"cu_seqlens_q.shape", "[1, 1, 1, batch + 1]"}),
        bad("CuKShape", pack, [](SmallCall& c) { c.tensors.cu_seqlens_k.shape[3] = 2; },
            {"cu_seqlens_k.shape is [1, 1, 1, 2]", "[1, 1, 1, 3]"}),
        bad("PackedQ", pack_q, [](SmallCall& c) { c.tensors.q.shape = {2, 5, 4, 8}; },
            {"q.shape is [2, 5, 4, 8]", "total_q"}),
        bad("PackedK", pack, [](SmallCall& c) { c.tensors.k.shape = {2, 7, 2, 8}; },
            {"k.shape is [2, 7, 2, 8]", "[1, total_k"}),
        bad("PackedLse", pack, [](SmallCall& c) { c.tensors.lse.shape = {2, 4, 5, 1}; },
            {"lse.shape", "[1, num_heads, total_q, 1]"}),
        bad("Cumulative", pack, [](SmallCall& c) { c.tensors.seqlens_k = int32(tables().used); },
            {"cu_seqlens_k and seqlens_k are both given"}),
        bad("Leftpad", pack, [](SmallCall& c) { c.tensors.leftpad_k = int32(tables().leftpad); },
            {"leftpad_k is given beside cu_seqlens_k"}),
        bad("MaxMissing", pack, [](SmallCall& c) { c.options.max_seqlen_q = -1; },
            {"max_seqlen_q is -1", "q is packed"}),
        bad("MaxKMissing", pack, [](SmallCall& c) { c.options.max_seqlen_k = -1; },
            {"max_seqlen_k is -1", "k is packed"}),
        bad("MaxRange", pack, [](SmallCall& c) { c.options.max_seqlen_q = int64_t{1} << 31; },
            {"max_seqlen_q is 2147483648", "to 2147483647"}),
        bad("MaxNegative", pack, [](SmallCall& c) { c.options.max_seqlen_k = -2; },
            {"max_seqlen_k is -2", "-1"}),
        bad("MaxOfShape", pad, [](SmallCall& c) { c.options.max_seqlen_q = 4; },
            {"max_seqlen_q is 4", "5 is accepted"}),
        bad("MaxOverRows", pad, [](SmallCall& c) { c.options.max_seqlen_k = 8; },
            {"max_seqlen_k is 8", "up to 7"}),
        bad("UsedShape", pad, [](SmallCall& c) { c.tensors.seqlens_k.shape[3] = 3; },
            {"seqlens_k.shape", "[1, 1, 1, batch]"}),
        bad("TableShape", page, [](SmallCall& c) { c.tensors.block_table.shape[2] = 1; },
            {"block_table.shape", "[1, 1, batch, max_pages]"}),
        bad("PageSize", page, [](SmallCall& c) { c.tensors.k.shape[1] = c.tensors.v.shape[1] = 0; },
            {"k.shape", "page_size must be at least 1"}),
        bad("TableTooLong", page,
            [](SmallCall& c) {
              c.tensors.block_table.shape[3] = int64_t{1} << 32;
              c.tensors.block_table.strides[2] = int64_t{1} << 32;
            },
            {"block_table.shape", "up to 2147483647 keys"}),
        bad("PagesOfV", page, [](SmallCall& c) { c.tensors.v.shape[0] = 13; },
            {"v.shape", "[num_pages, page_size"})),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Values, SequenceErrors,
    ::testing::Values(
        bad("CuNegative", pack, [](SmallCall&) { tables().cu_q[0] = -1; },
            {"cu_seqlens_q[0] is -1", "0 or above"}),
        bad("CuDescends", pack, [](SmallCall&) { tables().cu_q = {0, 5, 4}; },
            {"cu_seqlens_q[2] is 4", "at least 5"}),
        bad("CuTooLong", pack, [](SmallCall&) { tables().cu_q = {0, 4, 10}; },
            {"cu_seqlens_q[2] is 10", "sequence 1 would have 6 rows", "max_seqlen_q is 5"}),
        bad("CuPastTheEnd", pack, [](SmallCall&) { tables().cu_q = {2, 7, 11}; },
            {"cu_seqlens_q[2] is 11", "q has 10 rows"}),
        bad("CuKPastTheEnd", pack, [](SmallCall&) { tables().cu_k = {2, 9, 15}; },
            {"cu_seqlens_k[2] is 15", "k has 14 rows"}),
        bad("UsedNegative", pad, [](SmallCall&) { tables().used[1] = -3; },
            {"seqlens_k[1] is -3", "0 to 7"}),
        bad("UsedTooMany", pad, [](SmallCall&) { tables().used[0] = 8; },
            {"seqlens_k[0] is 8", "0 to 7"}),
        bad("UsedOverMax", pad, [](SmallCall& c) { c.options.max_seqlen_k = 6; },
            {"seqlens_k[0] is 7", "max_seqlen_k is 6"}),
        bad("LeftpadNegative", pad, [](SmallCall&) { tables().leftpad[1] = -1; },
            {"leftpad_k[1] is -1", "0 to 3"}),
        bad("LeftpadPastTheEnd", pad, [](SmallCall&) { tables().leftpad[1] = 4; },
            {"leftpad_k[1] is 4", "0 to 3"}),
        bad("PageNegative", page, [](SmallCall&) { tables().pages[2] = -1; },
            {"block_table[0, 2] is -1", "0 to 13"}),
        bad("PageTooBig", page, [](SmallCall&) { tables().pages[8] = 14; },
            {"block_table[1, 1] is 14", "0 to 13"}),
        bad("TableMisaligned", pad,
            [](SmallCall& c) {
              c.tensors.seqlens_k.data = reinterpret_cast<char*>(tables().used.data()) + 1;
            },
            {"seqlens_k.data is", "divisible by the 4 bytes"}),
        bad("TableNull", pad, [](SmallCall& c) { c.tensors.seqlens_k.data = nullptr; },
            {"seqlens_k.data is null"})),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Sequences, PagesThatNoKeyIsInAreNotLookedAt) {
  SmallCall call;
  page(call);
  tables().used = {4, 2};
  tables().leftpad = {2, 0};
  tables().pages = {-9, 99, 2, 3, -9, -9, -9, 7, 8, 99, 99, 99, 99, 99};
  EXPECT_TRUE(attention(call.tensors, call.options).ok());
  EXPECT_FALSE(call.untouched());
}

TEST(Sequences, ProblemSaysThemAndTellsThemApart) {
  SmallCall packed, padded, paged, plain;
  pack(packed);
  packed.tensors.lse = {};
  pad(padded);
  page(paged);
  const Problem a = make_problem(packed.tensors, packed.options).value(),
                b = make_problem(padded.tensors, padded.options).value();
  const Problem c = make_problem(paged.tensors, paged.options).value(),
                d = make_problem(plain.tensors, plain.options).value();
  EXPECT_NE(to_string(a).find("b=2 sq=5 sk=7"), std::string::npos) << to_string(a);
  EXPECT_NE(to_string(a).find("packed_q=10 packed_k=14"), std::string::npos) << to_string(a);
  EXPECT_NE(to_string(b).find("padded_k=7 seqlens_k leftpad_k"), std::string::npos) << to_string(b);
  EXPECT_NE(to_string(c).find("pages=7x1 of 14 seqlens_k leftpad_k"), std::string::npos)
      << to_string(c);
  const Problem* all[] = {&a, &b, &c, &d};
  for (const Problem* x : all) {
    for (const Problem* y : all) {
      EXPECT_EQ(*x == *y, x == y);
      EXPECT_EQ(hash_value(*x) == hash_value(*y), x == y);
    }
  }
  EXPECT_EQ(a.flops(), d.flops());
  EXPECT_EQ(a.bytes(), d.bytes());
  packed.options.causal = Causal::top_left;
  const Problem top_left = make_problem(packed.tensors, packed.options).value();
  packed.options.causal = Causal::bottom_right;
  EXPECT_NE(top_left, make_problem(packed.tensors, packed.options).value());
}

TEST(Sequences, KernelsWithoutThemSaySo) {
  SmallCall call;
  page(call);
  int refused = 0;
  const Result<std::vector<Candidate>> all =
      candidates(make_problem(call.tensors, call.options).value(), "cpu");
  for (const Candidate& one : all.value()) {
    if (one.kernel != "cpu.standard.blas") continue;
    ++refused;
    EXPECT_FALSE(one.support.yes);
    EXPECT_NE(one.support.reason.find("different lengths"), std::string::npos)
        << one.support.reason;
  }
  EXPECT_EQ(refused, 1);
}

TEST(Sequences, CachesAndBiasesHaveNoGradients) {
  SmallCall call;
  call.with_gradients();
  pad(call);
  Status status = attention_backward(call.tensors, call.options);
  EXPECT_NE(status.message().find("seqlens_k is given: the backward pass takes packed sequences"),
            std::string::npos);
  call.tensors.seqlens_k = call.tensors.leftpad_k = {};
  pack_k(call);
  status = attention_backward(call.tensors, call.options);
  call.tensors.dk =
      Tensor::bshd(call.dk.data(), DType::fp32, 1, 14, SmallCall::kKvHeads, SmallCall::kDim);
  call.tensors.dv =
      Tensor::bshd(call.dv.data(), DType::fp32, 1, 14, SmallCall::kKvHeads, SmallCall::kDim);
  status = attention_backward(call.tensors, call.options);
  EXPECT_NE(status.message().find("dbias is given beside cu_seqlens"), std::string::npos)
      << status.message();
  call.tensors.dbias = {};
  call.tensors.dk.shape = {2, 7, 2, 8};
  status = attention_backward(call.tensors, call.options);
  EXPECT_NE(status.message().find("dk.shape is [2, 7, 2, 8]: [1, total_k"), std::string::npos)
      << status.message();
  EXPECT_TRUE(call.gradients_untouched());
  call.tensors.dk.shape = {1, 14, 2, 8};
  EXPECT_TRUE(attention_backward(call.tensors, call.options).ok());
}

TEST(Sequences, ThroughC) {
  SmallCall cpp, c;
  cpp.vary();
  c.vary();
  page(cpp);
  cpp.options.max_seqlen_k = 7;
  cpp.options.kernel = "cpu.reference.double";
  const Status status = attention(cpp.tensors, cpp.options);
  ASSERT_TRUE(status.ok()) << status.message();
  page(c);
  const fulmen_tensors t = testing::views(c);
  fulmen_options options;
  fulmen_options_init(&options);
  options.kernel = "cpu.reference.double";
  options.max_seqlen_k = 7;
  ASSERT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(cpp.out, c.out);
  fulmen_problem_info info{sizeof info, 0, 0, 0, nullptr};
  ASSERT_EQ(fulmen_describe(&t, &options, &info), FULMEN_OK);
  EXPECT_EQ(info.text, to_string(make_problem(cpp.tensors, cpp.options).value()));
  std::vector<double> out(c.out.size());
  ASSERT_EQ(fulmen_reference(&t, &options, out.data(), nullptr), FULMEN_OK);
  EXPECT_EQ(fulmen_check_sequences(&t, &options), FULMEN_OK) << fulmen_last_error();
  fulmen_tensors no_table = t;
  no_table.block_table.data = nullptr;
  EXPECT_EQ(fulmen_check_sequences(&no_table, &options), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(fulmen_last_error(), "block_table.data is null: a pointer is needed");
  tables().pages[0] = 99;
  EXPECT_EQ(fulmen_check_sequences(&t, &options), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("block_table[0, 0] is 99"), std::string::npos)
      << fulmen_last_error();
  EXPECT_EQ(fulmen_reference(&t, &options, out.data(), nullptr), FULMEN_INVALID_ARGUMENT);
  options.max_seqlen_k = 6;
  EXPECT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("max_seqlen_k is 6"), std::string::npos)
      << fulmen_last_error();
}

// A user's backend is asked only where it says that it knows them, and then sees what the caller
// gave.
TEST(Sequences, UsersBackendsThroughC) {
  struct Seen {
    int pages = 0;
    int64_t max_seqlen_k = 0, columns = 0;
  };
  static Seen seen;
  fulmen_backend backend{};
  backend.struct_size = sizeof backend;
  backend.rank = 1;
  backend.run = [](void*, void*, const fulmen_tensors* t, const fulmen_options* o) {
    seen = {static_cast<const int*>(t->block_table.data)[1], o->max_seqlen_k,
            t->block_table.shape[3]};
    return 0;
  };
  backend.name = "sequences_none";
  backend.kernel_name = "sequences_none.kernel";
  ASSERT_EQ(fulmen_register_backend(&backend), FULMEN_OK) << fulmen_last_error();
  backend.name = "sequences_all";
  backend.kernel_name = "sequences_all.kernel";
  backend.features = FULMEN_FEATURE_VARIABLE_LENGTHS | FULMEN_FEATURE_PAGED;
  ASSERT_EQ(fulmen_register_backend(&backend), FULMEN_OK) << fulmen_last_error();
  SmallCall call;
  page(call);
  EXPECT_EQ(attention(call.tensors, call.options, "sequences_none").code(),
            StatusCode::unsupported);
  ASSERT_TRUE(attention(call.tensors, call.options, "sequences_all").ok());
  EXPECT_EQ(seen.pages, 1);
  EXPECT_EQ(seen.max_seqlen_k, 7);
  EXPECT_EQ(seen.columns, 7);
}

constexpr int64_t kMostLength = 2147483647;

// The tables that pack() made last, for a call that it packed before.
void take_tables(SmallCall& c) {
  c.tensors.cu_seqlens_q = int32(tables().cu_q);
  c.tensors.cu_seqlens_k = int32(tables().cu_k);
}

// The bytes that each kernel of the CPU asks for.
std::vector<std::size_t> workspaces(const Problem& problem) {
  std::vector<std::size_t> bytes;
  const Result<std::vector<Candidate>> all = candidates(problem, "cpu");
  for (const Candidate& one : all.value()) {
    if (!one.support.yes) continue;
    const Result<Plan> planned = plan(problem, "cpu", {.kernel = one.kernel, .num_threads = 2});
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    if (planned.ok()) bytes.push_back(planned->workspace_bytes());
  }
  return bytes;
}

// A max_seqlen beyond the rows of the packed tensors costs nothing, in any kernel, the oracle and
// the rule.
TEST(Sequences, MemoryFollowsTheRowsThatThereAre) {
  SmallCall most, exact;
  for (SmallCall* c : {&most, &exact}) {
    c->vary();
    c->with_everything();
    pack(*c);
    c->tensors.bias = c->tensors.keep_mask = {};
    c->options.max_seqlen_q = c == &most ? kMostLength : 10;
    c->options.max_seqlen_k = c == &most ? kMostLength : 14;
  }
  take_tables(most);
  const Problem problem = make_problem(most.tensors, most.options).value();
  const std::vector<std::size_t> needed = workspaces(problem);
  EXPECT_GT(needed.size(), 3U);
  EXPECT_EQ(needed, workspaces(make_problem(exact.tensors, exact.options).value()));
  for (const char* kernel : {"", "cpu.standard.plain", "cpu.reference.double"}) {
    most.options.kernel = kernel;
    const Status status = attention(most.tensors, most.options, "cpu");
    ASSERT_TRUE(status.ok()) << kernel << ": " << status.message();
    const VerifyReport report = verify_result(problem, most.tensors);
    EXPECT_TRUE(report.ok) << report.message;
  }
  std::vector<double> out(most.out.size(), 0), lse(most.lse.size(), 0);
  EXPECT_TRUE(attention_reference(problem, most.tensors, out.data(), lse.data()).ok());
  for (const double x : out) EXPECT_EQ(x, x);

  for (SmallCall* c : {&most, &exact}) {
    c->options.kernel.clear();
    c->tensors.dout = c->tensors.dq = c->tensors.out;
    c->tensors.dout.data = c->dout.data();
    c->tensors.dq.data = c->dq.data();
    c->tensors.dk = c->tensors.k;
    c->tensors.dv = c->tensors.v;
    c->tensors.dk.data = c->dk.data();
    c->tensors.dv.data = c->dv.data();
  }
  const Problem backward = make_backward_problem(most.tensors, most.options).value();
  const std::vector<std::size_t> gradients = workspaces(backward);
  EXPECT_GT(gradients.size(), 1U);
  EXPECT_EQ(gradients, workspaces(make_backward_problem(exact.tensors, exact.options).value()));
  for (const char* kernel : {"", "cpu.standard.backward", "cpu.reference.backward"}) {
    most.options.kernel = kernel;
    const Status status = attention_backward(most.tensors, most.options, "cpu");
    if (status.code() == StatusCode::unsupported) continue;  // no BLAS
    ASSERT_TRUE(status.ok()) << kernel << ": " << status.message();
    const VerifyReport report = verify_result(backward, most.tensors);
    EXPECT_TRUE(report.ok) << report.message;
  }
}

// max_seqlen gives the shapes of bias and keep_mask, and that of dropout's mask.
TEST(Sequences, ScoreTensorsGoByMaxSeqlen) {
  SmallCall wide, narrow;
  std::vector<float> bias(std::size_t{20} * 30);
  for (std::size_t n = 0; n < bias.size(); ++n) bias[n] = static_cast<float>(n % 7);
  for (SmallCall* c : {&wide, &narrow}) {
    c->vary();
    pack(*c);
    c->options.max_seqlen_q = 20;
    c->options.max_seqlen_k = 30;
    c->tensors.bias = Tensor::bhqk(bias.data(), DType::fp32, 1, 1, 20, 30);
    if (c == &wide) continue;
    c->options.max_seqlen_q = 5;
    c->options.max_seqlen_k = 7;
    c->tensors.bias.shape = {1, 1, 5, 7};
  }
  take_tables(wide);
  ASSERT_TRUE(attention(wide.tensors, wide.options, "cpu").ok());
  ASSERT_TRUE(attention(narrow.tensors, narrow.options, "cpu").ok());
  EXPECT_EQ(wide.out, narrow.out);
  wide.tensors.bias.shape = {1, 1, 10, 14};
  const Status status = attention(wide.tensors, wide.options, "cpu");
  EXPECT_NE(status.message().find("bias.shape is [1, 1, 10, 14]"), std::string::npos)
      << status.message();

  wide.tensors.bias = {};
  const fulmen_tensors t = testing::views(wide);
  fulmen_options options;
  fulmen_options_init(&options);
  options.max_seqlen_q = 20;
  options.max_seqlen_k = 30;
  options.dropout = 0.5F;
  std::vector<uint8_t> keep(2 * SmallCall::kHeads * 20 * 30, 2);
  ASSERT_EQ(fulmen_dropout_mask(&t, &options, keep.data()), FULMEN_OK) << fulmen_last_error();
  for (const uint8_t one : keep) EXPECT_LT(one, 2);
}

// An empty keep_mask may be null: no offset is added to it (the sanitizer says so).
TEST(Sequences, EmptyKeepMasksMayBeNull) {
  SmallCall call;
  call.tensors.k.shape[1] = call.tensors.v.shape[1] = 0;
  call.tensors.keep_mask = {nullptr, DType::boolean, {2, 4, 5, 0}, {60, 15, 3, 1}};
  for (const char* kernel : {"cpu.standard.plain", "cpu.reference.double"}) {
    call.options.kernel = kernel;
    const Status status = attention(call.tensors, call.options, "cpu");
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(Sequences, ReferencesRefuseBadValues) {
  SmallCall call;
  pack(call);
  const Problem problem = make_problem(call.tensors, call.options).value();
  tables().cu_k = {0, 8, 14};
  EXPECT_FALSE(check_sequences(problem, call.tensors).ok());
  const VerifyReport report = verify_result(problem, call.tensors);
  EXPECT_FALSE(report.ok);
  EXPECT_NE(report.message.find("cu_seqlens_k[1] is 8"), std::string::npos);
  std::vector<double> out(call.out.size(), 0);
  const Status status = attention_reference(problem, call.tensors, out.data(), nullptr);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("cu_seqlens_k[1] is 8"), std::string::npos) << status.message();
  for (const double x : out) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace fulmen
