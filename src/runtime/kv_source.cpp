#include "runtime/kv_source.h"

#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"

namespace fulmen {

KvSource::KvSource(const SequenceView& view, Of of, int64_t batch, int64_t kv_head) noexcept
    : spec_(of == Of::k ? view.problem.k : view.problem.v),
      scale_spec_(of == Of::k ? view.problem.k_scale : view.problem.v_scale),
      data_(of == Of::k ? view.tensors.k.data : view.tensors.v.data),
      scales_(scale_spec_.present
                  ? (of == Of::k ? view.tensors.k_scale.data : view.tensors.v_scale.data)
                  : nullptr),
      dtype_(of == Of::k ? view.problem.k_dtype : view.problem.v_dtype),
      dim_(of == Of::k ? view.problem.head_dim : view.problem.head_dim_v),
      paged_(view.problem.paged()),
      pages_(view, spec_, batch, kv_head),
      first_(batch * spec_.strides[0] + kv_head * spec_.strides[2]),
      scale_rows_(view, scale_spec_, batch, kv_head),
      scaled_(scales_ != nullptr) {
  const TensorSpec& q = view.problem.q_scale;
  if (of == Of::k && q.present) {
    factor_ = reference::load_float(view.tensors.q_scale.data, q.dtype,
                                    batch * q.strides[0] + kv_head * q.strides[2]);
    scaled_ = true;
  }
}

void KvSource::row(int64_t key, float* out) const noexcept {
  const int64_t first = paged_ ? pages_.offset(key) : first_ + key * spec_.strides[1];
  reference::decode_kv(data_, dtype_, first, dim_, out);
  if (!scaled_) return;
  const int64_t scale = scales_ != nullptr ? scale_rows_(key) : 0;
  const int64_t step = scale_spec_.strides[3];
  const bool channels = scales_ != nullptr && step != 0;
  const auto factor_at = [&](int64_t d) {
    return scales_ == nullptr
               ? factor_
               : reference::load_float(scales_, scale_spec_.dtype, scale + d * step) * factor_;
  };
  const float of_row = factor_at(0);
  for (int64_t d = 0; d < dim_; ++d) out[d] *= channels ? factor_at(d) : of_row;
}

}  // namespace fulmen
