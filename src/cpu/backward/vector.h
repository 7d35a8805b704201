// Gradients of attention, Flash style: scores are computed again tile by tile and never stored.
//
// A unit is a KV head of a sequence. For each block of its keys, whose K, V, dK and dV are held in L2, it goes through the query
// tiles of all heads that share the KV head. Five products a tile, every one of which reads what the one before left in place:
//   S^T  = K Q^T     -> P^T = 2^(S^T - lse)           queries in lanes, as in the forward pass
//   dP^T = V dO^T    -> dS^T = P^T (dP^T - delta)     the same
//   dV  += P^T dO       dK += dS^T Q                  keys by broadcast, head_dim in lanes
//   dQ  += dS K                                       queries by broadcast
// docs/contract.md has the formulas. The scale of dQ and dK is left to the end.
#pragma once

#include "cpu/backward/unit.h"
#include "cpu/tile/output_product.h"
#include "cpu/tile/score_product.h"

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
class BackwardTask : private BackwardUnitTask<Isa> {
  using Base = BackwardUnitTask<Isa>;

 public:
  BackwardTask(const BackwardCall& call, const BackwardUnit& unit, float* sums, float* scratch)
      : Base(call, unit, sums, scratch, sizeof(T)),
        layout_(backward_scratch(problem_, Isa::kLanes, Isa::kGroup, call.block_n, call.cut.held_keys)) {}

  // first_of_sums: nothing was added to the unit's sums of dbias yet. next: what the same worker does afterwards, or null.
  void run(bool first_of_sums, const BackwardUnit* next) {
    if (this->short_unit()) fetch_ahead(next);
    this->template clear_what_stays_empty<T>(first_of_sums);
    this->for_blocks([&] { load_keys(); },
                     [&] {
                       for (int64_t row = 0; row < problem_.seqlen_q; row += kBlockM) attend_rows(row);
                     },
                     [&] { store_keys(); });
  }

 private:
  using Base::at, Base::clear;
  using Base::call_, Base::problem_, Base::tensors_, Base::unit_, Base::held_, Base::sums_, Base::head_;
  using Packed = typename PackedElement<(Isa::kGroup > 1), T>::Type;

  float* numbers() const { return at(layout_.rows); }
  float* delta() const { return at(layout_.rows) + kLseNumbers * kBlockM; }

  void load_keys() {
    const int count = static_cast<int>(held_.count);
    uint8_t marks[kMaxHeldKeys];
    const uint8_t* alive = this->alive_keys_of_group(marks);
    const T* k = element<const T>(tensors_.k, problem_.k, unit_.batch, held_.first, unit_.kv_head);
    const T* v = element<const T>(tensors_.v, problem_.v, unit_.batch, held_.first, unit_.kv_head);
    pack_keys<Isa>(StridedRows<T>{k, problem_.k.strides[1]}, count, problem_.head_dim, at(layout_.keys), layout_.key_words, alive);
    pack_keys<Isa>(StridedRows<T>{v, problem_.v.strides[1]}, count, problem_.head_dim_v, at(layout_.values), layout_.value_words,
                   alive);
    if constexpr (Isa::kGroup > 1) {
      if (problem_.dq.present) {
        pack_values<Isa>(StridedRows<Packed>{reinterpret_cast<const Packed*>(at(layout_.keys)), layout_.key_words * Isa::kGroup},
                         count, problem_.head_dim, at(layout_.key_pairs), layout_.key_stride, nullptr);
      }
    }
    const int64_t padded = round_up(held_.count, kBlockM);  // products run over whole register blocks of keys
    if (call_.direct_keys) return;
    clear(at(layout_.dk), problem_.dk.present ? padded * layout_.key_stride : 0);
    clear(at(layout_.dv), problem_.dv.present ? padded * layout_.value_stride : 0);
  }

  void store_keys() {
    if (call_.direct_keys) return;
    if (problem_.dk.present) {
      store_scaled(at(layout_.dk), layout_.key_stride, static_cast<int>(held_.count), problem_.head_dim, problem_.softmax_scale,
                   element<T>(tensors_.dk, problem_.dk, unit_.batch, held_.first, unit_.kv_head), problem_.dk.strides[1]);
    }
    if (problem_.dv.present) {
      store_scaled(at(layout_.dv), layout_.value_stride, static_cast<int>(held_.count), problem_.head_dim_v, 1.0F,
                   element<T>(tensors_.dv, problem_.dv, unit_.batch, held_.first, unit_.kv_head), problem_.dv.strides[1]);
    }
  }

