// Every GPU kernel on emulated chips, and on the machine's GPU where it has one. Each combination
// of chip, dtype, head_dim and feature is a kernel of its own, compiled when first met: those of
// the fixed tables are kept in the build folder, and only AnyFeatures draws new ones.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gpu/family_coverage.h"
#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuKernels : public GpuTest {};

TEST_P(GpuKernels, Features) {
  Random random(7100);
  int runs = 0;
  const auto check = [&](const CaseSpec& s) { runs += expect_all_verified(s, random); };
  CaseSpec s = small_spec(DType::bf16, 64, random);
  check(s);

  s = small_spec(DType::fp16, 32, random);  // boards: bias a head, interleaved
  s.seqlen_q = s.seqlen_k = 64;
  s.bias = true;
  s.bias_dtype = DType::fp16;
  s.bias_broadcast = {true, false, false};
  check(s);

  s = small_spec(DType::bf16, 32, random);  // one tile of narrow heads, one buffer: the least steps
  s.seqlen_q = random.between(40, 64), s.seqlen_k = random.between(33, 64);
  check(s);

  s = small_spec(DType::bf16, 128, random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  check(s);

  s = small_spec(DType::fp16, 40, random);  // partial dims, rows of odd lengths
  s.head_dim_v = 59;
  s.layout = Layout::odd_strides;
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  check(s);

  s = small_spec(DType::bf16, 96, random);
  s.layout = random.pick({Layout::bhsd, Layout::sbhd});
  s.keep = true;
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
  s.nan_in_masked = true;
  s.alibi = static_cast<int>(random.between(1, 2));
  s.bias = true;
  s.bias_dtype = DType::fp32;
  check(s);

  s = small_spec(DType::fp32, 80, random);
  s.causal = Causal::bottom_right;
  s.sinks = true;
  check(s);
  EXPECT_GE(runs, 7);
}

TEST_P(GpuKernels, EachFamilyServesWhatItIsFor) {
  Random random(7105);
  const auto spec_of = [&](const Use& use) {
    CaseSpec s = small_spec(use.dtype, 64, random);
    s.seqlen_q = use.seqlen_q;
    s.seqlen_k = use.seqlen_k;
    s.backward = use.backward;
    s.precision = use.precision;
    if (use.seqlen_k == 64) s.num_kv_heads = s.num_heads;  // boards
    return s;
  };
  const std::vector<Use> uses{{1, 2000},
                              {64, 64},
                              {200, 200},
                              {64, 64, true},
                              {200, 200, true},
                              {200, 200, true, false},
                              {200, 200, false, true, DType::bf16, Precision::fp8},
                              {200, 200, false, true, DType::bf16, Precision::int8},
                              {200, 200, false, true, DType::fp32},
                              {200, 200, true, true, DType::fp32}};
  EXPECT_EQ(idle_families(device(), uses, spec_of, random, [](const gpu::Family&) { return true; }),
            "");
}

// Lengths and heads are arguments, not constants: two kernels a dtype see all of these.
TEST_P(GpuKernels, ShapesAndLayouts) {
  Random random(7110);
  struct Shape {
    int64_t seqlen_q, seqlen_k;
  };
  for (const auto& [dtype, dim] :
       {std::pair<DType, int64_t>{DType::bf16, 64}, {DType::fp16, 128}, {DType::fp32, 80}}) {
    for (const Shape shape :
         {Shape{1, 147}, {113, 203}, {128, 217}, {64, 64}, {33, 256}, {2, 700}}) {
      CaseSpec s = small_spec(dtype, dim, random);
      s.seqlen_q = shape.seqlen_q;
      s.seqlen_k = shape.seqlen_k;
      s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::packed_qkv});
      s.lse = random.chance(0.7);
      EXPECT_GT(expect_all_verified(s, random), 0);
    }
  }
}

// Chess boards: one a workgroup, and runs of boards, which 32 dims with many heads get.
TEST_P(GpuKernels, Boards) {
  if (device().find(":sm_") == std::string::npos && device().find("cuda") != 0)
    GTEST_SKIP() << "a kernel for NVIDIA";
  Random random(7115);
  struct Board {
    DType dtype;
    int64_t head_dim, batch, heads, kv_heads;
    int bias;  // 0 none, 1 a head, 2 a batch and head
    Layout layout;
    std::size_t shift = 0;
  };
  for (const Board& board : {Board{DType::fp16, 32, 6, 4, 4, 1, Layout::bshd},
                             {DType::fp16, 32, 5, 4, 2, 2, Layout::packed_qkv},
                             {DType::bf16, 64, 2, 1, 1, 2, Layout::bhsd},
                             {DType::bf16, 64, 1, 1, 1, 1, Layout::bshd, 1},
                             {DType::fp16, 96, 1, 2, 1, 1, Layout::sbhd},
                             {DType::fp16, 128, 1, 1, 1, 0, Layout::bshd}}) {
    CaseSpec s = small_spec(board.dtype, board.head_dim, random);
    s.seqlen_q = s.seqlen_k = 64;
    s.batch = board.batch;
    s.num_heads = board.heads;
    s.num_kv_heads = board.kv_heads;
    s.bias = board.bias > 0;
    s.bias_dtype = board.dtype;
    s.bias_broadcast = {board.bias == 1, false, false};
    s.layout = board.layout;
    s.sinks = board.bias == 2;
    s.lse = random.chance(0.7);
    Case c(s, random);
    EXPECT_TRUE(verified(c, device().substr(0, device().find(':')) + ".boards.sm80",
                         {device(), board.shift}))
        << to_string(s);
  }
}

