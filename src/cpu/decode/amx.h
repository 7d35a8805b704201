// Decode with its products on matrix tiles (AMX), which take little longer for many query rows than
// for one: up to kBlockM of them may share a KV head.
//
// S^T = K Q^T, 32 keys of a head at a time, is transposed into the rows of scores that the softmax
// takes, and what that leaves is the left operand of O = P V. K's tiles are read where they lie;
// V's neighbouring rows become pairs; the next block is fetched meanwhile.
#pragma once

#include "cpu/amx/operands.h"
#include "cpu/decode/rows.h"

namespace fulmen::cpu {

// Most query rows of the KV heads that are streamed together. Memory is fast only where whole rows
// of keys and values are read.
constexpr int kAmxDecodeSlots = 8 * kBlockM;

// Scratch of a task in floats from its start: that of decode_rows.h, then what the tiles take.
struct AmxDecodeScratch {
  int64_t queries;  // [heads][rows / 16][words / 16] tiles: Q^T
  int64_t keys;     // [2][words / 16] tiles
  int64_t scores;   // [rows / 16][2] tiles: S^T
  int64_t values;   // [head_dim_v / 16] tiles: pairs of V's rows
  int64_t total;
};

FULMEN_INLINE AmxDecodeScratch amx_decode_scratch(const ForwardCall& call, int lanes, int group) {
  const DecodeScratch rows = decode_scratch(call, lanes, group);
  const int64_t word_tiles = tiles_of(rows.query_stride);
  AmxDecodeScratch s{};
  ScratchCutter cut{rows.total};
  s.queries = cut.take(call.heads_per_task * tiles_of(decode_slots(*call.problem)) * word_tiles *
                       kTileFloats);
  s.keys = cut.take(2 * word_tiles * kTileFloats);
  s.scores = cut.take(2 * tiles_of(decode_slots(*call.problem)) * kTileFloats);
  s.values = cut.take(tiles_of(rows.value_stride) * kTileFloats);
  s.total = cut.total;
  return s;
}

template <class Isa, class T>
class AmxDecodeTask : private DecodeRows<Isa> {
  using Base = DecodeRows<Isa>;
  using Tiles = typename Isa::TileInstructions;
  using Base::kElements;
  using typename Base::Vec;
  static constexpr int kKeys = 2 * kTile;  // that go through the products together

 public:
  AmxDecodeTask(const ForwardCall& call, const DecodeTask& task, float* scratch)
      : Base(call, task, scratch, sizeof(T)),
        word_tiles_(tiles_of(layout_.query_stride)),
        query_tiles_(tiles_of(head_slots_)),
        tile_rows_(head_slots_ < kTile ? head_slots_ : kTile) {
    const AmxDecodeScratch s = amx_decode_scratch(call, Isa::kLanes, Isa::kGroup);
    transposed_queries_ = scratch + s.queries;
    keys_ = scratch + s.keys;
    raw_ = scratch + s.scores;
    values_ = scratch + s.values;
  }

  void run() {
    this->template begin<T>();
    if (head_slots_ == 0 || begin_ >= end_) return;
    transpose_queries();
    Tiles::configure(tile_rows_);
    this->for_each_block(layout_.block_keys, [&](int64_t first, int count, auto& ahead) {
      attend_block(first, count, ahead);
    });
    Tiles::release();
  }

 private:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::head_slots_,
      Base::begin_, Base::end_, Base::queries_, Base::scores_, Base::output_;

  float* transposed_queries(int head, int tile) const {
    return transposed_queries_ +
           static_cast<int64_t>(head * query_tiles_ + tile) * word_tiles_ * kTileFloats;
  }
  int rows_of_tile(int tile) const {
    return head_slots_ - tile * kTile < kTile ? head_slots_ - tile * kTile : kTile;
  }

  void transpose_queries() {
    for (int head = 0; head < task_.kv_heads; ++head) {
      for (int tile = 0; tile < query_tiles_; ++tile) {
        const float* q = queries_ + (head * head_slots_ + tile * kTile) * layout_.query_stride;
        float* to = transposed_queries(head, tile);
        for (int word = 0; word < word_tiles_; ++word, to += kTileFloats) {
          Vec block[kTile];
          for (int i = 0; i < kTile; ++i) {
            block[i] = i < rows_of_tile(tile)
                           ? Isa::load(q + i * layout_.query_stride + word * kTile)
                           : Isa::zero();
          }
          transpose_into(block, kTile, to, kTile);
        }
      }
    }
  }
  static FULMEN_INLINE void transpose_into(Vec (&block)[kTile], int rows, float* to,
                                           int64_t stride) {
    Isa::transpose(block);
    if (rows == kTile) {
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) Isa::store(to + i * stride, block[i]);
    } else {
      for (int i = 0; i < rows; i += Base::kQuad) {
#pragma GCC unroll 4
        for (int r = 0; r < Base::kQuad; ++r) Isa::store(to + (i + r) * stride, block[i + r]);
      }
    }
  }