  // [rows][stride] -> out, times the factor, rounded.
  static void store_scaled(const float* from, int64_t stride, int rows, int64_t dim, float factor, T* out, int64_t out_stride) {
    for (int row = 0; row < rows; row += kBlockM) {
      float factors[kBlockM];
      for (float& f : factors) f = factor;
      store_output<Isa>(from + row * stride, stride, factors, rows - row < kBlockM ? rows - row : kBlockM, dim,
                        out + row * out_stride, out_stride);
    }
  }

  // The held keys and the query tile at `row`.
  void attend_rows(int64_t row) {
    rows_ = this->select_rows(row);
    if (!this->attends_held(rows_)) return;
    dq_ = sums_ == nullptr ? at(layout_.dq) : this->dq_sums(row);
    dq_started_ = !this->first_block(rows_);
    load_rows();
    fetch_next_rows(row + kBlockM);
    for (int64_t key = rows_.held.begin / call_.block_n * call_.block_n; key < rows_.held.end; key += call_.block_n) {
      const int64_t left = rows_.held.end - key;
      attend(key, static_cast<int>(left < call_.block_n ? left : call_.block_n));
    }
    if (problem_.dq.present && this->last_block(rows_) && call_.cut.num_splits == 1 && !call_.direct_queries) {
      store_scaled(dq_, layout_.key_stride, rows_.count, problem_.head_dim, problem_.softmax_scale,
                   element<T>(tensors_.dq, problem_.dq, unit_.batch, rows_.first, head_), problem_.dq.strides[1]);
    }
  }

  // Q, dO, their transposes, and the rows' numbers.
  void load_rows() {
    uint8_t alive[kBlockM];
    this->template load_lse<T>(rows_, numbers(), alive);
    const T* q = element<const T>(tensors_.q, problem_.q, unit_.batch, rows_.first, head_);
    load_operand(q, problem_.q.strides[1], problem_.head_dim, alive, at(layout_.query_rows), layout_.key_words,
                 at(layout_.query_pairs), layout_.key_stride, at(layout_.queries));
    const T* dout = element<const T>(tensors_.dout, problem_.dout, unit_.batch, rows_.first, head_);
    load_operand(dout, problem_.dout.strides[1], problem_.head_dim_v, alive, at(layout_.dout_rows), layout_.value_words,
                 at(layout_.dout_pairs), layout_.value_stride, at(layout_.douts));
    this->load_deltas(rows_, alive, delta(), [&] { sum_products(); });
  }

  void load_operand(const T* from, int64_t stride, int64_t dim, const uint8_t* alive, float* rows, int64_t words, float* pairs,
                    int64_t pairs_stride, float* transposed) {
    pack_keys<Isa>(StridedRows<T>{from, stride}, rows_.count, dim, rows, words, alive);
    const auto* packed = reinterpret_cast<const Packed*>(rows);
    pack_queries<Isa>(packed, words * Isa::kGroup, rows_.count, dim, transposed);
    if constexpr (Isa::kGroup > 1) {
      pack_values<Isa>(StridedRows<Packed>{packed, words * Isa::kGroup}, rows_.count, dim, pairs, pairs_stride, nullptr);
    }
  }

  // dout . out of each row, added up in the order of the product that gives dP, so that a row which attends one key alone has
  // dP - delta = 0 exactly.
  void sum_products() {
    const T* out = element<const T>(tensors_.out, problem_.out, unit_.batch, rows_.first, head_);
    pack_queries<Isa>(out, problem_.out.strides[1], rows_.count, problem_.head_dim_v, at(layout_.outs));
    const int words = words_of<Isa>(problem_.head_dim_v);
    constexpr int kVecs = 4;  // at a time: each waits for its own sums alone; rows past the last give numbers that nobody uses
    for (int row = 0; row < rows_.count; row += kVecs * Isa::kLanes) {
      typename Isa::Vec sum[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[v] = Isa::zero();
      const float *dout = at(layout_.douts) + row, *values = at(layout_.outs) + row;
      for (int w = 0; w < words; ++w, dout += kBlockM, values += kBlockM) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sum[v] = Isa::dot(sum[v], Isa::load(dout + v * Isa::kLanes), Isa::load(values + v * Isa::kLanes));
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) Isa::store(delta() + row + v * Isa::kLanes, sum[v]);
    }
  }

