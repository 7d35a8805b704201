// Views of memory: inputs may be const, and the usual shapes need no strides.
#include <gtest/gtest.h>

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
  expect_same(Tensor::vector(values.data(), DType::int32, 6), {values.data(), DType::int32, {1, 1, 1, 6}, {0, 0, 0, 1}});
  expect_same(Tensor::vector(values.data(), DType::int32, 1), {values.data(), DType::int32, {1, 1, 1, 1}, {0, 0, 0, 1}});
  expect_same(Tensor::matrix(values.data(), DType::int32, 2, 3), {values.data(), DType::int32, {1, 1, 2, 3}, {0, 0, 3, 1}});
  expect_same(Tensor::vector(nullptr, DType::fp32, 0), {nullptr, DType::fp32, {1, 1, 1, 0}, {0, 0, 0, 1}});
}

// A program whose inputs are const casts nothing away.
TEST(Views, InputsMayBeConst) {
  SmallCall usual;
  usual.vary();
  usual.with_everything();
  const SmallCall inputs = usual;
  const std::vector<int> used{3, 7};
  AttentionTensors t = usual.tensors;
  t.q = Tensor::bshd(inputs.q.data(), DType::fp32, SmallCall::kBatch, SmallCall::kSeqlenQ, SmallCall::kHeads, SmallCall::kDim);
  t.k = Tensor::bshd(inputs.k.data(), DType::fp32, SmallCall::kBatch, SmallCall::kSeqlenK, SmallCall::kKvHeads, SmallCall::kDim);
  t.v = Tensor::bshd(inputs.v.data(), DType::fp32, SmallCall::kBatch, SmallCall::kSeqlenK, SmallCall::kKvHeads, SmallCall::kDim);
  t.bias =
      Tensor::bhqk(inputs.bias.data(), DType::fp32, SmallCall::kBatch, SmallCall::kHeads, SmallCall::kSeqlenQ, SmallCall::kSeqlenK);
  t.sinks = Tensor::vector(inputs.heads.data(), DType::fp32, SmallCall::kHeads);
  t.seqlens_k = usual.tensors.seqlens_k = Tensor::vector(used.data(), DType::int32, SmallCall::kBatch);
  ASSERT_TRUE(attention(usual.tensors, usual.options, "cpu").ok());
  const std::vector<float> expected = usual.out;
  usual.out.assign(usual.out.size(), SmallCall::kPoison);
  const Status status = attention(t, usual.options, "cpu");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(usual.out, expected);
}

}  // namespace
}  // namespace fulmen