  // Where rows [first, first + count) are, of the task's first KV head.
  ListedRows<T> list(const Tensor& tensor, const TensorSpec& spec, int64_t first, int count,
                     int64_t* offsets) {
    if (call_.pages.pages != nullptr)
      return this->template rows_at<ListedRows<T>>(tensor, spec, first, count, offsets);
    for (int i = 0; i < count; ++i) offsets[i] = i * spec.strides[1];
    return {element<const T>(tensor, spec, task_.batch, first, task_.kv_head), offsets};
  }

  // Head after head: the values become pairs while the scores' products are under way.
  template <class Ahead>
  __attribute__((noinline)) void attend_block(int64_t first, int count, Ahead& ahead) {
    ListedRows<T> k = list(tensors_.k, problem_.k, first, count, key_offsets_);
    ListedRows<T> v = list(tensors_.v, problem_.v, first, count, value_offsets_);
    const bool masked = this->masked();
    for (int head = 0; head < task_.kv_heads;
         ++head, k.base += problem_.k.strides[2], v.base += problem_.v.strides[2]) {
      const typename Base::Slots slots{head * head_slots_, (head + 1) * head_slots_};
      for (int key = 0; key < count; key += kKeys) {
        const int keys = count - key < kKeys ? count - key : kKeys;
        score({k.base, k.offsets + key}, keys, head, ahead);
        if (!masked) pair_values({v.base, v.offsets + key}, keys, ~0U, ahead);
        transpose_scores(keys);
        this->softmax(slots, first + key, keys);
        this->rescale_output(slots);
        if (masked) pair_values({v.base, v.offsets + key}, keys, attended(slots.begin), ahead);
        multiply_values(output_ + slots.begin * layout_.value_stride);
      }
    }
  }

  template <class Ahead>
  FULMEN_INLINE void score(ListedRows<T> k, int keys, int head, Ahead& ahead) {
    const KeyTiles tiles = key_tiles(k, keys);
    for (int tile = 0; tile < query_tiles_; ++tile) {
      const int lines = tile == 0 ? kTile : 0;
      float* raw = raw_ + tile * 2 * kTileFloats;
      if (keys > kTile) {
        multiply_keys<2>(tiles, transposed_queries(head, tile), raw, lines, ahead);
      } else {
        multiply_keys<1>(tiles, transposed_queries(head, tile), raw, lines, ahead);
      }
    }
  }

  // Tiles [2][words / 16] of keys, from tile to tile and from row to row so many floats.
  struct KeyTiles {
    const float* at;
    int64_t row_tile, word_tile, row;
  };
  // Where they lie if they are whole there, else copied; rows past the last are then what was there
  // before, and their scores will be masked.
  FULMEN_INLINE KeyTiles key_tiles(ListedRows<T> k, int keys) {
    const int64_t dim = problem_.head_dim, stride = problem_.k.strides[1];
    // Pages of a tile's rows at least: with smaller ones its first and last row may lie right, and
    // those between elsewhere.
    const bool ends_tell = call_.pages.pages == nullptr || call_.pages.page_size >= kTile;
    const auto in_a_row = [&](int row) {
      return k.offsets[row + kTile - 1] - k.offsets[row] == (kTile - 1) * stride;
    };
    const int64_t second = k.offsets[keys > kTile ? kTile : 0] - k.offsets[0];
    if (keys == kKeys && dim % kElements == 0 && stride % Isa::kGroup == 0 &&
        second % Isa::kGroup == 0 && ends_tell && in_a_row(0) && in_a_row(kTile)) {
      return {reinterpret_cast<const float*>(k[0]), second / Isa::kGroup, kTile,
              stride / Isa::kGroup};
    }
    pack_key_tiles<Isa>(k, keys, dim, keys_);
    return {keys_, word_tiles_ * kTileFloats, kTileFloats, kTile};
  }

  // raw[kTiles] = K Q^T.
  template <int kTiles, class Ahead>
  FULMEN_INLINE void multiply_keys(const KeyTiles& keys, const float* q, float* raw, int lines,
                                   Ahead& ahead) {
    const float* k = keys.at;
    Tiles::template zero<0>();
    if constexpr (kTiles == 2) Tiles::template zero<1>();
    for (int word = 0; word < word_tiles_; ++word, k += keys.word_tile, q += kTileFloats) {
      Tiles::template load<3>(q, kTile);
      Tiles::template load<2>(k, keys.row);
      Tiles::template dot<0, 2, 3>();
      ahead.template lines<Isa>(lines);
      if constexpr (kTiles == 2) {
        Tiles::template load<2>(k + keys.row_tile, keys.row);
        Tiles::template dot<1, 2, 3>();
        ahead.template lines<Isa>(lines);
      }
    }
    Tiles::template store<0>(raw, kTile);
    if constexpr (kTiles == 2) Tiles::template store<1>(raw + kTileFloats, kTile);
  }

