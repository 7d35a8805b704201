// Attention over up to 128 keys, chess boards above all: one head's rows as one task, the whole
// score row at once, no online rescale.
//
// Keys lie in SIMD lanes, S = Q K^T: bias and masks are then read in their natural layout, Q is
// read by broadcast where it is, and only K is transposed. A row's max and sum cross lanes, four
// rows at a time.
#pragma once

#include "cpu/short/rows.h"
#include "cpu/tile/finish_rows.h"

namespace fulmen::cpu {

template <class Isa, class T>
class ShortTask : private ShortRows<Isa> {
  using Base = ShortRows<Isa>;

 public:
  ShortTask(const ForwardCall& call, const PrefillRows& task, float* scratch,
            const ShortScratch& layout)
      : Base(call, task, scratch, layout, sizeof(T)) {}

  void run() {
    streams_ = streams_ && output_blocks_are_lines<Isa>(problem_.head_dim_v, sizeof(T));
    const bool general = this->general();
    score(general);
    this->softmax(general);
    output();
  }

 private:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::scratch_,
      Base::kv_head_, Base::rows_, Base::keys_, Base::planes_, Base::streams_;

  // general: the scores stay raw products.
  void score(bool general) {
    const T* q = element<const T>(tensors_.q, problem_.q, task_.batch, task_.row_begin, task_.head);
    const int64_t q_stride = problem_.q.strides[1];
    const float* queries = reinterpret_cast<const float*>(q);
    int64_t query_stride = q_stride / Isa::kGroup;
    // In place: what the product reads is what is stored, and no word hangs over the end of a row.
    const bool in_place = sizeof(T) * Isa::kGroup == sizeof(float) &&
                          problem_.head_dim % Isa::kGroup == 0 && q_stride % Isa::kGroup == 0;
    if (!in_place) {
      pack_keys<Isa>(StridedRows<T>{q, q_stride}, rows_, problem_.head_dim,
                     scratch_ + layout_.queries, layout_.query_stride);
      queries = scratch_ + layout_.queries;
      query_stride = layout_.query_stride;
    }
    for (int plane = 0; plane < planes_; ++plane) {
      StepPrefetch<Isa> ahead = this->ahead_of_scores(plane);
      const T* k = element<const T>(tensors_.k, problem_.k, task_.batch,
                                    static_cast<int64_t>(plane) * kBlockM, kv_head_);
      pack_queries<Isa>(k, problem_.k.strides[1], this->plane_keys(plane), problem_.head_dim,
                        scratch_ + layout_.keys + plane * layout_.key_plane);
      this->multiply_keys(plane, !general, queries, query_stride, ahead);
    }
  }

  void output() {
    float *row_max = this->row_max(), *row_sum = this->row_sum(), *factor = this->row_factor();
    if (planes_ == 0) {  // no keys: empty rows
      for (int row = 0; row < kBlockM; ++row) {
        row_max[row] = -__builtin_inff();
        row_sum[row] = 0;
      }
    }
    finish_rows<Isa>(problem_, tensors_, task_.batch, task_.head, task_.row_begin, rows_, row_max,
                     row_sum, call_.scale.units, factor);
    T* out = element<T>(tensors_.out, problem_.out, task_.batch, task_.row_begin, task_.head);
    const int64_t out_stride = problem_.out.strides[1];
    if (planes_ == 1) {
      StepPrefetch<Isa> ahead = this->ahead_of_output();
      const int dim = static_cast<int>(problem_.head_dim_v);
      with_streams<Isa>(streams_, [&](auto streams) __attribute__((always_inline)) {
        multiply_values(0, FinalOutput<Isa, T, decltype(streams)::value>{out, out_stride, factor,
                                                                         rows_, dim, &ahead});
      });
      if (call_.stream_output && task_.next == nullptr) end_streams<Isa>();
      return;
    }
    float* tile = scratch_ + layout_.output;
    if (planes_ == 0) {
      for (int64_t i = 0; i < rows_ * layout_.value_stride; i += Isa::kLanes)
        Isa::store(tile + i, Isa::zero());
    } else {
      multiply_values(0,
                      ScratchOutput<Isa, OutputKind::first>{tile, layout_.value_stride, nullptr});
      multiply_values(
          1, ScratchOutput<Isa, OutputKind::accumulate>{tile, layout_.value_stride, nullptr});
    }
    store_output<Isa>(tile, layout_.value_stride, factor, rows_, problem_.head_dim_v, out,
                      out_stride);
  }

  template <class Output>
  void multiply_values(int plane, const Output& output) {
    const int keys = this->plane_keys(plane);
    float* values = scratch_ + layout_.values;
    const T* v = element<const T>(tensors_.v, problem_.v, task_.batch,
                                  static_cast<int64_t>(plane) * kBlockM, kv_head_);
    uint8_t alive[kBlockM];
    pack_values<Isa>(StridedRows<T>{v, problem_.v.strides[1]}, keys, problem_.head_dim_v, values,
                     layout_.value_stride,
                     this->alive_keys_of(static_cast<int64_t>(plane) * kBlockM, keys, alive));
    output_tile<Isa, KeysInLanes>(this->scores(plane), values, layout_.value_stride,
                                  layout_.value_stride, words_of<Isa>(keys), rows_, output);
  }
};

template <class Isa, class T>
void short_task(const ForwardCall& call, const PrefillRows& task, float* scratch) {
  const ShortScratch layout = short_scratch(*call.problem, Isa::kLanes, Isa::kGroup);
  ShortTask<Isa, T>(call, task, scratch, layout).run();
}

}  // namespace fulmen::cpu
