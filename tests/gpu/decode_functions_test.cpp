// Decode with score functions and block masks (forward/decode.h, forward/decode_portable.h,
// forward/decode_tma.h): few queries beside many keys, all else that a call may have beside them,
// keys in every layout, splits asked for.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gpu/gpu_devices.h"
#include "support/function_case.h"
#include "support/random_expression.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuDecodeFunctions : public GpuTest {
 protected:
  // Heads that share a KV head are rows of one tile.
  static CaseSpec few(Random& random) {
    CaseSpec s;
    s.dtype = random.pick({DType::fp16, DType::bf16, DType::bf16, DType::fp32});
    s.batch = random.between(1, 2);
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 5);
    s.seqlen_q = random.between(1, 3);
    s.seqlen_k = random.chance(0.5) ? random.between(1060, 1200) : random.between(130, 500);
    s.head_dim = s.head_dim_v = random.pick({32, 64, 64, 128});
    return s;
  }
  // What else happens to scores.
  static void draw_features(CaseSpec& s, Random& random) {
    s.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
    if (random.chance(0.3)) s.window_left = random.between(50, 400);
    s.softcap = random.chance(0.2) ? 5.0F : 0.0F;
    s.bias = random.chance(0.2);
    s.bias_dtype = random.pick({DType::fp32, s.dtype});
    s.alibi = random.chance(0.2) ? 1 : 0;
    s.sinks = random.chance(0.3);
    s.keep = random.chance(0.2);
    if (s.keep) s.keep_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.5)};
  }
  // Every decode kernel that takes the case; returns how many do.
  static int check(Case& c, Random& random) {
    SCOPED_TRACE(c.options.score_mod + " / " + c.options.mask_mod);
    c.make_inputs_read_only();
    // So many keys are enough for four splits of every kernel.
    if (const auto splits = random.pick({0, 1, 2, 4}); splits > 0 && c.spec.seqlen_k > 1000)
      c.options.tuning = "num_splits=" + std::to_string(splits);
    int count = 0;
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (kernel.find(".decode") == std::string::npos) continue;
      ++count;
      if (!runs_here(kernel)) continue;
      EXPECT_TRUE(verified(c, kernel, {.device = device()})) << c.options.tuning;
    }
    return count;
  }
  static int check_drawn(const CaseSpec& s, Random& random) {
    Case c(s, random);
    Functions functions(s, random, false);
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
    return check(c, random);
  }
};

TEST_P(GpuDecodeFunctions, BesideAllElse) {
  Random random(own_stream(9920));
  if (!drawn(3)) return;
  CaseSpec s = few(random);
  draw_features(s, random);
  s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
  EXPECT_GT(check_drawn(s, random), 0);
}

// A function is given the logical key of a page's row, and positions inside a sequence.
TEST_P(GpuDecodeFunctions, SequencesAndPages) {
  Random random(own_stream(9930));
  if (!drawn(3)) return;
  CaseSpec s = few(random);
  draw_features(s, random);
  draw_variable_lengths(s, random);
  s.bias = s.keep = false;
  s.batch = random.between(2, 3);
  EXPECT_GT(check_drawn(s, random), 0);
}

TEST_P(GpuDecodeFunctions, QuantizedKeys) {
  Random random(own_stream(9940));
  if (!drawn(3)) return;
  CaseSpec s = few(random);
  s.dtype = random.pick({DType::fp16, DType::bf16});
  draw_quantized(s, random);
  if (random.chance(0.5)) s.page_size = 32, s.used_k = true;
  check_drawn(s, random);  // not every format has a decode kernel on every chip
}

// Random expressions of everything that a function may read.
TEST_P(GpuDecodeFunctions, Expressions) {
  Random random(own_stream(9950));
  if (!drawn(3)) return;
  CaseSpec s = few(random);
  Case c(s, random);
  Tables tables(random);
  const FunctionTensor list[] = {
      {"table", 2, Tensor{tables.table, DType::fp32, {5, 7}, {7, 1}}, {}},
      {"numbers", 1, Tensor{tables.numbers, DType::int32, {16}, {1}}, {}}};
  RandomExpressions expressions(random, tables, false);
  // Scores of a few units: what the tolerance is meant for.
  c.options.score_mod = "x = " + expressions.real(2).text +
                        "; score + select(abs(x) < 4.0, x, 0.25 * float((q + 3 * k + h + b) % 5))";
  c.options.mask_mod = "numbers[(k // 8 + h) % 16] % 3 != 0 | k % 61 == q + b";
  c.tensors.function_tensors = list;
  EXPECT_GT(check(c, random), 0);
}

