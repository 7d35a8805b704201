// The tile task on matrix tiles (AMX). Operands lie as they do on vectors: keys [key][words] and queries [words][kBlockM] give S^T,
// V^T [head_dim_v][words of keys] and P^T [words][kBlockM] give O^T, which is turned once at the end.
//
// Tiles and vectors are different units of the processor, so the vectors' work on one query tile, the exponentials above all, has
// the products of its neighbours issued among it: O += P V of the query tile before, and S of the next one.
#pragma once

#include "cpu/forward_task.h"
#include "cpu/matrix_tiles.h"

namespace fulmen::cpu {

template <class Isa, class T>
class MatrixTask : private ForwardTask<Isa, T> {
  using Base = ForwardTask<Isa, T>;
  using Piece = typename Base::Piece;
  using Tiles = typename Isa::TileInstructions;
  using Product = TileProduct<Tiles>;

 public:
  MatrixTask(const ForwardCall& call, const TileTask& task, float* scratch, const TileScratch& layout)
      : Base(call, task, scratch, layout), keys_(call.band.any(task.row_begin, task.row_end)) {
    next_first_ = keys_.begin / call.block_n * call.block_n;
    tile_ = tiles_;
  }

  void run() {
    Tiles::configure();
    load_queries();
    Unit unit = next_unit();
    if (unit.p.count > 0) TileProducts<Tiles>(score_product(unit), Product()).finish();
    Product values_before;
    while (unit.p.count > 0) {
      if (unit.p.additive) this->add(unit.p);
      finish_scores(unit);
      const Unit next = next_unit();
      TileProducts<Tiles> beside(values_before, next.p.count > 0 ? score_product(next) : Product());
      const bool moved = this->softmax(unit.p, unit.scores, EvenSteps<Tiles>(beside, softmax_slots(unit.p)));
      beside.finish();
      values_before = value_product(unit, moved);
      unit = next;
    }
    TileProducts<Tiles>(values_before, Product()).finish();
    for (int tile = 0; tile < tiles_; ++tile) {
      this->clear_unless_started(tile);
      float* rows = scratch_ + layout_.values;  // free by now
      turn_output<Isa>(this->output(tile), layout_.value_stride, this->tile_rows(tile), rows);
      this->store(tile, rows);
    }
    Tiles::release();
  }

 private:
  using Base::call_, Base::problem_, Base::layout_, Base::scratch_, Base::tiles_;

  // A query tile's turn at a key tile.
  struct Unit {
    Piece p;
    float* scores = nullptr;        // S^T, then P^T
    const float* turned = nullptr;  // V^T of the key tile
  };

  void load_queries() {
    Base::load_queries();
    for (int tile = 0; tile < tiles_; ++tile) {  // whole tiles of words
      float* queries = this->queries(tile);
      for (int64_t i = words_of<Isa>(problem_.head_dim) * kBlockM; i < layout_.query_tile; i += Isa::kLanes) {
        Isa::store(queries + i, Isa::zero());
      }
    }
  }

  // In the order of the vector task: key tiles, and in each the query tiles that attend it; count is 0 after the last. Loads keys
  // and values when it comes to a new key tile, whose scores' product must not be under way any more; V^T of the two units before
  // stays.
  Unit next_unit() {
    for (;;) {
      if (tile_ == tiles_) {
        if (next_first_ >= keys_.end) return {};
        first_ = next_first_;
        next_first_ += call_.block_n;
        tile_ = 0;
        loaded_ = false;
      }
      const int count = static_cast<int>(keys_.end - first_ < call_.block_n ? keys_.end - first_ : call_.block_n);
      const Piece p = this->piece(tile_++, first_, count);
      if (p.count == 0) continue;
      if (!loaded_) load(count);
      score_buffer_ ^= 1;
      return {p, scratch_ + layout_.scores + static_cast<int64_t>(score_buffer_) * call_.block_n * kBlockM, turned()};
    }
  }
  float* turned() { return scratch_ + layout_.turned + turned_block_ * layout_.turned_block; }
  void load(int count) {
    loaded_ = true;
    turned_block_ = (turned_block_ + 1) % kTurnedBlocks;
    this->load_keys_and_values(first_, count);
    this->fetch_ahead(next_first_, keys_.end);
    turn_values<Isa>(scratch_ + layout_.values, layout_.value_stride, words_of<Isa>(count), turned(), call_.block_n / 2);
  }

  Product score_product(const Unit& unit) {
    return Product({.a = scratch_ + layout_.keys,
                    .a_stride = layout_.key_stride,
                    .b = this->queries(unit.p.tile),
                    .c = unit.scores,
                    .rows = unit.p.count,
                    .columns = unit.p.rows,
                    .words = static_cast<int>(round_up(words_of<Isa>(problem_.head_dim), kTile)),
                    .accumulate = false});
  }

  Product value_product(const Unit& unit, bool moved) {
    const int tile = unit.p.tile;
    const bool first = this->start(tile);
    if (!first && moved) rescale_turned<Isa>(this->output(tile), layout_.value_stride, unit.p.rows, this->state(tile).rescale);
    const int words = words_of<Isa>(unit.p.count);
    const int padded_words = static_cast<int>(round_up(words, kTile));
    for (int i = words * kBlockM; i < padded_words * kBlockM; i += Isa::kLanes) Isa::store(unit.scores + i, Isa::zero());
    return Product({.a = unit.turned,
                    .a_stride = call_.block_n / 2,
                    .b = unit.scores,
                    .c = this->output(tile),
                    .rows = static_cast<int>(layout_.value_stride),
                    .columns = unit.p.rows,
                    .words = padded_words,
                    .accumulate = !first});
  }

  void finish_scores(const Unit& unit) {
    if (problem_.softcap > 0.0F) {
      finish_scores<ScoreKind::softcap>(unit);
    } else if (unit.p.additive) {
      finish_scores<ScoreKind::additive>(unit);
    } else {
      finish_scores<ScoreKind::plain>(unit);
    }
  }
  template <ScoreKind kKind>
  void finish_scores(const Unit& unit) {
    const QueryLaneScores<Isa, kKind, true> epilogue{
        call_.scale, scratch_ + layout_.additive, unit.scores, this->tile_max(), this->ahead_, this->ahead_rows_};
    cpu::finish_scores<Isa>(unit.scores, unit.p.count, epilogue);
  }

  // How often softmax_tile steps: once a word of keys for kSoftmaxVecs vectors of rows, or for one vector of those left over.
  static int softmax_slots(const Piece& p) {
    const auto vecs = static_cast<int>(round_up(p.rows, Isa::kLanes) / Isa::kLanes);
    return (vecs / Isa::kSoftmaxVecs + vecs % Isa::kSoftmaxVecs) * words_of<Isa>(p.count);
  }

  algorithm::KeyRange keys_;
  int64_t first_ = 0;       // of the key tile under way
  int64_t next_first_ = 0;  // of the one after it
  int tile_ = 0;            // the next query tile of it
  bool loaded_ = false;
  int score_buffer_ = 0;
  int turned_block_ = 0;
};

template <class Isa, class T>
void matrix_task(const ForwardCall& call, const TileTask& task, float* scratch) {
  const TileScratch layout = tile_scratch(*call.problem, Isa::kLanes, Isa::kGroup, call.block_n, call.tiles_per_task, true);
  MatrixTask<Isa, T>(call, task, scratch, layout).run();
}

}  // namespace fulmen::cpu
