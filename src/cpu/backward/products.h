// The products of a backward task over vectors, as far as they do not depend on the tensors' dtype:
// scores, their gradients, sums in the scratch, and what is fetched meanwhile. Compiled once for an
// instruction set, not once a dtype.
#pragma once

#include "cpu/backward/unit.h"
#include "cpu/tile/output_product.h"
#include "cpu/tile/score_product.h"

namespace fulmen::cpu {

template <class Isa>
class BackwardProducts : protected BackwardUnitTask<Isa> {
  using Base = BackwardUnitTask<Isa>;

 protected:
  __attribute__((noinline)) BackwardProducts(const BackwardCall& call, const BackwardUnit& unit,
                                             float* sums, float* scratch, int64_t element_bytes,
                                             RowProducts row_products)
      : Base(call, unit, sums, scratch, element_bytes, row_products),
        layout_(backward_scratch(problem_, Isa::kLanes, Isa::kGroup, call.block_n,
                                 call.cut.held_keys)) {}

  using Base::at, Base::clear;
  using Base::call_, Base::problem_, Base::tensors_, Base::unit_, Base::held_, Base::sums_,
      Base::head_;

  float* numbers() const { return at(layout_.rows); }
  float* delta() const { return at(layout_.rows) + kLseNumbers * kBlockM; }

  // Sums of dK and dV of the held keys.
  __attribute__((noinline)) void clear_key_sums() {
    // Products run over whole register blocks of keys.
    const int64_t padded = round_up(held_.count, kBlockM);
    clear(at(layout_.dk), problem_.dk.present ? padded * layout_.key_stride : 0);
    clear(at(layout_.dv), problem_.dv.present ? padded * layout_.value_stride : 0);
  }

  // dout . out of each row, transposed both, added up in the order of the product that gives dP, so
  // that a row which attends one key alone has dP - delta = 0 exactly.
  __attribute__((noinline)) void sum_products() {
    const int words = words_of<Isa>(problem_.head_dim_v);
    // Vectors at a time: each waits for its own sums alone; rows past the last give numbers that
    // nobody uses.
    constexpr int kVecs = 4;
    for (int row = 0; row < rows_.count; row += kVecs * Isa::kLanes) {
      typename Isa::Vec sum[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[v] = Isa::zero();
      const float *dout = at(layout_.douts) + row, *values = at(layout_.outs) + row;
      for (int w = 0; w < words; ++w, dout += kBlockM, values += kBlockM) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sum[v] = Isa::dot(sum[v], Isa::load(dout + v * Isa::kLanes),
                            Isa::load(values + v * Isa::kLanes));
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) Isa::store(delta() + row + v * Isa::kLanes, sum[v]);
    }
  }

  // A tile of keys: P and dS of spans_, what its rows attend. Returns false where that is nothing.
  __attribute__((noinline)) bool attend_scores(int64_t key, int count) {
    const int64_t held_key = key - held_.first;
    const int begin = narrows() ? this->first_key(rows_, key, count) : 0;
    const bool additive = this->build_tiles(rows_, key, count, false, at(layout_.additive),
                                            at(layout_.dropout), at(layout_.functions), begin);
    spans_ = spans_of(key, count, begin);
    if (spans_.all.count() == 0) return false;
    if (call_.score_function.any()) {
      attend_scores_by_function(key);
    } else if (problem_.softcap > 0.0F) {
      score<ScoreKind::softcap>(held_key);
      problem_.dropout > 0 ? score_gradients<true, true>(held_key)
                           : score_gradients<true, false>(held_key);
    } else {
      additive ? score<ScoreKind::additive>(held_key) : score<ScoreKind::plain>(held_key);
      problem_.dropout > 0 ? score_gradients<false, true>(held_key)
                           : score_gradients<false, false>(held_key);
    }
    if (problem_.dbias.present) {
      add_bias_gradient<Isa>(call_, unit_, head_, rows_.first, rows_.count, key, count,
                             layout_.dbias == 0 ? at(layout_.dscores) : at(layout_.dbias));
    }
    clear_what_is_left_out();
    return true;
  }
  // Whether products may leave out keys and rows: where they write gradients themselves, or ds is
  // added up elsewhere, they are whole.
  bool narrows() const {
    return !call_.direct_keys && !call_.direct_queries && !problem_.dbias.present &&
           call_.function_sums == nullptr;
  }
  RowSpans spans_of(int64_t key, int count, int begin) const {
    const bool partial = this->is_partial(rows_, key, count),
               masked = this->is_masked(rows_, key, count);
    if (!narrows() || (!partial && !masked)) return RowSpans({begin, count});
    return attended_spans<Isa>(partial ? &call_.band : nullptr,
                               masked ? at(layout_.additive) : nullptr, rows_.first, rows_.count,
                               key, {begin, count});
  }
  // What products of keys and of queries read beside the spans: rows of other spans, and keys up to
  // a whole register block, to whose sums these rows would be added.
  void clear_what_is_left_out() {
    clear_beside_spans(at(layout_.probabilities));
    if constexpr (Isa::kGroup == 1) clear_beside_spans(at(layout_.dscores));
  }
  void clear_beside_spans(float* tile) {
    clear_tile_rows<Isa>(tile, spans_.all.end, static_cast<int>(round_up(spans_.all.end, 4)));
    fill_beside_spans(tile, 0.0F);
  }
  // Register blocks of all rows have one span.
  void fill_beside_spans(float* tile, float x) {
    constexpr int kBlockRows = Isa::kQkVecs * Isa::kLanes;
    if constexpr (kBlockRows < kBlockM) fill_outside<Isa, kBlockRows>(spans_, x, tile);
  }

