// Forward attention for a few query tiles of one head: the body of the prefill and short-sequence kernels.
#pragma once

#include "cpu/finish_rows.h"
#include "cpu/forward_call.h"
#include "cpu/matrix_tiles.h"
#include "cpu/pack.h"
#include "cpu/storage.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

// One task, whose state lives in the worker's scratch.
template <class Isa, class T>
class ForwardTask {
 public:
  ForwardTask(const ForwardCall& call, const TileTask& task, float* scratch)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        kv_head_(task.head / problem_.group_size()),
        layout_(tile_scratch(problem_, Isa::kLanes, Isa::kGroup, call.block_n, call.tiles_per_task, kMatrixTiles<Isa>)),
        scratch_(scratch),
        tiles_(static_cast<int>((task.row_end - task.row_begin + kBlockM - 1) / kBlockM)) {
    if (problem_.alibi_slopes.present) {
      alibi_slope_ = *element<float>(tensors_.alibi_slopes, problem_.alibi_slopes, task.batch, 0, 0, task.head) * algorithm::kLog2E;
    }
  }

  void run() {
    if constexpr (kMatrixTiles<Isa>) Isa::TileInstructions::configure();
    load_queries();
    const auto keys = call_.band.any(task_.row_begin, task_.row_end);
    // Key tiles begin at multiples of block_n, so that a row's result does not depend on which rows share its task.
    for (int64_t first = keys.begin / call_.block_n * call_.block_n; first < keys.end; first += call_.block_n) {
      const int count = static_cast<int>(keys.end - first < call_.block_n ? keys.end - first : call_.block_n);
      load_keys_and_values(first, count);
      fetch_ahead(first + call_.block_n, keys.end);
      for (int tile = 0; tile < tiles_; ++tile) attend(tile, first, count);
    }
    for (int tile = 0; tile < tiles_; ++tile) store(tile);
    if constexpr (kMatrixTiles<Isa>) Isa::TileInstructions::release();
  }

 private:
  static constexpr float kMinusInfinity = -__builtin_inff();

  int64_t tile_row(int tile) const { return task_.row_begin + static_cast<int64_t>(tile) * kBlockM; }
  int tile_rows(int tile) const {
    const int64_t left = task_.row_end - tile_row(tile);
    return left < kBlockM ? static_cast<int>(left) : kBlockM;
  }
  SoftmaxState& state(int tile) { return reinterpret_cast<SoftmaxState*>(scratch_ + layout_.state)[tile]; }
  float* tile_max() {
    return scratch_ + layout_.state + static_cast<int64_t>(sizeof(SoftmaxState) / sizeof(float)) * call_.tiles_per_task;
  }
  float* output(int tile) { return scratch_ + layout_.output + tile * layout_.output_tile; }

  void load_queries() {
    for (int tile = 0; tile < tiles_; ++tile) {
      pack_queries<Isa>(element<T>(tensors_.q, problem_.q, task_.batch, tile_row(tile), task_.head), problem_.q.strides[1],
                        tile_rows(tile), problem_.head_dim, scratch_ + layout_.queries + tile * layout_.query_tile);
      if constexpr (kMatrixTiles<Isa>) {  // whole tiles of words
        float* queries = scratch_ + layout_.queries + tile * layout_.query_tile;
        const int64_t words = words_of<Isa>(problem_.head_dim);
        for (int64_t i = words * kBlockM; i < layout_.query_tile; i += Isa::kLanes) Isa::store(queries + i, Isa::zero());
      }
      for (int row = 0; row < kBlockM; row += Isa::kLanes) {
        Isa::store(state(tile).max + row, Isa::set1(kMinusInfinity));
        Isa::store(state(tile).sum + row, Isa::zero());
      }
      started_ &= ~(1U << tile);
    }
  }

