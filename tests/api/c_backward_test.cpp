// The backward pass and dropout through the C ABI give what the C++ API gives, and grow without
// breaking callers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "c_views.h"
#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"
#include "small_call.h"

namespace fulmen {
namespace {

using testing::SmallCall;
using testing::views;

constexpr const char* kReference = "cpu.reference.backward";

fulmen_options options_with(float dropout, const char* kernel = kReference) {
  fulmen_options options;
  fulmen_options_init(&options);
  options.dropout = dropout;
  options.kernel = kernel;
  return options;
}

std::string last_error() { return fulmen_last_error(); }

TEST(CBackward, GivesWhatCppGives) {
  SmallCall cpp, c;
  for (SmallCall* call : {&cpp, &c}) {
    call->vary();
    call->options.softmax_scale = 0.7F;
    call->options.softcap = 3.0F;
    call->options.causal = Causal::top_left;
    call->options.window_left = 2;
    call->options.dropout = 0.25F;
    call->options.deterministic = false;
    call->tensors.dropout_seed = 7;
    call->tensors.dropout_offset = 3;
    call->with_gradients();
  }
  ASSERT_TRUE(attention_backward(cpp.tensors, cpp.options).ok());
  fulmen_options options = options_with(0.25F);
  options.softmax_scale = 0.7F;
  options.softcap = 3.0F;
  options.causal = FULMEN_CAUSAL_TOP_LEFT;
  options.window_left = 2;
  options.deterministic = false;
  fulmen_tensors t = views(c);
  ASSERT_EQ(fulmen_attention_backward(&t, &options, "cpu"), FULMEN_OK) << last_error();
  EXPECT_TRUE(cpp.dq == c.dq && cpp.dk == c.dk && cpp.dv == c.dv && cpp.dbias == c.dbias &&
              cpp.dsinks == c.dsinks);
  EXPECT_FALSE(SmallCall::poisoned(c.dq));
  const std::vector<float> dv = c.dv;
  t.dropout_seed = 8;
  ASSERT_EQ(fulmen_attention_backward(&t, &options, "cpu"), FULMEN_OK) << last_error();
  EXPECT_NE(c.dv, dv) << "the seed reaches the kernel";
}

TEST(CBackward, PlansExplainRunAndVerify) {
  SmallCall call;
  call.vary();
  call.with_gradients();
  const fulmen_tensors t = views(call);
  const fulmen_options options = options_with(0);
  fulmen_plan* plan = nullptr;
  ASSERT_EQ(fulmen_plan_create_backward(&t, &options, nullptr, &plan), FULMEN_OK) << last_error();
  EXPECT_NE(std::string(fulmen_plan_explain(plan))
                .find("not cpu.reference.double: it computes the forward pass"),
            std::string::npos)
      << fulmen_plan_explain(plan);
  fulmen_tensors no_dk = t;
  no_dk.dk.data = nullptr;
  EXPECT_EQ(fulmen_plan_run(plan, nullptr, &no_dk, nullptr, 0), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("dk.data is null"), std::string::npos) << last_error();
  EXPECT_TRUE(call.gradients_untouched());
  ASSERT_EQ(fulmen_plan_run(plan, nullptr, &t, nullptr, 0), FULMEN_OK) << last_error();
  fulmen_plan_destroy(plan);

  fulmen_verify_report report{};
  report.struct_size = sizeof report;
  ASSERT_EQ(fulmen_verify_backward(&t, &options, &report), FULMEN_OK) << last_error();
  EXPECT_TRUE(report.ok);
  EXPECT_EQ(report.tensor[0], 'd');
  call.dv[5] += 1;
  EXPECT_EQ(fulmen_verify_backward(&t, &options, &report), FULMEN_VERIFICATION_FAILED);
  EXPECT_STREQ(report.tensor, "dv");
  const std::size_t elements =
      call.dq.size() + call.dk.size() + call.dv.size() + call.dbias.size() + call.dsinks.size();
  EXPECT_EQ(report.elements, static_cast<int64_t>(elements));
  EXPECT_NEAR(report.mean_error, 1.0 / static_cast<double>(elements), 1e-6);
  std::vector<std::pair<std::string, bool>> seen;  // whether within its bound
  const auto visit = [](void* context, const char* tensor, double worst, double, double bound) {
    static_cast<std::vector<std::pair<std::string, bool>>*>(context)->emplace_back(tensor,
                                                                                   worst <= bound);
  };
  EXPECT_EQ(fulmen_visit_gradient_errors(&t, &options, visit, &seen), FULMEN_VERIFICATION_FAILED);
  ASSERT_GE(seen.size(), 3U);
  for (const auto& [tensor, within] : seen) EXPECT_EQ(within, tensor != "dv") << tensor;
  EXPECT_EQ(seen[0].first, "dq");
  EXPECT_EQ(fulmen_visit_gradient_errors(&t, &options, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_check_sequences_backward(&t, &options), FULMEN_OK) << last_error();
  EXPECT_EQ(fulmen_verify_backward(&t, &options, &report), FULMEN_VERIFICATION_FAILED);
  EXPECT_NE(last_error().find("dv[b, j, h, d] = [0, 0, 0, 5]"), std::string::npos) << last_error();
  EXPECT_EQ(fulmen_verify_backward(&no_dk, &options, &report), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "dk.data is null: a pointer is needed");
  EXPECT_EQ(fulmen_plan_create_backward(&t, &options, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
}

TEST(CBackward, ReferenceIsTheOracle) {
  SmallCall call;
  call.vary();
  call.with_gradients();
  call.tensors.dbias = Tensor::bhqk(nullptr, DType::fp32, 1, SmallCall::kHeads, SmallCall::kSeqlenQ,
                                    SmallCall::kSeqlenK);
  for (Tensor* tensor : {&call.tensors.dq, &call.tensors.dk, &call.tensors.out, &call.tensors.lse})
    tensor->data = nullptr;
  const fulmen_tensors t = views(call);
  const Problem problem = make_backward_problem(call.tensors, call.options).value();
  std::vector<double> dq(call.dq.size()), dk(call.dk.size()), dbias(call.bias.size() / 2),
      dsinks(4);
  std::vector<double> exact_dq(dq), exact_dbias(dbias), exact_dsinks(dsinks);
  ASSERT_EQ(fulmen_reference_backward(&t, nullptr, dq.data(), dk.data(), nullptr, dbias.data(),
                                      dsinks.data()),
            FULMEN_OK)
      << last_error();
  ASSERT_TRUE(attention_backward_reference(
                  problem, call.tensors,
                  {exact_dq.data(), nullptr, nullptr, exact_dbias.data(), exact_dsinks.data()})
                  .ok());
  EXPECT_EQ(dq, exact_dq);
  EXPECT_EQ(dbias, exact_dbias);
  for (std::size_t h = 0; h < dsinks.size(); ++h) EXPECT_NEAR(dsinks[h], exact_dsinks[h], 1e-12);
  EXPECT_TRUE(call.gradients_untouched());

  fulmen_tensors shapeless = t;
  shapeless.dk = {};
  EXPECT_EQ(
      fulmen_reference_backward(&shapeless, nullptr, nullptr, dk.data(), nullptr, nullptr, nullptr),
      FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(),
            "dk is given, tensors.dk is missing: its shape is needed, its data is not");
  fulmen_tensors no_dout = t;
  no_dout.dout.data = nullptr;
  EXPECT_EQ(
      fulmen_reference_backward(&no_dout, nullptr, dq.data(), nullptr, nullptr, nullptr, nullptr),
      FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "dout.data is null: a pointer is needed");
}

TEST(CBackward, DescribesItsProblem) {
  SmallCall call;
  call.with_gradients();
  const fulmen_tensors t = views(call);
  const fulmen_options options = options_with(0.5F);
  fulmen_problem_info forward{}, backward{};
  forward.struct_size = backward.struct_size = sizeof forward;
  ASSERT_EQ(fulmen_describe(&t, &options, &forward), FULMEN_OK) << last_error();
  ASSERT_EQ(fulmen_describe_backward(&t, &options, &backward), FULMEN_OK) << last_error();
  EXPECT_NE(forward.hash, backward.hash);
  EXPECT_EQ(backward.flops, 2.5 * forward.flops);
  EXPECT_EQ(std::string(backward.text).rfind("backward fp32", 0), 0U) << backward.text;
  EXPECT_NE(std::string(backward.text).find("dropout=0.5"), std::string::npos) << backward.text;
}

TEST(CBackward, CandidatesSayWhichPassTheyCompute) {
  SmallCall call;
  call.with_gradients();
  const fulmen_tensors t = views(call);
  struct Seen {
    int forward = 0, backward = 0;
  } seen;
  const auto visit = [](void* context, const char*, bool supported, const char* reason, double) {
    auto& counts = *static_cast<Seen*>(context);
    counts.forward += std::strcmp(reason, "it computes the forward pass") == 0 ? 1 : 0;
    counts.backward += supported ? 1 : 0;
  };
  ASSERT_EQ(fulmen_visit_candidates_backward(&t, nullptr, "cpu", visit, &seen), FULMEN_OK)
      << last_error();
  EXPECT_GE(seen.forward, 4);
  EXPECT_GE(seen.backward, 1);
  EXPECT_EQ(fulmen_visit_candidates_backward(&t, nullptr, "cpu", nullptr, nullptr),
            FULMEN_INVALID_ARGUMENT);
}

TEST(CBackward, OlderCallersKnowNoGradientsAndNoDropout) {
  SmallCall call;
  call.with_gradients();
  fulmen_tensors t = views(call);
  fulmen_options options = options_with(0.5F);
  // The structs as they were before there was a backward pass: bytes behind them are not read.
  t.struct_size = offsetof(fulmen_tensors, dout);
  std::memset(static_cast<void*>(&t.dout), 0xFF, sizeof t - offsetof(fulmen_tensors, dout));
  options.struct_size = offsetof(fulmen_options, dropout);
  options.kernel = nullptr;
  const std::vector<float> exact = call.out;
  ASSERT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_OK) << last_error();
  for (std::size_t i = 0; i < exact.size(); ++i)
    ASSERT_NEAR(call.out[i], exact[i], 1e-5F) << "no dropout";
  EXPECT_EQ(fulmen_attention_backward(&t, &options, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("dout is missing"), std::string::npos) << last_error();
  struct {
    fulmen_tensors known;
    int64_t unknown;
  } newer{views(call), 1};
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(fulmen_attention_backward(&newer.known, &options, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("tensors.struct_size"), std::string::npos) << last_error();
  fulmen_verify_report report{};
  report.struct_size = offsetof(fulmen_verify_report, tensor);
  report.tensor = "mine";
  EXPECT_EQ(fulmen_verify(&newer.known, nullptr, &report), FULMEN_INVALID_ARGUMENT);
  t = views(call);
  EXPECT_EQ(fulmen_verify(&t, nullptr, &report), FULMEN_OK) << last_error();
  EXPECT_STREQ(report.tensor, "mine");
}

TEST(CBackward, DropoutMaskIsTheOneThatKernelsUse) {
  SmallCall call;
  // Values of one are one row of the mask's sums: out = sum of what is kept, times 1 / (1 - p).
  std::fill(call.v.begin(), call.v.end(), 1.0F);
  fulmen_tensors t = views(call);
  t.dropout_seed = 1234;
  t.dropout_offset = 99;
  fulmen_options options = options_with(0.5F, nullptr);
  std::vector<uint8_t> keep(2 * 4 * 5 * 7, 9);
  ASSERT_EQ(fulmen_dropout_mask(&t, &options, keep.data()), FULMEN_OK) << last_error();
  const auto kept = std::count(keep.begin(), keep.end(), 1);
  EXPECT_EQ(kept + std::count(keep.begin(), keep.end(), 0),
            static_cast<std::ptrdiff_t>(keep.size()));
  EXPECT_GT(kept, 100);
  EXPECT_LT(kept, 180);
  ASSERT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_OK) << last_error();
  for (int row = 0; row < 2 * 5 * 4; ++row) {  // [batch, query, head]
    const int head_row = (row / 20 * 4 + row % 4) * 5 + row / 4 % 5;
    const auto ones = std::count(keep.begin() + head_row * 7, keep.begin() + (head_row + 1) * 7, 1);
    ASSERT_NEAR(call.out[static_cast<std::size_t>(row) * 8], 2.0 * static_cast<double>(ones) / 7,
                1e-5)
        << row;
  }
  EXPECT_EQ(fulmen_dropout_mask(&t, &options, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "keep is null: a pointer is needed");
  options.dropout = 1;
  EXPECT_EQ(fulmen_dropout_mask(&t, &options, keep.data()), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("dropout is 1:"), std::string::npos) << last_error();
}

// A backend that hands both passes to the reference, so that it is right, and counts.
struct Passes {
  int forward = 0, backward = 0;
};

fulmen_backend counting_backend(const char* name, Passes& counts) {
  fulmen_backend backend{};
  backend.struct_size = sizeof backend;
  backend.name = name;
  backend.kernel_name = name;
  backend.rank = 1;
  backend.context = &counts;
  backend.run = [](void* context, void*, const fulmen_tensors* t, const fulmen_options* given) {
    ++static_cast<Passes*>(context)->forward;
    fulmen_options options = *given;
    options.kernel = "cpu.reference.double";
    return fulmen_attention(t, &options, "cpu");
  };
  return backend;
}

void add_backward(fulmen_backend& backend, const char* kernel) {
  backend.backward_kernel_name = kernel;
  backend.run_backward = [](void* context, void*, const fulmen_tensors* t,
                            const fulmen_options* given) {
    ++static_cast<Passes*>(context)->backward;
    fulmen_options options = *given;
    options.kernel = kReference;
    return fulmen_attention_backward(t, &options, "cpu");
  };
}

TEST(CBackward, AUsersBackendIsForwardOnlyUnlessItSaysOtherwise) {
  static Passes counts;
  fulmen_backend forward = counting_backend("forward-only", counts);
  forward.struct_size = offsetof(fulmen_backend, backward_kernel_name);  // an older caller
  add_backward(forward, "behind what it says it knows");
  ASSERT_EQ(fulmen_register_backend(&forward), FULMEN_OK) << last_error();
  SmallCall call;
  call.vary();
  call.with_gradients();
  const fulmen_tensors t = views(call);
  EXPECT_EQ(fulmen_attention_backward(&t, nullptr, "forward-only"), FULMEN_UNSUPPORTED);
  EXPECT_NE(last_error().find("it computes the forward pass"), std::string::npos) << last_error();
  const fulmen_options dropout = options_with(0.5F, nullptr);
  EXPECT_EQ(fulmen_attention(&t, &dropout, "forward-only"), FULMEN_UNSUPPORTED);
  EXPECT_NE(last_error().find("it has no dropout"), std::string::npos) << last_error();
  EXPECT_EQ(counts.forward + counts.backward, 0);

  fulmen_backend both = counting_backend("both", counts);
  both.run_backward = forward.run_backward;
  EXPECT_EQ(fulmen_register_backend(&both), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "backend.backward_kernel_name is null: a pointer is needed");
  both.backward_kernel_name = "both.backward";
  both.run_backward = nullptr;
  EXPECT_EQ(fulmen_register_backend(&both), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "backend.run_backward is null: a pointer is needed");
  add_backward(both, "both.backward");
  both.dropout = both.atomics = true;
  both.supports = [](void*, const fulmen_tensors* shapes, const fulmen_options*, char*, size_t) {
    // Gradients only with a dbias summed over the batch.
    return shapes->dout.shape[0] == 0 || shapes->dbias.shape[0] == 1;
  };
  ASSERT_EQ(fulmen_register_backend(&both), FULMEN_OK) << last_error();
  EXPECT_EQ(fulmen_attention_backward(&t, nullptr, "both"), FULMEN_UNSUPPORTED);
  call.tensors.dbias = Tensor::bhqk(call.dbias.data(), DType::fp32, 1, 4, 5, 7);
  call.options.dropout = 0.25F;
  call.tensors.dropout_seed = 11;
  call.run_forward();
  const fulmen_tensors summed = views(call);
  fulmen_options options = options_with(0.25F, nullptr);
  EXPECT_TRUE(options.deterministic) << "the default";
  options.deterministic = false;
  ASSERT_EQ(fulmen_attention_backward(&summed, &options, "both"), FULMEN_OK) << last_error();
  EXPECT_EQ(counts.backward, 1);
  EXPECT_EQ(fulmen_verify_backward(&summed, &options, nullptr), FULMEN_OK) << last_error();
  options.deterministic = true;
  EXPECT_EQ(fulmen_attention_backward(&summed, &options, "both"), FULMEN_UNSUPPORTED);
  EXPECT_NE(last_error().find("it is not deterministic"), std::string::npos) << last_error();
  EXPECT_EQ(fulmen_attention(&summed, &options, "both"), FULMEN_OK)
      << "the forward pass adds nothing up: " << last_error();
}

TEST(CBackward, FlashAttnBackward) {
  static Passes counts;
  fulmen_backend backend = counting_backend("flash", counts);
  add_backward(backend, "flash.backward");
  ASSERT_EQ(fulmen_register_backend(&backend), FULMEN_OK) << last_error();
  ASSERT_EQ(fulmen_set_default_device("flash"), FULMEN_OK) << last_error();
  constexpr std::size_t kElements = 2 * 6 * 3 * 16;
  // Equal keys and queries: every weight is 1 / 6, so dv is the mean over queries, and dq is 0,
  // since all keys are the same.
  const std::vector<uint16_t> q(kElements, 0x3800), k(kElements, 0x3C00), v(kElements, 0x4000),
      out(v), dout(kElements, 0x3C00);
  std::vector<uint16_t> dq(kElements, 0x7E00), dk(dq), dv(dq);
  FlashAttnParams params{2, 6, 3, 16, false, 0.0F};
  const auto run = [&](void* to_dq, void* to_dk, void* to_dv) {
    return flash_attn_backward(dout.data(), q.data(), k.data(), v.data(), out.data(), to_dq, to_dk,
                               to_dv, &params);
  };
  ASSERT_EQ(run(dq.data(), nullptr, dv.data()), FULMEN_OK) << last_error();
  EXPECT_EQ(counts.forward, 1) << "for the log-sum-exp";
  EXPECT_EQ(counts.backward, 1);
  for (const uint16_t x : dq) ASSERT_EQ(x & 0x7FFF, 0);
  for (const uint16_t x : dv) ASSERT_EQ(x, 0x3C00);
  for (const uint16_t x : dk) ASSERT_EQ(x, 0x7E00) << "not asked for";
  params.is_causal = true;  // the first query attends the first key alone: 1 + 1/2 + ... + 1/6
  ASSERT_EQ(run(dq.data(), dk.data(), dv.data()), FULMEN_OK) << last_error();
  EXPECT_EQ(dv[0], 0x40E6);  // 2.45
  for (const uint16_t x : out) ASSERT_EQ(x, 0x4000) << "an input";

  EXPECT_EQ(run(nullptr, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("all missing"), std::string::npos) << last_error();
  const std::vector<uint16_t> before = dv;
  EXPECT_EQ(flash_attn_backward(nullptr, q.data(), k.data(), v.data(), out.data(), nullptr, nullptr,
                                dv.data(), &params),
            FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("dout.data is null"), std::string::npos) << last_error();
  EXPECT_EQ(flash_attn_backward(dout.data(), q.data(), k.data(), v.data(), dv.data(), nullptr,
                                nullptr, dv.data(), &params),
            FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("dv at"), std::string::npos) << last_error();
  EXPECT_EQ(dv, before);
  EXPECT_EQ(flash_attn_backward(dout.data(), q.data(), k.data(), v.data(), out.data(), nullptr,
                                nullptr, dv.data(), nullptr),
            FULMEN_INVALID_ARGUMENT);
  params.head_dim = SIZE_MAX;
  EXPECT_EQ(run(dq.data(), dk.data(), dv.data()), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_set_default_device(nullptr), FULMEN_OK);

  params.head_dim = 16;  // and by the CPU's own kernels
  std::fill(dk.begin(), dk.end(), 0x7E00);
  ASSERT_EQ(run(nullptr, dk.data(), dv.data()), FULMEN_OK) << last_error();
  EXPECT_NEAR(dv[0], 0x40E6, 1);
  for (const uint16_t x : dk)
    ASSERT_LT(x & 0x7FFF, 0x2000) << "0 but for rounding: all values are the same";
}

}  // namespace
}  // namespace fulmen
