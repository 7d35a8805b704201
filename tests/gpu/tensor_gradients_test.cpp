// Gradients of the tensors that a score_mod reads (kernels/backward/tensor_gradients.h): by every
// backward family that takes score functions, on emulated chips, beside the oracle in double.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_devices.h"
#include "runtime/float_formats.h"
#include "support/function_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// A tensor of floats, at any strides, and its gradient.
class OwnedTensor {
 public:
  OwnedTensor(std::string name, DType dtype, DType gradient_dtype, std::vector<int64_t> shape,
              Random& random)
      : name_(std::move(name)),
        value_(dtype, shape, random),
        gradient_(gradient_dtype, shape, random) {
    for (int64_t at = 0; at < value_.count(); ++at)
      reference::store_float(value_.memory.data(), dtype, at, 0.5F * random.normal());
    tensor_ = {name_, static_cast<int>(shape.size()), value_.tensor(), gradient_.tensor()};
  }
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  const FunctionTensor& tensor() const { return tensor_; }
  std::vector<std::byte>& value() { return value_.memory; }
  std::vector<std::byte>& gradient() { return gradient_.memory; }
  void poison() {
    for (std::byte& byte : gradient()) byte = std::byte{0xFF};
  }

 private:
  // Dense but for the order of its dims, of which each may go backward.
  struct Block {
    Block(DType dtype, const std::vector<int64_t>& shape, Random& random) : dtype(dtype) {
      int64_t step = 1;
      std::vector<std::size_t> order;
      for (std::size_t d = 0; d < shape.size(); ++d)
        order.insert(order.begin() + random.between(0, static_cast<int64_t>(d)), d);
      for (const std::size_t d : order) {
        const bool back = random.chance(0.3);
        extents[d] = shape[d];
        strides[d] = back ? -step : step;
        if (back) first += (shape[d] - 1) * step;
        step *= shape[d];
      }
      memory.resize(static_cast<std::size_t>(step * size_of(dtype)));
    }
    int64_t count() const { return static_cast<int64_t>(memory.size()) / size_of(dtype); }
    Tensor tensor() { return {memory.data() + first * size_of(dtype), dtype, extents, strides}; }
    DType dtype;
    std::array<int64_t, 4> extents{}, strides{};
    int64_t first = 0;
    std::vector<std::byte> memory;
  };
  std::string name_;
  Block value_, gradient_;
  FunctionTensor tensor_;
};

class TensorGradients : public GpuTest {
 protected:
  static CaseSpec spec(Random& random) {
    CaseSpec s = small_spec(random.pick({DType::fp16, DType::bf16, DType::fp32}),
                            random.pick({1, 32, 64, 80}), random);
    s.head_dim_v = random.chance(0.5) ? s.head_dim : random.between(1, 64);
    s.num_kv_heads = random.between(1, 2);
    s.num_heads = s.num_kv_heads * random.between(1, 2);
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.backward = true;
    return s;
  }
  // Every kernel that takes the case; poison(): before each. Returns how many ran here.
  template <class Poison>
  int check(Case& c, const Poison& poison) {
    set_forward_results(c);
    c.make_inputs_read_only();
    SCOPED_TRACE(c.options.score_mod + " / " + c.options.mask_mod);
    int count = 0, ran = 0;
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      ++count;
      if (!runs_here(kernel)) continue;
      ++ran;
      poison();
      EXPECT_TRUE(verified(c, kernel, {.device = device()}));
    }
    EXPECT_GT(count, 0);
    return ran;
  }
  int check(Case& c, Functions& functions) {
    return check(c, [&] {
      for (std::vector<float>* gradient :
           {&functions.slopes_gradient, &functions.gain_gradient, &functions.table_gradient}) {
        for (float& x : *gradient) x = NAN;
      }
    });
  }
  // An element of a tensor, at places of every kind.
  static std::string element_of(const std::string& tensor, std::size_t dims, Random& random) {
    std::vector<std::string> places;
    while (places.size() < dims) {
      places.emplace_back(random.pick({"h", "b", "q", "k % 7", "k", "q // 9 - 1", "k - q + 4",
                                       "int(score * 2.0)", "(q * 5 + h) % 6", "0"}));
    }
    return dims == 0 ? tensor : fmt::format("{}[{}]", tensor, fmt::join(places, ", "));
  }
  void check_drawn(const CaseSpec& s, Random& random) {
    Case c(s, random);
    Functions functions(s, random, true);
    draw_functions(c, random);
    c.tensors.function_tensors = functions.list;
    check(c, functions);
  }
};

