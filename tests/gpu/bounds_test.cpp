// Tables in a device's own memory are checked only on request. Whatever they hold, no kernel reads
// or writes outside the tensors, and rows that would need missing rows or pages are NaN. validate
// names the mistake. Memory use follows the rows that exist.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fulmen/kv_cache.h"
#include "gpu/gpu_devices.h"
#include "plan/registry.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr int kLeast = -2147483647 - 1, kMost = 2147483647;

class GpuBounds : public GpuTest {
 protected:
  static void expect_no_access_outside(const CaseSpec& s, std::set<std::string>& served,
                                       Random& random);
};

CaseSpec spec_of(int64_t seqlen_q, int64_t seqlen_k, Random& random) {
  CaseSpec s = small_spec(DType::bf16, 64, random);
  s.batch = 3;
  s.num_kv_heads = 1;
  s.num_heads = 2;
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  s.causal = Causal::bottom_right;
  return s;
}

// A way to spoil a table: returns its element n.
using Spoil = std::function<int(int64_t n, int number, Random& random)>;
const std::vector<Spoil>& spoils() {
  static const std::vector<Spoil> all{
      [](int64_t, int, Random&) { return kLeast; },
      [](int64_t, int, Random&) { return kMost; },
      [](int64_t n, int, Random&) { return n % 2 == 0 ? kLeast : kMost; },
      [](int64_t n, int, Random&) { return static_cast<int>(1000 - 300 * n); },  // descending
      [](int64_t n, int number, Random&) { return number + static_cast<int>(40 * n); },
      [](int64_t, int number, Random&) { return -1 - number; },
      [](int64_t, int number, Random& random) {
        return random.chance(0.5) ? number
                                  : random.pick({kLeast, kLeast + 1, -1, 1000, kMost - 1, kMost,
                                                 number / 2, number + 40});
      }};
  return all;
}

void spoil(const Tensor& tensor, const Spoil& how, Random& random) {
  if (tensor.data == nullptr) return;
  for (int64_t row = 0; row < tensor.shape[2]; ++row) {
    for (int64_t column = 0; column < tensor.shape[3]; ++column) {
      int& number = static_cast<int*>(tensor.data)[row * tensor.strides[2] + column];
      number = how(row * tensor.shape[3] + column, number, random);
    }
  }
}

constexpr std::array kTables{&AttentionTensors::cu_seqlens_q, &AttentionTensors::cu_seqlens_k,
                             &AttentionTensors::seqlens_k, &AttentionTensors::leftpad_k,
                             &AttentionTensors::block_table};

// Every kernel that takes the case, with all tables spoilt, or one of them.
void GpuBounds::expect_no_access_outside(const CaseSpec& s, std::set<std::string>& served,
                                         Random& random) {
  for (const Spoil& how : random.sample(spoils(), 3)) {
    Case c(s, random);
    c.options.deterministic = !s.backward;
    const std::size_t alone = static_cast<std::size_t>(random.between(0, 2 * kTables.size()));
    for (std::size_t n = 0; n < kTables.size(); ++n) {
      const bool absent = alone < kTables.size() && (c.tensors.*kTables[alone]).data == nullptr;
      if (absent || alone >= kTables.size() || alone == n)
        spoil(c.tensors.*kTables[n], how, random);
    }
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      served.insert(kernel);
      if (!runs_here(kernel)) continue;
      const Status status = run_kernel(c, kernel, Where{device()});
      EXPECT_TRUE(status.ok()) << kernel << ": " << status.message() << "\n" << to_string(s);
    }
  }
}

TEST_P(GpuBounds, ForwardStaysInside) {
  Random random(own_stream(7950));
  std::set<std::string> served;
  for (const auto& [seqlen_q, seqlen_k] : {std::pair<int64_t, int64_t>{70, 90}, {1, 600}}) {
    CaseSpec s = spec_of(seqlen_q, seqlen_k, random);
    s.packed_q = s.packed_k = true;
    expect_no_access_outside(s, served, random);
    s.packed_k = false;
    s.used_k = s.leftpad_k = true;
    expect_no_access_outside(s, served, random);
    s.page_size = 16;
    expect_no_access_outside(s, served, random);
    s.leftpad_k = s.packed_q = false;
    s.page_size = 64;  // tiles in a page each
    expect_no_access_outside(s, served, random);
  }
  EXPECT_GE(served.size(), 4U) << "families that take sequences of different lengths";
}

