// The keep-mask as bits (kernels/tile/mask_bits.h), in every kernel that reads bits: tiles that no
// query attends, that all attend, and mixed ones; masks of every broadcast shape; values that are
// hidden from all queries hold NaN.
#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class MaskBits : public GpuTest {
 protected:
  // Documents that fill tiles, and others beside them that do not; rows of a length that is no
  // multiple of 16.
  static CaseSpec documents(DType dtype, int64_t head_dim, Random& random) {
    CaseSpec s = small_spec(dtype, head_dim, random);
    s.batch = 1;
    s.num_heads = 2;
    s.num_kv_heads = 1;
    s.seqlen_q = random.between(260, 330);
    s.seqlen_k = random.between(300, 400);
    s.keep = true;
    s.keep_documents = random.pick({70, 150, 200});
    s.keep_broadcast = {true, true, false};
    s.nan_in_masked = true;
    return s;
  }
};

TEST_P(MaskBits, EmptyAndWholeTiles) {
  Random random(own_stream(9700));
  CaseSpec s = documents(DType::bf16, 64, random);
  EXPECT_GT(expect_all_verified(s, random), 0);
  s.seqlen_k = s.seqlen_q = 320;  // rows of whole pieces of 16 bytes
  s.keep_documents = 128;
  s.window_left = random.between(20, 90);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.head_dim = s.head_dim_v = 128;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

TEST_P(MaskBits, GradientsOfEmptyAndWholeTiles) {
  Random random(own_stream(9710));
  CaseSpec s = documents(DType::bf16, 64, random);
  s.backward = true;
  EXPECT_GT(expect_all_verified(s, random), 0);
  s.causal = random.pick({Causal::bottom_right, Causal::top_left});
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), true};  // one row for all queries
  s.keep_documents = 0;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

// A mask a head and batch, and one row for all queries, with a band and without one.
TEST_P(MaskBits, Broadcasting) {
  Random random(own_stream(9720));
  for (const bool one_row : {false, true}) {
    CaseSpec s = documents(DType::fp16, 64, random);
    s.batch = 2;
    s.seqlen_q = random.between(65, 150);
    s.keep_documents = 0;
    s.keep_broadcast = {random.chance(0.5), random.chance(0.5), one_row};
    EXPECT_GT(expect_all_verified(s, random), 0);
    if (one_row) s.causal = Causal::bottom_right;
    s.used_k = true;  // lengths that differ
    EXPECT_GT(expect_all_verified(s, random), 0);
  }
}

// More tiles than a wave tests at once; no query attends the first ones.
TEST_P(MaskBits, ManyTiles) {
  Random random(own_stream(9730));
  CaseSpec s = documents(DType::bf16, 64, random);
  s.num_heads = 1;
  s.seqlen_q = random.between(129, 140);
  s.seqlen_k = random.between(4300, 4400);
  s.keep_documents = 700;
  EXPECT_GT(expect_all_verified(s, random), 0);
}

INSTANTIATE_TEST_SUITE_P(On, MaskBits, ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Hopper, MaskBits, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