TEST_P(GpuKernels, AnyFeatures) {
  constexpr int kCases = 10;
  Random random(own_stream(7120));
  for (int i = 0; i < kCases; ++i) {
    expect_all_verified(limited(random_spec(random)), random, random.chance(0.2) ? 1 : 0);
  }
}

// A tile begins before the window of a workgroup's rows, and the first key of the window, which
// stands in for what lies before, is masked: its NaN does not show.
TEST_P(GpuKernels, MaskedFirstKeysOfWindows) {
  Random random(own_stream(7130));
  for (const int64_t dim : {64, 96, 128}) {
    CaseSpec s = small_spec(random.pick({DType::fp32, DType::fp16, DType::bf16}), dim, random);
    s.seqlen_q = 100;
    s.seqlen_k = 107;
    s.window_left = random.between(1, 40);
    s.keep = true;
    s.keep_broadcast = {false, true, true};
    s.keep_share = 0.3;
    s.nan_in_masked = true;
    expect_all_verified(s, random, 0);
  }
}

TEST_P(GpuKernels, LengthsOfZeroAndOne) {
  Random random(7200);
  CaseSpec s = small_spec(DType::bf16, 64, random);
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{0, 5},
                             {5, 0},
                             {0, 0},
                             {1, 1},
                             {1, 300},
                             {130, 3},
                             {17, 129},
                             {300, 1}}) {
    s.seqlen_q = q;
    s.seqlen_k = k;
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
  s.batch = 0;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

TEST_P(GpuKernels, NoKeysWriteZerosAndMinusInfinity) {
  Random random(7210);
  CaseSpec s = small_spec(DType::bf16, 64, random);
  s.seqlen_k = 0;
  Case c(s, random);
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    const Status status = run_kernel(c, kernel, Where{device()});
    ASSERT_TRUE(status.ok()) << status.message();
    for (const float value : c.out_values()) ASSERT_EQ(value, 0) << kernel;
    for (const float value : c.lse_values()) ASSERT_EQ(value, -HUGE_VALF) << kernel;
  }
}