// How many rows of a result are not what is expected: sequence 0's as they were, sequence 1's from
// `first_row` on NaN and before that NaN or as they were, all of sequence 2's NaN.
int wrong_rows(const CaseSpec& s, int64_t first_row, const std::vector<float>& now,
               const std::vector<float>& before, bool is_lse) {
  int wrong = 0;
  for (std::size_t n = 0; n < now.size(); ++n) {
    const auto at = static_cast<int64_t>(n) / (is_lse ? 1 : s.num_heads * s.head_dim_v);
    const int64_t row = at % s.seqlen_q, b = at / s.seqlen_q / (is_lse ? s.num_heads : 1);
    const bool needs = b == 2 || (b == 1 && row >= first_row), may = b == 1;
    const bool as_before = now[n] == before[n] || (std::isnan(now[n]) && std::isnan(before[n]));
    wrong += needs ? !std::isnan(now[n]) : !as_before && !(may && std::isnan(now[n]));
  }
  return wrong;
}

TEST_P(GpuBounds, WhatIsNotThereIsNan) {
  Random random(own_stream(7954));
  std::set<std::string> served;
  // Pages as tiles in a page each, and as rows anywhere; few and many queries; what one wave takes
  // whole.
  for (const auto& [seqlen_q, seqlen_k, page_size] :
       {std::tuple<int64_t, int64_t, int64_t>{20, 50, 16},
        {20, 50, 64},
        {1, 300, 16},
        {1, 300, 64},
        {20, 100, 128}}) {
    CaseSpec s = spec_of(seqlen_q, seqlen_k, random);
    s.used_k = s.even_lengths = true;
    s.page_size = page_size;
    Case c(s, random);
    const Tensor& table = c.tensors.block_table;
    const int64_t column = random.between(0, (seqlen_k - 1) / page_size), stride = table.strides[2];
    int& page = static_cast<int*>(table.data)[stride + column];
    int& used = static_cast<int*>(c.tensors.seqlens_k.data)[2];
    const int right_page = page, right_used = used,
              num_pages = static_cast<int>(c.tensors.k.shape[0]);
    const int capacity = static_cast<int>(table.shape[3] * page_size);
    // Row i attends keys up to i + seqlen_k - seqlen_q.
    const int64_t first_row = std::max<int64_t>(0, column * page_size - (seqlen_k - seqlen_q));
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      served.insert(kernel);
      if (!runs_here(kernel)) continue;
      ASSERT_TRUE(verified(c, kernel, Where{device()}));
      const std::vector<float> out = c.out_values(), lse = c.lse_values();
      page = random.pick({-1, kLeast, num_pages, kMost});
      used = random.pick({capacity + 1, kMost, -1, kLeast});
      const std::string what = kernel + ", page " + std::to_string(page) + ", seqlens_k " +
                               std::to_string(used) + ", " + to_string(s);
      const Status status = run_kernel(c, kernel, Where{device()});
      page = right_page;
      used = right_used;
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(wrong_rows(s, first_row, c.out_values(), out, false), 0) << what;
      EXPECT_EQ(wrong_rows(s, first_row, c.lse_values(), lse, true), 0) << what;
    }
  }
  EXPECT_GE(served.size(), 3U);
}

TEST_P(GpuBounds, BackwardStaysInside) {
  Random random(own_stream(7951));
  std::set<std::string> served;
  CaseSpec s = spec_of(70, 90, random);
  s.backward = s.packed_q = s.packed_k = true;
  expect_no_access_outside(s, served, random);
  s.packed_k = false;
  expect_no_access_outside(s, served, random);
  EXPECT_GE(served.size(), 2U);
}

