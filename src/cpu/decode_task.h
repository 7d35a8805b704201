// Decode with its products in vectors: head_dim in lanes, K and V read where they are.
#pragma once

#include "cpu/decode_rows.h"
#include "cpu/decode_tile_task.h"

namespace fulmen::cpu {

// kBlocks: a block of keys and values is fetched during the one before it (BlockPrefetch), else as it is read (StreamPrefetch).
template <class Isa, class T, bool kBlocks>
class DecodeTaskRunner : private DecodeRows<Isa, T> {
  using Base = DecodeRows<Isa, T>;
  using Base::kLanes, Base::kGroup, Base::kElements, Base::kQuad;
  using typename Base::Vec;
  // Keys of a block of scores, and keys for which the output stays in registers. Short rows need several to be worth the sums and
  // the output's way to L1 and back. Where what is read is fetched as it is read, memory is the slower the more bytes lie between
  // them.
  static constexpr bool kFewKeys = sizeof(T) == 4 && !kBlocks;
  static constexpr int kScoreKeys = kFewKeys ? 2 : 4;
  static constexpr int kValueKeys = kFewKeys ? 2 : sizeof(T) == 4 ? 4 : 8;
  static constexpr int kMostVecs = 4;  // vectors of columns of an output block
  // Cache lines of so many vectors of words: the prefetch keeps the pace of the loads.
  static constexpr int kLineBytes = 64;
  static constexpr int lines_of(int vectors) {
    const int bytes = vectors * kElements * static_cast<int>(sizeof(T));
    return bytes < kLineBytes ? 1 : bytes / kLineBytes;
  }

 public:
  using Base::Base;

  void run() {
    this->begin();
    if (call_.pages.pages != nullptr) {
      attend<PagedWalk>();
    } else {
      attend<StridedWalk>();
    }
  }

 private:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::head_slots_, Base::slots_, Base::begin_,
      Base::end_, Base::queries_, Base::scores_, Base::output_;

  template <class Walk>
  void attend() {
    const int block = layout_.block_keys;
    for (int64_t first = begin_; first < end_; first += block) {
      const int count = end_ - first < block ? static_cast<int>(end_ - first) : block;
      if constexpr (kBlocks) {
        auto next = this->template block_ahead<Walk>(first + count, block);
        score(first, count, next);
        this->softmax({0, slots_}, first, count);
        multiply_values(first, count, next);
      } else {
        auto keys = this->template rows_ahead<Walk>(tensors_.k, problem_.k, problem_.head_dim, first, count);
        score(first, count, keys);
        this->softmax({0, slots_}, first, count);
        auto values = this->template rows_ahead<Walk>(tensors_.v, problem_.v, problem_.head_dim_v, first, count);
        multiply_values(first, count, values);
      }
    }
  }
  // scores[slot][key] of a block, raw.
  template <class Ahead>
  __attribute__((noinline)) void score(int64_t first, int count, Ahead& fetched) {
    constexpr bool kPaged = Ahead::kPaged;
    int64_t rows[kPaged ? kMaxDecodeKeys : 1];
    if constexpr (kPaged) list_rows(call_.pages, problem_.k, first, count, rows);
    Ahead ahead = fetched;  // in registers
    const int64_t query_stride = layout_.query_stride, dim = problem_.head_dim;
    const int64_t stride = problem_.k.strides[1], head_stride = problem_.k.strides[2];
    const int slots = slots_, head_slots = head_slots_;
    const T* k = kPaged ? this->head_of(tensors_.k, problem_.k)
                        : element<const T>(tensors_.k, problem_.k, task_.batch, first, task_.kv_head);
    for (int key = 0; key < count; key += kScoreKeys, k += kPaged ? 0 : kScoreKeys * stride) {
      int64_t offsets[kScoreKeys];  // a last block repeats the last key; its scores are masked
#pragma GCC unroll 4
      for (int i = 0; i < kScoreKeys; ++i) {
        if constexpr (kPaged) {
          offsets[i] = rows[key + i < count ? key + i : count - 1];
        } else {
          offsets[i] = (key + i < count ? i : count - 1 - key) * stride;
        }
      }
      const T* head_keys = k;
      const float* q = queries_;
      float* out = scores_ + key;
      for (int slot = 0, left = head_slots; slot < slots; slot += kQuad) {
        score_quad(head_keys, offsets, q, query_stride, dim, out, ahead);
        q += kQuad * query_stride;
        out += static_cast<int64_t>(kQuad) * kDecodeRow;
        left -= kQuad;
        if (left == 0) {
          left = head_slots;
          head_keys += head_stride;
        }
      }
    }
    fetched = ahead;
  }

