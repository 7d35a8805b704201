// Score functions and block masks in GPU kernels (kernels/core/score_functions.h): every family
// that takes them, on emulated chips, beside the oracle in double; and what a function gives for a
// pair.
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/compile.h"
#include "gpu/gpu_devices.h"
#include "runtime/float_formats.h"
#include "score/evaluate.h"
#include "support/function_case.h"
#include "support/functions_of.h"
#include "support/random_expression.h"
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
  // Every kernel that takes the case.
  void check(Case& c) {
    if (c.spec.backward) set_forward_results(c);
    c.make_inputs_read_only();
    SCOPED_TRACE(c.options.score_mod + " / " + c.options.mask_mod);
    int count = 0;
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      ++count;
      if (!runs_here(kernel)) continue;
      EXPECT_TRUE(verified(c, kernel, {.device = device()}));
    }
    EXPECT_GT(count, 0);
  }
  // A case with random functions.
  void check_drawn(const CaseSpec& s, Random& random) {
    Case c(s, random);
    Functions functions(s, random, false);
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
    check(c);
  }
};

TEST_P(GpuFunctions, Forward) {
  Random random(own_stream(9800));
  if (!drawn(3)) return;
  CaseSpec s = spec(random, false);
  s.bias = random.chance(0.3);
  s.sinks = random.chance(0.3);
  check_drawn(s, random);
}

// A few queries beside many keys, by splits.
TEST_P(GpuFunctions, FewQueries) {
  Random random(own_stream(9870));
  if (!drawn(3)) return;
  CaseSpec s = spec(random, false);
  s.seqlen_q = random.between(1, 4), s.seqlen_k = random.between(200, 500);
  s.num_kv_heads = 1, s.num_heads = random.between(1, 4);
  Case c(s, random);
  Functions functions(s, random, false);
  draw_functions(c, random);
  if (random.chance(0.5)) c.options.mask_mod = "(q + 3 * k + h) % 4 != 0 & k > 130";
  c.tensors.function_tensors = functions.list;
  check(c);
}

TEST_P(GpuFunctions, Gradients) {
  Random random(own_stream(9810));
  if (!drawn(3)) return;
  CaseSpec s = spec(random, true);
  s.softcap = random.chance(0.3) ? 3.0F : 0.0F;
  check_drawn(s, random);
}

TEST_P(GpuFunctions, BlockMasks) {
  Random random(own_stream(9820));
  if (!drawn(3)) return;
  CaseSpec s = spec(random, random.chance(0.5));
  s.seqlen_q = random.between(60, 200), s.seqlen_k = random.between(60, 300);
  Case c(s, random);
  Functions functions(s, random, false);
  if (random.chance(0.6)) {
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
  }
  Blocks blocks;
  blocks.put(c, 16 * random.between(1, 8), 16 * random.between(1, 8), random.chance(0.5), random);
  check(c);
}

// Blocks that hold all pairs of some workgroups of pack_mask.h, which then look at none.
TEST_P(GpuFunctions, BlocksThatAreAllTheSame) {
  Random random(own_stream(9830));
  if (!drawn(3)) return;
  CaseSpec s = spec(random, random.chance(0.5));
  s.seqlen_q = random.between(130, 260), s.seqlen_k = random.between(260, 420);
  s.causal = random.pick({Causal::none, Causal::none, Causal::bottom_right});
  Case c(s, random);
  Functions functions(s, random, false);
  if (random.chance(0.5)) {
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
  }
  Blocks blocks;
  blocks.put(c, 64 * random.between(1, 2), 128, random.chance(0.5), random);
  check(c);
}

// One query beside many blocks of keys: the table of blocks has one row.
TEST_P(GpuFunctions, BlockMaskOfOneQuery) {
  Random random(own_stream(9880));
  if (!drawn(3)) return;
  CaseSpec s = spec(random, random.chance(0.5));
  s.seqlen_q = 1, s.seqlen_k = random.between(700, 900);
  s.causal = Causal::none;
  Case c(s, random);
  Functions functions(s, random, false);
  if (random.chance(0.5)) {
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
  }
  Blocks blocks;
  blocks.put(c, 16, 16, random.chance(0.5), random);
  check(c);
}

TEST_P(GpuFunctions, Examples) {
  Random random(own_stream(9850));
  if (!drawn(3)) return;
  const FunctionExample& example =
      kFunctionExamples[random.between(0, std::size(kFunctionExamples) - 1)];
  Case c(spec(random, random.chance(0.5)), random);
  Functions functions(c.spec, random, false);
  c.options.score_mod = example.score_mod;
  c.options.mask_mod = example.mask_mod;
  c.tensors.function_tensors = functions.list;
  check(c);
}

