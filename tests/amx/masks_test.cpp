// Bool masks that leave out, or keep, whole tiles, on emulated tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "amx/emulated_backend.h"
#include "support/attention_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class EmulatedAmxMasks : public EmulatedAmx {
 protected:
  void check(CaseSpec spec, Random& random) {
    if (!drawn()) return;
    spec.dtype = random.pick({DType::bf16, DType::bf16, DType::fp16});
    if (spec.backward) spec.dtype = DType::bf16;
    spec.keep = spec.nan_in_masked = true;
    spec.keep_pattern = random.pick(
        {KeepPattern::triangle, KeepPattern::blocks, KeepPattern::blocks, KeepPattern::left_padding,
         KeepPattern::right_padding, KeepPattern::one_key, KeepPattern::nothing});
    for (bool& broadcast : spec.keep_broadcast) broadcast = random.chance(0.5);
    spec.causal = random.pick({Causal::none, Causal::bottom_right});
    Case c(spec, random);
    c.options.num_threads = 2;
    EXPECT_GT(expect_all_kernels_verified(c, Where{"amx_emulated"}), 0) << to_string(spec);
  }
};

TEST_F(EmulatedAmxMasks, Forward) {
  Random random(9780);
  SCOPED_TRACE(test_seed());
  for (int n = 0; n < 8; ++n) {
    for (const auto& [seqlen_q, seqlen_k] :
         {std::pair{200, 300}, {33, 640}, {130, 128}, {150, 1200}}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, random.pick({32, 48, 128}));
      spec.lse = random.chance(0.5);
      check(spec, random);
    }
  }
}

TEST_F(EmulatedAmxMasks, Backward) {
  Random random(9781);
  SCOPED_TRACE(test_seed());
  for (int n = 0; n < 8; ++n) {
    for (const auto& [seqlen_q, seqlen_k] :
         {std::pair{200, 300}, {150, 1300}, {130, 128}, {300, 50}}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, random.pick({32, 48}));
      spec.backward = true;
      spec.bias = random.chance(0.5);
      for (bool& summed : spec.dbias_summed) summed = random.chance(0.3);
      check(spec, random);
    }
  }
}

TEST_F(EmulatedAmxMasks, Decode) {
  Random random(9782);
  SCOPED_TRACE(test_seed());
  for (int n = 0; n < 8; ++n) {
    for (const int64_t rows : {1, 3, 20}) {
      CaseSpec spec = two_heads(rows, random.pick({300, 1100, 2300}), random.pick({32, 64, 128}));
      spec.num_heads = spec.num_kv_heads * random.pick({1, 2, 3});
      check(spec, random);
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
