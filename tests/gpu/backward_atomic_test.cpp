// The backward pass with atomics on NVIDIA's chips, emulated, where waves have a gradient each:
// head dims above 64, a pair of waves (backward/parts/wave_pairs.h), and above 128, two pairs
// (backward/parts/wave_quads.h).
#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class BackwardPairs : public GpuTest {
 protected:
  static CaseSpec spec_of(DType dtype, int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k,
                          Random& random) {
    CaseSpec s = small_spec(dtype, head_dim, random);
    s.backward = true;
    s.batch = s.num_heads = s.num_kv_heads = 1;
    s.seqlen_q = seqlen_q;
    s.seqlen_k = seqlen_k;
    return s;
  }
  static void check(const CaseSpec& s, Random& random) {
    Case c(s, random);
    EXPECT_TRUE(verified(c, "emulated.backward_atomic.sm80", Where{device()})) << to_string(s);
  }
};

// Several tiles of keys and queries, the last ones partial, of several query heads; and fewer keys
// than half a tile.
TEST_P(BackwardPairs, Shapes) {
  Random random(7700);
  CaseSpec s =
      spec_of(DType::bf16, 128, random.between(129, 200), random.between(129, 200), random);
  s.num_heads = 2;
  check(s, random);
  check(spec_of(DType::fp16, 128, random.between(64, 100), random.between(1, 64), random), random);
}

// The second wave of a pair gets masks, dropout and softcap from the first.
TEST_P(BackwardPairs, Masks) {
  Random random(7710);
  CaseSpec s =
      spec_of(DType::bf16, 128, random.between(130, 200), random.between(130, 200), random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  check(s, random);

  s = spec_of(DType::fp16, 96, random.between(65, 150), random.between(130, 200), random);
  s.keep = true;
  s.nan_in_masked = true;
  s.alibi = 1;
  s.dropout = 0.3F;
  check(s, random);

  s = spec_of(DType::bf16, 128, random.between(65, 150), random.between(130, 200), random);
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.dropout = 0.3F;
  s.nan_in_masked = true;
  s.bias = true;
  s.bias_dtype = DType::bf16;
  s.gradients[3] = false;
  check(s, random);
}

// Two tensors of different widths have one in LDS; rows of odd lengths; one of dk and dv.
TEST_P(BackwardPairs, WidthsAndOutputs) {
  Random random(7720);
  CaseSpec s = spec_of(DType::fp16, 88, random.between(65, 130), random.between(100, 150), random);
  s.head_dim_v = 43;
  s.layout = Layout::odd_strides;
  s.softcap = 20;
  check(s, random);
  s = spec_of(DType::bf16, 40, random.between(65, 130), random.between(100, 150), random);
  s.head_dim_v = 128;
  s.dropout = 0.3F;
  check(s, random);
  for (const bool dk : {true, false}) {
    s = spec_of(DType::fp16, 128, random.between(65, 130), random.between(100, 150), random);
    s.gradients = {true, dk, !dk, false, false};
    check(s, random);
  }
}

class BackwardQuads : public BackwardPairs {};

TEST_P(BackwardQuads, Shapes) {
  Random random(7730);
  CaseSpec s = spec_of(DType::fp16, 256, random.between(129, 200), random.between(65, 150), random);
  s.num_heads = 2;
  check(s, random);
  check(spec_of(DType::bf16, 160, random.between(1, 64), random.between(1, 64), random), random);
}

TEST_P(BackwardQuads, Masks) {
  Random random(7740);
  CaseSpec s =
      spec_of(DType::bf16, 256, random.between(130, 200), random.between(130, 200), random);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.nan_in_masked = true;
  check(s, random);

  s = spec_of(DType::fp16, 192, random.between(65, 150), random.between(65, 150), random);
  s.keep = true;
  s.nan_in_masked = true;
  s.alibi = 1;
  s.dropout = 0.3F;
  check(s, random);

  s = spec_of(DType::bf16, 256, random.between(65, 150), random.between(65, 150), random);
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.nan_in_masked = true;
  s.bias = true;
  s.bias_dtype = DType::bf16;
  s.gradients[3] = false;
  check(s, random);
}

TEST_P(BackwardQuads, WidthsAndOutputs) {
  Random random(7750);
  CaseSpec s = spec_of(DType::fp16, 131, random.between(65, 130), random.between(65, 150), random);
  s.head_dim_v = 43;
  s.layout = Layout::odd_strides;
  s.softcap = 20;
  s.dropout = 0.3F;
  check(s, random);
  for (const bool dk : {true, false}) {
    s = spec_of(DType::bf16, 256, random.between(65, 130), random.between(65, 150), random);
    s.gradients = {true, dk, !dk, false, false};
    check(s, random);
  }
}

// One buffer, and two.
INSTANTIATE_TEST_SUITE_P(On, BackwardQuads, ::testing::Values("emulated:sm_80", "emulated:sm_90"),
                         test_name);
// sm_86 has LDS for half of the keys.
INSTANTIATE_TEST_SUITE_P(On, BackwardPairs, ::testing::Values("emulated:sm_80", "emulated:sm_86"),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