TEST_P(TensorGradients, OfRandomFunctions) {
  Random random(own_stream(11500));
  if (!drawn(3)) return;
  CaseSpec s = spec(random);
  s.softcap = random.chance(0.3) ? 3.0F : 0.0F;
  s.bias = random.chance(0.3);
  s.alibi = random.chance(0.3) ? 1 : 0;
  s.sinks = random.chance(0.3);
  s.dlse = random.chance(0.3);
  s.dropout = random.chance(0.3) ? 0.25F : 0.0F;
  s.keep = random.chance(0.3);
  if (random.chance(0.3)) s.window_left = random.between(0, 40);
  check_drawn(s, random);
}

TEST_P(TensorGradients, OfSequences) {
  Random random(own_stream(11510));
  if (!drawn(3)) return;
  CaseSpec s = spec(random);
  s.batch = 3;
  s.packed_q = s.packed_k = true;
  check_drawn(s, random);
}

TEST_P(TensorGradients, BesideBlockMasks) {
  Random random(own_stream(11520));
  if (!drawn(3)) return;
  CaseSpec s = spec(random);
  s.seqlen_q = random.between(60, 150), s.seqlen_k = random.between(60, 200);
  Case c(s, random);
  Functions functions(s, random, true);
  draw_functions(c, random);
  c.tensors.function_tensors = functions.list;
  Blocks blocks;
  blocks.put(c, 16 * random.between(1, 8), 16 * random.between(1, 8), random.chance(0.5), random);
  check(c, functions);
}

// More keys than a workgroup goes over, and heads of more dims than matrix instructions take.
TEST_P(TensorGradients, OfManyKeysAndWideHeads) {
  Random random(own_stream(11530));
  if (!drawn()) return;
  CaseSpec s = spec(random);
  s.batch = s.num_heads = s.num_kv_heads = 1;
  const bool wide = random.chance(0.5);
  s.head_dim = wide ? random.pick({256, 300}) : 16, s.head_dim_v = 16;
  s.seqlen_q = wide ? 20 : 5, s.seqlen_k = wide ? 70 : 1100;
  check_drawn(s, random);
}

// Tensors of every dtype of floats, with gradients of fp32 or their own; places that depend on
// batch and head alone, the query, the key, both, or the score; indices out of range; tensors that
// nothing reads or that are read twice, and of 0 to 4 dims.
TEST_P(TensorGradients, OfTensorsOfAnyKind) {
  Random random(own_stream(11540));
  if (!drawn(2)) return;
  CaseSpec s = spec(random);
  Case c(s, random);
  const int64_t n_tensors = random.between(1, 8);
  std::vector<std::unique_ptr<OwnedTensor>> tensors;
  std::vector<FunctionTensor> list;
  std::string text = random.pick({"score", "0.5 * tanh(score)", "score * score * 0.1"});
  for (int64_t n = 0; n < n_tensors; ++n) {
    const std::string name = fmt::format("t{}", n);
    const DType dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    std::vector<int64_t> shape;
    for (int64_t dims = random.between(0, 4); dims > 0; --dims)
      shape.push_back(random.between(1, 9));
    tensors.push_back(std::make_unique<OwnedTensor>(
        name, dtype, random.chance(0.5) ? dtype : DType::fp32, shape, random));
    list.push_back(tensors.back()->tensor());
    if (random.chance(0.15)) continue;  // nothing reads it
    for (int64_t reads = random.chance(0.3) ? 2 : 1; reads > 0; --reads) {
      text += fmt::format(fmt::runtime(random.pick(
                              {" + {0}", " + {0} * tanh(0.3 * score)", " - 0.1 * sin({0}) * {0}"})),
                          element_of(name, shape.size(), random));
    }
  }
  c.options.score_mod = text;
  if (random.chance(0.4)) c.options.mask_mod = "(q + 2 * k) % 5 != 1";
  c.tensors.function_tensors = list;
  check(c, [&] {
    for (const auto& tensor : tensors) tensor->poison();
  });
}

