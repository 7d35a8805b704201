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

#include "cpu/additive_tile.h"
#include "cpu/backward_bias.h"
#include "cpu/backward_call.h"
#include "cpu/backward_tile.h"
#include "cpu/dropout_tile.h"
#include "cpu/finish_rows.h"
#include "cpu/matrix_backward.h"
#include "cpu/output_product.h"
#include "cpu/pack.h"
#include "cpu/row_prefetch.h"
#include "cpu/score_product.h"
#include "cpu/storage.h"
#include "cpu/tile.h"

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
class BackwardTask {
 public:
  BackwardTask(const BackwardCall& call, const BackwardUnit& unit, float* sums, float* scratch)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        unit_(unit),
        layout_(backward_scratch(problem_, Isa::kLanes, Isa::kGroup, call.block_n, call.cut.held_keys, kMatrix)),
        scratch_(scratch),
        sums_(sums),
        sums_layout_(query_sums(problem_, Isa::kLanes)) {
    keys_.begin = unit.split * call.cut.split_keys;
    keys_.end = problem_.seqlen_k - keys_.begin < call.cut.split_keys ? problem_.seqlen_k : keys_.begin + call.cut.split_keys;
  }

  // first_of_sums: nothing was added to the unit's sums of dbias yet. next: what the same worker does afterwards, or null.
  void run(bool first_of_sums, const BackwardUnit* next) {
    const int64_t group = problem_.group_size();
    if (next != nullptr && problem_.seqlen_q <= kBlockM && problem_.seqlen_k <= kMaxBlockN) fetch_ahead(*next);
    clear_what_stays_empty(first_of_sums);
    if constexpr (kMatrix) Isa::TileInstructions::configure();
    for (int64_t first = keys_.begin; first < keys_.end; first += call_.cut.held_keys) {
      const int64_t left = keys_.end - first;
      held_ = {first, left < call_.cut.held_keys ? left : call_.cut.held_keys};
      load_keys();
      for (int64_t g = 0; g < group; ++g) {
        select_head(g);
        for (int64_t row = 0; row < problem_.seqlen_q; row += kRowTiles * kBlockM) attend_rows(row);
      }
      store_keys();
    }
    if constexpr (kMatrix) Isa::TileInstructions::release();
  }

 private:
  static constexpr bool kMatrix = kOnMatrixTiles<Isa>;
  static constexpr int kRowTiles = kMatrix ? kMatrixRowTiles : 1;
  static constexpr int kScoreKeys = kMatrix ? kMatrixScoreKeys : kMaxBlockN;  // that go through both epilogues at once
  using Packed = typename PackedElement<(Isa::kGroup > 1), T>::Type;
  static constexpr float kMinusInfinity = -__builtin_inff();

  struct Held {
    int64_t first = 0;
    int64_t count = 0;
  };
  // A query tile, and what it attends of the split's keys.
  struct Rows {
    int64_t first = 0;
    int count = 0;
    algorithm::KeyRange keys;  // attended by any
    algorithm::KeyRange all;   // attended by all
    algorithm::KeyRange held;  // of those attended by any, the held ones
    float* dq = nullptr;       // [count][key_stride]
    bool dq_started = false;
  };

  float* at(int64_t offset) const { return scratch_ + offset; }
  // Of the query tile at hand.
  float* row_at(int64_t offset) const { return scratch_ + (rows_ - row_tiles_) * layout_.row_floats + offset; }
  float* minus_lse() const { return row_at(layout_.rows); }
  float* delta() const { return row_at(layout_.rows) + 2 * kBlockM; }
  // A block of held keys sees each row tile once; where there are several, dQ and delta wait for the next one in the sums.
  bool one_block() const { return call_.cut.held_keys >= call_.cut.split_keys; }

  void select_head(int64_t g) {
    group_head_ = g;
    head_ = unit_.kv_head * problem_.group_size() + g;
    alibi_slope_ = log2_alibi_slope(problem_, tensors_, unit_.batch, head_);
  }

