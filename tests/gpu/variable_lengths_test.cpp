// Sequences of different lengths, and keys and values in pages, by every GPU kernel that takes
// them. Each combination of features is a kernel to compile: these tests share a few.
#include <algorithm>

#include "gpu/family_coverage.h"
#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuVariableLengths : public GpuTest {};

CaseSpec ragged_spec(DType dtype, int64_t head_dim, Random& random) {
  CaseSpec s = small_spec(dtype, head_dim, random);
  s.batch = random.between(2, 4);
  s.num_kv_heads = random.between(1, 2);
  s.num_heads = s.num_kv_heads * random.between(1, 2);
  s.seqlen_q = random.between(20, 80);
  s.seqlen_k = random.between(40, 99);
  return s;
}

TEST_P(GpuVariableLengths, Packed) {
  Random random(7800);
  CaseSpec s = ragged_spec(DType::bf16, 64, random);
  s.packed_q = s.packed_k = true;
  s.causal = Causal::bottom_right;
  EXPECT_GT(expect_all_verified(s, random), 0);
  EXPECT_GT(expect_all_verified(s, random, 1), 0);
  s.seqlen_q = 1;  // decode: most sequences have a query, some have none
  s.seqlen_k = random.between(600, 1100);
  EXPECT_GT(expect_all_verified(s, random), 0);

  s = ragged_spec(DType::fp16, 40, random);
  s.packed_q = true;
  s.used_k = s.leftpad_k = true;
  s.head_dim_v = 59;
  s.layout = Layout::odd_strides;
  s.window_left = random.between(0, 30);
  s.window_right = random.between(0, 30);
  s.softcap = 20;
  s.sinks = true;
  s.alibi = 2;
  EXPECT_GT(expect_all_verified(s, random), 0);

  s = ragged_spec(DType::bf16, 96, random);
  s.packed_k = true;
  s.keep = s.nan_in_masked = true;
  s.bias = true;
  s.bias_dtype = DType::bf16;
  s.dropout = 0.3F;
  EXPECT_GT(expect_all_verified(s, random), 0);

  s = ragged_spec(DType::fp32, 80, random);
  s.packed_q = s.packed_k = true;
  s.causal = Causal::top_left;
  s.dropout = 0.2F;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

// Tiles in a page each, in several, and pages of a size that only the arguments say.
TEST_P(GpuVariableLengths, PagesOfAnySize) {
  Random random(7810);
  for (const int64_t page : {1, 16, 17, 64, 192, 256}) {
    CaseSpec s = ragged_spec(DType::bf16, 64, random);
    s.page_size = page;
    s.used_k = page != 64;
    s.packed_q = random.chance(0.5);
    // A window that begins inside a tile: rows before it hold NaN and must not affect results.
    s.window_left = random.between(0, 20);
    s.window_right = random.between(0, 20);
    s.nan_in_masked = true;
    EXPECT_GT(expect_all_verified(s, random), 0);
    s.seqlen_q = random.between(1, 3);
    s.seqlen_k = random.between(150, 300);
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
}

TEST_P(GpuVariableLengths, PagesWithFeatures) {
  Random random(7820);
  CaseSpec s = ragged_spec(DType::fp16, 128, random);
  s.page_size = 64;
  s.used_k = s.leftpad_k = true;
  s.nan_in_masked = true;
  EXPECT_GT(expect_all_verified(s, random), 0);

  s = ragged_spec(DType::bf16, 72, random);
  s.page_size = 32;
  s.layout = Layout::odd_strides;
  s.used_k = true;
  s.keep = s.nan_in_masked = true;
  s.bias = true;
  s.alibi = 1;
  s.softcap = 10;
  s.causal = Causal::bottom_right;
  s.window_left = random.between(0, 20);
  EXPECT_GT(expect_all_verified(s, random), 0);

  s = ragged_spec(DType::fp32, 48, random);
  s.page_size = 8;
  s.used_k = s.leftpad_k = s.packed_q = true;
  s.window_left = random.between(0, 20);
  s.dropout = 0.2F;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

CaseSpec backward_of(DType dtype, int64_t head_dim, Random& random) {
  CaseSpec s = ragged_spec(dtype, head_dim, random);
  s.backward = s.packed_q = s.packed_k = true;
  s.batch = random.between(2, 3);
  return s;
}

TEST_P(GpuVariableLengths, Gradients) {
  Random random(7830);
  CaseSpec s = backward_of(DType::bf16, 64, random);
  s.causal = Causal::bottom_right;
  s.sinks = s.dlse = true;
  EXPECT_GT(expect_all_verified(s, random), 0);
  s.packed_k = false;
  EXPECT_GT(expect_all_verified(s, random), 0);
  s.packed_k = true;
  s.packed_q = false;
  s.causal = Causal::top_left;
  EXPECT_GT(expect_all_verified(s, random), 0);

  s = backward_of(DType::fp16, 40, random);
  s.layout = Layout::odd_strides;
  s.window_left = random.between(0, 30);
  s.window_right = random.between(0, 30);
  s.softcap = 20;
  s.alibi = 2;
  s.dropout = 0.3F;
  s.keep = s.nan_in_masked = s.bias = true;
  s.gradients = {true, true, true, false, true};  // a bias has none here
  EXPECT_GT(expect_all_verified(s, random), 0);

  s = backward_of(DType::fp32, 48, random);
  s.causal = Causal::bottom_right;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

// options.verify copies tables, too.
TEST_P(GpuVariableLengths, VerifiesItself) {
  Random random(7860);
  for (const bool paged : {false, true}) {
    CaseSpec s = ragged_spec(DType::bf16, 64, random);
    s.causal = Causal::bottom_right;
    s.packed_q = true;
    s.packed_k = !paged;
    s.used_k = paged;
    s.page_size = paged ? 16 : 0;
    Case c(s, random);
    AttentionOptions options = c.options;
    options.verify = true;
    const Result<Plan> planned = plan(c.problem(), device(), options);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    const Status status = run_kernel(c, planned->config().kernel, options, Where{device()});
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(GpuVariableLengths, EachFamilyTakesThem) {
  Random random(7850);
  for (const bool paged : {false, true}) {
    const auto spec = [&](const Use& use) {
      CaseSpec s = ragged_spec(use.dtype, 64, random);
      s.seqlen_q = use.seqlen_q;
      s.seqlen_k = use.seqlen_k;
      s.backward = use.backward;
      // Decode by the TMA takes no packed queries.
      s.packed_q = use.seqlen_q > 1;
      s.packed_k = s.packed_q && !paged;
      s.page_size = paged ? 64 : 0;
      s.used_k = !s.packed_k;
      return s;
    };
    std::vector<Use> uses{
        {1, 300}, {1, 2000}, {64, 64}, {200, 200}, {200, 200, false, true, DType::fp32}};
    if (!paged)
      uses.insert(uses.end(), {{70, 70, true},
                               {200, 200, true},
                               {200, 200, true, false},
                               {200, 200, true, true, DType::fp32}});
    const auto asked = [&](const gpu::Family& family) {
      return family.variable_lengths() && (!paged || family.pass() == Pass::forward);
    };
    EXPECT_EQ(idle_families(device(), uses, spec, random, asked), "")
        << (paged ? "paged" : "packed");
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuVariableLengths,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);

}  // namespace
}  // namespace fulmen::testing