// Gradients that are asked for of tensors which score_mod does not read are 0.
TEST_P(TensorGradients, OfTensorsThatNoScoreReadsAreZero) {
  Random random(own_stream(11550));
  if (!drawn(3)) return;
  Case c(spec(random), random);
  Functions functions(c.spec, random, true);
  c.options.score_mod = random.pick({"", "score + 1.0", "3.0 * tanh(score / 3.0)"});
  c.options.mask_mod = random.pick({"q >= k", "slopes[h] < 0.1 * (q - k)"});
  c.tensors.function_tensors = functions.list;
  if (check(c, functions) == 0) return;  // by another device's tests
  EXPECT_EQ(functions.slopes_gradient, std::vector<float>(functions.slopes.size(), 0.0F));
}

// Without keys, or without queries, they are 0.
TEST_P(TensorGradients, OfNoPairsAreZero) {
  Random random(own_stream(11555));
  if (!drawn()) return;
  CaseSpec s = spec(random);
  s.causal = Causal::none;
  (random.chance(0.5) ? s.seqlen_q : s.seqlen_k) = 0;
  Case c(s, random);
  Functions functions(s, random, true);
  c.options.score_mod = "score + slopes[h] + gain";
  c.tensors.function_tensors = functions.list;
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    if (!runs_here(kernel)) continue;
    for (float& x : functions.slopes_gradient) x = NAN;
    ASSERT_TRUE(run_kernel(c, kernel, {.device = device()}).ok()) << kernel;
    EXPECT_EQ(functions.slopes_gradient, std::vector<float>(functions.slopes.size(), 0.0F));
  }
}

// The same bits in two runs of a kernel. Sums are exact, so two kernels differ in what they add
// alone.
TEST_P(TensorGradients, HaveTheSameBitsInEveryRun) {
  Random random(own_stream(11560));
  if (!drawn()) return;
  CaseSpec s = spec(random);
  s.seqlen_q = 70, s.seqlen_k = 130;
  Case c(s, random);
  Functions functions(s, random, true);
  c.options.score_mod = "score + table[h, min(max(k - q + 8, 0), 16)] + slopes[h] * gain";
  c.tensors.function_tensors = functions.list;
  set_forward_results(c);
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    if (!runs_here(kernel)) continue;
    ASSERT_TRUE(run_kernel(c, kernel, {.device = device()}).ok());
    const auto bytes = [&] {
      std::vector<float> all = functions.table_gradient;
      all.insert(all.end(), functions.slopes_gradient.begin(), functions.slopes_gradient.end());
      all.push_back(functions.gain_gradient[0]);
      return all;
    };
    const std::vector<float> first = bytes();
    for (float& x : functions.table_gradient) x = NAN;
    ASSERT_TRUE(run_kernel(c, kernel, {.device = device()}).ok());
    const std::vector<float> second = bytes();
    EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0) << kernel;
  }
}