TEST_P(GpuKernels, RowsWithoutAnyKey) {
  Random random(7220);
  CaseSpec s = small_spec(DType::fp16, 64, random);
  s.seqlen_q = 37;
  s.seqlen_k = 70;
  s.keep = true;
  s.nan_in_masked = true;
  Case c(s, random);
  auto* keep = static_cast<uint8_t*>(c.tensors.keep_mask.data);
  const int64_t rows = s.batch * s.num_heads * s.seqlen_q;
  for (int64_t row = 0; row < rows; row += 3)
    std::fill_n(keep + row * s.seqlen_k, s.seqlen_k, uint8_t{0});
  EXPECT_GT(expect_all_kernels_verified(c, {device()}), 0);

  // More queries than keys: the causal diagonal leaves the first rows empty, whole tiles of them.
  s = small_spec(DType::bf16, 128, random);
  s.seqlen_q = 200;
  s.seqlen_k = 40;
  s.causal = Causal::bottom_right;
  EXPECT_GT(expect_all_verified(s, random), 0);
  // A window that ends before the first key.
  s.causal = Causal::top_left;
  s.window_left = 3;
  s.nan_in_masked = true;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

// LDS rows that are no multiple of NVIDIA's lines of 128 bytes; heads so wide that a wave has 16
// rows, and skips tiles in which these attend nothing; chips whose LDS needs other tiles.
TEST(NvidiaForward, WidthsOfRowsUnderMasks) {
  Random random(7240);
  struct Use {
    const char* chip;
    DType dtype;
    int64_t head_dim, head_dim_v, window_left;
  };
  for (const Use& use : {Use{"emulated:sm_90", DType::bf16, 256, 250, -1},
                         {"emulated:sm_86", DType::fp16, 160, 208, 90},
                         {"emulated:sm_90", DType::fp16, 96, 48, -1}}) {
    if (const std::string why = why_unusable(use.chip); !why.empty()) GTEST_SKIP() << why;
    CaseSpec s = small_spec(use.dtype, use.head_dim, random);
    s.batch = s.num_kv_heads = 1;
    s.num_heads = 2;
    s.head_dim_v = use.head_dim_v;
    s.seqlen_q = random.between(130, 160);
    s.seqlen_k = random.between(150, 200);
    s.causal = Causal::bottom_right;
    s.window_left = use.window_left;
    s.nan_in_masked = true;
    Case c(s, random);
    const Status status = run_kernel(c, "emulated.prefill.sm80", Where{use.chip});
    ASSERT_TRUE(status.ok()) << status.message();
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_TRUE(report.ok) << use.chip << ", head_dim " << use.head_dim << ": " << report.message;
  }
}

// Wide heads: a workgroup has rows of several heads, one after the other, those that attend nothing
// among them. More of them than the emulated chips have compute units, fewer, and as many.
TEST(NvidiaForward, WorkgroupsThatGoOn) {
  Random random(7245);
  struct Use {
    const char* chip;
    DType dtype;
    int64_t batch, kv_heads, heads, seqlen_q, seqlen_k, head_dim_v;
    Causal causal;
    std::size_t shift = 0;
  };
  for (const Use& use :
       {Use{"emulated:sm_90", DType::bf16, 2, 1, 3, 140, 70, 256, Causal::none},
        {"emulated:sm_90", DType::fp16, 1, 3, 3, 270, 200, 200, Causal::top_left},
        {"emulated:sm_90", DType::bf16, 1, 2, 2, 400, 130, 256, Causal::bottom_right},
        {"emulated:sm_80", DType::fp16, 3, 1, 1, 300, 100, 256, Causal::bottom_right},
        {"emulated:sm_80", DType::bf16, 2, 1, 2, 20, 64, 160, Causal::none},
        {"emulated:sm_80", DType::bf16, 1, 1, 3, 150, 40, 256, Causal::none, 1}}) {
    if (const std::string why = why_unusable(use.chip); !why.empty()) GTEST_SKIP() << why;
    CaseSpec s = small_spec(use.dtype, 256, random);
    s.batch = use.batch;
    s.num_kv_heads = use.kv_heads;
    s.num_heads = use.heads;
    s.head_dim_v = use.head_dim_v;
    s.seqlen_q = use.seqlen_q;
    s.seqlen_k = use.seqlen_k;
    s.causal = use.causal;
    s.sinks = use.kv_heads == 2;
    s.nan_in_masked = true;
    Case c(s, random);
    EXPECT_TRUE(verified(c, "emulated.prefill.sm80", {use.chip, use.shift})) << to_string(s);
  }
}

TEST_P(GpuKernels, InfinitiesAndNan) {
  Random random(7230);
  CaseSpec s = small_spec(DType::fp16, 64, random);
  s.batch = s.num_kv_heads = 2;
  s.num_heads = 4;
  s.seqlen_q = 37;
  s.seqlen_k = 70;
  s.bias = true;
  s.bias_dtype = DType::fp16;
  Case bias(s, random);
  for (int64_t j = 0; j < s.seqlen_k; ++j) {
    // Row 5: all keys; row 6: the first ones, so that a first tile is empty and a later one is not.
    Case::set(bias.tensors.bias, {0, 1, 5, j}, -HUGE_VALF);
    if (j < 67) Case::set(bias.tensors.bias, {1, 2, 6, j}, -HUGE_VALF);
  }
  EXPECT_GT(expect_all_kernels_verified(bias, {device()}), 0);
  for (const float value : {HUGE_VALF, -HUGE_VALF, NAN}) {
    Case in_key(s, random);
    Case::set(in_key.tensors.k, {1, 40, 1, 3}, value);
    EXPECT_GT(expect_all_kernels_verified(in_key, {device()}), 0);
    Case in_query(s, random);
    Case::set(in_query.tensors.q, {0, 11, 2, 7}, value);
    EXPECT_GT(expect_all_kernels_verified(in_query, {device()}), 0);
  }
}

TEST_P(GpuKernels, LargeInputs) {
  Random random(7240);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    CaseSpec s = small_spec(dtype, dtype == DType::bf16 ? 64 : 128, random);
    s.q_size = 5;
    s.kv_size = 3;
    s.seqlen_q = 40;
    s.seqlen_k = 150;
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
}

TEST_P(GpuKernels, PointersOfAnyAlignment) {
  Random random(7300);
  EXPECT_GT(expect_all_verified(small_spec(DType::bf16, 64, random), random, 1), 0);
}

TEST_P(GpuKernels, RepeatsBitForBit) {
  Random random(7400);
  CaseSpec s = small_spec(DType::bf16, 64, random);
  s.seqlen_q = 2;
  s.seqlen_k = 2000;  // split keys
  Case c(s, random);
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    if (!runs_here(kernel) || !drawn()) continue;
    std::vector<float> first, first_lse;
    for (int i = 0; i < 3; ++i) {
      const Status status = run_kernel(c, kernel, Where{device()});
      ASSERT_TRUE(status.ok()) << status.message();
      if (i == 0) first = c.out_values(), first_lse = c.lse_values();
      EXPECT_EQ(first, c.out_values()) << kernel;
      EXPECT_EQ(first_lse, c.lse_values()) << kernel;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuKernels, ::testing::ValuesIn(gpu_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