  // The same where score_mod stands between the product and the softmax.
  __attribute__((noinline)) void attend_scores_by_function(int64_t key) {
    const int64_t held_key = key - held_.first;
    const KeySpan keys = spans_.all;
    if (problem_.softcap > 0.0F) {
      score_alone<ScoreKind::softcap>(held_key);
    } else {
      score_alone<ScoreKind::additive>(held_key);
      for (int64_t i = static_cast<int64_t>(keys.begin) * kBlockM;
           i < static_cast<int64_t>(keys.end) * kBlockM; i += Isa::kLanes)
        Isa::store(at(layout_.slope) + i, Isa::set1(1.0F));
    }
    fill_beside_spans(at(layout_.probabilities), Base::kMinusInfinity);
    const FunctionPlace place{unit_.batch, head_, rows_.first, key};
    const bool with_gradients = call_.function_sums != nullptr;
    probabilities_by<Isa>(call_.score_function, place, keys, numbers() + kMinusMax * kBlockM,
                          at(layout_.probabilities), at(layout_.slope),
                          with_gradients ? at(layout_.function_scores) : nullptr,
                          at(layout_.functions));
    problem_.dropout > 0 ? score_gradients<true, true>(held_key)
                         : score_gradients<true, false>(held_key);
    if (!with_gradients) return;
    const int64_t slot = (unit_.part * call_.cut.num_splits + unit_.split) * call_.function_slot;
    add_function_gradients<Isa>(call_.score_function, *problem_.functions.impl(), place,
                                rows_.count, keys.end, at(layout_.function_scores),
                                at(layout_.dbias), call_.function_sums + slot,
                                call_.function_offsets, at(layout_.functions));
  }

  template <ScoreKind kKind>
  void score_alone(int64_t held_key) {
    const ScoresAlone<Isa, kKind> epilogue{call_.scale, at(layout_.additive),
                                           at(layout_.probabilities), at(layout_.slope), &ahead_};
    score_tile<Isa>(at(layout_.queries), rows_.count,
                    at(layout_.keys) + held_key * layout_.key_words, layout_.key_words,
                    words_of<Isa>(problem_.head_dim), spans_, epilogue);
  }

  // alive_keys_of_group() where functions have a part in the mask: by the additive tiles.
  __attribute__((noinline)) const uint8_t* alive_keys_by_functions(uint8_t* alive) {
    for (int64_t i = 0; i < held_.count; ++i) alive[i] = 0;
    for (int64_t g = 0; g < problem_.group_size(); ++g) {
      this->select_head(g);
      for (int64_t row = 0; row < problem_.seqlen_q; row += kBlockM) {
        const typename Base::Rows rows = this->select_rows(row);
        if (!this->attends_held(rows)) continue;
        for (int64_t key = rows.held.begin / call_.block_n * call_.block_n; key < rows.held.end;
             key += call_.block_n) {
          const int64_t left = rows.held.end - key;
          mark_alive(rows, key, static_cast<int>(left < call_.block_n ? left : call_.block_n),
                     alive + (key - held_.first));
        }
      }
    }
    return alive;
  }
  void mark_alive(const typename Base::Rows& rows, int64_t key, int count, uint8_t* alive) {
    if (this->kept(rows, key, count) == Kept::none) return;
    const bool all = !this->is_partial(rows, key, count) && !this->is_masked(rows, key, count);
    if (!all) {
      this->build_tiles(rows, key, count, false, at(layout_.additive), at(layout_.dropout),
                        at(layout_.functions));
    }
    for (int i = 0; i < count; ++i) {
      const float* additive = at(layout_.additive) + static_cast<int64_t>(i) * kBlockM;
      int attended = all ? 1 : 0;
      for (int r = 0; r < rows.count && !all; ++r)
        attended |= additive[r] != Base::kMinusInfinity ? 1 : 0;
      alive[i] |= static_cast<uint8_t>(attended);
    }
  }

  template <ScoreKind kKind>
  void score(int64_t held_key) {
    const Probabilities<Isa, kKind> epilogue{call_.scale,       at(layout_.additive),
                                             numbers(),         at(layout_.probabilities),
                                             at(layout_.slope), &ahead_};
    score_tile<Isa>(at(layout_.queries), rows_.count,
                    at(layout_.keys) + held_key * layout_.key_words, layout_.key_words,
                    words_of<Isa>(problem_.head_dim), spans_, epilogue);
  }

