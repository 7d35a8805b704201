// Score functions that are the option softcap, and those that are not: what kernels get of them.
#include "score/softcap.h"

#include <gtest/gtest.h>

#include <string>

#include "plan/function_options.h"
#include "support/functions_of.h"

namespace fulmen::testing {
namespace {

TEST(Softcap, OfAScoreMod) {
  struct {
    const char* score_mod;
    float cap;
  } const cases[] = {
      {"30.0 * tanh(score / 30.0)", 30},
      {"tanh(score / 0.5) * 0.5", 0.5},
      {"x = score * 0.02; y = tanh(x); 50.0 * y", 50},
      {"20.0 * tanh(0.05 * score)", 20},
      {"-8.0 * tanh(score / -8.0)", 8},
      {"8.0 * tanh(score / -8.0)", 0},
      {"30.0 * tanh(score / 30.001)", 0},
      {"30.0 * tanh(score)", 0},
      {"tanh(score)", 0},
      {"30.0 * tanh((score + 1.0) / 30.0)", 0},
      {"30.0 * tanh(score / 30.0) + 1.0", 0},
      {"30.0 * tanh(30.0 / score)", 0},
      {"2000.0 * tanh(score / 2000.0)", 0},
      {"table[0, 0] * tanh(score / table[0, 0])", 0},
      {"30.0 * sin(score / 30.0)", 0},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.score_mod);
    const auto functions = functions_of(one.score_mod, "");
    ASSERT_TRUE(functions.ok()) << functions.status().message();
    EXPECT_FLOAT_EQ(score::softcap_of(functions->impl()->score), one.cap);
  }
  EXPECT_EQ(score::softcap_of({}), 0);
}

TEST(Softcap, OfAProblem) {
  Problem p;
  p.seqlen_q = p.seqlen_k = 64;
  p.batch = p.num_heads = p.num_kv_heads = 1;
  p.functions = *functions_of("30.0 * tanh(score / 30.0)", "h < 2");
  const Problem to = for_kernels(p);
  EXPECT_EQ(to.softcap, 30);
  EXPECT_EQ(to.functions.score_mod(), "");
  EXPECT_EQ(to.functions.mask_mod(), "h < 2");
  EXPECT_EQ(options_of_functions(p, to), "softcap=30 from score_mod");
  p.functions = *functions_of("30.0 * tanh(score / 30.0)", "q >= k");
  EXPECT_FALSE(for_kernels(p).functions.any());
  EXPECT_NE(options_of_functions(p, for_kernels(p)).find("softcap=30 from score_mod; band"),
            std::string::npos);

  // What comes before it, it caps, too.
  for (const int before : {0, 1, 2}) {
    Problem other = p;
    if (before == 0) other.softcap = 20;
    other.bias.present = before == 1;
    other.alibi_slopes.present = before == 2;
    EXPECT_TRUE(for_kernels(other).functions.any()) << before;
    EXPECT_EQ(for_kernels(other).softcap, other.softcap) << before;
  }
  // A tensor's gradient, which is 0, is still to be written.
  p.functions = *functions_of("30.0 * tanh(score / 30.0)", "", true);
  EXPECT_TRUE(for_kernels(p).functions.any());
  EXPECT_EQ(for_kernels(p).softcap, 30);
}

}  // namespace
}  // namespace fulmen::testing