  template <class Ahead>
  FULMEN_INLINE static void score_quad(const T* keys, const int64_t (&offsets)[kScoreKeys], const float* q, int64_t query_stride,
                                       int64_t dim, float* out, Ahead& ahead) {
    Vec sum[kQuad][kScoreKeys];  // [row][key]
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kScoreKeys; ++i) sum[r][i] = Isa::zero();
    }
    int64_t left = dim;
    for (; left >= kElements; left -= kElements, q += kLanes, keys += kElements) {
      ahead.template lines<Isa, lines_of(kScoreKeys)>();
      add_products(keys, offsets, kElements, q, query_stride, sum);
    }
    if (left > 0) {
      ahead.template lines<Isa, lines_of(kScoreKeys)>();
      add_products(keys, offsets, left, q, query_stride, sum);
    }
    if constexpr (kScoreKeys == kQuad) {
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) Isa::store_quad(out + r * kDecodeRow, Isa::quad_add(sum[r]));
    } else {
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; r += 2) {
        const Vec pairs[kQuad] = {sum[r][0], sum[r][1], sum[r + 1][0], sum[r + 1][1]};
        float scores[kQuad];
        Isa::store_quad(scores, Isa::quad_add(pairs));
        __builtin_memcpy(out + r * kDecodeRow, scores, 2 * sizeof(float));
        __builtin_memcpy(out + (r + 1) * kDecodeRow, scores + 2, 2 * sizeof(float));
      }
    }
  }

  // A vector of words of each row and key, of which `left` elements are there.
  FULMEN_INLINE static void add_products(const T* keys, const int64_t (&offsets)[kScoreKeys], int64_t left, const float* q,
                                         int64_t query_stride, Vec (&sum)[kQuad][kScoreKeys]) {
    Vec key[kScoreKeys];
#pragma GCC unroll 4
    for (int i = 0; i < kScoreKeys; ++i) key[i] = load_row_words<Isa>(keys + offsets[i], left);
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      const Vec query = Isa::load(q + r * query_stride);
#pragma GCC unroll 4
      for (int i = 0; i < kScoreKeys; ++i) sum[r][i] = Isa::dot(sum[r][i], query, key[i]);
    }
  }
  // output = rescale * output + P V.
  template <class Ahead>
  __attribute__((noinline)) void multiply_values(int64_t first, int count, Ahead ahead) {
    constexpr bool kPaged = Ahead::kPaged;
    int64_t offsets[kPaged ? kMaxDecodeKeys : 1];
    if constexpr (kPaged) list_rows(call_.pages, problem_.v, first, count, offsets);
    const bool masked = this->masked();
    this->rescale_output({0, slots_});
    const int64_t stride = problem_.v.strides[1], head_stride = problem_.v.strides[2];
    const int64_t value_stride = layout_.value_stride, dim = problem_.head_dim_v;
    const int slots = slots_, head_slots = head_slots_;
    const T* v = kPaged ? this->head_of(tensors_.v, problem_.v)
                        : element<const T>(tensors_.v, problem_.v, task_.batch, first, task_.kv_head);
    for (int key = 0; key < count; key += kValueKeys, v += kPaged ? 0 : kValueKeys * stride) {
      const int keys = count - key < kValueKeys ? count - key : kValueKeys;
      const auto values_at = [&](const T* values) __attribute__((always_inline)) {
        if constexpr (kPaged) {
          return ListedRows<T>{values, offsets + key};
        } else {
          return StridedRows<T>{values, stride};
        }
      };
      const T* values = v;
      float* out = output_;
      const float* p = scores_ + key / kGroup;
      for (int slot = 0, left = head_slots; slot < slots; slot += kQuad) {
        if (keys == kValueKeys && !(masked && hides_key(slot, p))) {
          value_quad<kValueKeys / kGroup, true>(values_at(values), ~0U, p, out, value_stride, dim, ahead);
        } else {
          value_words(values_at(values), keys, masked, slot, p, out, ahead);
        }
        out += kQuad * value_stride;
        p += static_cast<int64_t>(kQuad) * kDecodeRow;
        left -= kQuad;
        if (left == 0) {
          left = head_slots;
          values += head_stride;
        }
      }
    }
  }

  // Word by word, where some keys are not there or not to be touched: what no row attends may be anything, a NaN even.
  template <class Rows, class Ahead>
  __attribute__((noinline)) void value_words(Rows v, int keys, bool masked, int slot, const float* p, float* out, Ahead& ahead) {
    for (int key = 0; key < keys; key += kGroup, ++p) {
      unsigned alive = 0;
      for (int i = 0; i < kGroup && key + i < keys; ++i) alive |= !masked || attended(slot, p, i) ? 1U << i : 0U;
      if (alive == 0) continue;
      value_quad<1, false>(rows_from(v, key), alive, p, out, layout_.value_stride, problem_.head_dim_v, ahead);
    }
  }

  static FULMEN_INLINE StridedRows<T> rows_from(StridedRows<T> v, int key) { return {v[key], v.stride}; }
  static FULMEN_INLINE ListedRows<T> rows_from(ListedRows<T> v, int key) { return {v.base, v.offsets + key}; }
  static FULMEN_INLINE void step_columns(StridedRows<T>& v, int64_t columns) { v.first += columns; }
  static FULMEN_INLINE void step_columns(ListedRows<T>& v, int64_t columns) { v.base += columns; }

  FULMEN_INLINE bool hides_key(int slot, const float* p) const {
    bool all = true;
    for (int key = 0; key < kValueKeys; ++key) all &= attended(slot, p, key);
    return !all;
  }

  // Whether one of the four rows from `slot` on has a probability for the key: its place in a word tells its half.
  FULMEN_INLINE bool attended(int slot, const float* p, int key) const {
    const uint32_t half = kGroup == 1 ? ~0U : 0xFFFFU << 16 * (key % kGroup);
    uint32_t words = 0;
    for (int r = 0; r < kQuad; ++r) {
      if (!this->tells_attended(slot + r)) continue;
      uint32_t word;
      __builtin_memcpy(&word, p + r * kDecodeRow + key / kGroup, sizeof word);
      words |= word;
    }
    return (words & half) != 0;
  }

  // kWords words of keys, V's rows stride elements apart; not kWhole: only the keys whose bit in alive is set, the others are
  // zeros.
  template <int kWords, bool kWhole, class Rows, class Ahead>
  FULMEN_INLINE static void value_quad(Rows v, unsigned alive, const float* p, float* out, int64_t value_stride, int64_t dim,
                                       Ahead& ahead) {
    constexpr int64_t kColumns = static_cast<int64_t>(kMostVecs) * kLanes;
    int64_t left = dim;
    for (; left >= kColumns; left -= kColumns, step_columns(v, kColumns), out += kColumns) {
      value_block<kWords, kMostVecs, kWhole, true>(v, alive, p, out, value_stride, kColumns, ahead);
    }
    if (left > 3 * kLanes) {
      value_block<kWords, 4, kWhole, false>(v, alive, p, out, value_stride, left, ahead);
    } else if (left > 2 * kLanes) {
      value_block<kWords, kGroup == 1 ? 3 : 4, kWhole, false>(v, alive, p, out, value_stride, left, ahead);
    } else if (left > kLanes) {
      value_block<kWords, 2, kWhole, false>(v, alive, p, out, value_stride, left, ahead);
    } else if (left > 0) {
      value_block<kWords, kGroup, kWhole, false>(v, alive, p, out, value_stride, left, ahead);
    }
  }

  // kVecs vectors of columns, of which `left` elements are there; kFull: all.
  template <int kWords, int kVecs, bool kWhole, bool kFull, class Rows, class Ahead>
  FULMEN_INLINE static void value_block(Rows v, unsigned alive, const float* p, float* out, int64_t value_stride, int64_t left,
                                        Ahead& ahead) {
    const auto load = [&](int key, int64_t at) __attribute__((always_inline)) {
      if (!kWhole && (alive >> key & 1U) == 0) return Isa::zero();
      return load_row_words<Isa>(v[key] + at, kFull ? kElements : left - at);
    };
    Vec sum[kQuad][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::load(out + r * value_stride + c * kLanes);
    }
#pragma GCC unroll 8
    for (int word = 0; word < kWords; ++word) {
      ahead.template lines<Isa, lines_of(kVecs)>();
      Vec value[kVecs];
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; c += kGroup) {
        if constexpr (kGroup == 1) {
          value[c] = load(word, c * kLanes);
        } else {
          Isa::interleave(load(2 * word, c * kLanes), load(2 * word + 1, c * kLanes), value[c], value[c + 1]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) {
        const Vec probability = Isa::broadcast(p + r * kDecodeRow + word);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::dot(sum[r][c], value[c], probability);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) Isa::store(out + r * value_stride + c * kLanes, sum[r][c]);
    }
  }
};

template <class Isa, class T>
void decode_task(const ForwardCall& call, const DecodeTask& task, float* scratch) {
  if (decode_rows(*call.problem) > kFewDecodeRows) return DecodeTileTask<Isa, T>(call, task, scratch).run();
  if constexpr (requires { Isa::prefetch_l2(nullptr); }) {
    if (call.block_bytes > 0) return DecodeTaskRunner<Isa, T, true>(call, task, scratch).run();
  }
  DecodeTaskRunner<Isa, T, false>(call, task, scratch).run();
}

}  // namespace fulmen::cpu