// Keys that no row attends are NaN: whole tiles of them, whole splits, and single ones.
TEST_P(GpuDecodeFunctions, HiddenKeysAreNotRead) {
  Random random(own_stream(9960));
  if (!drawn(3)) return;
  CaseSpec s = few(random);
  Case c(s, random);
  const auto first = random.between(0, 300), last = first + random.between(1, 300);
  const std::string begin = std::to_string(first), end = std::to_string(last);
  c.options.mask_mod = "(k < " + begin + " | k >= " + end + ") & k % 7 != 3 & (k + q + h) % 5 != 0";
  for (int64_t k = 0; k < s.seqlen_k; ++k) {
    if ((k < first || k >= last) && k % 7 != 3) continue;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.num_kv_heads; ++h) {
        for (int64_t d = 0; d < s.head_dim; ++d) {
          Case::set(c.tensors.k, {b, k, h, d}, NAN);
          Case::set(c.tensors.v, {b, k, h, d}, NAN);
        }
      }
    }
  }
  EXPECT_GT(check(c, random), 0);
}

// A list of blocks leaves most keys out.
TEST_P(GpuDecodeFunctions, BlockMasks) {
  Random random(own_stream(9970));
  if (!drawn(3)) return;
  CaseSpec s = few(random);
  Case c(s, random);
  Functions functions(s, random, false);
  if (random.chance(0.6)) {
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
  }
  Blocks blocks;
  blocks.put(c, 16, 16 * random.between(1, 4), random.chance(0.5), random);
  EXPECT_GT(check(c, random), 0);
}

// Few queries beside many keys are decode's, with functions, too. Bounds of k - q are options, and
// take no bits.
TEST_P(GpuDecodeFunctions, AreChosen) {
  Random random(own_stream(9975));
  CaseSpec s;
  s.dtype = DType::bf16;
  s.num_heads = 8;
  s.seqlen_k = 2400;
  s.head_dim = s.head_dim_v = 64;
  Case c(s, random);
  const auto planned = [&](const char* score_mod, const char* mask_mod) {
    c.options.score_mod = score_mod;
    c.options.mask_mod = mask_mod;
    auto made = plan(c.problem(), device());
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  };
  const Plan none = planned("", ""), score = planned("score - 0.1 * abs(q - k)", ""),
             mask = planned("", "(q + k) % 3 != 0"), band = planned("", "k - q < 2000");
  EXPECT_NE(none.config().kernel.find(".decode"), std::string::npos) << none.explain();
  EXPECT_EQ(score.config().kernel, none.config().kernel) << score.explain();
  EXPECT_EQ(band.config().kernel, none.config().kernel) << band.explain();
  EXPECT_EQ(band.workspace_bytes(), none.workspace_bytes());
  EXPECT_EQ(mask.config().kernel, none.config().kernel) << mask.explain();
  EXPECT_GT(mask.workspace_bytes(), none.workspace_bytes());
}

// The machine code of AMD's kernels.
class GpuDecodeFunctionsCode : public GpuDecodeFunctions {};

TEST_P(GpuDecodeFunctionsCode, Agrees) {
  Random random(own_stream(9980));
  CaseSpec s = few(random);
  s.batch = s.num_kv_heads = 1;
  s.num_heads = random.between(1, 4);
  s.head_dim = s.head_dim_v = 64;
  if (random.chance(0.5)) s.page_size = random.pick({16, 24}), s.used_k = true;
  draw_features(s, random);
  s.bias = s.keep = false;
  Case c(s, random);
  Functions functions(s, random, false);
  draw_functions(c, random);
  // Whole steps that no row attends.
  if (random.chance(0.5)) c.options.mask_mod = "k < 20 | (k >= 170 & (k + h) % 3 != 0)";
  c.tensors.function_tensors = functions.list;
  EXPECT_GT(check(c, random), 0);
}

INSTANTIATE_TEST_SUITE_P(MachineCode, GpuDecodeFunctionsCode,
                         ::testing::ValuesIn(machine_code_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(On, GpuDecodeFunctions,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(Hopper, GpuDecodeFunctions, ::testing::ValuesIn(hopper_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
