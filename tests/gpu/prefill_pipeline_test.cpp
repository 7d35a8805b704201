// prefill's software pipeline on CDNA: a tile's halves are in different stages, values are a tile
// behind keys, and what tells that a row's reference must follow is a sum of probabilities. In
// source and in machine code.
#include <algorithm>
#include <cmath>
#include <utility>

#include "gpu/gpu_devices.h"
#include "gpu/launch/family.h"
#include "gpu/usual_problems.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuPrefillPipeline : public GpuTest {
 protected:
  static CaseSpec spec_of(DType dtype, int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k) {
    CaseSpec s;
    s.dtype = dtype;
    s.head_dim = s.head_dim_v = head_dim;
    s.seqlen_q = seqlen_q;
    s.seqlen_k = seqlen_k;
    return s;
  }
  static void check(Case& c) {
    int checked = 0;
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (kernel.find(".prefill.cdna") == std::string::npos) continue;
      ++checked;
      EXPECT_TRUE(verified(c, kernel, {device()})) << kernel << ": " << to_string(c.spec);
    }
    EXPECT_EQ(checked, 1);
  }
  // Scores of query 0 (and every third one) are height(key), those of the others stay as drawn.
  template <class Height>
  static void set_heights(Case& c, const Height& height) {
    const CaseSpec& s = c.spec;
    const float one = std::sqrt(static_cast<float>(s.head_dim));
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      Case::set(c.tensors.q, {0, i, 0, 0}, i % 3 == 0 ? one : 0.0F);
    }
    for (int64_t j = 0; j < s.seqlen_k; ++j) Case::set(c.tensors.k, {0, j, 0, 0}, height(j));
  }
};

// No whole tile of keys, one, two and more, behind tiles with masks and alone.
TEST_P(GpuPrefillPipeline, AnyNumberOfTiles) {
  Random random(10100);
  for (const int64_t dim : {64, 128}) {
    for (const int64_t tiles : {1, 2, 3, 5}) {
      if (!drawn(3)) continue;
      const DType dtype = random.pick({DType::bf16, DType::fp16});
      Case whole(spec_of(dtype, dim, random.between(1, 140), 64 * tiles), random);
      check(whole);
      CaseSpec s = spec_of(dtype, dim, random.between(60, 140), 64 * tiles + random.between(1, 63));
      s.causal = random.pick({Causal::none, Causal::bottom_right});
      s.sinks = random.chance(0.5);
      Case masked(s, random);
      check(masked);
    }
  }
}

// References follow in each half of each tile; in one of them by more than an exponent's range,
// which makes probabilities infinite that are computed beside products; and never again after the
// first keys.
TEST_P(GpuPrefillPipeline, ReferencesFollow) {
  Random random(10110);
  const auto rising = [](int64_t j) { return 0.5F * static_cast<float>(j); };
  for (const int64_t dim : {64, 128}) {
    if (!drawn(2)) continue;
    const DType dtype = random.pick({DType::bf16, DType::fp16});
    Case c(spec_of(dtype, dim, 70, 256), random);
    set_heights(c, rising);
    check(c);
    const int64_t peak = random.between(64, 255);
    set_heights(c, [&](int64_t j) { return j == peak ? 180.0F : j < peak ? -150.0F : 100.0F; });
    check(c);
    set_heights(c, [](int64_t j) { return j < 8 ? 90.0F : -90.0F; });
    check(c);
    // A lane's sum is beyond the limit, each of its probabilities is not.
    set_heights(c, [](int64_t j) { return j < 64 ? 0.0F : 5.0F; });
    check(c);
  }
}

// Enough rows for workgroups of 256 on gfx90a and gfx942 (many_plain_shapes): usual tiles of 128
// rows are two a compute unit of the emulated devices, which have four.
TEST_P(GpuPrefillPipeline, ManyRows) {
  Random random(10130);
  for (const int64_t dim : {64, 96, 128}) {
    if (!drawn(2)) continue;
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), dim, random.between(228, 256),
                         64 * random.between(2, 4) + random.between(0, 3));
    s.num_heads = s.num_kv_heads = 4;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    Case c(s, random);
    check(c);
  }
}