  int64_t rows_from(int64_t row) const { return problem_.seqlen_q - row < kBlockM ? problem_.seqlen_q - row : kBlockM; }

  // The split's keys that some of the rows attend.
  algorithm::KeyRange split_keys_of(int64_t row, int64_t rows) const {
    algorithm::KeyRange range = call_.band.any(row, row + rows);
    if (range.begin < keys_.begin) range.begin = keys_.begin;
    if (range.end > keys_.end) range.end = keys_.end;
    return range;
  }

  // dQ of rows without any key, and dbias.
  void clear_what_stays_empty(bool first_of_sums) {
    const int64_t group = problem_.group_size();
    for (int64_t g = 0; g < group; ++g) {
      select_head(g);
      if (problem_.dbias.present && (first_of_sums || call_.bias_sums.data == nullptr) && (g == 0 || !call_.cut.sums_heads)) {
        clear_bias_gradient<Isa>(call_, unit_, head_, keys_.begin, keys_.end - keys_.begin);
      }
      if (!problem_.dq.present || call_.cut.num_splits > 1) continue;
      for (int64_t row = 0; row < problem_.seqlen_q; row += kBlockM) {
        const algorithm::KeyRange range = split_keys_of(row, rows_from(row));
        if (range.begin < range.end) continue;
        T* dq = element<T>(tensors_.dq, problem_.dq, unit_.batch, row, head_);
        clear_rows<Isa>(dq, rows_from(row), problem_.dq.strides[1], problem_.head_dim);
      }
    }
  }

  // Which keys some query of the group attends, or null for all: what the others hold, a NaN even, must not reach a gradient.
  const uint8_t* alive_keys_of_group(uint8_t* alive) const {
    const bool masked = problem_.keep_mask.present;
    if (!masked && call_.band.left < 0 && call_.band.right < 0) return nullptr;
    const int count = static_cast<int>(held_.count);
    for (int i = 0; i < count; ++i) alive[i] = 0;
    for (int64_t g = 0; g < (masked ? problem_.group_size() : 1); ++g) {
      const int64_t head = unit_.kv_head * problem_.group_size() + g;
      const uint8_t* keep = masked ? element<const uint8_t>(tensors_.keep_mask, problem_.keep_mask, unit_.batch, head, 0) : nullptr;
      uint8_t one[kMaxHeldKeys];
      find_alive_keys(call_.band, keep, problem_.keep_mask.strides[2], 0, problem_.seqlen_q, held_.first, count, one);
      for (int i = 0; i < count; ++i) alive[i] |= one[i];
    }
    return alive;
  }