  void transpose_scores(int keys) {
    for (int tile = 0; tile < query_tiles_; ++tile) {
      for (int i = 0; i * kTile < keys; ++i) {
        const float* raw = raw_ + (tile * 2 + i) * kTileFloats;
        Vec block[kTile];
#pragma GCC unroll 16
        for (int r = 0; r < kTile; ++r) block[r] = Isa::load(raw + r * kTile);
        transpose_into(block, rows_of_tile(tile), scores_ + tile * kTile * kDecodeRow + i * kTile,
                       kDecodeRow);
      }
    }
  }

  // out += P V.
  FULMEN_INLINE void multiply_values(float* out) {
    const int columns = tiles_of(problem_.head_dim_v);
    const float* p = scores_;
    for (int tile = 0; tile < query_tiles_;
         ++tile, p += kTile * kDecodeRow, out += kTile * layout_.value_stride) {
      Tiles::template load<4>(p, kDecodeRow);
      int column = 0;
      for (; column + 3 <= columns; column += 3) add_columns<3>(column, out);
      if (column + 2 == columns) add_columns<2>(column, out);
      if (column + 1 == columns) add_columns<1>(column, out);
    }
  }
  template <int kColumns>
  FULMEN_INLINE void add_columns(int column, float* out) {
    const float* v = values_ + column * kTileFloats;
    out += column * kTile;
    add_column<5, 1>(v, out);
    if constexpr (kColumns > 1) add_column<6, 2>(v + kTileFloats, out + kTile);
    if constexpr (kColumns > 2) add_column<7, 3>(v + 2 * kTileFloats, out + 2 * kTile);
    Tiles::template store<5>(out, layout_.value_stride);
    if constexpr (kColumns > 1) Tiles::template store<6>(out + kTile, layout_.value_stride);
    if constexpr (kColumns > 2) Tiles::template store<7>(out + 2 * kTile, layout_.value_stride);
  }
  template <int kSum, int kValues>
  FULMEN_INLINE void add_column(const float* v, const float* out) {
    Tiles::template load<kSum>(out, layout_.value_stride);
    Tiles::template load<kValues>(v, kTile);
    Tiles::template dot<kSum, 4, kValues>();
  }

  // A bit for each of the kKeys keys that some row has a probability for: the others' values may be
  // anything, a NaN even.
  uint32_t attended(int first_slot) const {
    uint32_t words[kTile] = {}, keys = 0;
    for (int slot = 0; slot < head_slots_; ++slot) {
      if (!this->tells_attended(first_slot + slot)) continue;
      uint32_t row[kTile];
      __builtin_memcpy(row, scores_ + slot * kDecodeRow, sizeof row);
      for (int i = 0; i < kTile; ++i) words[i] |= row[i];
    }
    for (int i = 0; i < kTile; ++i) {
      keys |= static_cast<uint32_t>((words[i] & 0xFFFFU) != 0) << (2 * i);
      keys |= static_cast<uint32_t>((words[i] >> 16) != 0) << (2 * i + 1);
    }
    return keys;
  }

  // values_[column tile][pair][column]; keys past the last, and those whose bit in alive is 0, are
  // zeros.
  template <class Ahead>
  FULMEN_INLINE void pair_values(ListedRows<T> v, int keys, uint32_t alive, Ahead& ahead) {
    const int64_t dim = problem_.head_dim_v;
    if (keys < kKeys) alive &= (1U << keys) - 1U;
    const int lines = Isa::kGroup * tiles_of(words_of<Isa>(dim));
    for (int key = 0; key < kKeys; key += Isa::kGroup) {
      float* to = values_ + key / Isa::kGroup * kTile;
      const auto store_pair = [&](Vec a, Vec b) __attribute__((always_inline)) {
        Vec low, high;
        Isa::interleave(a, b, low, high);
        Isa::store(to, low);
        Isa::store(to + kTileFloats, high);
        to += 2 * kTileFloats;
      };
      const bool first = (alive >> key & 1U) != 0, second = (alive >> (key + 1) & 1U) != 0;
      const T* a = v[first ? key : 0];
      const T* b = v[second ? key + 1 : 0];
      int64_t at = 0;
      if (first && second) {
        for (; at + kElements <= dim; at += kElements)
          store_pair(Isa::load_words(a + at), Isa::load_words(b + at));
      }
      for (; at < dim; at += kElements) {
        const Vec words = first ? load_row_words<Isa>(a + at, dim - at) : Isa::zero();
        store_pair(words, second ? load_row_words<Isa>(b + at, dim - at) : Isa::zero());
      }
      ahead.template lines<Isa>(lines);
    }
  }

  int64_t key_offsets_[kMaxDecodeKeys];
  int64_t value_offsets_[kMaxDecodeKeys];
  float* transposed_queries_;
  float* keys_;
  float* raw_;
  float* values_;
  int word_tiles_;
  int query_tiles_;
  int tile_rows_;
};

template <class Isa, class T>
void amx_decode_task(const ForwardCall& call, const DecodeTask& task, float* scratch) {
  AmxDecodeTask<Isa, T>(call, task, scratch).run();
}

}  // namespace fulmen::cpu
