// A small valid call that tests bend out of shape.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"

namespace fulmen::testing {

struct SmallCall {
  static constexpr int64_t kBatch = 2, kSeqlenQ = 5, kSeqlenK = 7, kHeads = 4, kKvHeads = 2,
                           kDim = 8;
  static constexpr float kPoison = 12345.0F;
  std::vector<float> q = std::vector<float>(kBatch * kSeqlenQ * kHeads * kDim, 0.5F);
  std::vector<float> k = std::vector<float>(kBatch * kSeqlenK * kKvHeads * kDim, 0.25F);
  std::vector<float> v = std::vector<float>(kBatch * kSeqlenK * kKvHeads * kDim, 2.0F);
  std::vector<float> out = std::vector<float>(kBatch * kSeqlenQ * kHeads * kDim, kPoison);
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kSeqlenQ, kPoison);
  std::vector<float> bias = std::vector<float>(kBatch * kHeads * kSeqlenQ * kSeqlenK, 0.0F);
  std::vector<uint8_t> keep = std::vector<uint8_t>(kBatch * kSeqlenK, 1);
  std::vector<float> heads = std::vector<float>(kHeads, 0.5F);
  // Tensors of the backward pass.
  std::vector<float> dout = std::vector<float>(out.size(), 1.0F),
                     dlse = std::vector<float>(lse.size(), 0.5F);
  std::vector<float> dq = std::vector<float>(q.size(), kPoison),
                     dk = std::vector<float>(k.size(), kPoison);
  std::vector<float> dv = std::vector<float>(v.size(), kPoison),
                     dbias = std::vector<float>(bias.size(), kPoison);
  std::vector<float> dsinks = std::vector<float>(kHeads, kPoison);
  AttentionTensors tensors;
  AttentionOptions options;

  SmallCall() {
    tensors.q = Tensor::bshd(q.data(), DType::fp32, kBatch, kSeqlenQ, kHeads, kDim);
    tensors.k = Tensor::bshd(k.data(), DType::fp32, kBatch, kSeqlenK, kKvHeads, kDim);
    tensors.v = Tensor::bshd(v.data(), DType::fp32, kBatch, kSeqlenK, kKvHeads, kDim);
    tensors.out = Tensor::bshd(out.data(), DType::fp32, kBatch, kSeqlenQ, kHeads, kDim);
  }
  void with_everything() {
    tensors.bias = Tensor::bhqk(bias.data(), DType::fp32, kBatch, kHeads, kSeqlenQ, kSeqlenK);
    tensors.keep_mask = Tensor::bhqk(keep.data(), DType::boolean, kBatch, 1, 1, kSeqlenK);
    tensors.alibi_slopes = {heads.data(), DType::fp32, {1, 1, 1, kHeads}, {0, 0, 0, 1}};
    tensors.sinks = {heads.data(), DType::fp32, {1, 1, 1, kHeads}, {0, 0, 0, 1}};
    tensors.lse = {lse.data(),
                   DType::fp32,
                   {kBatch, kHeads, kSeqlenQ, 1},
                   {kHeads * kSeqlenQ, kSeqlenQ, 1, 1}};
  }
  // Everything that the backward pass may have, after a forward pass by the reference.
  void with_gradients() {
    with_everything();
    tensors.dout = Tensor::bshd(dout.data(), DType::fp32, kBatch, kSeqlenQ, kHeads, kDim);
    tensors.dlse = tensors.lse;
    tensors.dlse.data = dlse.data();
    tensors.dq = Tensor::bshd(dq.data(), DType::fp32, kBatch, kSeqlenQ, kHeads, kDim);
    tensors.dk = Tensor::bshd(dk.data(), DType::fp32, kBatch, kSeqlenK, kKvHeads, kDim);
    tensors.dv = Tensor::bshd(dv.data(), DType::fp32, kBatch, kSeqlenK, kKvHeads, kDim);
    tensors.dbias = Tensor::bhqk(dbias.data(), DType::fp32, kBatch, kHeads, kSeqlenQ, kSeqlenK);
    tensors.dsinks = {dsinks.data(), DType::fp32, {1, 1, 1, kHeads}, {0, 0, 0, 1}};
    run_forward();
    options.kernel = "cpu.reference.backward";
  }
  // out and lse of the options by the reference.
  void run_forward() {
    AttentionOptions exact = options;
    exact.kernel = "cpu.reference.double";
    if (const Status status = attention(tensors, exact, "cpu"); !status.ok())
      throw std::runtime_error(status.message());
  }
  // Inputs that tell every option apart.
  void vary() {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 37 % 19) / 9.0F - 1.0F;
    for (std::size_t i = 0; i < k.size(); ++i)
      k[i] = static_cast<float>(i * 53 % 23) / 11.0F - 1.0F;
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>(i * 29 % 31) / 15.0F - 1.0F;
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i * 7 % 5) / 5.0F;
    for (std::size_t i = 0; i < dout.size(); ++i)
      dout[i] = static_cast<float>(i * 17 % 13) / 6.0F - 1.0F;
    keep[3] = 0;
  }
  static bool poisoned(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return x == kPoison; });
  }
  bool untouched() const { return poisoned(out) && poisoned(lse); }
  bool gradients_untouched() const {
    return poisoned(dq) && poisoned(dk) && poisoned(dv) && poisoned(dbias) && poisoned(dsinks);
  }
};

// A call bent out of shape, and what its refusal says.
struct Bad {
  const char* name;
  std::function<void(SmallCall&)> bend;
  std::vector<std::string> said;  // argument, value, accepted
};

inline void expect_refused(const Status& status, const Bad& bad) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  for (const std::string& text : bad.said) {
    EXPECT_NE(status.message().find(text), std::string::npos)
        << "\"" << text << "\" is not in: " << status.message();
  }
}

}  // namespace fulmen::testing
