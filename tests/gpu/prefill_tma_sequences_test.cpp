// Sequences of different lengths and pages by prefill_tma, whose work tiles the device lists.
#include <string>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuPrefillTmaSequences : public HopperTest {
 protected:
  GpuPrefillTmaSequences() : HopperTest("prefill_tma", false) {}
  CaseSpec ragged(DType dtype, int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k,
                  Random& random) const {
    CaseSpec s = spec_of(dtype, head_dim, seqlen_q, seqlen_k, random);
    s.batch = random.between(2, 5);
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 2);
    return s;
  }
};

// Documents whose tiles reach into the next one. Keys that nobody attends, at the beginning of the
// next document or at the end of this one, are NaN.
TEST_P(GpuPrefillTmaSequences, Packed) {
  Random random(8970);
  for (const int64_t dim : {64, 80, 128, 192, 256}) {
    CaseSpec s = ragged(random.pick({DType::bf16, DType::fp16}), dim, random.between(130, 300),
                        random.between(130, 300), random);
    s.packed_q = s.packed_k = s.nan_in_masked = true;
    s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    check(s, random);
    s.window_left = random.between(0, 90);
    s.lse = random.chance(0.5);
    check(s, random);
    s.causal = Causal::none;
    s.window_left = -1;
    check(s, random);
  }
}

// One of q and k is padded.
TEST_P(GpuPrefillTmaSequences, PackedAndPadded) {
  Random random(8971);
  for (const bool packed_q : {false, true}) {
    CaseSpec s = ragged(DType::bf16, 64, random.between(65, 200), random.between(70, 300), random);
    s.packed_q = packed_q;
    s.packed_k = !packed_q;
    s.used_k = s.leftpad_k = packed_q;
    s.nan_in_masked = true;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    check(s, random);
    check(s, random, 1);  // tensors at no multiple of 16 bytes: prefill_wgmma's code
  }
}

TEST_P(GpuPrefillTmaSequences, Features) {
  Random random(8972);
  CaseSpec s = ragged(DType::fp16, 40, 150, 190, random);
  s.packed_q = s.packed_k = true;
  s.head_dim_v = 72;
  s.window_left = random.between(0, 60);
  s.window_right = random.between(0, 60);
  s.softcap = 20;
  s.sinks = true;
  check(s, random);
  s = ragged(DType::bf16, 96, 150, 150, random);
  s.packed_q = s.packed_k = s.bias = true;
  s.alibi = 2;
  s.bias_dtype = DType::fp32;
  s.dropout = 0.3F;
  s.causal = Causal::bottom_right;
  check(s, random);
}

// Boxes of a page each, several of them or one a tile; a window begins inside a page.
TEST_P(GpuPrefillTmaSequences, Pages) {
  Random random(8973);
  for (const int64_t page : {16, 32, 64, 128, 256}) {
    CaseSpec s = ragged(DType::bf16, page == 32 ? 64 : 128, random.between(65, 200),
                        random.between(200, 600), random);
    s.page_size = page;
    s.used_k = page != 64;
    s.packed_q = random.chance(0.5);
    s.nan_in_masked = true;
    s.causal = Causal::bottom_right;
    check(s, random);
    s.window_left = random.between(0, 150);
    check(s, random);
  }
}

// Sequences that generate beside chunks of prompts: heads of a KV head share the tiles of short
// ones. 4 fill a warpgroup's rows, 3, 5 and 7 leave some empty; a bias, a slope and a sink by head.
TEST_P(GpuPrefillTmaSequences, SharedTiles) {
  Random random(8977);
  for (const int64_t heads : {int64_t{4}, random.pick<int64_t>({2, 3, 5, 7, 8, 16})}) {
    CaseSpec s =
        ragged(DType::bf16, heads == 4 ? 128 : 64,
               random.chance(0.3) ? 3 : random.between(130, 260), random.between(200, 400), random);
    s.num_heads = s.num_kv_heads * heads;
    s.packed_q = s.used_k = s.nan_in_masked = true;
    s.page_size = random.pick({0, 16, 64});
    s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    s.lse = true;
    check(s, random);
    s.window_left = random.between(0, 150);
    s.sinks = true;
    s.softcap = random.chance(0.5) ? 20.0F : 0.0F;
    s.alibi = random.pick({0, 2});
    s.bias = random.chance(0.5);
    s.bias_dtype = DType::fp32;
    check(s, random);
  }
  // Padded queries, of which the host knows that sharing saves tiles.
  CaseSpec s = ragged(DType::fp16, 64, 33, random.between(100, 300), random);
  s.num_heads = s.num_kv_heads * 4;
  s.used_k = true;
  s.causal = Causal::bottom_right;
  check(s, random);
}

// More sequences than the list's workgroup has lanes, some without queries, some without keys; and
// more tiles of one sequence than a run has.
TEST_P(GpuPrefillTmaSequences, ManySequences) {
  Random random(8974);
  CaseSpec s = spec_of(DType::bf16, 64, 3, 65, random);
  s.batch = random.between(1030, 1100);
  s.num_heads = s.num_kv_heads = 1;
  s.packed_q = s.packed_k = true;
  check(s, random);
  s = spec_of(DType::bf16, 64, 128 * 70, 70, random);
  s.num_heads = s.num_kv_heads = 1;
  s.batch = 2;
  s.packed_q = s.packed_k = true;
  check(s, random);
}

// Every order of tiles: those that the counter gives are each computed once.
TEST_P(GpuPrefillTmaSequences, TilesOfAnyShape) {
  Random random(8975);
  for (const std::string shape :
       {"block_m=64,block_n=64,min_workgroups=2,ping_pong=0", "block_m=192,block_n=80",
        "block_m=256,block_n=64,buffers=4", "block_m=128,block_n=128"}) {
    CaseSpec s =
        ragged(DType::bf16, 64, random.between(130, 500), random.between(130, 500), random);
    s.batch = 6;
    s.packed_q = s.packed_k = true;
    s.causal = random.pick({Causal::bottom_right, Causal::none});
    Case c(s, random);
    c.options.tuning = shape;
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s) << " " << shape;
  }
}

TEST_P(GpuPrefillTmaSequences, SaysWhyNot) {
  Random random(8976);
  CaseSpec s = ragged(DType::bf16, 64, 150, 150, random);
  s.packed_q = s.used_k = true;
  s.page_size = 8;
  expect_reason(s, "the TMA brings pages of 16, 32, ... 1024 rows", random);
  s.page_size = 64;
  s.leftpad_k = true;
  expect_reason(s, "leftpad_k moves a tile's keys across pages", random);
  s = ragged(DType::bf16, 64, 150, 150, random);
  s.packed_q = s.packed_k = s.keep = true;
  expect_reason(s, "it takes a keep_mask, mask_mod or block mask where sequences have one length",
                random);
}

INSTANTIATE_TEST_SUITE_P(On, GpuPrefillTmaSequences, ::testing::ValuesIn(hopper_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