// Functions of packed sequences see positions inside their own.
TEST_P(GpuFunctions, Sequences) {
  Random random(own_stream(9830));
  if (!drawn(3)) return;
  CaseSpec s = spec(random, random.chance(0.5));
  s.batch = 3;
  s.packed_q = s.packed_k = true;
  check_drawn(s, random);
}

// Bands that kernels get of mask_mod: causal masks and windows need no bits, and every family that
// has bands serves them.
TEST_P(GpuFunctions, BandsOfMaskMod) {
  Random random(own_stream(9895));
  if (!drawn()) return;
  CaseSpec s = spec(random, random.chance(0.5));
  s.causal = random.pick({Causal::none, Causal::top_left});
  Case c(s, random);
  Functions functions(c.spec, random, false);
  c.options.mask_mod = random_band_mask(random);
  c.tensors.function_tensors = functions.list;
  check(c);
}

// A tile that ends at the band repeats its last key behind it. Here that key is NaN and nobody's,
// and bits keep those behind it for the block's later queries alone. Rows that no hardware buffer
// ends.
TEST_P(GpuFunctions, KeysThatRepeatTheLastOneAreDropped) {
  Random random(own_stream(9897));
  const bool backward = random.chance(0.5);
  CaseSpec s = spec(random, backward);
  s.dtype = random.pick({DType::fp16, DType::fp32});
  s.batch = s.num_heads = s.num_kv_heads = 1;
  s.head_dim = s.head_dim_v = backward ? 100 : 300;  // rows that are no multiples of 16 bytes
  s.seqlen_q = 64, s.seqlen_k = 75;
  s.causal = Causal::none;
  Case c(s, random);
  c.options.mask_mod = "k != 42 & (q + k) % 5 != 0 & q + 11 >= k";
  for (int64_t d = 0; d < s.head_dim; ++d) {
    Case::set(c.tensors.k, {0, 42, 0, d}, NAN);
    Case::set(c.tensors.v, {0, 42, 0, d}, NAN);
  }
  check(c);
}

// What is built in, said by mask_mod: the same launches, and the same kernels.
TEST_P(GpuFunctions, WindowsOfMaskModAreTheBuiltInOnes) {
  Random random(own_stream(9896));
  if (!drawn()) return;
  CaseSpec s = spec(random, random.chance(0.5));
  s.causal = Causal::none;
  Case c(s, random);
  c.options.window_left = 20, c.options.window_right = 0;
  c.options.causal = Causal::top_left;
  const auto built_in = plan(c.problem(), device());
  const bool deterministic = c.options.deterministic;
  c.options = {};
  c.options.deterministic = deterministic;
  c.options.mask_mod = "q >= k & q - k <= 20";
  const auto by_function = plan(c.problem(), device());
  ASSERT_TRUE(built_in.ok() && by_function.ok());
  EXPECT_NE(by_function->explain().find("band from mask_mod"), std::string::npos);
  EXPECT_EQ(by_function->config().kernel, built_in->config().kernel);
  EXPECT_EQ(by_function->workspace_bytes(), built_in->workspace_bytes());
}

// Sequences of different lengths, or a keep_mask of each batch, have a plane of bits each.
TEST_P(GpuFunctions, RefusesLargeBits) {
  Random random(own_stream(9900));
  const bool keep = random.chance(0.5);
  CaseSpec s = spec(random, keep && random.chance(0.5));
  s.keep = keep;
  s.used_k = !keep;
  s.keep_broadcast = {false, true, false};
  s.batch = 2;
  Case c(s, random);
  c.options.mask_mod = "q * 3 >= k";
  Problem p = c.problem();
  EXPECT_FALSE(kernels_for(p, device()).empty());
  p.batch = 64, p.seqlen_q = p.seqlen_k = p.padded_k = 65536;  // 512 MiB a plane
  EXPECT_TRUE(kernels_for(p, device()).empty()) << to_string(s);
}

