// Views of memory: inputs may be const, and the usual shapes need no strides.
#include <gtest/gtest.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "fulmen/fulmen.h"
#include "small_call.h"

namespace fulmen {
namespace {

using testing::SmallCall;

void expect_same(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.strides, b.strides);
}

TEST(Views, VectorsAndMatricesNeedNoStrides) {
  std::vector<int> values(6);
  expect_same(Tensor::vector(values.data(), DType::int32, 6),
              {values.data(), DType::int32, {1, 1, 1, 6}, {0, 0, 0, 1}});
  expect_same(Tensor::vector(values.data(), DType::int32, 1),
              {values.data(), DType::int32, {1, 1, 1, 1}, {0, 0, 0, 1}});
  expect_same(Tensor::matrix(values.data(), DType::int32, 2, 3),
              {values.data(), DType::int32, {1, 1, 2, 3}, {0, 0, 3, 1}});
  expect_same(Tensor::vector(nullptr, DType::fp32, 0),
              {nullptr, DType::fp32, {1, 1, 1, 0}, {0, 0, 0, 1}});
}

// Memory that is const serves as an input, and as nothing else.
template <class Field, class View>
constexpr bool kTakes = std::is_assignable_v<Field&, View> && std::is_convertible_v<View, Field>;
using T = AttentionTensors;
using C = KvCacheTensors;
template <class... Fields>
constexpr bool kAreInputs = ((kTakes<Fields, ConstTensor> && kTakes<Fields, Tensor>) && ...);
template <class... Fields>
constexpr bool kAreOutputs =
    ((!kTakes<Fields, ConstTensor> && !std::is_constructible_v<Fields, ConstTensor> &&
      kTakes<Fields, Tensor>) &&
     ...);
static_assert(kAreInputs<decltype(T::q), decltype(T::k), decltype(T::v), decltype(T::bias),
                         decltype(T::keep_mask), decltype(T::alibi_slopes), decltype(T::sinks),
                         decltype(T::dout), decltype(T::dlse), decltype(T::cu_seqlens_q),
                         decltype(T::cu_seqlens_k), decltype(T::seqlens_k),
                         decltype(T::block_table), decltype(T::leftpad_k), decltype(T::k_scale),
                         decltype(T::v_scale), decltype(T::q_scale)>);
static_assert(kAreOutputs<decltype(T::out), decltype(T::lse), decltype(T::dq), decltype(T::dk),
                          decltype(T::dv), decltype(T::dbias), decltype(T::dsinks)>);
static_assert(kAreInputs<decltype(C::seqlens_k), decltype(C::block_table), decltype(C::k_new),
                         decltype(C::v_new), decltype(C::rotary_cos), decltype(C::rotary_sin),
                         decltype(C::q)>);
static_assert(kAreOutputs<decltype(C::k_cache), decltype(C::v_cache), decltype(C::q_out),
                          decltype(C::seqlens_k_out)>);
static_assert(std::is_same_v<decltype(Tensor::vector(std::declval<const int*>(), DType::int32, 1)),
                             ConstTensor>);
static_assert(std::is_same_v<decltype(Tensor::vector(std::declval<const void*>(), DType::int32, 1)),
                             ConstTensor>);
static_assert(
    std::is_same_v<decltype(Tensor::vector(std::declval<int*>(), DType::int32, 1)), Tensor>);
static_assert(std::is_same_v<decltype(Tensor::vector(nullptr, DType::int32, 1)), Tensor>);

// A program whose inputs are const casts nothing away.
TEST(Views, InputsMayBeConst) {
  SmallCall usual;
  usual.vary();
  usual.with_everything();
  const SmallCall inputs = usual;
  const std::vector<int> used{3, 7};
  AttentionTensors t = usual.tensors;
  t.q = Tensor::bshd(inputs.q.data(), DType::fp32, SmallCall::kBatch, SmallCall::kSeqlenQ,
                     SmallCall::kHeads, SmallCall::kDim);
  t.k = Tensor::bshd(inputs.k.data(), DType::fp32, SmallCall::kBatch, SmallCall::kSeqlenK,
                     SmallCall::kKvHeads, SmallCall::kDim);
  t.v = Tensor::bshd(inputs.v.data(), DType::fp32, SmallCall::kBatch, SmallCall::kSeqlenK,
                     SmallCall::kKvHeads, SmallCall::kDim);
  t.bias = Tensor::bhqk(inputs.bias.data(), DType::fp32, SmallCall::kBatch, SmallCall::kHeads,
                        SmallCall::kSeqlenQ, SmallCall::kSeqlenK);
  t.sinks = Tensor::vector(inputs.heads.data(), DType::fp32, SmallCall::kHeads);
  t.seqlens_k = usual.tensors.seqlens_k =
      Tensor::vector(used.data(), DType::int32, SmallCall::kBatch);
  t.keep_mask =
      ConstTensor{t.keep_mask.data, t.keep_mask.dtype, t.keep_mask.shape, t.keep_mask.strides};
  ASSERT_TRUE(attention(usual.tensors, usual.options, "cpu").ok());
  const std::vector<float> expected = usual.out;
  usual.out.assign(usual.out.size(), SmallCall::kPoison);
  const Status status = attention(t, usual.options, "cpu");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(usual.out, expected);
}

}  // namespace
}  // namespace fulmen
