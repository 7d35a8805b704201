// The backward pass whose tiles the TMA loads, of packed sequences: boxes that cross a sequence's
// end have the next one's rows, and blocks of keys come from a table that the device makes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuBackwardTmaPacked : public HopperTest {
 protected:
  GpuBackwardTmaPacked() : HopperTest("backward_tma", true) {}
  CaseSpec packed_spec(DType dtype, int64_t head_dim, int64_t batch, int64_t seqlen_q,
                       int64_t seqlen_k, Random& random) const {
    CaseSpec s = spec_of(dtype, head_dim, seqlen_q, seqlen_k, random);
    s.batch = batch;
    s.packed_q = s.packed_k = true;
    return s;
  }
  // Sums in order, or as blocks come.
  void check(const CaseSpec& spec, Random& random, std::size_t shift = 0) const {
    if (!drawn(3)) return;
    Case c(spec, random);
    c.options.deterministic = random.chance(0.5);
    EXPECT_TRUE(verified(c, kernel(), {device(), shift}))
        << to_string(spec) << ", deterministic " << c.options.deterministic;
  }
};

// Sequences of several tiles, of one row and of none, for each width of heads and layout; one side
// may have one length.
TEST_P(GpuBackwardTmaPacked, Lengths) {
  Random random(8300);
  for (const int64_t dim : {64, 128, 80, 104, 256, 136}) {
    CaseSpec s = packed_spec(dim == 128 ? DType::fp16 : DType::bf16, dim, random.between(2, 5),
                             random.between(129, 260), random.between(129, 300), random);
    s.num_heads = 2;
    s.num_kv_heads = random.between(1, 2);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
    s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    check(s, random);
    s.packed_q = random.chance(0.5);
    s.packed_k = !s.packed_q;
    check(s, random);
  }
  check(packed_spec(DType::bf16, 128, 6, 1, 40, random), random);
  check(packed_spec(DType::bf16, 64, 6, 70, 1, random), random);
  // Sequences whose blocks are taken in one part, and in two; more of them than a workgroup's
  // lanes.
  CaseSpec many = packed_spec(DType::bf16, 64, 150, 12, 20, random);
  many.causal = Causal::bottom_right;
  check(many, random);
}

INSTANTIATE_TEST_SUITE_P(On, GpuBackwardTmaPacked, ::testing::ValuesIn(hopper_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