TEST_P(GpuBounds, ValidateNamesTensorIndexAndValue) {
  Random random(own_stream(7952));
  CaseSpec s = spec_of(20, 40, random);
  s.packed_q = s.used_k = true;
  s.page_size = 16;
  for (const auto& [member, name, value] :
       {std::tuple{&AttentionTensors::block_table, "block_table[0, 0] is 2147483647", kMost},
        {&AttentionTensors::seqlens_k, "seqlens_k[0] is -1", -1},
        {&AttentionTensors::cu_seqlens_q, "cu_seqlens_q[0] is -2147483648", kLeast}}) {
    s.even_lengths = true;
    Case c(s, random);
    static_cast<int*>((c.tensors.*member).data)[0] = value;
    for (const bool asked : {true, false}) {
      AttentionOptions options = c.options;
      options.validate = asked;
      const std::string kernel = plan(c.problem(), device(), options)->config().kernel;
      const Status status = run_kernel(c, kernel, options, Where{device()});
      EXPECT_EQ(status.code(), asked ? StatusCode::invalid_argument : StatusCode::ok)
          << status.message();
      EXPECT_EQ(status.message().find(name) != std::string::npos, asked) << status.message();
    }
    ::setenv("FLASH_ATTENTION_VALIDATE", "1", 1);
    const Status status =
        run_kernel(c, plan(c.problem(), device())->config().kernel, Where{device()});
    ::unsetenv("FLASH_ATTENTION_VALIDATE");
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
  Case right(s, random);
  right.options.validate = true;
  const Status status =
      run_kernel(right, plan(right.problem(), device())->config().kernel, Where{device()});
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(GpuBounds, AppendKvValidates) {
  const auto backend = backend_of(device());
  constexpr int64_t kElements = 2 * 8 * 1 * 4;
  std::vector<float> zeros(kElements);
  std::vector<int> used{2, 3}, pages{1, kMost};
  std::vector<void*> owned;
  const auto place = [&](const void* data, std::size_t bytes) {
    owned.push_back(backend->allocate(device(), bytes));
    EXPECT_TRUE(backend->copy(device(), owned.back(), data, bytes).ok());
    return owned.back();
  };
  KvCacheTensors t;
  t.k_cache = Tensor::bshd(place(zeros.data(), 4 * kElements), DType::fp32, 2, 8, 1, 4);
  t.v_cache = Tensor::bshd(place(zeros.data(), 4 * kElements), DType::fp32, 2, 8, 1, 4);
  t.k_new = Tensor::bshd(place(zeros.data(), 4 * 8), DType::fp32, 2, 1, 1, 4);
  t.v_new = Tensor::bshd(place(zeros.data(), 4 * 8), DType::fp32, 2, 1, 1, 4);
  t.seqlens_k = {place(used.data(), 8), DType::int32, {1, 1, 1, 2}, {0, 0, 0, 1}};
  t.block_table = {place(pages.data(), 8), DType::int32, {1, 1, 2, 1}, {0, 0, 1, 1}};
  EXPECT_TRUE(append_kv(t, {}, device()).ok());
  Status status = append_kv(t, {.validate = true}, device());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("block_table[1, 0] is 2147483647: 0 to 1 are accepted"),
            std::string::npos)
      << status.message();
  used[0] = 8;
  EXPECT_TRUE(backend->copy(device(), t.seqlens_k.data, used.data(), 8).ok());
  ::setenv("FLASH_ATTENTION_VALIDATE", "1", 1);
  status = append_kv(t, {}, device());
  ::unsetenv("FLASH_ATTENTION_VALIDATE");
  EXPECT_NE(status.message().find("seqlens_k[0] is 8"), std::string::npos) << status.message();
  EXPECT_TRUE(backend->synchronize(device(), nullptr).ok());
  for (void* memory : owned) backend->free(device(), memory);
}

// The rows that packed tensors have bound what a kernel takes, not max_seqlen.
TEST_P(GpuBounds, MemoryFollowsTheRowsThatThereAre) {
  Random random(7953);
  for (const bool backward : {false, true}) {
    CaseSpec s = spec_of(16, 16, random);
    s.backward = backward;
    s.packed_q = s.packed_k = true;
    Case c(s, random);
    c.options.deterministic = !backward;
    std::vector<std::size_t> bytes[2];
    for (const bool most : {false, true}) {
      c.options.max_seqlen_q = most ? kMost : c.tensors.q.shape[1];
      c.options.max_seqlen_k = most ? kMost : c.tensors.k.shape[1];
      for (const std::string& kernel : kernels_for(c.problem(), device())) {
        AttentionOptions options = c.options;
        options.kernel = kernel;
        const Result<Plan> planned = plan(c.problem(), device(), options);
        ASSERT_TRUE(planned.ok()) << planned.status().message();
        bytes[most].push_back(planned->workspace_bytes());
        if (most) {
          EXPECT_TRUE(verified(c, kernel, Where{device()})) << kernel;
        }
      }
    }
    EXPECT_FALSE(bytes[0].empty());
    EXPECT_EQ(bytes[0], bytes[1]);
  }
}

std::vector<std::string> all_targets() {
  std::vector<std::string> names = gpu_devices(Chips::one_of_each_target);
  for (const std::string& chip : test_chips(has_warpgroups)) names.push_back("emulated:" + chip);
  return names;
}

INSTANTIATE_TEST_SUITE_P(On, GpuBounds, ::testing::ValuesIn(all_targets()), test_name);

}  // namespace
}  // namespace fulmen::testing