  void load_keys_and_values(int64_t first, int count) {
    const T* k = element<const T>(tensors_.k, problem_.k, task_.batch, first, kv_head_);
    pack_keys<Isa>(k, problem_.k.strides[1], count, problem_.head_dim, scratch_ + layout_.keys, layout_.key_stride);
    uint8_t alive[kMaxBlockN];
    const bool some_dead = problem_.keep_mask.present || call_.band.left >= 0;
    if (some_dead) {
      const uint8_t* keep = problem_.keep_mask.present
                                ? element<const uint8_t>(tensors_.keep_mask, problem_.keep_mask, task_.batch, task_.head, 0)
                                : nullptr;
      find_alive_keys(call_.band, keep, problem_.keep_mask.strides[2], task_.row_begin, task_.row_end, first, count, alive);
    }
    pack_values<Isa>(element<const T>(tensors_.v, problem_.v, task_.batch, first, kv_head_), problem_.v.strides[1], count,
                     problem_.head_dim_v, scratch_ + layout_.values, layout_.value_stride, some_dead ? alive : nullptr);
    if constexpr (kMatrixTiles<Isa>) {
      turn_values<Isa>(scratch_ + layout_.values, layout_.value_stride, words_of<Isa>(count), scratch_ + layout_.turned,
                       call_.block_n / 2);
    }
  }

  // The next tile's keys and values, a row or two at each register block of this one's scores.
  void fetch_ahead(int64_t first, int64_t end) {
    ahead_[0] = ahead_[1] = {};
    if (first >= end) return;
    const int64_t count = end - first < call_.block_n ? end - first : call_.block_n;
    constexpr int64_t kSize = sizeof(T);
    ahead_[0] = fetch_rows(element<const T>(tensors_.k, problem_.k, task_.batch, first, kv_head_), problem_.k.strides[1] * kSize,
                           problem_.head_dim * kSize, count);
    ahead_[1] = fetch_rows(element<const T>(tensors_.v, problem_.v, task_.batch, first, kv_head_), problem_.v.strides[1] * kSize,
                           problem_.head_dim_v * kSize, count);
    const int blocks = tiles_ * (call_.block_n / Isa::kQkKeys);
    ahead_rows_ = (2 * call_.block_n + blocks - 1) / blocks;
  }

  void attend(int tile, int64_t first, int loaded) {
    const int64_t row = tile_row(tile);
    const int rows = tile_rows(tile);
    const auto some = call_.band.any(row, row + rows), all = call_.band.all(row, row + rows);
    if (some.begin >= first + loaded || some.end <= first) return;  // fully masked
    const int count = static_cast<int>(some.end - first < loaded ? some.end - first : loaded);
    const bool partial = all.begin > first || all.end < first + count;
    const bool additive = partial || problem_.bias.present || problem_.keep_mask.present || alibi_slope_ != 0.0F ||
                          problem_.softcap > 0.0F || !(call_.scale.log2_scale > 0.0F);
    if (additive) add(row, rows, first, count, partial);

    float* scores = scratch_ + layout_.scores;
    if (problem_.softcap > 0.0F) {
      score<ScoreKind::softcap>(tile, rows, count);
    } else if (additive) {
      score<ScoreKind::additive>(tile, rows, count);
    } else {
      score<ScoreKind::plain>(tile, rows, count);
    }
    SoftmaxState& softmax = state(tile);
    const float factor = additive ? 1.0F : call_.scale.log2_scale;
    const bool moved = problem_.lse.present ? softmax_tile<Isa, 5>(scores, tile_max(), rows, count, factor, softmax)
                                            : softmax_tile<Isa, Isa::kExp2Degree>(scores, tile_max(), rows, count, factor, softmax);

    const bool first_tile = (started_ >> tile & 1U) == 0;
    started_ |= 1U << tile;
    if (first_tile) {
      multiply_values<OutputKind::first>(tile, rows, count);
    } else if (moved) {
      multiply_values<OutputKind::rescale>(tile, rows, count);
    } else {
      multiply_values<OutputKind::accumulate>(tile, rows, count);
    }
  }