  void load_keys() {
    const int count = static_cast<int>(held_.count);
    uint8_t marks[kMaxHeldKeys];
    const uint8_t* alive = alive_keys_of_group(marks);
    const T* k = element<const T>(tensors_.k, problem_.k, unit_.batch, held_.first, unit_.kv_head);
    const T* v = element<const T>(tensors_.v, problem_.v, unit_.batch, held_.first, unit_.kv_head);
    pack_keys<Isa>(StridedRows<T>{k, problem_.k.strides[1]}, count, problem_.head_dim, at(layout_.keys), layout_.key_words, alive);
    pack_keys<Isa>(StridedRows<T>{v, problem_.v.strides[1]}, count, problem_.head_dim_v, at(layout_.values), layout_.value_words,
                   alive);
    if constexpr (Isa::kGroup > 1) {
      if (problem_.dq.present) {
        pack_values<Isa>(StridedRows<Packed>{reinterpret_cast<const Packed*>(at(layout_.keys)), layout_.key_words * Isa::kGroup},
                         count, problem_.head_dim, at(layout_.key_pairs), layout_.key_stride, nullptr);
        if constexpr (kMatrix) {
          const int words = words_of<Isa>(count), tile_words = call_.block_n / 2;
          for (int word = 0; word < words; word += tile_words) {
            turn_values<Isa>(at(layout_.key_pairs) + word * layout_.key_stride, layout_.key_stride,
                             words - word < tile_words ? words - word : tile_words,
                             at(layout_.turned_keys) + word * layout_.turned_rows, tile_words);
          }
        }
      }
    }
    const int64_t padded = round_up(held_.count, kBlockM);  // products run over whole register blocks of keys
    if (call_.direct_keys) return;
    clear(at(layout_.dk), problem_.dk.present ? padded * layout_.key_stride : 0);
    clear(at(layout_.dv), problem_.dv.present ? padded * layout_.value_stride : 0);
  }
  static void clear(float* x, int64_t floats) {
    for (int64_t i = 0; i < floats; i += Isa::kLanes) Isa::store(x + i, Isa::zero());
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

  // The held keys and the query tiles from `first` on: one, or as many as go through the keys together.
  void attend_rows(int64_t first) {
    int tiles = 0;
    algorithm::KeyRange keys{held_.first + held_.count, held_.first};
    for (int64_t row = first; row < problem_.seqlen_q && row < first + kRowTiles * kBlockM; row += kBlockM) {
      rows_ = row_tiles_ + tiles;
      if (!select_rows(row)) continue;
      ++tiles;
      keys.begin = rows_->held.begin < keys.begin ? rows_->held.begin : keys.begin;
      keys.end = rows_->held.end > keys.end ? rows_->held.end : keys.end;
      load_rows();
    }
    if (tiles == 0) return;
    const int64_t key_tiles = (keys.end - keys.begin + call_.block_n - 1) / call_.block_n;
    fetch_next_rows(first + kRowTiles * kBlockM, row_tiles_[0].keys.begin >= held_.first, tiles * key_tiles);
    for (int64_t key = keys.begin / call_.block_n * call_.block_n; key < keys.end; key += call_.block_n) {
      const int64_t left = keys.end - key;
      attend_keys(tiles, key, static_cast<int>(left < call_.block_n ? left : call_.block_n));
    }
    for (rows_ = row_tiles_; rows_ < row_tiles_ + tiles; ++rows_) finish_rows();
  }

  // Whether the rows attend any of the held keys.
  bool select_rows(int64_t row) {
    const int64_t count = rows_from(row);
    *rows_ = {row, static_cast<int>(count), split_keys_of(row, count), call_.band.all(row, row + count), {}, nullptr, false};
    const int64_t held_end = held_.first + held_.count;
    rows_->held.begin = rows_->keys.begin > held_.first ? rows_->keys.begin : held_.first;
    rows_->held.end = rows_->keys.end < held_end ? rows_->keys.end : held_end;
    rows_->dq = sums_ == nullptr ? row_at(layout_.dq)
                                 : sums_ + sums_layout_.dq + (group_head_ * sums_layout_.rows + row) * sums_layout_.stride;
    rows_->dq_started = !kMatrix && !first_block();
    return rows_->held.begin < rows_->held.end;
  }
  // Whether the held keys are the first, or the last, that the rows attend.
  bool first_block() const { return rows_->keys.begin >= held_.first; }
  bool last_block() const { return rows_->keys.end <= held_.first + held_.count; }

  void finish_rows() {
    if (!problem_.dq.present) return;
    if constexpr (kMatrix) turn_dq();
    if (last_block() && call_.cut.num_splits == 1 && !call_.direct_queries) {
      store_scaled(rows_->dq, layout_.key_stride, rows_->count, problem_.head_dim, problem_.softmax_scale,
                   element<T>(tensors_.dq, problem_.dq, unit_.batch, rows_->first, head_), problem_.dq.strides[1]);
    }
  }

  // dQ^T of this block of keys -> rows_->dq, or added to what earlier blocks gave.
  void turn_dq() {
    float* rows = first_block() ? rows_->dq : row_at(layout_.dq);
    turn_output<Isa>(row_at(layout_.turned_dq), layout_.key_stride, rows_->count, rows);
    if (first_block()) return;
    for (int64_t i = 0; i < rows_->count * layout_.key_stride; i += Isa::kLanes) {
      Isa::store(rows_->dq + i, Isa::add(Isa::load(rows_->dq + i), Isa::load(rows + i)));
    }
  }

  // Q, dO, their transposes, and the rows' numbers. A row with an LSE of -inf has no gradient, whatever it holds.
  void load_rows() {
    const int64_t row = rows_->first;
    const float* lse = element<const float>(tensors_.lse, problem_.lse, unit_.batch, head_, row);
    uint8_t alive[kBlockM];
    for (int i = 0; i < kBlockM; ++i) {
      const float x = i < rows_->count ? lse[i * problem_.lse.strides[2]] : kMinusInfinity;
      alive[i] = x == kMinusInfinity ? 0 : 1;
      const double exact = -static_cast<double>(x) * call_.lse_scale;
      minus_lse()[i] = alive[i] != 0 ? static_cast<float>(exact) : kMinusInfinity;
      minus_lse()[kBlockM + i] = alive[i] != 0 ? static_cast<float>(exact - static_cast<double>(minus_lse()[i])) : 0.0F;
    }
    const T* q = element<const T>(tensors_.q, problem_.q, unit_.batch, row, head_);
    load_operand(q, problem_.q.strides[1], problem_.head_dim, alive, row_at(layout_.query_rows), layout_.key_words,
                 row_at(layout_.query_pairs), layout_.key_stride, row_at(layout_.queries));
    const T* dout = element<const T>(tensors_.dout, problem_.dout, unit_.batch, row, head_);
    load_operand(dout, problem_.dout.strides[1], problem_.head_dim_v, alive, row_at(layout_.dout_rows), layout_.value_words,
                 row_at(layout_.dout_pairs), layout_.value_stride, row_at(layout_.douts));
    load_deltas(alive);
  }

  void load_operand(const T* from, int64_t stride, int64_t dim, const uint8_t* alive, float* rows, int64_t words, float* pairs,
                    int64_t pairs_stride, float* turned) {
    if constexpr (kMatrix) {
      // Whole tiles of words, and of queries.
      const int64_t packed_words = rows_->count < kBlockM ? 0 : words_of<Isa>(dim);
      clear(turned + packed_words * kBlockM, (words - packed_words) * kBlockM);
      if (rows_->count < kBlockM) clear(pairs, kBlockM / Isa::kGroup * pairs_stride);
    }
    pack_keys<Isa>(StridedRows<T>{from, stride}, rows_->count, dim, rows, words, alive);
    const auto* packed = reinterpret_cast<const Packed*>(rows);
    pack_queries<Isa>(packed, words * Isa::kGroup, rows_->count, dim, turned);
    if constexpr (Isa::kGroup > 1) {
      pack_values<Isa>(StridedRows<Packed>{packed, words * Isa::kGroup}, rows_->count, dim, pairs, pairs_stride, nullptr);
    }
  }

  // delta = sum of dout out - dlse, once a row: later blocks of keys find it in the sums. Added up in the order of the product that
  // gives dP, so that a row which attends one key alone has dP - delta = 0 exactly.
  void load_deltas(const uint8_t* alive) {
    float* kept = one_block() ? nullptr : sums_ + sums_layout_.delta + group_head_ * sums_layout_.rows + rows_->first;
    if (!first_block()) {
      for (int i = 0; i < kBlockM; ++i) delta()[i] = kept[i];
      return;
    }
    const T* out = element<const T>(tensors_.out, problem_.out, unit_.batch, rows_->first, head_);
    pack_queries<Isa>(out, problem_.out.strides[1], rows_->count, problem_.head_dim_v, at(layout_.outs));
    const int words = words_of<Isa>(problem_.head_dim_v);
    constexpr int kVecs = 4;  // at a time: each waits for its own sums alone; rows past the last give numbers that nobody uses
    for (int row = 0; row < rows_->count; row += kVecs * Isa::kLanes) {
      typename Isa::Vec sum[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[v] = Isa::zero();
      const float *dout = row_at(layout_.douts) + row, *values = at(layout_.outs) + row;
      for (int w = 0; w < words; ++w, dout += kBlockM, values += kBlockM) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sum[v] = Isa::dot(sum[v], Isa::load(dout + v * Isa::kLanes), Isa::load(values + v * Isa::kLanes));
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) Isa::store(delta() + row + v * Isa::kLanes, sum[v]);
    }
    const float* dlse =
        problem_.dlse.present ? element<const float>(tensors_.dlse, problem_.dlse, unit_.batch, head_, rows_->first) : nullptr;
    for (int i = 0; i < kBlockM; ++i) {
      if (i >= rows_->count || alive[i] == 0) {
        delta()[i] = 0.0F;
      } else if (dlse != nullptr) {
        delta()[i] -= dlse[i * problem_.dlse.strides[2]];
      }
      if (kept != nullptr) kept[i] = delta()[i];
    }
  }

  // A tile of keys.
  void attend_keys(int tiles, int64_t key, int count) {
    if constexpr (kMatrix) {
      MatrixRowTiles dv, dk;
      for (rows_ = row_tiles_; rows_ < row_tiles_ + tiles; ++rows_) {
        const int64_t left = rows_->held.end - key;
        if (left <= 0 || key + call_.block_n <= rows_->held.begin) continue;
        attend(key, static_cast<int>(left < count ? left : count), count);
        const float* p = row_at(layout_.probabilities);
        dv.words[dv.count] = p;
        dv.rows[dv.count++] = row_at(layout_.dout_pairs);
        dk.words[dk.count] = p + kBlockM / 2;
        dk.rows[dk.count++] = row_at(layout_.query_pairs);
      }
      const int64_t held_key = key - held_.first;
      if (problem_.dv.present) {
        matrix_add_keys<Isa>(dv, layout_.value_stride, count, at(layout_.dv) + held_key * layout_.value_stride);
      }
      if (problem_.dk.present) {
        matrix_add_keys<Isa>(dk, layout_.key_stride, count, at(layout_.dk) + held_key * layout_.key_stride);
      }
    } else {
      attend(key, count, count);
    }
  }

  // all_count: keys of the other query tiles, to whose sums the rows of this one are added, too.
  void attend(int64_t key, int count, int all_count) {
    const bool partial = rows_->all.begin > key || rows_->all.end < key + count;
    const bool additive = partial || problem_.bias.present || problem_.keep_mask.present || alibi_slope_ != 0.0F;
    const int64_t held_key = key - held_.first;
    const bool all_columns = kMatrix && rows_->count < kBlockM;  // epilogues go over those without a query, too
    if (additive || problem_.softcap > 0.0F) {
      if (all_columns) clear(at(layout_.additive), count * kBlockM);
      additive_tile<Isa>(problem_, tensors_, call_.band, alibi_slope_,
                         {unit_.batch, head_, rows_->first, rows_->count, key, count, partial}, at(layout_.additive));
    }
    if (problem_.dropout > 0) {
      if (all_columns) clear(at(layout_.dropout), count * kBlockM);
      head_dropout_tile<Isa>(problem_, tensors_, unit_.batch, head_, rows_->first, rows_->count, key, count, at(layout_.dropout));
    }
    for (int first = 0; first < count; first += kScoreKeys) {
      const int keys = count - first < kScoreKeys ? count - first : kScoreKeys;
      if (problem_.softcap > 0.0F) {
        score<ScoreKind::softcap>(held_key, first, keys);
        problem_.dropout > 0 ? score_gradients<true, true>(held_key, first, keys)
                             : score_gradients<true, false>(held_key, first, keys);
      } else {
        additive ? score<ScoreKind::additive>(held_key, first, keys) : score<ScoreKind::plain>(held_key, first, keys);
        problem_.dropout > 0 ? score_gradients<false, true>(held_key, first, keys)
                             : score_gradients<false, false>(held_key, first, keys);
      }
    }
    if (problem_.dbias.present) {
      add_bias_gradient<Isa>(call_, unit_, head_, rows_->first, rows_->count, key, count,
                             layout_.dbias == 0 ? row_at(layout_.dscores) : at(layout_.dbias));
    }
    multiply(held_key, count, all_count);
  }

  // Keys [first, first + count) of the tile. On matrix tiles P goes no further than the epilogue of dP.
  template <ScoreKind kKind>
  void score(int64_t held_key, int first, int count) {
    const int offset = first * kBlockM;
    float* p = kMatrix ? at(layout_.raw) : row_at(layout_.probabilities);
    const Probabilities<Isa, kKind> epilogue{call_.scale, at(layout_.additive) + offset, minus_lse(),
                                             p,           at(layout_.slope) + offset,    &ahead_};
    multiply_scores(row_at(layout_.queries), at(layout_.keys) + (held_key + first) * layout_.key_words, layout_.key_words,
                    words_of<Isa>(problem_.head_dim), count, p, epilogue);
  }

  template <bool kSoftcap, bool kDropout>
  void score_gradients(int64_t held_key, int first, int count) {
    const int offset = first * kBlockM;
    float* words = row_at(layout_.probabilities) + offset;
    float* dscores = row_at(layout_.dscores) + offset / Isa::kGroup;
    float* p = kMatrix ? at(layout_.raw) : words;
    float* dp = kMatrix ? p + kMatrixScoreKeys * kBlockM : nullptr;
    const ScoreGradients<Isa, kSoftcap, kDropout> epilogue{delta(),
                                                           at(layout_.slope) + offset,
                                                           at(layout_.dropout) + offset,
                                                           p,
                                                           words,
                                                           dscores,
                                                           layout_.dbias != 0 ? at(layout_.dbias) + offset : nullptr,
                                                           &ahead_};
    // Where dV alone is wanted the product is left out, but not its epilogue, which prepares P.
    const int product_words = call_.wants_dx ? words_of<Isa>(problem_.head_dim_v) : 0;
    multiply_scores(row_at(layout_.douts), at(layout_.values) + (held_key + first) * layout_.value_words, layout_.value_words,
                    product_words, count, dp, epilogue);
  }

  // raw: on matrix tiles the sums' way to the epilogue.
  template <class Epilogue>
  void multiply_scores(const float* panel, const float* rows, int64_t stride, int words, int count, float* raw,
                       const Epilogue& epilogue) {
    if constexpr (kMatrix) {
      matrix_scores<Isa>(rows, stride, panel, words, count, raw, epilogue);
    } else {
      score_tile<Isa>(panel, rows_->count, rows, stride, words, count, epilogue);
    }
  }

  // The three products over the tile; on matrix tiles dV and dK are added up later.
  void multiply(int64_t held_key, int count, [[maybe_unused]] int all_count) {
    float *p = row_at(layout_.probabilities), *ds = row_at(layout_.dscores);
    // Keys up to a whole register block, to whose sums these rows would be added.
    if constexpr (kMatrix) {
      clear_tile_rows<Isa>(p, count, static_cast<int>(round_up(all_count, kTileBlock)));
      clear_tile_rows<Isa>(ds, words_of<Isa>(count), static_cast<int>(round_up(words_of<Isa>(count), kTile)));
    } else {
      const auto padded = static_cast<int>(round_up(count, 8));
      clear_tile_rows<Isa>(p, count, padded);
      if constexpr (Isa::kGroup == 1) clear_tile_rows<Isa>(ds, count, padded);
      if (problem_.dv.present) {
        multiply_keys(p, row_at(layout_.dout_pairs), layout_.value_stride, held_key, count, at(layout_.dv), problem_.head_dim_v,
                      1.0F, tensors_.dv, problem_.dv);
      }
      if (problem_.dk.present) {
        multiply_keys(Isa::kGroup == 1 ? ds : p + kBlockM / 2, row_at(layout_.query_pairs), layout_.key_stride, held_key, count,
                      at(layout_.dk), problem_.head_dim, problem_.softmax_scale, tensors_.dk, problem_.dk);
      }
    }
    if (!problem_.dq.present) return;
    if constexpr (kMatrix) {
      const int64_t words = call_.block_n / 2;
      matrix_add_queries<Isa>(at(layout_.turned_keys) + held_key / 2 * layout_.turned_rows, words, ds, words_of<Isa>(count),
                              layout_.key_stride, rows_->dq_started, row_at(layout_.turned_dq));
    } else if (call_.direct_queries) {
      T* dq = element<T>(tensors_.dq, problem_.dq, unit_.batch, rows_->first, head_);
      const int64_t stride = problem_.dq.strides[1];
      if (streams(dq, stride, problem_.head_dim)) {
        multiply_dq(held_key, count, final_gradient<true>(dq, stride, rows_->count, problem_.head_dim, problem_.softmax_scale));
        Isa::end_streams();
      } else {
        multiply_dq(held_key, count, final_gradient<false>(dq, stride, rows_->count, problem_.head_dim, problem_.softmax_scale));
      }
    } else if (rows_->dq_started) {
      multiply_dq(held_key, count, ScratchOutput<Isa, OutputKind::accumulate>{rows_->dq, layout_.key_stride, nullptr});
    } else {
      multiply_dq(held_key, count, ScratchOutput<Isa, OutputKind::first>{rows_->dq, layout_.key_stride, nullptr});
    }
    rows_->dq_started = true;
  }

  // dV and dK: [keys] += words of queries by rows of dO or Q.
  void multiply_keys(const float* words, const float* rows, int64_t stride, int64_t held_key, int count, float* sums, int64_t dim,
                     float factor, const Tensor& tensor, const TensorSpec& spec) {
    const int query_words = words_of<Isa>(rows_->count);
    if (!call_.direct_keys) {
      const ScratchOutput<Isa, OutputKind::accumulate> to{sums + held_key * stride, stride, nullptr};
      output_tile<Isa, KeysInLanes>(words, rows, stride, query_words, count, to);
      return;
    }
    T* out = element<T>(tensor, spec, unit_.batch, held_.first + held_key, unit_.kv_head);
    if (streams(out, spec.strides[1], dim)) {
      output_tile<Isa, KeysInLanes>(words, rows, stride, query_words, count,
                                    final_gradient<true>(out, spec.strides[1], count, dim, factor));
      Isa::end_streams();
    } else {
      output_tile<Isa, KeysInLanes>(words, rows, stride, query_words, count,
                                    final_gradient<false>(out, spec.strides[1], count, dim, factor));
    }
  }

  template <class Output>
  void multiply_dq(int64_t held_key, int count, const Output& output) {
    output_tile<Isa, QueriesInLanes>(row_at(layout_.dscores), at(layout_.key_pairs) + held_key / Isa::kGroup * layout_.key_stride,
                                     layout_.key_stride, words_of<Isa>(count), rows_->count, output);
  }

  // Whether rows may go past the caches: only whole lines can.
  bool streams(const T* out, int64_t stride, int64_t dim) const {
    constexpr int64_t kSize = sizeof(T);
    return call_.stream_output && reinterpret_cast<uintptr_t>(out) % 64 == 0 && stride * kSize % 64 == 0 && dim * kSize % 64 == 0;
  }
  template <bool kStreams>
  FinalGradient<Isa, T, kStreams> final_gradient(T* out, int64_t stride, int rows, int64_t dim, float factor) {
    return {out, stride, factor, rows, static_cast<int>(dim), &ahead_};
  }

  // The rows of the head's next query tiles, over the products of these.
  void fetch_next_rows(int64_t row, bool with_out, [[maybe_unused]] int64_t score_tiles) {
    if (row >= problem_.seqlen_q) return;
    const int64_t left = problem_.seqlen_q - row, rows = left < kRowTiles * kBlockM ? left : kRowTiles * kBlockM;
    constexpr int64_t kSize = sizeof(T);
    ahead_ = {};
    const auto add = [&](const Tensor& tensor, const TensorSpec& spec, int64_t dim) __attribute__((always_inline)) {
      ahead_.add(fetch_rows(element<const T>(tensor, spec, unit_.batch, row, head_), spec.strides[1] * kSize, dim * kSize, rows));
    };
    add(tensors_.q, problem_.q, problem_.head_dim);
    add(tensors_.dout, problem_.dout, problem_.head_dim_v);
    if (with_out) add(tensors_.out, problem_.out, problem_.head_dim_v);
    if constexpr (kMatrix) {
      // Steps of both epilogues.
      const int64_t steps = score_tiles * 2 * (call_.block_n / Isa::kQkKeys);
      ahead_.rows_a_step = static_cast<int>((3 * rows + steps - 1) / steps);
    }
  }

  void fetch_ahead(const BackwardUnit& next) {
    const int64_t head = next.kv_head * problem_.group_size();
    const auto add = [&](const Tensor& tensor, const TensorSpec& spec, int64_t of_head, int64_t dim,
                         int64_t rows) __attribute__((always_inline)) {
      constexpr int64_t kSize = sizeof(T);
      if (!spec.present) return;
      ahead_.add(fetch_rows(element<const T>(tensor, spec, next.batch, 0, of_head), spec.strides[1] * kSize, dim * kSize, rows));
    };
    const int64_t queries = problem_.seqlen_q, keys = problem_.seqlen_k, dim = problem_.head_dim, dim_v = problem_.head_dim_v;
    add(tensors_.k, problem_.k, next.kv_head, dim, keys);
    add(tensors_.v, problem_.v, next.kv_head, dim_v, keys);
    add(tensors_.q, problem_.q, head, dim, queries);
    add(tensors_.dout, problem_.dout, head, dim_v, queries);
    add(tensors_.out, problem_.out, head, dim_v, queries);
    if (!call_.stream_output) {
      add(tensors_.dv, problem_.dv, next.kv_head, dim_v, keys);
      add(tensors_.dk, problem_.dk, next.kv_head, dim, keys);
      add(tensors_.dq, problem_.dq, head, dim, queries);
    }
    int64_t rows = 0;
    for (int i = 0; i < ahead_.count; ++i) rows += ahead_.rows[i].rows;
    // Register blocks of the five products, roughly: two of 4 keys by 64 queries, three of 4 rows by 4 vectors.
    const int64_t blocks = (keys * 2 + queries + 2 * keys * round_up(dim, 64) / 64) / 4 + 1;
    ahead_.rows_a_step = static_cast<int>((rows + blocks - 1) / blocks);
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

  const BackwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  BackwardUnit unit_;
  BackwardScratch layout_;
  float* scratch_;
  float* sums_;  // the unit's slot of QuerySums, where one is needed
  QuerySums sums_layout_;
  algorithm::KeyRange keys_;  // of the split
  Held held_;
  Rows row_tiles_[kRowTiles];
  Rows* rows_ = row_tiles_;  // the tile at hand
  int64_t group_head_ = 0;
  int64_t head_ = 0;
  float alibi_slope_ = 0;
  FetchAhead ahead_;
};

}  // namespace fulmen::cpu