  template <bool kSoftcap, bool kDropout>
  void score_gradients(int64_t held_key) {
    const ScoreGradients<Isa, kSoftcap, kDropout> epilogue{
        delta(),
        at(layout_.slope),
        at(layout_.dropout),
        at(layout_.probabilities),
        at(layout_.dscores),
        layout_.dbias != 0 ? at(layout_.dbias) : nullptr,
        &ahead_};
    // Where dV alone is wanted the product is left out, but not its epilogue, which prepares P.
    const int product_words = call_.wants_dx ? words_of<Isa>(problem_.head_dim_v) : 0;
    score_tile<Isa>(at(layout_.douts), rows_.count,
                    at(layout_.values) + held_key * layout_.value_words, layout_.value_words,
                    product_words, spans_, epilogue);
  }

  // One of the products that give dV and dK: [keys] = words of queries by rows of dO or Q. Keys are
  // those of spans_ alone.
  struct KeyProduct {
    const float* words;
    const float* rows;
    int64_t stride;  // of the rows and of the sums
    int64_t held_key;
    int count;
  };
  template <class Output>
  void multiply_keys(const KeyProduct& p, const Output& output) {
    const KeyRowWords<Isa::kGroup> queries{spans_, spans_.all.begin, rows_.count};
    output_tile<Isa, KeysInLanes>(p.words, p.rows, p.stride, p.stride, queries, p.count, output);
  }
  void add_keys(const KeyProduct& p, float* sums) {
    multiply_keys(p, ScratchOutput<Isa, OutputKind::accumulate>{sums + p.held_key * p.stride,
                                                                p.stride, nullptr});
  }

  // dQ: [queries] = dS by K. held_key: the tile's first.
  template <class Output>
  void multiply_queries(int64_t held_key, const Output& output) {
    output_tile<Isa, QueriesInLanes>(
        at(layout_.dscores), at(layout_.key_pairs) + held_key / Isa::kGroup * layout_.key_stride,
        layout_.key_stride, layout_.key_stride, SpanWords<Isa::kGroup>{spans_}, rows_.count,
        output);
  }
  void add_queries(int64_t held_key) {
    if (dq_started_) {
      multiply_queries(
          held_key, ScratchOutput<Isa, OutputKind::accumulate>{dq_, layout_.key_stride, nullptr});
    } else {
      multiply_queries(held_key,
                       ScratchOutput<Isa, OutputKind::first>{dq_, layout_.key_stride, nullptr});
    }
    dq_started_ = true;
  }

  // dQ of rows that have not attended a key yet.
  void start_queries() {
    if (problem_.dq.present && !dq_started_ && !call_.direct_queries)
      clear(dq_, kBlockM * layout_.key_stride);
  }

  // The rows of the head's next query tile, over the products of this one.
  __attribute__((noinline)) void fetch_next_rows(int64_t row) {
    if (row >= problem_.seqlen_q) return;
    ahead_ = StepPrefetch<Isa>(call_.fetch_into_l2);
    this->add_query_rows(row, this->rows_from(row), this->first_block(rows_), ahead_);
    ahead_.spread(score_steps_of(rows_.count, static_cast<int>(rows_.held.end - rows_.held.begin)));
  }

  __attribute__((noinline)) void fetch_ahead(const BackwardUnit* next) {
    const auto rows = static_cast<int>(problem_.seqlen_q),
               keys = static_cast<int>(problem_.seqlen_k);
    int64_t steps = problem_.group_size() * score_steps_of(rows, keys);
    if (call_.direct_keys) {
      if (problem_.dv.present)
        steps += output_steps<Isa, kBackwardStepWords<Isa>>(layout_.value_stride,
                                                            words_of<Isa>(rows), keys);
      if (problem_.dk.present)
        steps += output_steps<Isa, kBackwardStepWords<Isa>>(layout_.key_stride, words_of<Isa>(rows),
                                                            keys);
    }
    if (call_.direct_queries && problem_.dq.present)
      steps += problem_.group_size() * output_steps<Isa, kBackwardStepWords<Isa>>(
                                           layout_.key_stride, words_of<Isa>(keys), rows);
    if (call_.fetch_heads > 0) {
      this->add_share(next, ahead_);
    } else if (next != nullptr) {
      this->add_unit(*next, ahead_);
    }
    ahead_.spread(steps);
  }
  // Steps of the two products from which scores' gradients are computed: Q K^T and dO V^T.
  int64_t score_steps_of(int rows, int keys) const {
    return score_steps<Isa, false, kBackwardStepWords<Isa>>(rows, words_of<Isa>(problem_.head_dim),
                                                            keys) +
           score_steps<Isa, false, kBackwardStepWords<Isa>>(
               rows, call_.wants_dx ? words_of<Isa>(problem_.head_dim_v) : 0, keys);
  }

  BackwardScratch layout_;
  typename Base::Rows rows_;  // the query tile at hand
  RowSpans spans_{{}};        // what it attends of the tile of keys at hand
  float* dq_ = nullptr;       // [count][key_stride], of that
  bool dq_started_ = false;
  StepPrefetch<Isa> ahead_{call_.fetch_into_l2};
};

}  // namespace fulmen::cpu