  template <OutputKind kKind>
  void multiply_values(int tile, int rows, int count) {
    float* p = scratch_ + layout_.scores;
    const int words = words_of<Isa>(count);
    if constexpr (kMatrixTiles<Isa>) {
      output_matrix<Isa, kKind>(scratch_ + layout_.turned, call_.block_n / 2, layout_.value_stride, p, words, rows,
                                state(tile).rescale, output(tile));
    } else {
      const ScratchOutput<Isa, kKind> to{output(tile), layout_.value_stride, state(tile).rescale};
      output_tile<Isa, QueriesInLanes>(p, scratch_ + layout_.values, layout_.value_stride, words, rows, to);
    }
  }

  template <ScoreKind kKind>
  void score(int tile, int rows, int count) {
    const QueryLaneScores<Isa, kKind> epilogue{
        call_.scale, scratch_ + layout_.additive, scratch_ + layout_.scores, tile_max(), ahead_, ahead_rows_};
    const float* queries = scratch_ + layout_.queries + tile * layout_.query_tile;
    const float* keys = scratch_ + layout_.keys;
    const int words = words_of<Isa>(problem_.head_dim);
    if constexpr (kMatrixTiles<Isa>) {
      score_matrix<Isa>(queries, rows, keys, layout_.key_stride, static_cast<int>(round_up(words, kTile)), count,
                        scratch_ + layout_.scores, epilogue);
    } else {
      score_tile<Isa>(queries, rows, keys, layout_.key_stride, words, count, epilogue);
    }
  }

  void add(int64_t row, int rows, int64_t first, int count, bool partial) {
    switch (problem_.bias.dtype) {
      case DType::fp16:
        return add<Fp16>(row, rows, first, count, partial);
      case DType::bf16:
        return add<Bf16>(row, rows, first, count, partial);
      default:
        return add<float>(row, rows, first, count, partial);
    }
  }
  template <class BiasT>
  void add(int64_t row, int rows, int64_t first, int count, bool partial) {
    AdditiveTile<BiasT> tile;
    if (problem_.bias.present) {
      tile.bias = {element<BiasT>(tensors_.bias, problem_.bias, task_.batch, task_.head, row, first), problem_.bias.strides[2]};
    }
    if (problem_.keep_mask.present) {
      tile.keep = {element<uint8_t>(tensors_.keep_mask, problem_.keep_mask, task_.batch, task_.head, row, first),
                   problem_.keep_mask.strides[2]};
    }
    tile.alibi_slope = alibi_slope_;
    tile.masked_range = partial;
    tile.band = call_.band;
    tile.first_row = row;
    tile.first_key = first;
    build_additive<Isa>(tile, rows, count, scratch_ + layout_.additive);
  }

  void store(int tile) {
    const int64_t row = tile_row(tile);
    const int rows = tile_rows(tile);
    SoftmaxState& softmax = state(tile);
    float* factor = softmax.rescale;
    finish_rows<Isa>(problem_, tensors_, task_.batch, task_.head, row, rows, softmax.max, softmax.sum, factor);
    if ((started_ >> tile & 1U) == 0) {
      for (int64_t i = 0; i < layout_.output_tile; i += Isa::kLanes) Isa::store(output(tile) + i, Isa::zero());
    }
    const float* rows_of_output = output(tile);
    if constexpr (kMatrixTiles<Isa>) {
      rows_of_output = scratch_ + layout_.values;  // free by now
      turn_output<Isa>(output(tile), layout_.value_stride, rows, scratch_ + layout_.values);
    }
    store_output<Isa>(rows_of_output, layout_.value_stride, factor, rows, problem_.head_dim_v,
                      element<T>(tensors_.out, problem_.out, task_.batch, row, task_.head), problem_.out.strides[1]);
  }

  const ForwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  const TileTask& task_;
  int64_t kv_head_;
  TileScratch layout_;
  float* scratch_;
  int tiles_;
  float alibi_slope_ = 0;
  RowPrefetch ahead_[2];
  int ahead_rows_ = 0;
  unsigned started_ = 0;  // bit per tile: its output holds something
};

template <class Isa, class T>
void forward_task(const ForwardCall& call, const TileTask& task, float* scratch) {
  ForwardTask<Isa, T>(call, task, scratch).run();
}

}  // namespace fulmen::cpu