  // A tile of keys.
  void attend(int64_t key, int count) {
    const int64_t held_key = key - held_.first;
    const bool additive = this->build_tiles(rows_, key, count, false, at(layout_.additive), at(layout_.dropout));
    if (problem_.softcap > 0.0F) {
      score<ScoreKind::softcap>(held_key, count);
      problem_.dropout > 0 ? score_gradients<true, true>(held_key, count) : score_gradients<true, false>(held_key, count);
    } else {
      additive ? score<ScoreKind::additive>(held_key, count) : score<ScoreKind::plain>(held_key, count);
      problem_.dropout > 0 ? score_gradients<false, true>(held_key, count) : score_gradients<false, false>(held_key, count);
    }
    if (problem_.dbias.present) {
      add_bias_gradient<Isa>(call_, unit_, head_, rows_.first, rows_.count, key, count,
                             layout_.dbias == 0 ? at(layout_.dscores) : at(layout_.dbias));
    }
    multiply(held_key, count);
  }

  template <ScoreKind kKind>
  void score(int64_t held_key, int count) {
    const Probabilities<Isa, kKind> epilogue{
        call_.scale, at(layout_.additive), numbers(), at(layout_.probabilities), at(layout_.slope), &ahead_};
    score_tile<Isa>(at(layout_.queries), rows_.count, at(layout_.keys) + held_key * layout_.key_words, layout_.key_words,
                    words_of<Isa>(problem_.head_dim), count, epilogue);
  }

  template <bool kSoftcap, bool kDropout>
  void score_gradients(int64_t held_key, int count) {
    const ScoreGradients<Isa, kSoftcap, kDropout> epilogue{delta(),
                                                           at(layout_.slope),
                                                           at(layout_.dropout),
                                                           at(layout_.probabilities),
                                                           at(layout_.dscores),
                                                           layout_.dbias != 0 ? at(layout_.dbias) : nullptr,
                                                           &ahead_};
    // Where dV alone is wanted the product is left out, but not its epilogue, which prepares P.
    const int product_words = call_.wants_dx ? words_of<Isa>(problem_.head_dim_v) : 0;
    score_tile<Isa>(at(layout_.douts), rows_.count, at(layout_.values) + held_key * layout_.value_words, layout_.value_words,
                    product_words, count, epilogue);
  }

  // The three products over the tile.
  void multiply(int64_t held_key, int count) {
    float *p = at(layout_.probabilities), *ds = at(layout_.dscores);
    // Keys up to a whole register block, to whose sums these rows would be added.
    const auto padded = static_cast<int>(round_up(count, 8));
    clear_tile_rows<Isa>(p, count, padded);
    if constexpr (Isa::kGroup == 1) clear_tile_rows<Isa>(ds, count, padded);
    if (problem_.dv.present) {
      multiply_keys(p, at(layout_.dout_pairs), layout_.value_stride, held_key, count, at(layout_.dv), problem_.head_dim_v, 1.0F,
                    tensors_.dv, problem_.dv);
    }
    if (problem_.dk.present) {
      multiply_keys(Isa::kGroup == 1 ? ds : p + kBlockM / 2, at(layout_.query_pairs), layout_.key_stride, held_key, count,
                    at(layout_.dk), problem_.head_dim, problem_.softmax_scale, tensors_.dk, problem_.dk);
    }
    if (!problem_.dq.present) return;
    if (call_.direct_queries) {
      T* dq = element<T>(tensors_.dq, problem_.dq, unit_.batch, rows_.first, head_);
      const int64_t stride = problem_.dq.strides[1];
      if (streams(dq, stride, problem_.head_dim)) {
        multiply_dq(held_key, count, final_gradient<true>(dq, stride, rows_.count, problem_.head_dim, problem_.softmax_scale));
      } else {
        multiply_dq(held_key, count, final_gradient<false>(dq, stride, rows_.count, problem_.head_dim, problem_.softmax_scale));
      }
    } else if (dq_started_) {
      multiply_dq(held_key, count, ScratchOutput<Isa, OutputKind::accumulate>{dq_, layout_.key_stride, nullptr});
    } else {
      multiply_dq(held_key, count, ScratchOutput<Isa, OutputKind::first>{dq_, layout_.key_stride, nullptr});
    }
    dq_started_ = true;
  }

