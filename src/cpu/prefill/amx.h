// The tile task on matrix tiles (AMX): S^T = K Q^T and O^T += V^T P^T, a unit of 32 query rows at a
// time, so that what is stored again and again stays in L1. A chunk of several key tiles is packed
// at once and stays in L2; a unit goes through it tile by tile.
#pragma once

#include "cpu/amx/product.h"
#include "cpu/amx/softmax.h"
#include "cpu/prefill/vector.h"
#include "cpu/tile/row_prefetch.h"

namespace fulmen::cpu {

constexpr int64_t kChunkKeys = 512;  // packed at once, as far as there are so many

// Scratch of a task on matrix tiles, in floats from its start; operands and sums lie in tiles
// (cpu/amx/operands.h). Keys: [chunk_blocks][block_n][words]; queries and output: of kUnitRows
// each.
struct AmxScratch : TileScratch {
  int64_t transposed;  // [chunk_blocks] V^T of a key tile, [value_stride][block_n / 2 words]
  int64_t key_block;   // floats of a key tile's keys
  int64_t transposed_block;
  int chunk_blocks;
};

// group: elements of a word of q k^T.
FULMEN_INLINE AmxScratch amx_scratch(const Problem& problem, int group, int block_n, int tiles) {
  AmxScratch s{};
  const int64_t words = round_up((problem.head_dim + group - 1) / group, kTile);
  const int64_t keys =
      round_up(problem.seqlen_k < kChunkKeys ? problem.seqlen_k : kChunkKeys, block_n);
  s.chunk_blocks = static_cast<int>(keys / block_n);
  s.key_stride = words;
  s.value_stride = round_up(problem.head_dim_v, kTile);
  s.query_tile = words * kBlockM;
  s.output_tile = s.value_stride * kBlockM;
  s.key_block = words * block_n;
  s.transposed_block = s.value_stride * (block_n / 2);
  ScratchCutter cut;
  s.scores = cut.take(static_cast<int64_t>(block_n) * kUnitRows);
  s.queries = cut.take(s.query_tile * tiles);
  s.keys = cut.take(s.key_block * s.chunk_blocks);
  s.transposed = cut.take(s.transposed_block * s.chunk_blocks);
  s.values = cut.take(s.value_stride * block_n);
  cut_rows(problem, block_n, tiles, cut, s);
  return s;
}

// Product: the vocabulary of q k^T, another one where it is of codes of int8; Base loads what it
// reads.
template <class Isa, class T, class Product = Isa, class Base = PrefillTask<Isa, T>>
class AmxPrefillTask : private Base {
  using Piece = typename Base::Piece;
  using Tiles = typename Isa::TileInstructions;

 public:
  template <class... Places>
  AmxPrefillTask(const ForwardCall& call, const PrefillRows& task, float* scratch,
                 const AmxScratch& layout, const Places&... places)
      : Base(call, task, scratch, layout, places...),
        matrix_(layout),
        word_tiles_(tiles_of(words_of<Product>(problem_.head_dim))) {}

  void run() {
    Tiles::configure();
    load_queries();
    const auto keys = call_.band.any(this->task_.row_begin, this->task_.row_end);
    const int units =
        static_cast<int>((this->task_.row_end - this->task_.row_begin + kUnitRows - 1) / kUnitRows);
    const int64_t chunk = static_cast<int64_t>(matrix_.chunk_blocks) * call_.block_n;
    // Key tiles begin at multiples of block_n, so that a row's result does not depend on which rows
    // share its task.
    for (int64_t first = keys.begin / call_.block_n * call_.block_n; first < keys.end;
         first += chunk) {
      const int64_t end = first + chunk < keys.end ? first + chunk : keys.end;
      load_chunk(first, end);
      this->fetch_ahead(first + chunk, keys.end, chunk, units * matrix_.chunk_blocks);
      for (int unit = 0; unit < units; ++unit) {
        for (int block = 0; first + static_cast<int64_t>(block) * call_.block_n < end; ++block)
          attend_block(unit, first, end, block);
      }
    }
    Tiles::release();
    for (int tile = 0; tile < tiles_; ++tile) store(tile);
  }

 private:
  using Base::call_, Base::problem_, Base::layout_, Base::scratch_, Base::tiles_;

  void load_queries() {
    if (words_of<Product>(problem_.head_dim) % kTile != 0) {  // whole tiles of words
      float* queries = scratch_ + layout_.queries;
      for (int64_t i = 0; i < layout_.query_tile * tiles_; i += Isa::kLanes)
        Isa::store(queries + i, Isa::zero());
    }
    Base::load_queries(UnitPlace{word_tiles_});
  }

  void load_chunk(int64_t first, int64_t end) {
    for (int block = 0; first < end; ++block, first += call_.block_n) {
      if (this->next_attended(first, first + call_.block_n) != first) continue;
      const int count = keys_of_block(first, end);
      if constexpr (kIsOfCodes<Product>) {
        this->pack_code_tiles(first, count, keys(block));
        this->load_values_of(first, count);
      } else {
        this->with_rows(first, count, [&](auto k, auto v) {
          pack_key_tiles<Isa>(k, count, problem_.head_dim, keys(block));
          this->load_values(v, first, count);
        });
      }
      transpose_value_tiles<Isa>(scratch_ + layout_.values, layout_.value_stride,
                                 words_of<Isa>(count), transposed(block),
                                 call_.block_n / 2 / kTile);
    }
  }
  int keys_of_block(int64_t first, int64_t end) const {
    return static_cast<int>(end - first < call_.block_n ? end - first : call_.block_n);
  }
  float* keys(int block) { return scratch_ + layout_.keys + block * matrix_.key_block; }
  float* transposed(int block) {
    return scratch_ + matrix_.transposed + block * matrix_.transposed_block;
  }

  // The tile's parts of its two units.
  float* queries(int unit) {
    return Base::queries(unit / kUnitsPerTile) +
           unit % kUnitsPerTile * (layout_.query_tile / kUnitsPerTile);
  }
  float* output(int unit) {
    return Base::output(unit / kUnitsPerTile) +
           unit % kUnitsPerTile * (layout_.output_tile / kUnitsPerTile);
  }
  UnitState state(int unit, const Piece& p) {
    SoftmaxState& s = Base::state(unit / kUnitsPerTile);
    const int row = unit % kUnitsPerTile * kUnitRows;
    return {s.max + row, s.sum + row, s.rescale + row, tiles_of(p.rows)};
  }

  void attend_block(int unit, int64_t chunk_first, int64_t end, int block) {
    const int64_t first = chunk_first + static_cast<int64_t>(block) * call_.block_n;
    const int64_t row = this->task_.row_begin + static_cast<int64_t>(unit) * kUnitRows;
    const int64_t rows_left = this->task_.row_end - row;
    const int rows = rows_left < kUnitRows ? static_cast<int>(rows_left) : kUnitRows;
    fetch_any_rows<Isa>(this->ahead_, this->ahead_rows_);
    const Piece p = this->piece(unit / kUnitsPerTile, row, rows, first, keys_of_block(first, end));
    if (p.count == 0) return;
    if constexpr (kIsOfCodes<Product>) this->scale_rows(p);
    multiply_keys(unit, p, block);
    // A unit whose rows all have a maximum keeps it, unless the scores leave it far behind.
    if (!keeps_offsets() || p.additive || (settled_ >> unit & 1ULL) == 0) {
      finish(unit, p);
    } else if (!softmax_unit_by_last_max<Isa, Isa::kExp2Degree>(scores(), p.count, this->factor(p),
                                                                state(unit, p))) {
      multiply_keys(unit, p, block);
      finish(unit, p);
    }
    multiply_values(unit, p, block);
    started_units_ |= 1ULL << unit;
  }

  float* scores() { return scratch_ + layout_.scores; }

  void multiply_keys(int unit, const Piece& p, int block) {
    UnitProduct<typename Product::TileInstructions, false>::run(
        keys(block), static_cast<int64_t>(word_tiles_) * kTileFloats, queries(unit), scores(),
        tiles_of(p.count), word_tiles_);
    if constexpr (kIsOfCodes<Product>) {
      const int row = unit % kUnitsPerTile * kUnitRows;
      number_unit<Isa, Product>(scores(), p.count, this->query_codes_.scale + row,
                                this->query_codes_.start + row);
    }
  }

  void multiply_values(int unit, const Piece& p, int block) {
    const auto product =
        started(unit) ? UnitProduct<Tiles, true>::run : UnitProduct<Tiles, false>::run;
    product(transposed(block), static_cast<int64_t>(call_.block_n / 2) * kTile, scores(),
            output(unit), tiles_of(layout_.value_stride), tiles_of(words_of<Isa>(p.count)));
  }
  bool started(int unit) const { return (started_units_ >> unit & 1ULL) != 0; }

  // Where the sums are of rounded probabilities, as the output's are. An exact sum, as the LSE
  // needs it, would leave the rounding of a row's largest probability, which is 1 by its true
  // maximum alone, in the output.
  bool keeps_offsets() const {
    return Isa::kRoundsExp2 && !problem_.lse.present && problem_.dropout == 0;
  }

  // The rest of the scores, and the softmax by their maxima.
  void finish(int unit, const Piece& p) {
    if (p.additive) this->add(p);
    if (problem_.softcap > 0.0F) {
      finish_unit<Isa, ScoreKind::softcap>(scores(), p.count, call_.scale,
                                           scratch_ + layout_.additive, this->tile_max());
    } else if (p.additive) {
      finish_unit<Isa, ScoreKind::additive>(scores(), p.count, call_.scale,
                                            scratch_ + layout_.additive, this->tile_max());
    } else {
      finish_unit<Isa, ScoreKind::plain>(scores(), p.count, call_.scale, nullptr, this->tile_max());
    }
    const UnitStep step = problem_.dropout > 0
                              ? softmax(unit, p, DropoutFactors{this->dropout_factors(p)})
                              : softmax(unit, p, NoDropout{});
    settled_ = (settled_ & ~(1ULL << unit)) | (step.settled ? 1ULL << unit : 0ULL);
    if (step.moved && started(unit))
      rescale_unit<Isa>(output(unit), layout_.value_stride, state(unit, p).rescale);
  }
  template <class Dropout>
  UnitStep softmax(int unit, const Piece& p, Dropout dropout) {
    using algorithm::ScoreUnits;
    return this->natural() ? softmax_in<ScoreUnits::natural>(unit, p, dropout)
                           : softmax_in<ScoreUnits::base2>(unit, p, dropout);
  }
  template <algorithm::ScoreUnits kUnits, class Dropout>
  UnitStep softmax_in(int unit, const Piece& p, Dropout dropout) {
    constexpr int kShort = Isa::kExp2Degree;
    return problem_.lse.present
               ? softmax_unit<Isa, 5, kUnits>(scores(), this->tile_max(), p.count, this->factor(p),
                                              state(unit, p), dropout)
               : softmax_unit<Isa, kShort, kUnits>(scores(), this->tile_max(), p.count,
                                                   this->factor(p), state(unit, p), dropout);
  }

  void store(int tile) {
    float* rows = scratch_ + layout_.values;  // free by now
    for (int half = 0; half * kUnitRows < this->tile_rows(tile); ++half) {
      const int unit = tile * kUnitsPerTile + half;
      float* to = rows + half * kUnitRows * layout_.value_stride;
      if (started(unit)) {
        transpose_unit_output<Isa>(output(unit), layout_.value_stride, to);
      } else {
        for (int64_t i = 0; i < kUnitRows * layout_.value_stride; i += Isa::kLanes)
          Isa::store(to + i, Isa::zero());
      }
    }
    Base::store(tile, rows);
  }

  AmxScratch matrix_;
  int word_tiles_;              // of a key or query row
  uint64_t started_units_ = 0;  // bit per unit: its output holds something
  uint64_t settled_ = 0;        // bit per unit: all its rows have a maximum
};

template <class Isa, class T>
void amx_prefill_task(const ForwardCall& call, const PrefillRows& task, float* scratch) {
  const AmxScratch layout =
      amx_scratch(*call.problem, Isa::kGroup, call.block_n, call.tiles_per_task);
  AmxPrefillTask<Isa, T>(call, task, scratch, layout).run();
}

}  // namespace fulmen::cpu