// Tensors of every dtype, of 0 to 4 dims with strides of either sign and 0, more extents than
// a kernel has arguments for, one without elements; and indices out of range.
TEST_P(GpuFunctions, TensorsOfAnyKind) {
  Random random(own_stream(9910));
  if (!drawn(3)) return;
  Case c(spec(random, random.chance(0.3)), random);
  constexpr DType kTypes[] = {DType::fp32,  DType::fp16, DType::bf16,  DType::int32,
                              DType::int64, DType::int8, DType::uint8, DType::boolean};
  constexpr int kElements = 4096;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::string> names;
  std::vector<FunctionTensor> list;
  names.reserve(9);
  std::string text = "score";
  for (int n = 0; n < 9; ++n) {
    const DType dtype = n < 8 ? kTypes[n] : random.pick({DType::fp32, DType::int32});
    memory.emplace_back(static_cast<std::size_t>(kElements * size_of(dtype)));
    for (std::byte& byte : memory.back())
      byte = static_cast<std::byte>(dtype == DType::boolean ? random.between(0, 1) : 0x3C);
    std::byte* const data = memory.back().data();
    for (int64_t at = 0; at < kElements; ++at) {
      if (score::type_of(dtype) == score::Type::real) {
        reference::store_float(data, dtype, at, 0.3F * random.normal());
      } else if (dtype == DType::int64) {
        reinterpret_cast<int64_t*>(data)[at] = random.between(-9, 9) * (int64_t{1} << 40) + 3;
      } else if (dtype == DType::int32) {
        reinterpret_cast<int32_t*>(data)[at] = static_cast<int32_t>(random.between(-99, 99));
      } else if (dtype != DType::boolean) {
        data[at] = static_cast<std::byte>(random.between(0, 255));
      }
    }
    names.push_back(fmt::format("t{}", n));
    FunctionTensor tensor{names.back(),
                          static_cast<int>(n == 8 ? 2 : random.between(0, 4)),
                          Tensor{data, dtype, {}, {}},
                          {}};
    std::string index;
    int64_t first = 0;
    for (int d = 0; d < tensor.dims; ++d) {
      const int64_t extent = n == 8 && d == 1 ? 0 : random.between(1, 7);
      const int64_t stride = random.pick({0, 1, -1, 5, 17, -30, 60});
      tensor.tensor.shape[static_cast<std::size_t>(d)] = extent;
      tensor.tensor.strides[static_cast<std::size_t>(d)] = stride;
      if (stride < 0) first -= stride * (extent - 1);
      index += fmt::format("{}{}", d == 0 ? "[" : ", ",
                           random.pick({"q % 8 - 1", "k % 7", "h", "b", "k - q", "q * 900000000",
                                        "2147483647 - k", "-2147483647 - q"}));
    }
    tensor.tensor.data = n == 8 ? nullptr : data + first * size_of(dtype);
    if (tensor.dims > 0) index += "]";
    const std::string value = names.back() + index;
    text += score::type_of(dtype) == score::Type::real ? " + " + value
            : dtype == DType::boolean                  ? " + select(" + value + ", 0.25, 0.0)"
                                                       : " + 0.01 * (" + value + " % 100)";
    list.push_back(tensor);
  }
  c.options.score_mod = text;
  c.tensors.function_tensors = list;
  check(c);
}

// What a function is worth where roundings do not decide: in double, in fp32, and with other last
// bits of what is not exact. Nothing where they differ, or where a quotient by zero has a sign.
std::optional<double> stable_value(const std::vector<score::Node>& nodes, std::size_t result,
                                   const score::Elements* tensors,
                                   const score::PairOf<double>& at) {
  std::vector<score::BasicValue<float>> rounded(nodes.size());
  score::evaluate<float>(nodes, tensors, {0.0F, at.batch, at.head, at.query, at.key},
                         rounded.data());
  std::vector<double> found{static_cast<double>(rounded[result].real)};
  for (const uint64_t seed : {0, 1, 2, 3}) {
    std::vector<score::BasicValue<double>> values(nodes.size());
    score::evaluate<double>(nodes, tensors, at, values.data());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const score::Node& node = nodes[i];
      const auto argument = [&](int a) {
        return a < node.arguments ? values[static_cast<std::size_t>(node.args[a])]
                                  : score::BasicValue<double>{};
      };
      if (node.op == score::Op::load) {
        int32_t indices[score::kMaxArguments] = {};
        for (int a = 0; a < node.arguments; ++a) indices[a] = argument(a).integer;
        values[i] = score::element_at<double>(tensors[node.tensor], indices);
      } else if (node.arguments > 0) {
        if (node.op == score::Op::divide && argument(1).real == 0) return {};
        if (node.op == score::Op::rsqrt && argument(0).real == 0) return {};
        values[i] = score::apply(node.op, argument(0), argument(1), argument(2));
      }
      const bool exact =
          node.op == score::Op::int_to_real || node.arguments == 0 || node.op == score::Op::load;
      if (node.type == score::Type::real && !exact && seed > 0)
        values[i].real *= 1 + ((i * 2654435761U + seed * 40503U) >> 7U & 1U ? 0x1p-20 : -0x1p-20);
    }
    found.push_back(values[result].real);
  }
  const double want = found[1];
  for (const double one : found) {
    const bool same = std::isnan(want)   ? std::isnan(one)
                      : std::isinf(want) ? one == want
                                         : std::fabs(one - want) <= 2e-5 * (1 + std::fabs(want));
    if (!same) return {};
  }
  return want;
}

