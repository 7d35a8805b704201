// A small valid call that tests bend out of shape.
#pragma once

#include <vector>

#include "fulmen/fulmen.h"

namespace fulmen::testing {

struct SmallCall {
  static constexpr int64_t kBatch = 2, kSeqlenQ = 5, kSeqlenK = 7, kHeads = 4, kKvHeads = 2, kDim = 8;
  static constexpr float kPoison = 12345.0F;
  std::vector<float> q = std::vector<float>(kBatch * kSeqlenQ * kHeads * kDim, 0.5F);
  std::vector<float> k = std::vector<float>(kBatch * kSeqlenK * kKvHeads * kDim, 0.25F);
  std::vector<float> v = std::vector<float>(kBatch * kSeqlenK * kKvHeads * kDim, 2.0F);
  std::vector<float> out = std::vector<float>(kBatch * kSeqlenQ * kHeads * kDim, kPoison);
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kSeqlenQ, kPoison);
  std::vector<float> bias = std::vector<float>(kBatch * kHeads * kSeqlenQ * kSeqlenK, 0.0F);
  std::vector<uint8_t> keep = std::vector<uint8_t>(kBatch * kSeqlenK, 1);
  std::vector<float> heads = std::vector<float>(kHeads, 0.5F);
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
    tensors.lse = {lse.data(), DType::fp32, {kBatch, kHeads, kSeqlenQ, 1}, {kHeads * kSeqlenQ, kSeqlenQ, 1, 1}};
  }
  bool untouched() const {
    for (const float x : out) {
      if (x != kPoison) return false;
    }
    for (const float x : lse) {
      if (x != kPoison) return false;
    }
    return true;
  }
};

}  // namespace fulmen::testing