// What is added is infinite, of one sign or both, or NaN: so is the element's gradient, and no
// other one's. A square root's derivative at 0 is infinite. An element belongs to queries, of which
// lanes share one, or to pairs, which a lane holds until another place comes.
TEST_P(TensorGradients, OfNumbersThatAreNotFinite) {
  Random random(own_stream(11570));
  if (!drawn()) return;
  CaseSpec s = spec(random);
  s.causal = Causal::none;
  s.batch = s.num_heads = s.num_kv_heads = 1;
  s.seqlen_q = 16, s.seqlen_k = 20;
  Case c(s, random);
  float table[6] = {0, 0, 0, 0.25F, 0, 0}, gradient[6];
  const FunctionTensor list[] = {
      {"table", 1, Tensor{table, DType::fp32, {6}, {1}}, Tensor{gradient, DType::fp32, {6}, {1}}}};
  c.options.score_mod =
      random.pick({"score + sqrt(table[q % 6])", "score + sqrt(table[(6 * k + q) % 6])"});
  c.tensors.function_tensors = list;
  // dout . v is 0, so all of a row's pairs have the sign of -dout . out.
  for (int64_t i = 0; i < s.seqlen_q; ++i) {
    for (int64_t d = 0; d < s.head_dim_v; ++d) {
      Case::set(c.tensors.dout, {0, i, 0, d}, d == 0 ? 1.0F : 0.0F);
      Case::set(c.tensors.out, {0, i, 0, d}, 0.0F);
    }
  }
  for (int64_t j = 0; j < s.seqlen_k; ++j) Case::set(c.tensors.v, {0, j, 0, 0}, 0.0F);
  constexpr float kInfinite[] = {HUGE_VALF, -HUGE_VALF, NAN};
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    if (!runs_here(kernel)) continue;
    for (int kind = 0; kind < 3; ++kind) {
      for (int64_t i = 0; i < s.seqlen_q; ++i) {
        const bool above = kind == 0 || (kind == 2 && i < 6);
        Case::set(c.tensors.out, {0, i, 0, 0}, above ? -1.0F : 1.0F);
      }
      for (float& x : gradient) x = -1;
      ASSERT_TRUE(run_kernel(c, kernel, {.device = device()}).ok());
      for (int n = 0; n < 6; ++n) {
        const std::string where =
            fmt::format("{}, kind {}, element {}: {}", kernel, kind, n, gradient[n]);
        if (n == 3) {
          EXPECT_TRUE(std::isfinite(gradient[n])) << where;
          EXPECT_NE(gradient[n], 0) << where;
        } else if (std::isnan(kInfinite[kind])) {
          EXPECT_TRUE(std::isnan(gradient[n])) << where;
        } else {
          EXPECT_EQ(gradient[n], kInfinite[kind]) << where;
        }
      }
    }
  }
  // A query's dout is NaN.
  c.options.score_mod = random.pick({"score + table[q % 6]", "score + table[(6 * k + q) % 6]"});
  Case::set(c.tensors.dout, {0, 8, 0, 0}, NAN);
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    if (!runs_here(kernel)) continue;
    for (float& x : gradient) x = -1;
    ASSERT_TRUE(run_kernel(c, kernel, {.device = device()}).ok());
    for (int n = 0; n < 6; ++n) EXPECT_EQ(std::isnan(gradient[n]), n == 2) << kernel << " " << n;
  }
}

// Sums are exact: what cancels leaves nothing of what it is larger than. Each query attends one key
// with a probability of 1, and adds its dlse. Neighbouring pairs of a lane, 16 queries apart, and
// neighbouring lanes have other elements: else these would be added up in fp32 first.
TEST_P(TensorGradients, AreExactSums) {
  Random random(own_stream(11575));
  if (!drawn()) return;
  CaseSpec s = spec(random);
  s.causal = Causal::none;
  s.batch = 2, s.seqlen_q = 90, s.seqlen_k = 1, s.num_heads = s.num_kv_heads = 1;
  s.dlse = true;
  Case c(s, random);
  constexpr int kElements = 4;
  float table[kElements] = {}, gradient[kElements];
  const FunctionTensor list[] = {{"table", 1, Tensor{table, DType::fp32, {kElements}, {1}},
                                  Tensor{gradient, DType::fp32, {kElements}, {1}}}};
  c.options.score_mod =
      random.pick({"score + table[(q + q // 16) % 4]", "score + table[(q + q // 16 + k) % 4]"});
  c.tensors.function_tensors = list;
  double want[kElements] = {};
  int exponents[kElements];  // numbers of an element keep to 20 binary places: doubles hold them
  // Those near -149 are subnormal.
  for (int& exponent : exponents)
    exponent = static_cast<int>(random.chance(0.3) ? -149 : random.between(-149, 60));
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      Case::set(c.tensors.lse, {b, 0, i, 0}, 0.0F);
      for (int64_t d = 0; d < s.head_dim; ++d) Case::set(c.tensors.q, {b, i, 0, d}, 0.0F);
      for (int64_t d = 0; d < s.head_dim_v; ++d) Case::set(c.tensors.dout, {b, i, 0, d}, 0.0F);
      const auto element = static_cast<std::size_t>((i + i / 16) % kElements);
      const auto some = std::ldexp(static_cast<float>(random.between(-(1 << 23), 1 << 23)),
                                   exponents[element] + static_cast<int>(random.between(0, 20)));
      // Four rows in eight of the second batch are huge, and cancel.
      const bool huge = b == 1 && i % 16 < 8 && i < 80;
      const float large = std::ldexp(1.0F + static_cast<float>(element), 120);
      const float x = huge ? i % 8 < 4 ? large : -large : some;
      if (!huge) want[element] += static_cast<double>(some);
      Case::set(c.tensors.dlse, {b, 0, i, 0}, x);
    }
  }
  for (const std::string& kernel : kernels_for(c.problem(), device())) {
    if (!runs_here(kernel)) continue;
    for (float& x : gradient) x = NAN;
    ASSERT_TRUE(run_kernel(c, kernel, {.device = device()}).ok());
    for (int n = 0; n < kElements; ++n)
      EXPECT_EQ(gradient[n], static_cast<float>(want[n])) << kernel << " " << n;
  }
}

