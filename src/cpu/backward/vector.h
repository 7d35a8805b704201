// Gradients of attention, Flash style: scores are computed again tile by tile and never stored.
//
// A unit is a KV head of a sequence. For each block of its keys, whose K, V, dK and dV are held in
// L2, it goes through the query tiles of all heads that share the KV head. Five products a tile,
// every one of which reads what the one before left in place:
//   S^T  = K Q^T     -> P^T = 2^(S^T - lse)           queries in lanes, as in the forward pass
//   dP^T = V dO^T    -> dS^T = P^T (dP^T - delta)     the same
//   dV  += P^T dO       dK += dS^T Q                  keys by broadcast, head_dim in lanes
//   dQ  += dS K                                       queries by broadcast
// docs/contract.md has the formulas. The scale of dQ and dK is left to the end.
#pragma once

#include "cpu/backward/products.h"

namespace fulmen::cpu {

template <bool kPairs, class T>
struct PackedElement {  // what rows in scratch hold: pairs as they were stored, others widened
  using Type = float;
};
template <class T>
struct PackedElement<true, T> {
  using Type = T;
};

template <class Isa, class T>
class BackwardTask : private BackwardProducts<Isa> {
  using Base = BackwardProducts<Isa>;

 public:
  BackwardTask(const BackwardCall& call, const BackwardUnit& unit, float* sums, float* scratch)
      : Base(call, unit, sums, scratch, sizeof(T), row_products<Isa, T>) {}

  // first_of_sums: nothing was added to the unit's sums of dbias yet. next: what the same worker
  // does afterwards, or null.
  void run(bool first_of_sums, const BackwardUnit* next) {
    if (this->short_unit()) this->fetch_ahead(next);
    this->clear_what_stays_empty(first_of_sums);
    this->for_blocks([&] { load_keys(); },
                     [&] {
                       for (int64_t row = 0; row < problem_.seqlen_q; row += kBlockM)
                         attend_rows(row);
                     },
                     [&] { store_keys(); });
  }

 private:
  using Base::at;
  using Base::call_, Base::problem_, Base::tensors_, Base::unit_, Base::held_, Base::sums_,
      Base::head_;
  using Base::layout_, Base::rows_, Base::dq_, Base::dq_started_, Base::ahead_;
  using typename Base::KeyProduct;
  using Packed = typename PackedElement<(Isa::kGroup > 1), T>::Type;

  void load_keys() {
    const int count = static_cast<int>(held_.count);
    uint8_t marks[kMaxHeldKeys];
    const uint8_t* alive = call_.mask.functions ? this->alive_keys_by_functions(marks)
                                                : this->alive_keys_of_group(marks);
    const T* k = element<const T>(tensors_.k, problem_.k, unit_.batch, held_.first, unit_.kv_head);
    const T* v = element<const T>(tensors_.v, problem_.v, unit_.batch, held_.first, unit_.kv_head);
    pack_keys<Isa>(StridedRows<T>{k, problem_.k.strides[1]}, count, problem_.head_dim,
                   at(layout_.keys), layout_.key_words, alive);
    pack_keys<Isa>(StridedRows<T>{v, problem_.v.strides[1]}, count, problem_.head_dim_v,
                   at(layout_.values), layout_.value_words, alive);
    if constexpr (Isa::kGroup > 1) {
      if (problem_.dq.present) {
        pack_values<Isa>(StridedRows<Packed>{reinterpret_cast<const Packed*>(at(layout_.keys)),
                                             layout_.key_words * Isa::kGroup},
                         count, problem_.head_dim, at(layout_.key_pairs), layout_.key_stride,
                         nullptr);
      }
    }
    if (!call_.direct_keys) this->clear_key_sums();
  }

  void store_keys() {
    if (call_.direct_keys) return;
    if (problem_.dk.present) {
      store_scaled(at(layout_.dk), layout_.key_stride, static_cast<int>(held_.count),
                   problem_.head_dim, problem_.softmax_scale,
                   element<T>(tensors_.dk, problem_.dk, unit_.batch, held_.first, unit_.kv_head),
                   problem_.dk.strides[1]);
    }
    if (problem_.dv.present) {
      store_scaled(at(layout_.dv), layout_.value_stride, static_cast<int>(held_.count),
                   problem_.head_dim_v, 1.0F,
                   element<T>(tensors_.dv, problem_.dv, unit_.batch, held_.first, unit_.kv_head),
                   problem_.dv.strides[1]);
    }
  }

  // [rows][stride] -> out, times the factor, rounded.
  static void store_scaled(const float* from, int64_t stride, int rows, int64_t dim, float factor,
                           T* out, int64_t out_stride) {
    for (int row = 0; row < rows; row += kBlockM) {
      float factors[kBlockM];
      for (float& f : factors) f = factor;
      store_output<Isa>(from + row * stride, stride, factors,
                        rows - row < kBlockM ? rows - row : kBlockM, dim, out + row * out_stride,
                        out_stride);
    }
  }

  // The held keys and the query tile at `row`.
  void attend_rows(int64_t row) {
    rows_ = this->select_rows(row);
    if (!this->attends_held(rows_)) return;
    dq_ = sums_ == nullptr ? at(layout_.dq) : this->dq_sums(row);
    dq_started_ = !this->first_block(rows_);
    load_rows();
    this->fetch_next_rows(row + kBlockM);
    for (int64_t key = rows_.held.begin / call_.block_n * call_.block_n; key < rows_.held.end;
         key += call_.block_n) {
      const int64_t left = rows_.held.end - key;
      const int count = static_cast<int>(left < call_.block_n ? left : call_.block_n);
      if (!this->is_left_out(rows_, key, count)) attend(key, count);
    }
    this->start_queries();
    if (problem_.dq.present && this->last_block(rows_) && call_.cut.num_splits == 1 &&
        !call_.direct_queries) {
      store_scaled(dq_, layout_.key_stride, rows_.count, problem_.head_dim, problem_.softmax_scale,
                   element<T>(tensors_.dq, problem_.dq, unit_.batch, rows_.first, head_),
                   problem_.dq.strides[1]);
    }
  }

  // Q, dO, their transposes, and the rows' numbers.
  void load_rows() {
    uint8_t alive[kBlockM];
    this->load_lse(rows_, this->numbers(), alive);
    const T* q = element<const T>(tensors_.q, problem_.q, unit_.batch, rows_.first, head_);
    load_operand(q, problem_.q.strides[1], problem_.head_dim, alive, at(layout_.query_rows),
                 layout_.key_words, at(layout_.query_pairs), layout_.key_stride,
                 at(layout_.queries));
    const T* dout = element<const T>(tensors_.dout, problem_.dout, unit_.batch, rows_.first, head_);
    load_operand(dout, problem_.dout.strides[1], problem_.head_dim_v, alive, at(layout_.dout_rows),
                 layout_.value_words, at(layout_.dout_pairs), layout_.value_stride,
                 at(layout_.douts));
    this->load_deltas(rows_, alive, this->delta(), [&] { sum_products(); });
  }

  void load_operand(const T* from, int64_t stride, int64_t dim, const uint8_t* alive, float* rows,
                    int64_t words, float* pairs, int64_t pairs_stride, float* transposed) {
    pack_keys<Isa>(StridedRows<T>{from, stride}, rows_.count, dim, rows, words, alive);
    const auto* packed = reinterpret_cast<const Packed*>(rows);
    pack_queries<Isa>(packed, words * Isa::kGroup, rows_.count, dim, transposed);
    if constexpr (Isa::kGroup > 1) {
      pack_values<Isa>(StridedRows<Packed>{packed, words * Isa::kGroup}, rows_.count, dim, pairs,
                       pairs_stride, nullptr);
    }
  }

  // dout . out of each row.
  void sum_products() {
    const T* out = element<const T>(tensors_.out, problem_.out, unit_.batch, rows_.first, head_);
    pack_queries<Isa>(out, problem_.out.strides[1], rows_.count, problem_.head_dim_v,
                      at(layout_.outs));
    Base::sum_products();
  }

  // A tile of keys.
  void attend(int64_t key, int count) {
    if (!this->attend_scores(key, count)) return;
    const KeySpan keys = this->spans_.all;
    const int64_t held_key = key - held_.first, first = held_key + keys.begin,
                  skipped = static_cast<int64_t>(keys.begin) * kBlockM;
    float *p = at(layout_.probabilities) + skipped, *ds = at(layout_.dscores) + skipped;
    if (problem_.dv.present) {
      multiply_keys({p, at(layout_.dout_pairs), layout_.value_stride, first, keys.count()},
                    at(layout_.dv), problem_.head_dim_v, 1.0F, tensors_.dv, problem_.dv);
    }
    if (problem_.dk.present) {
      multiply_keys({Isa::kGroup == 1 ? ds : p + kBlockM / 2, at(layout_.query_pairs),
                     layout_.key_stride, first, keys.count()},
                    at(layout_.dk), problem_.head_dim, problem_.softmax_scale, tensors_.dk,
                    problem_.dk);
    }
    if (problem_.dq.present) multiply_queries(held_key);
  }

  void multiply_queries(int64_t held_key) {
    if (!call_.direct_queries) return this->add_queries(held_key);
    T* dq = element<T>(tensors_.dq, problem_.dq, unit_.batch, rows_.first, head_);
    const int64_t stride = problem_.dq.strides[1], dim = problem_.head_dim;
    with_streams<Isa>(streams(dq, stride, dim), [&](auto streams) __attribute__((always_inline)) {
      Base::multiply_queries(held_key, final_gradient<decltype(streams)::value>(
                                           dq, stride, rows_.count, dim, problem_.softmax_scale));
    });
  }

  // dV or dK, to the sums or, times the factor, to the tensor.
  void multiply_keys(const KeyProduct& product, float* sums, int64_t dim, float factor,
                     const Tensor& tensor, const TensorSpec& spec) {
    if (!call_.direct_keys) return this->add_keys(product, sums);
    T* out = element<T>(tensor, spec, unit_.batch, held_.first + product.held_key, unit_.kv_head);
    const int64_t stride = spec.strides[1];
    with_streams<Isa>(streams(out, stride, dim), [&](auto streams) __attribute__((always_inline)) {
      Base::multiply_keys(product, final_gradient<decltype(streams)::value>(
                                       out, stride, product.count, dim, factor));
    });
  }

  bool streams(const T* out, int64_t stride, int64_t dim) const {
    return Base::streams(out, stride, dim) && output_blocks_are_lines<Isa>(dim, sizeof(T));
  }
  template <bool kStreams>
  FinalGradient<Isa, T, kStreams> final_gradient(T* out, int64_t stride, int rows, int64_t dim,
                                                 float factor) {
    return {out, stride, factor, rows, static_cast<int>(dim), &ahead_};
  }
};

}  // namespace fulmen::cpu