// Values of random functions, NaN, infinities and wrapped ints among them: each query attends one
// key, whose score is 0, so that its log-sum-exp is what score_mod gives.
TEST_P(GpuFunctions, Values) {
  Random random(own_stream(9840));
  if (!drawn(3)) return;
  CaseSpec s = small_spec(DType::fp16, 32, random);
  s.batch = 2, s.seqlen_q = 48, s.seqlen_k = 64, s.num_heads = s.num_kv_heads = 3;
  Case c(s, random);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      for (int64_t h = 0; h < s.num_heads; ++h) {
        for (int64_t d = 0; d < s.head_dim; ++d) Case::set(c.tensors.q, {b, i, h, d}, 0.0F);
      }
    }
  }
  Tables tables(random);
  const FunctionTensor list[] = {
      {"table", 2, Tensor{tables.table, DType::fp32, {5, 7}, {7, 1}}, {}},
      {"numbers", 1, Tensor{tables.numbers, DType::int32, {16}, {1}}, {}}};
  RandomExpressions expressions(random, tables, false);
  c.options.score_mod = expressions.real(3).text;
  c.options.mask_mod = "k == (7 * q + 5) % 64";
  c.tensors.function_tensors = list;
  const std::string text = c.options.score_mod;
  const auto functions = functions_of(text, "");
  ASSERT_TRUE(functions.ok()) << text;
  const std::vector<score::Node>& nodes = functions->impl()->score.nodes;
  const auto result = static_cast<std::size_t>(functions->impl()->score.results.front());
  const TableElements elements(tables);
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    if (!runs_here(kernel)) continue;
    ASSERT_TRUE(run_kernel(c, kernel, {.device = device()}).ok()) << text;
    for (int64_t at = 0; at < s.batch * s.num_heads * s.seqlen_q; ++at) {
      const int64_t b = at / (s.num_heads * s.seqlen_q), h = at / s.seqlen_q % s.num_heads,
                    i = at % s.seqlen_q;
      const auto b32 = static_cast<int32_t>(b), h32 = static_cast<int32_t>(h),
                 i32 = static_cast<int32_t>(i), j32 = static_cast<int32_t>((7 * i + 5) % 64);
      const std::optional<double> known =
          stable_value(nodes, result, elements.of, {0.0, b32, h32, i32, j32});
      if (!known) continue;
      const double want = *known;
      const float got = Case::get(c.tensors.lse, {b, h, i, 0});
      const std::string where = fmt::format("{} of {}, b {} h {} q {}", kernel, text, b, h, i);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << where << ": " << got;
      } else if (want == -HUGE_VAL) {
        EXPECT_EQ(got, -HUGE_VALF) << where;
      } else if (std::isfinite(want) && std::fabs(want) < 1e30) {
        EXPECT_NEAR(got, want, 1e-4 * (1 + std::fabs(want))) << where;
      }
    }
  }
}

// What the machine code of AMD's kernels does.
class GpuFunctionsCode : public GpuFunctions {};

TEST_P(GpuFunctionsCode, Agrees) {
  Random random(own_stream(9860));
  CaseSpec s = spec(random, random.chance(0.5));
  s.head_dim = s.head_dim_v = 64;
  s.batch = 1, s.seqlen_q = random.between(20, 50), s.seqlen_k = random.between(40, 90);
  s.num_heads = s.num_kv_heads = 1;
  check_drawn(s, random);
}

// Loops over tiles begin and end where the mask does: blocks of 128 queries attend half of 256 keys
// where documents have 64 tokens.
TEST_P(GpuFunctionsCode, LoopsEndWithTheMask) {
  // One chip in each run: it takes seconds.
  const auto chips = machine_code_devices();
  if (!long_run() && device() != chips[static_cast<std::size_t>(test_seed()) % chips.size()])
    return;
  Random random(own_stream(9865));
  const bool backward = random.chance(0.5);
  CaseSpec s = spec(random, backward);
  s.head_dim = s.head_dim_v = 64;
  s.batch = s.num_heads = s.num_kv_heads = 1, s.seqlen_q = s.seqlen_k = 256;
  s.causal = Causal::none;
  int64_t products[2] = {};
  for (const bool all : {false, true}) {
    Case c(s, random);
    c.options.mask_mod = all ? "q * 3 + 256 >= k" : "q // 64 == k // 64";
    if (backward) set_forward_results(c);
    const auto made = plan(c.problem(), device());
    ASSERT_TRUE(made.ok()) << made.status().message();
    take_executed_instructions();
    EXPECT_TRUE(verified(c, made->config().kernel, {.device = device()}));
    for (const ExecutedInstructions& launch : take_executed_instructions()) {
      products[all ? 1 : 0] += launch.matrix;
    }
  }
  EXPECT_GT(products[0], 0);
  EXPECT_LE(2 * products[0], products[1]);
}

INSTANTIATE_TEST_SUITE_P(MachineCode, GpuFunctionsCode, ::testing::ValuesIn(machine_code_devices()),
                         test_name);
INSTANTIATE_TEST_SUITE_P(On, GpuFunctions,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(Hopper, GpuFunctions, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