  // dV and dK: [keys] += words of queries by rows of dO or Q.
  void multiply_keys(const float* words, const float* rows, int64_t stride, int64_t held_key, int count, float* sums, int64_t dim,
                     float factor, const Tensor& tensor, const TensorSpec& spec) {
    const int query_words = words_of<Isa>(rows_.count);
    if (!call_.direct_keys) {
      const ScratchOutput<Isa, OutputKind::accumulate> to{sums + held_key * stride, stride, nullptr};
      output_tile<Isa, KeysInLanes>(words, rows, stride, stride, query_words, count, to);
      return;
    }
    T* out = element<T>(tensor, spec, unit_.batch, held_.first + held_key, unit_.kv_head);
    if (streams(out, spec.strides[1], dim)) {
      output_tile<Isa, KeysInLanes>(words, rows, stride, stride, query_words, count,
                                    final_gradient<true>(out, spec.strides[1], count, dim, factor));
    } else {
      output_tile<Isa, KeysInLanes>(words, rows, stride, stride, query_words, count,
                                    final_gradient<false>(out, spec.strides[1], count, dim, factor));
    }
  }

  template <class Output>
  void multiply_dq(int64_t held_key, int count, const Output& output) {
    output_tile<Isa, QueriesInLanes>(at(layout_.dscores), at(layout_.key_pairs) + held_key / Isa::kGroup * layout_.key_stride,
                                     layout_.key_stride, layout_.key_stride, words_of<Isa>(count), rows_.count, output);
  }

  bool streams(const T* out, int64_t stride, int64_t dim) const {
    return Base::streams(out, stride, dim) && output_blocks_are_lines<Isa>(dim, sizeof(T));
  }
  template <bool kStreams>
  FinalGradient<Isa, T, kStreams> final_gradient(T* out, int64_t stride, int rows, int64_t dim, float factor) {
    return {out, stride, factor, rows, static_cast<int>(dim), &ahead_};
  }

  // The rows of the head's next query tile, over the products of this one.
  void fetch_next_rows(int64_t row) {
    if (row >= problem_.seqlen_q) return;
    ahead_ = StepPrefetch<Isa>(call_.fetch_into_l2);
    this->add_query_rows(row, this->rows_from(row), this->first_block(rows_), ahead_);
    ahead_.spread(score_steps_of(rows_.count, static_cast<int>(rows_.held.end - rows_.held.begin)));
  }

  void fetch_ahead(const BackwardUnit* next) {
    const auto rows = static_cast<int>(problem_.seqlen_q), keys = static_cast<int>(problem_.seqlen_k);
    int64_t steps = problem_.group_size() * score_steps_of(rows, keys);
    if (call_.direct_keys) {
      if (problem_.dv.present) steps += output_steps<Isa, kBackwardStepWords<Isa>>(layout_.value_stride, words_of<Isa>(rows), keys);
      if (problem_.dk.present) steps += output_steps<Isa, kBackwardStepWords<Isa>>(layout_.key_stride, words_of<Isa>(rows), keys);
    }
    if (call_.direct_queries && problem_.dq.present)
      steps += problem_.group_size() * output_steps<Isa, kBackwardStepWords<Isa>>(layout_.key_stride, words_of<Isa>(keys), rows);
    if (call_.fetch_heads > 0) {
      this->add_share(next, ahead_);
    } else if (next != nullptr) {
      this->add_unit(*next, ahead_);
    }
    ahead_.spread(steps);
  }
  // Steps of the two products from which scores' gradients are computed: Q K^T and dO V^T.
  int64_t score_steps_of(int rows, int keys) const {
    return score_steps<Isa, false, kBackwardStepWords<Isa>>(rows, words_of<Isa>(problem_.head_dim), keys) +
           score_steps<Isa, false, kBackwardStepWords<Isa>>(rows, call_.wants_dx ? words_of<Isa>(problem_.head_dim_v) : 0, keys);
  }

  BackwardScratch layout_;
  typename Base::Rows rows_;  // the query tile at hand
  float* dq_ = nullptr;       // [count][key_stride], of that
  bool dq_started_ = false;
  StepPrefetch<Isa> ahead_{call_.fetch_into_l2};
};

}  // namespace fulmen::cpu
