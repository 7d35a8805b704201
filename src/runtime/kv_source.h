// k or v of one KV head of a sequence as fp32 numbers: what is stored, times its scales.
#pragma once

#include <cstdint>

#include "fulmen/tensor.h"
#include "runtime/sequence_view.h"

namespace fulmen {

// Where the scales of one KV head lie: one for each row, or one for all.
class ScaleRows {
 public:
  ScaleRows(const SequenceView& view, const TensorSpec& spec, int64_t batch,
            int64_t kv_head) noexcept
      : pages_(view, spec, batch, kv_head),
        paged_(view.problem.paged() && spec.strides[1] != 0),
        first_(batch * spec.strides[0] + kv_head * spec.strides[2]),
        stride_(spec.strides[1]) {}
  int64_t operator()(int64_t key) const noexcept {
    return paged_ ? pages_.offset(key) : first_ + key * stride_;
  }

 private:
  PagedRows pages_;
  bool paged_;
  int64_t first_;
  int64_t stride_;
};

class KvSource {
 public:
  enum class Of { k, v };
  // The view is of the sequence, and stays.
  KvSource(const SequenceView& view, Of of, int64_t batch, int64_t kv_head) noexcept;
  // Key `key`. out: [head_dim], of v [head_dim_v].
  void row(int64_t key, float* out) const noexcept;
  int64_t dim() const noexcept { return dim_; }

 private:
  const TensorSpec& spec_;
  const TensorSpec& scale_spec_;
  const void* data_;
  const void* scales_;
  DType dtype_;
  int64_t dim_;
  bool paged_;
  PagedRows pages_;
  int64_t first_;
  ScaleRows scale_rows_;
  float factor_ = 1;  // q_scale
  bool scaled_;
};

}  // namespace fulmen