// Turns with few products: what is read and stored beside them has few places.
TEST_P(GpuPrefillPipeline, ShortTurns) {
  Random random(10140);
  for (const int64_t dim_v : {16, 32, 64}) {
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), random.pick<int64_t>({16, 32}),
                         random.between(30, 140), random.between(129, 260));
    s.head_dim_v = dim_v;
    Case c(s, random);
    check(c);
  }
}

// Values of 80 dims are no whole tiles of 32: products of 16 x 16 where others have 32 x 32.
TEST_P(GpuPrefillPipeline, ValuesOfAnyDims) {
  Random random(10120);
  for (const int64_t dim_v : {32, 48, 80, 96}) {
    if (!drawn(2)) continue;
    CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), random.pick<int64_t>({64, 128}),
                         random.between(30, 140), random.between(129, 260));
    s.head_dim_v = dim_v;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    Case c(s, random);
    check(c);
  }
}

gpu::Specialisation prefill_of(const char* arch, const Problem& p) {
  std::string storage;
  gpu::Chip chip{};
  EXPECT_TRUE(gpu::find_chip(arch, storage, chip));
  for (const gpu::Family* family : gpu::families()) {
    if (family->name() == "prefill" && family->target().name == chip.target->name)
      return family->plan(p, chip, 256).launches.front().specialisation;
  }
  ADD_FAILURE() << arch;
  return {};
}
Problem plain_problem(int64_t batch, int64_t seqlen_q, int64_t head_dim, bool causal) {
  return gpu::usual_problem(DType::bf16, {batch, seqlen_q, 2048, 4, 4, head_dim}, causal);
}

// Products are of 32 x 32 where nothing but the band modifies scores and values have whole tiles of
// 32 dims.
TEST(PrefillProducts, Of32RowsWherePlain) {
  const auto tile = [](const Problem& p) { return prefill_of("gfx950", p).score_tile; };
  EXPECT_EQ(tile(plain_problem(1, 2048, 64, false)), 32);
  EXPECT_EQ(tile(plain_problem(1, 2048, 128, true)), 32);
  EXPECT_EQ(tile(plain_problem(1, 2048, 256, false)), 32);
  EXPECT_EQ(tile(plain_problem(1, 2048, 80, false)), 16);
  Problem biased = plain_problem(1, 2048, 128, false), dropped = biased, capped = biased;
  gpu::add_bias(biased, DType::bf16);
  dropped.dropout = 6554;
  capped.softcap = 20.0F;
  for (const Problem& p : {biased, dropped, capped}) EXPECT_EQ(tile(p), 16);
}

// CDNA2 and CDNA3 take them for tiles of 64 keys: those of 64 dims, and of 128 where there are
// workgroups of 256 rows for all compute units.
TEST(PrefillProducts, Of32RowsBeside64Keys) {
  for (const char* arch : {"gfx90a", "gfx942"}) {
    const auto shape = [&](const Problem& p) {
      const gpu::Specialisation s = prefill_of(arch, p);
      return std::pair(s.block_m, s.score_tile);
    };
    EXPECT_EQ(shape(plain_problem(1, 2048, 64, false)), std::pair(128, 32));
    EXPECT_EQ(shape(plain_problem(8, 2048, 128, true)), std::pair(256, 32));
    EXPECT_EQ(shape(plain_problem(7, 2048, 128, true)), std::pair(128, 16));
    EXPECT_EQ(shape(plain_problem(80, 128, 128, false)), std::pair(128, 16));
    Problem biased = plain_problem(8, 2048, 128, false);
    gpu::add_bias(biased, DType::bf16);
    EXPECT_EQ(shape(biased), std::pair(128, 16));
  }
  EXPECT_EQ(prefill_of("gfx908", plain_problem(8, 2048, 128, false)).score_tile, 16);
}

std::vector<std::string> cdna_devices() {
  std::vector<std::string> found;
  for (const char* chip : {"gfx90a", "gfx942", "gfx950"}) {
    found.push_back(std::string("emulated:") + chip);
    found.push_back(std::string("emulated-isa:") + chip);
  }
  return found;
}
INSTANTIATE_TEST_SUITE_P(On, GpuPrefillPipeline, ::testing::ValuesIn(cdna_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
