// What is refused of score functions, their tensors and block masks, in plans, runs and C.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::testing {
namespace {

// One head of 8 queries and keys of 4 dims, with a function tensor slopes[1].
struct Call {
  std::vector<float> q = std::vector<float>(32, 0.5F), k = q, v = q, out = q, slope{0.25F};
  std::vector<int32_t> numbers = std::vector<int32_t>(4, 1);
  std::vector<FunctionTensor> list{{"slopes", 1, Tensor{slope.data(), DType::fp32, {1}, {1}}, {}}};
  AttentionTensors tensors;
  AttentionOptions options;

  Call() {
    const auto view = [](std::vector<float>& x) {
      return Tensor::bshd(x.data(), DType::fp32, 1, 8, 1, 4);
    };
    tensors.q = view(q), tensors.k = view(k), tensors.v = view(v), tensors.out = view(out);
    options.score_mod = "score + slopes[h]";
    tensors.function_tensors = list;
  }
  std::string refusal() const {
    const auto made = make_problem(tensors, options);
    return made.ok() ? "" : made.status().message();
  }
};

TEST(FunctionErrors, NameTheArgumentItsValueAndWhatIsAccepted) {
  const auto expect = [](const char* says, auto change) {
    Call c;
    change(c);
    EXPECT_EQ(c.refusal(), says);
  };
  expect("", [](Call&) {});
  expect(
      "score_mod, line 1, column 9: 'slop' is no name of this function: score, b, h, q, k, names "
      "assigned before, functions and the tensors slopes are accepted",
      [](Call& c) { c.options.score_mod = "score + slop"; });
  expect("function_tensors is given, score_mod and mask_mod are empty: nothing reads them",
         [](Call& c) { c.options.score_mod.clear(); });
  expect("function_tensors[0].name is not accepted: the language has that name for itself",
         [](Call& c) { c.list[0].name = "q"; });
  expect(
      "function_tensors[0].name is not accepted: letters, digits and _, not a digit first, up to "
      "64, are accepted",
      [](Call& c) { c.list[0].name = "1x"; });
  expect("function tensor \"slopes\".dims is 5: 0 to 4 are accepted",
         [](Call& c) { c.list[0].dims = 5; });
  expect(
      "function tensor \"slopes\".dtype is 77: fp32, fp16, bf16, int32, int64, int8, uint8 and "
      "boolean are accepted",
      [](Call& c) { c.list[0].tensor.dtype = static_cast<DType>(77); });
  expect(
      "function tensor \"slopes\".shape is [-1, 0, 0, 0]: each of the 1 dims must be 0 to 2^31 - "
      "1",
      [](Call& c) { c.list[0].tensor.shape[0] = -1; });
  expect("function tensor \"slopes\" is given twice", [](Call& c) {
    c.list.push_back(c.list[0]);
    c.tensors.function_tensors = c.list;
  });
  expect("function tensor \"slopes\"'s gradient is given: it belongs to the backward pass",
         [](Call& c) { c.list[0].gradient = c.list[0].tensor; });
  expect("mask_block_q is 24: multiples of 16 up to 256 are accepted", [](Call& c) {
    c.options.mask_block_q = 24;
    c.tensors.kv_indices = Tensor::bhqk(c.numbers.data(), DType::int32, 1, 1, 1, 1);
  });
  expect("kv_num_blocks is missing, kv_indices is given: a block mask has both", [](Call& c) {
    c.tensors.kv_indices = Tensor::bhqk(c.numbers.data(), DType::int32, 1, 1, 1, 1);
  });
  expect(
      "kv_indices.shape is [1, 1, 2, 1]: [batch, num_heads, blocks of queries, blocks of keys] = "
      "[1, 1, 1, 1] is needed, where each dim but the last may be 1",
      [](Call& c) {
        c.tensors.kv_num_blocks = Tensor::bhqk(c.numbers.data(), DType::int32, 1, 1, 1, 1);
        c.tensors.kv_indices = Tensor::bhqk(c.numbers.data(), DType::int32, 1, 1, 2, 1);
      });
}

TEST(FunctionErrors, GradientsAreChecked) {
  const auto expect = [](const char* says, auto change) {
    Call c;
    std::vector<float> lse(8), dout(32), dq(32), gradient(4);
    c.tensors.lse = Tensor::bhqk(lse.data(), DType::fp32, 1, 1, 8, 1);
    c.tensors.dout = c.tensors.dq = c.tensors.q;
    c.list[0].gradient = {gradient.data(), DType::fp32, {1}, {1}};
    change(c.list[0], c);
    const auto made = make_backward_problem(c.tensors, c.options);
    EXPECT_EQ(made.ok() ? "" : made.status().message(), says);
  };
  expect("", [](FunctionTensor&, Call&) {});
  expect(
      "function tensor \"slopes\"'s gradient.dtype is fp16: fp32 and fp32, the tensor's, are "
      "accepted",
      [](FunctionTensor& t, Call&) { t.gradient.dtype = DType::fp16; });
  expect(
      "function tensor \"slopes\"'s gradient.shape is [3, 0, 0, 0]: [1, 0, 0, 0], the tensor's, "
      "is needed",
      [](FunctionTensor& t, Call&) { t.gradient.shape[0] = 3; });
  expect(
      "function tensor \"slopes\"'s gradient is given, its dtype is int32: a tensor of floats has "
      "one",
      [](FunctionTensor& t, Call&) { t.tensor.dtype = DType::int32; });
  expect(
      "function tensor \"slopes\"'s gradient with shape [4, 1, 1, 1] and strides [0, 0, 0, 0] "
      "overlaps itself: each element needs its own place",
      [](FunctionTensor& t, Call&) {
        t.tensor.shape[0] = t.gradient.shape[0] = 4;
        t.tensor.strides[0] = t.gradient.strides[0] = 0;
      });
}

TEST(FunctionErrors, RunsTakeThePlansTensors) {
  Call c;
  const auto problem = make_problem(c.tensors, c.options);
  ASSERT_TRUE(problem.ok());
  const auto made = plan(*problem, "cpu", c.options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto refusal = [&](auto change) {
    Call other;
    change(other.list[0], other);
    return made->run(nullptr, other.tensors, nullptr, 0).message();
  };
  EXPECT_EQ(refusal([](FunctionTensor&, Call&) {}), "");
  EXPECT_EQ(refusal([](FunctionTensor&, Call& o) { o.tensors.function_tensors = {}; }),
            "function_tensors has 0 tensors; this plan was made for 1");
  EXPECT_EQ(refusal([](FunctionTensor& t, Call&) { t.name = "slope"; }),
            "function_tensors[0] is not \"slopes\", as in this plan: the same names in the same "
            "order are needed");
  EXPECT_EQ(refusal([](FunctionTensor& t, Call&) { t.tensor.data = nullptr; }),
            "slopes.data is null: score functions read 4 bytes there");
  EXPECT_EQ(refusal([](FunctionTensor& t, Call&) { t.tensor.dtype = DType::bf16; }).substr(0, 40),
            "function tensor \"slopes\" is bf16 [1, 0, ");
  EXPECT_NE(refusal([](FunctionTensor& t, Call& o) {
              t.tensor.data = o.out.data() + 3;
            }).find("overlaps slopes"),
            std::string::npos);
}

TEST(FunctionErrors, ProblemsDifferByTheirFunctions) {
  Call a, b;
  EXPECT_TRUE(*make_problem(a.tensors, a.options) == *make_problem(b.tensors, b.options));
  b.options.score_mod = "score - slopes[h]";
  const auto one = make_problem(a.tensors, a.options), other = make_problem(b.tensors, b.options);
  EXPECT_FALSE(*one == *other);
  EXPECT_NE(hash_value(*one), hash_value(*other));
  EXPECT_NE(to_string(*one).find("score_mod=\"score + slopes[h]\" slopes=fp32:1"),
            std::string::npos)
      << to_string(*one);
}

TEST(FunctionErrors, KernelsWithoutThemSayWhy) {
  Call c;
  const auto problem = make_problem(c.tensors, c.options);
  ASSERT_TRUE(problem.ok());
  c.options.kernel = "cpu.standard.plain";
  EXPECT_EQ(plan(*problem, "cpu", c.options).status().message(),
            "kernel \"cpu.standard.plain\" cannot run this problem: it has no score functions "
            "(score_mod, mask_mod)");
}

TEST(FunctionErrors, TheCInterfaceTakesThem) {
  float q[32], out[32], slope[8];
  for (int i = 0; i < 32; ++i) q[i] = 0.1F * static_cast<float>(i % 5);
  for (int i = 0; i < 8; ++i) slope[i] = i == 3 ? 50.0F : 0.0F;
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  fulmen_options o;
  fulmen_options_init(&o);
  t.q = t.k = t.v = fulmen_tensor_bshd(q, FULMEN_FP32, 1, 8, 1, 4);
  t.out = fulmen_tensor_bshd(out, FULMEN_FP32, 1, 8, 1, 4);
  fulmen_function_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.name = "bonus";
  tensor.dims = 1;
  tensor.tensor.data = slope;
  tensor.tensor.shape[0] = 8;
  tensor.tensor.strides[0] = 1;
  t.function_tensors = &tensor;
  t.num_function_tensors = 1;
  o.score_mod = "score + bonus[k]";
  ASSERT_EQ(fulmen_attention(&t, &o, "cpu"), FULMEN_OK) << fulmen_last_error();
  for (int d = 0; d < 4; ++d) EXPECT_NEAR(out[d], q[12 + d], 1e-6);  // all attend key 3
  t.num_function_tensors = 33;
  EXPECT_NE(fulmen_attention(&t, &o, "cpu"), FULMEN_OK);
  EXPECT_STREQ(fulmen_last_error(), "num_function_tensors is 33: 0 to 32 are accepted");
  t.num_function_tensors = 1;
  tensor.name = nullptr;
  EXPECT_NE(fulmen_attention(&t, &o, "cpu"), FULMEN_OK);
  EXPECT_STREQ(fulmen_last_error(), "function_tensors[0].name is null: a pointer is needed");
}

}  // namespace
}  // namespace fulmen::testing
