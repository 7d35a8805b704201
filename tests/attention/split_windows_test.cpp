// Windows over split keys on the CPU: decode in every layout of keys, and gradients.
// tests/gpu/decode_splits_test.cpp has the GPUs.
#include "support/split_windows.h"

#include <string>
#include <vector>

namespace fulmen::testing {
namespace {

TEST(SplitWindows, Decode) {
  Random random(9450);
  for (const KeyLayout layout :
       {KeyLayout::contiguous, KeyLayout::head_major, KeyLayout::odd_strides, KeyLayout::packed,
        KeyLayout::padded, KeyLayout::leftpad, KeyLayout::pages_of_7, KeyLayout::pages_of_16,
        KeyLayout::pages_of_64}) {
    for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
      CaseSpec s;
      s.dtype = dtype;
      s.batch = 2;
      s.num_kv_heads = 2;
      s.num_heads = s.num_kv_heads * random.between(1, 6);
      s.head_dim = s.head_dim_v = random.pick<int64_t>({32, 64, 80});
      s.seqlen_q = random.between(1, 3);
      s.seqlen_k = random.between(2100, 2300);
      s.sinks = random.chance(0.5);
      // Sequences of different lengths are split by their number of keys alone, here in two.
      const bool own_lengths = layout >= KeyLayout::packed;
      const std::vector<int> splits = own_lengths ? std::vector<int>{0, 0} : std::vector<int>{4, 8};
      expect_split_windows_verified(
          "cpu", layout, s, splits, [](const std::string& /*kernel*/) { return true; }, random);
    }
  }
}

TEST(SplitWindows, Gradients) {
  Random random(9460);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    CaseSpec s;
    s.dtype = dtype;
    s.backward = s.nan_in_masked = true;
    s.num_kv_heads = 1;
    s.num_heads = random.between(1, 2);
    s.head_dim = s.head_dim_v = random.pick<int64_t>({40, 64});
    s.seqlen_q = random.between(1, 70);
    s.seqlen_k = random.between(2100, 2300);
    s.causal = Causal::bottom_right;
    s.window_left = random.between(300, 2000);
    for (const bool packed : {false, true}) {
      s.packed_q = s.packed_k = s.even_lengths = packed;
      s.batch = packed ? 2 : 1;
      Case c(s, random);
      const Result<Plan> planned = plan(c.problem(), "cpu");
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_GT(planned->config().num_splits, 1) << planned->explain();
      EXPECT_GT(expect_all_kernels_verified(c), 0);
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
