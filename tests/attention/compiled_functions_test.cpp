// Score functions as compiled code, in every CPU family: beside the oracle, and bit for bit what
// bytecode computes.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <string>
#include <vector>

#include "fulmen/plan.h"
#include "support/function_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// Bits of the outputs' elements.
std::vector<uint32_t> outputs_of(const Case& c) {
  std::vector<uint32_t> bits;
  const AttentionTensors& t = c.tensors;
  std::vector<Tensor> outputs{t.out};
  if (c.spec.backward) outputs = {t.dq, t.dk, t.dv};
  for (const Tensor& tensor : outputs) {
    if (tensor.data == nullptr) continue;
    for (int64_t a = 0; a < tensor.shape[0]; ++a)
      for (int64_t i = 0; i < tensor.shape[1]; ++i)
        for (int64_t j = 0; j < tensor.shape[2]; ++j)
          for (int64_t d = 0; d < tensor.shape[3]; ++d)
            bits.push_back(std::bit_cast<uint32_t>(Case::get(tensor, {a, i, j, d})));
  }
  return bits;
}

class CompiledFunctionsTest : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv("FULMEN_COMPILE_FUNCTIONS"); }

  // Returns how many kernels ran compiled code.
  static int expect_both_ways(Case& c, Functions& functions) {
    int compiled = 0;
    for (const std::string& kernel : kernels_for(c.problem())) {
      AttentionOptions options = c.options;
      options.kernel = kernel;
      ::setenv("FULMEN_COMPILE_FUNCTIONS", "1", 1);
      const Result<Plan> made = plan(c.problem(), "cpu", options);
      if (!made.ok() || made->explain().find("by compiled code") == std::string::npos) continue;
      ++compiled;
      EXPECT_TRUE(verified(c, kernel));
      const std::vector<uint32_t> by_code = outputs_of(c);
      const std::vector<float> slopes = functions.slopes_gradient, table = functions.table_gradient;
      ::setenv("FULMEN_COMPILE_FUNCTIONS", "0", 1);
      EXPECT_TRUE(verified(c, kernel));
      EXPECT_EQ(outputs_of(c), by_code) << kernel;
      EXPECT_EQ(functions.slopes_gradient, slopes) << kernel;
      EXPECT_EQ(functions.table_gradient, table) << kernel;
    }
    return compiled;
  }
};

TEST_F(CompiledFunctionsTest, AreTheBytecodeBitForBit) {
  int compiled = 0;
  for (uint64_t n = 0; n < (long_run() ? 120 : 8); ++n) {
    Random random(8200 + n);
    const bool backward = n % 2 == 1;
    CaseSpec spec = backward ? random_backward_spec(random) : random_spec(random);
    if (backward) spec.huge_bias = false;
    Case c(spec, random);
    Functions functions(spec, random, backward);
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
    if (backward) set_forward_results(c);
    SCOPED_TRACE(to_string(c.problem()));
    compiled += expect_both_ways(c, functions);
  }
  ::setenv("FULMEN_COMPILE_FUNCTIONS", "1", 1);
  Random random(8199);
  CaseSpec spec;
  spec.seqlen_q = spec.seqlen_k = 100;
  spec.head_dim = spec.head_dim_v = 16;
  Case c(spec, random);
  c.options.mask_mod = "(q + 3 * k) * k % 5 != 2 | q * k < 90";
  const Result<Plan> usual = plan(c.problem(), "cpu");
  ASSERT_TRUE(usual.ok()) << usual.status().message();
  // Where this processor or build has no such code, none of the cases above had it either.
  const bool has_code = usual->explain().find("by compiled code") != std::string::npos;
  EXPECT_EQ(compiled > 0, has_code) << usual->explain();
}

}  // namespace
}  // namespace fulmen::testing