TEST_P(TensorGradients, SayWhatTheyCostAndRefuse) {
  Random random(own_stream(11580));
  CaseSpec s = spec(random);
  Case c(s, random);
  Functions functions(s, random, true);
  c.options.score_mod = "score + slopes[h]";
  c.tensors.function_tensors = functions.list;
  const auto made = plan(c.problem(), device());
  ASSERT_TRUE(made.ok()) << made.status().message();
  const int64_t elements = s.num_heads * 18 + 1;
  EXPECT_NE(made->explain().find(
                fmt::format("{} elements, {} bytes of workspace", elements, 104 * elements)),
            std::string::npos)
      << made->explain();
  std::vector<float> memory(9);
  std::vector<std::string> names;
  std::vector<FunctionTensor> list;
  std::string text = "score";
  for (int n = 0; n < 9; ++n) names.push_back(fmt::format("t{}", n));
  for (int n = 0; n < 9; ++n) {
    const Tensor tensor{&memory[static_cast<std::size_t>(n)], DType::fp32, {}, {}};
    list.push_back({names[static_cast<std::size_t>(n)], 0, tensor, tensor});
    text += " + t" + std::to_string(n);
  }
  c.options.score_mod = text;
  c.tensors.function_tensors = list;
  const auto many = plan(c.problem(), device());
  ASSERT_FALSE(many.ok());
  EXPECT_NE(many.status().message().find("gradients of 9 functions' tensors are asked for"),
            std::string::npos)
      << many.status().message();

  const auto expect_words = [](const Result<Plan>& refused, const std::string& words) {
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find(words), std::string::npos)
        << refused.status().message();
  };
  c.options.score_mod = "score + t0[k]";
  const Tensor large{memory.data(), DType::fp32, {int64_t{1} << 27}, {1}};
  const FunctionTensor wide[] = {{"t0", 1, large, large}};
  c.tensors.function_tensors = wide;
  expect_words(plan(c.problem(), device()), "would take 13312 MiB of workspace");
  const Tensor one{memory.data(), DType::fp32, {1}, {1}};
  const FunctionTensor narrow[] = {{"t0", 1, one, one}};
  c.tensors.function_tensors = narrow;
  c.options.score_mod = "score";
  for (int n = 0; n < 17; ++n) c.options.score_mod += fmt::format(" + t0[k + {}]", n);
  expect_words(plan(c.problem(), device()),
               "reads tensors with gradients at 17 places: a kernel takes 16");
  c.options.score_mod = "score + t0[k]";
  Problem p = c.problem();
  p.batch = 1, p.seqlen_q = p.seqlen_k = p.padded_k = int64_t{1} << 20;
  expect_words(plan(p, device()), "exact sums of its gradient have room for");
}

// What the machine code of AMD's kernels does.
class TensorGradientsCode : public TensorGradients {};

TEST_P(TensorGradientsCode, Agrees) {
  Random random(own_stream(11590));
  CaseSpec s = spec(random);
  s.head_dim = s.head_dim_v = 32;
  s.batch = 1, s.seqlen_q = random.between(20, 40), s.seqlen_k = random.between(40, 80);
  s.num_heads = s.num_kv_heads = 1;
  Case c(s, random);
  Functions functions(s, random, true);
  c.options.score_mod = random.pick(
      {"score + slopes[h] * 0.02 * (k - q)", "score + table[h, min(max(k - q + 8, 0), 16)]",
       "score + table[h, q % 17] * gain", "score * (1.0 + 0.1 * tanh(gain)) + table[h, k % 17]"});
  c.tensors.function_tensors = functions.list;
  check(c, functions);
}

INSTANTIATE_TEST_SUITE_P(MachineCode, TensorGradientsCode,
                         ::testing::ValuesIn(machine_code_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(On, TensorGradients,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(Hopper, TensorGradients, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing
