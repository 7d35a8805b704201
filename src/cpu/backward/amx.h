// The backward pass on matrix tiles (AMX): the five products of cpu/backward/vector.h, a unit of 32
// query rows and 64 keys at a time from scores to packed P and dS, so that what is stored again and
// again stays in L1. All operands and sums lie in whole tiles:
//   S^T, dP^T [keys][unit]  = K, V [keys][words of dim]   x  Q^T, dO^T [words of dim][unit]
//   dQ^T      [dims][unit] += K^T  [dims][words of keys]  x  dS^T      [words of keys][unit]
//   dV, dK    [keys][dims] += P^T, dS^T [keys][words of queries]  x  dO, Q [words of queries][dims]
// dV and dK, sums in L2, are loaded and stored once for all query tiles of a pass.
#pragma once

#include "cpu/amx/product.h"
#include "cpu/backward/amx_gradients.h"
#include "cpu/backward/unit.h"

namespace fulmen::cpu {

constexpr int kPassTiles = 2;  // query tiles that go through the held keys together
constexpr int kPassUnits = kPassTiles * kUnitsPerTile;
// Keys of a unit whose scores and dP stay in L1 beside the operands of their products; and matrix
// units sleep when they have had nothing to do for 1,600 cycles, which the vectors of more keys
// take.
constexpr int kScoreKeys = 32;

// Scratch of an attend task, in floats from its start. Operands and sums are tiles, right operands
// of units; see cpu/amx/operands.h.
struct AmxBackwardScratch {
  int64_t keys;             // left operand [held][words of head_dim]: K
  int64_t values;           // left operand [held][words of head_dim_v]: V
  int64_t transposed_keys;  // [held / block_n] left operands [head_dim][block_n / 2]: K^T of each
                            // key tile
  int64_t dk;               // sums [head_dim / 32][held / 16][2]
  int64_t dv;               // sums [head_dim_v / 32][held / 16][2]
  int64_t panel;            // [block_n / 2][key_stride]: pairs of K's rows, before they are
                            // transposed
  int64_t scores;           // sums [kScoreKeys / 16][2]
  int64_t dp;               // the same
  int64_t p, ds;            // left operands [block_n][kPassUnits], pairs of queries are words
  int64_t ds_pairs;         // right operand [block_n / 32][2], pairs of keys are words
  int64_t outs;             // left operand [kUnitRows][words of head_dim_v]: O
  int64_t dq_rows;          // [kBlockM][key_stride]: dQ before it is stored
  int64_t additive;         // [block_n][kBlockM]
  int64_t dropout;          // [block_n][kBlockM]: 0 or 1 / (1 - p)
  int64_t dbias;            // [block_n][kBlockM], fp32
  // Buffers of a pass.
  int64_t queries;      // right operands [kPassUnits][words of head_dim / 16][2]: Q^T
  int64_t douts;        // the same of dO
  int64_t query_pairs;  // right operands [head_dim / 32][kPassUnits][2]: pairs of Q's rows
  int64_t dout_pairs;
  int64_t dq;       // [kPassTiles] dQ^T, sums [2][head_dim / 16][2]
  int64_t numbers;  // [kPassTiles] of LseNumbers, delta: [kBlockM] each
  int64_t total;
  int key_words, value_words;        // tiles of words of a row
  int64_t key_stride, value_stride;  // head_dim, head_dim_v in whole tiles
  int64_t dim_units, value_units;    // of 32 dims
  int64_t key_sums;                  // floats of dK or dV of 32 dims
};

FULMEN_INLINE AmxBackwardScratch amx_backward_scratch(const Problem& p, int group, int block_n,
                                                      int64_t held) {
  AmxBackwardScratch s{};
  s.key_words = tiles_of((p.head_dim + group - 1) / group);
  s.value_words = tiles_of((p.head_dim_v + group - 1) / group);
  s.key_stride = round_up(p.head_dim, kTile);
  s.value_stride = round_up(p.head_dim_v, kTile);
  s.dim_units = (p.head_dim + kUnitRows - 1) / kUnitRows;
  s.value_units = (p.head_dim_v + kUnitRows - 1) / kUnitRows;
  s.key_sums = held / kTile * kUnitTiles * kTileFloats;
  const int64_t tile = static_cast<int64_t>(block_n) * kBlockM;
  ScratchCutter cut;
  s.keys = cut.take(held * s.key_words * kTile);
  s.values = cut.take(held * s.value_words * kTile);
  s.transposed_keys = cut.take(held / 2 * s.key_stride);
  s.dk = cut.take(s.dim_units * s.key_sums);
  s.dv = cut.take(s.value_units * s.key_sums);
  s.panel = cut.take(block_n / 2 * s.key_stride);
  s.scores = cut.take(static_cast<int64_t>(kScoreKeys) * kUnitRows);
  s.dp = cut.take(static_cast<int64_t>(kScoreKeys) * kUnitRows);
  s.p = cut.take(static_cast<int64_t>(block_n) * kPassUnits * kTile);
  s.ds = cut.take(static_cast<int64_t>(block_n) * kPassUnits * kTile);
  s.ds_pairs = cut.take(static_cast<int64_t>(block_n) / 2 * kUnitRows);
  s.outs = cut.take(static_cast<int64_t>(kUnitRows) * s.value_words * kTile);
  s.dq_rows = cut.take(kBlockM * s.key_stride);
  s.additive = cut.take(tile);
  s.dropout = cut.take(p.dropout > 0 ? tile : 0);
  s.dbias = cut.take(p.dbias.present ? tile : 0);
  s.queries = cut.take(kPassUnits * s.key_words * kTileRow);
  s.douts = cut.take(kPassUnits * s.value_words * kTileRow);
  s.query_pairs = cut.take(kPassUnits * s.dim_units * kTileRow);
  s.dout_pairs = cut.take(kPassUnits * s.value_units * kTileRow);
  s.dq = cut.take(kPassTiles * kBlockM * s.key_stride);
  s.numbers = cut.take(static_cast<int64_t>(kPassTiles) * (kLseNumbers + 1) * kBlockM);
  s.total = cut.total;
  return s;
}

template <class Isa, class T>
class AmxBackwardTask : private BackwardUnitTask<Isa> {
  using Base = BackwardUnitTask<Isa>;
  using Tiles = typename Isa::TileInstructions;

 public:
  AmxBackwardTask(const BackwardCall& call, const BackwardUnit& unit, float* sums, float* scratch)
      : Base(call, unit, sums, scratch, sizeof(T), row_products<Isa, T>),
        layout_(amx_backward_scratch(problem_, Isa::kGroup, call.block_n, call.cut.held_keys)) {}

  // As BackwardTask::run.
  void run(bool first_of_sums, const BackwardUnit* next) {
    if (next != nullptr && this->short_unit()) {
      this->add_unit(*next, ahead_);
      ahead_.spread(kUnitsPerTile * (problem_.seqlen_k / 4 + 1));
    }
    this->clear_what_stays_empty(first_of_sums);
    Tiles::configure();
    this->for_blocks([&] { load_keys(); },
                     [&] {
                       for (int64_t row = 0; row < problem_.seqlen_q; row += kPassTiles * kBlockM)
                         attend_pass(row);
                     },
                     [&] { store_keys(); });
    Tiles::release();
  }

 private:
  using Base::at, Base::clear;
  using Base::call_, Base::problem_, Base::tensors_, Base::unit_, Base::held_, Base::sums_,
      Base::head_;

  // A query tile of the pass.
  struct PassTile {
    typename Base::Rows rows;
    int units = 0;        // that hold queries
    float* dq = nullptr;  // sums [2][head_dim / 16][2]
    bool dq_started = false;
  };

  float* numbers(int tile) const {
    return at(layout_.numbers) + tile * (kLseNumbers + 1) * kBlockM;
  }
  float* delta(int tile) const { return numbers(tile) + kLseNumbers * kBlockM; }
  float* queries(int unit) const {
    return at(layout_.queries) + unit * layout_.key_words * kTileRow;
  }
  float* douts(int unit) const { return at(layout_.douts) + unit * layout_.value_words * kTileRow; }

  void load_keys() {
    const auto count = static_cast<int>(held_.count);
    uint8_t marks[kMaxHeldKeys];
    const uint8_t* alive = this->alive_keys_of_group(marks);
    const StridedRows<T> k{
        element<const T>(tensors_.k, problem_.k, unit_.batch, held_.first, unit_.kv_head),
        problem_.k.strides[1]};
    const StridedRows<T> v{
        element<const T>(tensors_.v, problem_.v, unit_.batch, held_.first, unit_.kv_head),
        problem_.v.strides[1]};
    pack_key_tiles<Isa>(k, count, problem_.head_dim, at(layout_.keys), alive);
    pack_key_tiles<Isa>(v, count, problem_.head_dim_v, at(layout_.values), alive);
    for (int key = 0; problem_.dq.present && key < count; key += call_.block_n) {
      const int left = count - key < call_.block_n ? count - key : call_.block_n;
      const StridedRows<T> rows{k.first + key * k.stride, k.stride};
      pack_values<Isa>(rows, left, problem_.head_dim, at(layout_.panel), layout_.key_stride,
                       alive == nullptr ? alive : alive + key);
      transpose_value_tiles<Isa>(at(layout_.panel), layout_.key_stride, words_of<Isa>(left),
                                 transposed_keys(key), call_.block_n / 2 / kTile);
    }
    if (problem_.dk.present) clear(at(layout_.dk), layout_.dim_units * layout_.key_sums);
    if (problem_.dv.present) clear(at(layout_.dv), layout_.value_units * layout_.key_sums);
  }
  float* transposed_keys(int64_t held_key) const {
    return at(layout_.transposed_keys) + held_key / 2 * layout_.key_stride;
  }

  void store_keys() {
    if (problem_.dk.present) {
      store_sums(at(layout_.dk), problem_.head_dim, problem_.softmax_scale,
                 element<T>(tensors_.dk, problem_.dk, unit_.batch, held_.first, unit_.kv_head),
                 problem_.dk.strides[1]);
    }
    if (problem_.dv.present) {
      store_sums(at(layout_.dv), problem_.head_dim_v, 1.0F,
                 element<T>(tensors_.dv, problem_.dv, unit_.batch, held_.first, unit_.kv_head),
                 problem_.dv.strides[1]);
    }
  }
  void store_sums(const float* sums, int64_t dim, float factor, T* out, int64_t stride) {
    if (this->streams(out, stride, dim)) {
      store_key_sums(sums, layout_.key_sums, gradient<true>(out, stride, held_.count, dim, factor));
    } else {
      store_key_sums(sums, layout_.key_sums,
                     gradient<false>(out, stride, held_.count, dim, factor));
    }
  }
  template <bool kStreams>
  static FinalGradient<Isa, T, kStreams> gradient(T* out, int64_t stride, int64_t rows, int64_t dim,
                                                  float factor) {
    return {out, stride, factor, static_cast<int>(rows), static_cast<int>(dim), nullptr};
  }

  // The held keys and the query tiles from `first` on that go through them together.
  void attend_pass(int64_t first) {
    tiles_ = 0;
    algorithm::KeyRange keys{held_.first + held_.count, held_.first};
    for (int64_t row = first; row < problem_.seqlen_q && row < first + kPassTiles * kBlockM;
         row += kBlockM) {
      const auto rows = this->select_rows(row);
      if (!this->attends_held(rows)) continue;
      pass_[tiles_] = {rows, rows.count > kUnitRows ? kUnitsPerTile : 1,
                       sums_ == nullptr ? at(layout_.dq) + tiles_ * kBlockM * layout_.key_stride
                                        : this->dq_sums(row),
                       !this->first_block(rows)};
      load_rows(tiles_++);
      keys.begin = rows.held.begin < keys.begin ? rows.held.begin : keys.begin;
      keys.end = rows.held.end > keys.end ? rows.held.end : keys.end;
    }
    if (tiles_ == 0) return;
    fetch_next_rows(first + kPassTiles * kBlockM, keys.end - keys.begin);
    for (int64_t key = keys.begin / call_.block_n * call_.block_n; key < keys.end;
         key += call_.block_n) {
      const int64_t left = keys.end - key;
      attend_keys(key, static_cast<int>(left < call_.block_n ? left : call_.block_n));
    }
    for (int tile = 0; tile < tiles_; ++tile) {
      if (problem_.dq.present && !pass_[tile].dq_started)
        clear(pass_[tile].dq, kBlockM * layout_.key_stride);
      finish_rows(pass_[tile]);
    }
  }

  void load_rows(int tile) {
    const auto& rows = pass_[tile].rows;
    uint8_t alive[kBlockM];
    this->load_lse(rows, numbers(tile), alive);
    const int unit = tile * kUnitsPerTile;
    const StridedRows<T> q{element<const T>(tensors_.q, problem_.q, unit_.batch, rows.first, head_),
                           problem_.q.strides[1]};
    pack_query_tiles<Isa>(q, rows.count, problem_.head_dim, alive, queries(unit),
                          problem_.dk.present ? at(layout_.query_pairs) + unit * kTileRow : nullptr,
                          kPassUnits * kTileRow);
    const StridedRows<T> dout{
        element<const T>(tensors_.dout, problem_.dout, unit_.batch, rows.first, head_),
        problem_.dout.strides[1]};
    pack_query_tiles<Isa>(dout, rows.count, problem_.head_dim_v, alive, douts(unit),
                          problem_.dv.present ? at(layout_.dout_pairs) + unit * kTileRow : nullptr,
                          kPassUnits * kTileRow);
    this->load_deltas(rows, alive, delta(tile), [&] { sum_products(tile); });
  }

  // dout . out of each row, the diagonal of O dO^T: by the product that gives dP, so that a row
  // which attends one key alone has dP - delta = 0 exactly.
  void sum_products(int tile) {
    const auto& rows = pass_[tile].rows;
    const StridedRows<T> out{
        element<const T>(tensors_.out, problem_.out, unit_.batch, rows.first, head_),
        problem_.out.strides[1]};
    for (int first = 0; first < rows.count; first += kUnitRows) {
      const int count = rows.count - first < kUnitRows ? rows.count - first : kUnitRows;
      pack_key_tiles<Isa>(StridedRows<T>{out.first + first * out.stride, out.stride}, count,
                          problem_.head_dim_v, at(layout_.outs));
      const int unit = tile * kUnitsPerTile + first / kUnitRows;
      UnitProduct<Tiles, false>::run(
          at(layout_.outs), static_cast<int64_t>(layout_.value_words) * kTileFloats, douts(unit),
          at(layout_.scores), tiles_of(count), layout_.value_words);
      for (int i = 0; i < count; ++i) {
        delta(tile)[first + i] =
            at(layout_.scores)[(i / kTile * kUnitTiles + i / kTile) * kTileFloats +
                               i % kTile * (kTile + 1)];
      }
    }
  }

  // A tile of keys.
  void attend_keys(int64_t key, int count) {
    // What the pass's query tiles attend moves on with them: those that attend keys of the tile are
    // neighbours.
    int begin = kPassUnits, end = 0;
    for (int tile = 0; tile < tiles_; ++tile) {
      const auto& held = pass_[tile].rows.held;
      const int64_t left = held.end - key;
      if (left <= 0 || key + call_.block_n <= held.begin) continue;
      if (this->is_left_out(pass_[tile].rows, key, left < count ? left : count)) continue;
      attend(tile, key, static_cast<int>(left < count ? left : count), count);
      begin = tile * kUnitsPerTile < begin ? tile * kUnitsPerTile : begin;
      end = tile * kUnitsPerTile + pass_[tile].units;
    }
    if (begin > end) return;
    const int64_t sums = (key - held_.first) / kTile * kTileRow;
    if (problem_.dv.present) {
      add_keys(at(layout_.p), at(layout_.dout_pairs), begin, end, count, layout_.value_units,
               at(layout_.dv) + sums);
    }
    if (problem_.dk.present) {
      add_keys(at(layout_.ds), at(layout_.query_pairs), begin, end, count, layout_.dim_units,
               at(layout_.dk) + sums);
    }
  }

  // sums += words [count][units] x pairs [units][dims].
  void add_keys(const float* words, const float* pairs, int begin, int end, int count,
                int64_t dim_units, float* sums) {
    for (int64_t d = 0; d < dim_units; ++d) {
      UnitProduct<Tiles, true>::run(words + begin * kTileFloats, kPassUnits * kTileFloats,
                                    pairs + (d * kPassUnits + begin) * kTileRow,
                                    sums + d * layout_.key_sums, tiles_of(count), end - begin);
    }
  }

  // A query tile and the first `count` of a tile of keys; all_count: of the pass's other query
  // tiles.
  void attend(int tile, int64_t key, int count, int all_count) {
    PassTile& pass = pass_[tile];
    const int64_t held_key = key - held_.first;
    // The vectors go over columns without a query, too.
    const bool additive = this->build_tiles(pass.rows, key, count, pass.rows.count < kBlockM,
                                            at(layout_.additive), at(layout_.dropout));
    for (int i = 0; i < pass.units; ++i) {
      const int unit = tile * kUnitsPerTile + i;
      for (int first = 0; first < count; first += kScoreKeys) {
        const int keys = count - first < kScoreKeys ? count - first : kScoreKeys;
        multiply_scores(unit, held_key + first, keys);
        if (problem_.softcap > 0.0F) {
          finish_scores<ScoreKind::softcap>(unit, first, keys);
        } else if (additive) {
          finish_scores<ScoreKind::additive>(unit, first, keys);
        } else {
          finish_scores<ScoreKind::plain>(unit, first, keys);
        }
      }
      const auto whole = static_cast<int>(round_up(all_count, kTile));
      clear_rows_of_tiles<Isa>(at(layout_.p) + unit * kTileFloats, kPassUnits * kTileFloats, count,
                               whole);
      clear_rows_of_tiles<Isa>(at(layout_.ds) + unit * kTileFloats, kPassUnits * kTileFloats, count,
                               whole);
      if (problem_.dq.present) add_queries(pass, i, held_key, count);
    }
    pass.dq_started = true;
    if (problem_.dbias.present) {
      add_bias_gradient<Isa>(call_, unit_, head_, pass.rows.first, pass.rows.count, key, count,
                             at(layout_.dbias));
    }
  }

  void multiply_scores(int unit, int64_t held_key, int keys) {
    const int64_t key_row = static_cast<int64_t>(layout_.key_words) * kTileFloats;
    UnitProduct<Tiles, false>::run(at(layout_.keys) + held_key / kTile * key_row, key_row,
                                   queries(unit), at(layout_.scores), tiles_of(keys),
                                   layout_.key_words);
    const int64_t value_row = static_cast<int64_t>(layout_.value_words) * kTileFloats;
    if (call_.wants_dx) {
      UnitProduct<Tiles, false>::run(at(layout_.values) + held_key / kTile * value_row, value_row,
                                     douts(unit), at(layout_.dp), tiles_of(keys),
                                     layout_.value_words);
    } else {  // dV alone needs P alone
      clear(at(layout_.dp), static_cast<int64_t>(kScoreKeys) * kUnitRows);
    }
  }

  // Keys [first, first + keys) of the tile.
  template <ScoreKind kKind>
  void finish_scores(int unit, int first, int keys) {
    const int tile = unit / kUnitsPerTile, row = unit % kUnitsPerTile * kUnitRows;
    const int64_t from = static_cast<int64_t>(first) * kBlockM + row;
    const int64_t to = (static_cast<int64_t>(first / kTile) * kPassUnits + unit) * kTileFloats;
    const UnitGradientOperands operands{
        call_.scale,
        at(layout_.scores),
        at(layout_.dp),
        numbers(tile) + row,
        delta(tile) + row,
        at(layout_.additive) + from,
        at(layout_.dropout) + from,
        problem_.dbias.present ? at(layout_.dbias) + from : nullptr,
        at(layout_.p) + to,
        at(layout_.ds) + to,
        kPassUnits * kTileFloats,
        at(layout_.ds_pairs) + static_cast<int64_t>(first) / 2 * kUnitRows};
    if (problem_.dropout > 0) {
      UnitGradients<Isa, kKind, true>::run(operands, keys, ahead_);
    } else {
      UnitGradients<Isa, kKind, false>::run(operands, keys, ahead_);
    }
  }

  void add_queries(const PassTile& pass, int unit_of_tile, int64_t held_key, int count) {
    const int words = words_of<Isa>(count);
    clear_last_words<Isa>(at(layout_.ds_pairs), words);
    const auto product =
        pass.dq_started ? UnitProduct<Tiles, true>::run : UnitProduct<Tiles, false>::run;
    product(transposed_keys(held_key), static_cast<int64_t>(call_.block_n / 2) * kTile,
            at(layout_.ds_pairs), pass.dq + unit_of_tile * kUnitRows * layout_.key_stride,
            tiles_of(layout_.key_stride), tiles_of(words));
  }

  // dQ^T -> dQ, where no more keys follow: to the caller's tensor or, as one of several parts, to
  // the sums.
  void finish_rows(const PassTile& pass) {
    if (!problem_.dq.present || !this->last_block(pass.rows)) return;
    const int64_t unit_floats = kUnitRows * layout_.key_stride;
    float* rows = at(layout_.dq_rows);
    for (int i = 0; i < pass.units; ++i) {
      transpose_unit_output<Isa>(pass.dq + i * unit_floats, layout_.key_stride,
                                 rows + i * unit_floats);
    }
    if (call_.cut.num_splits == 1) {
      T* out = element<T>(tensors_.dq, problem_.dq, unit_.batch, pass.rows.first, head_);
      const int64_t stride = problem_.dq.strides[1], dim = problem_.head_dim;
      if (this->streams(out, stride, dim)) {
        store_query_rows(rows, layout_.key_stride,
                         gradient<true>(out, stride, pass.rows.count, dim, problem_.softmax_scale));
      } else {
        store_query_rows(
            rows, layout_.key_stride,
            gradient<false>(out, stride, pass.rows.count, dim, problem_.softmax_scale));
      }
    } else {
      for (int64_t i = 0; i < pass.units * unit_floats; i += Isa::kLanes)
        Isa::store(pass.dq + i, Isa::load(rows + i));
    }
  }

  // The rows of the head's next query tiles, over the vectors of these, which attend `keys` keys.
  void fetch_next_rows(int64_t row, int64_t keys) {
    if (row >= problem_.seqlen_q) return;
    const int64_t left = problem_.seqlen_q - row,
                  rows = left < kPassTiles * kBlockM ? left : kPassTiles * kBlockM;
    ahead_ = {};
    this->add_query_rows(row, rows, this->first_block(pass_[0].rows), ahead_);
    ahead_.spread(tiles_ * kUnitsPerTile * (keys / 4 + 1));
  }

  AmxBackwardScratch layout_;
  PassTile pass_[kPassTiles];
  int tiles_ = 0;  // of the pass
  FetchAhead ahead_;
};

}  // namespace fulmen::cpu
