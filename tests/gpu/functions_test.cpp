// Score functions and block masks in GPU kernels (kernels/core/score_functions.h): every family that
// takes them, on emulated chips, beside the oracle in double.
#include <iterator>

#include "gpu/gpu_devices.h"
#include "support/function_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuFunctions : public GpuTest {
 protected:
  static CaseSpec spec(Random& random, bool backward) {
    CaseSpec s = small_spec(random.pick({DType::fp16, DType::bf16}), random.pick({32, 64}), random);
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 2);
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.backward = backward;
    return s;
  }
  void check(Case& c) {
    int count = 0;
    c.make_inputs_read_only();
    SCOPED_TRACE(c.options.score_mod + " / " + c.options.mask_mod);
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      ++count;
      if (!runs_here(kernel)) continue;
      EXPECT_TRUE(verified(c, kernel, {.device = device()}));
    }
    EXPECT_GT(count, 0);
  }
};

TEST_P(GpuFunctions, Forward) {
  Random random(own_stream(9800));
  const CaseSpec s = spec(random, false);
  Case c(s, random);
  Functions functions(s, random, false);
  draw_functions(c, random);
  c.tensors.function_tensors = functions.list;
  check(c);
}

INSTANTIATE_TEST_SUITE_P(On, GpuFunctions,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(Hopper, GpuFunctions, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
