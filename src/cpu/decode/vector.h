// Decode with its products in vectors: head_dim in lanes, K and V read where they are.
#pragma once

#include <type_traits>

#include "cpu/decode/prefetch.h"
#include "cpu/decode/rows.h"
#include "cpu/decode/rows_in_lanes.h"
#include "cpu/decode/stored.h"
#include "cpu/tile/unpack.h"

namespace fulmen::cpu {

// kBlocks: a block of keys and values is fetched during the one before it (BlockAhead), else as it
// is read (StreamAhead).
template <class Isa, class T, bool kBlocks>
class DecodeTaskRunner : private DecodeRows<Isa> {
  using Base = DecodeRows<Isa>;
  using Base::kLanes, Base::kGroup, Base::kElements, Base::kQuad;
  using typename Base::Vec;
  // Keys of a block of scores, and keys for which the output stays in registers. Short rows need
  // several to be worth the sums and the output's way to L1 and back. Where what is read is fetched
  // as it is read, memory is the slower the more bytes lie between them.
  static constexpr bool kFewKeys = sizeof(T) == 4 && !kBlocks;
  static constexpr int kScoreKeys = kFewKeys ? 2 : 4;
  static constexpr int kValueKeys = kFewKeys ? 2 : sizeof(T) == 4 ? 4 : 8;
  static constexpr int kMostVecs = 4;  // vectors of columns of an output block
  static constexpr int kVecBytes = kElements * static_cast<int>(sizeof(T));
  // Between one fetch of lines and the next.
  static constexpr int kStepVecs = kBlocks && kVecBytes < 64 ? 64 / kVecBytes : 1;

 public:
  DecodeTaskRunner(const ForwardCall& call, const DecodeTask& task, float* scratch)
      : Base(call, task, scratch, sizeof(T)) {}

  void run() {
    this->template begin<T>();
    if (call_.pages.pages != nullptr) {
      attend<PagedWalk>();
    } else {
      attend<StridedWalk>();
    }
  }
  // Keys and values of another format than the queries', head after head: a block of them is
  // brought to L1 in fp32. The products are then the same for every Q, the queries' dtype.
  template <class Q>
  void run_unpacked() {
    this->template begin<Q>();
    if (slots_ == 0 || begin_ >= end_) return;
    this->for_each_block(layout_.block_keys, [&](int64_t first, int count, auto& ahead) {
      attend_unpacked_block(first, count, ahead);
    });
  }

 private:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::head_slots_,
      Base::slots_, Base::begin_, Base::end_, Base::queries_, Base::scores_, Base::output_;

  // A block's keys and values, at the task's first head.
  template <class Rows>
  struct Block {
    Rows keys, values;
    int count;
  };

  template <class Walk>
  void attend() {
    using Rows = std::conditional_t<Walk::kPaged, ListedRows<T>, StridedRows<T>>;
    auto at = this->next_kept(begin_, layout_.block_keys);
    if (at.first >= end_) return;
    // Offsets of rows in this block and the next: keys, values.
    int64_t listed[2][2][Walk::kPaged ? kMaxDecodeKeys : 1];
    int turn = 0;
    Block<Rows> block = block_at<Rows>(at.first, listed[turn]);
    while (at.first < end_) {
      const int64_t first = at.first;
      const int count = block.count;
      this->masked_ = at.masked;
      at = this->next_kept(first + count, layout_.block_keys);
      // The last block has itself for the next one.
      const Block<Rows> next =
          at.first < end_ ? block_at<Rows>(at.first, listed[turn ^= 1]) : block;
      if constexpr (kBlocks) {
        const BlockRows<Rows> keys{next.keys, problem_.k.strides[2]},
            values{next.values, problem_.v.strides[2]};
        const bool alike = problem_.head_dim == problem_.head_dim_v;
        score(
            block.keys, count,
            BlockAhead<T, Rows, kScoreKeys>(DecodeProduct::scores, keys, values, next.count, alike),
            {0, slots_});
        this->softmax({0, slots_}, first, count);
        multiply_values(
            block.values, count,
            BlockAhead<T, Rows, kValueKeys>(DecodeProduct::values, keys, values, next.count, alike),
            {0, slots_});
      } else {
        score(block.keys, count,
              this->template rows_ahead<Walk>(tensors_.k, problem_.k, problem_.head_dim, first,
                                              count),
              {0, slots_});
        this->softmax({0, slots_}, first, count);
        multiply_values(block.values, count,
                        this->template rows_ahead<Walk>(tensors_.v, problem_.v, problem_.head_dim_v,
                                                        first, count),
                        {0, slots_});
      }
      block = next;
    }
  }
  template <class Ahead>
  __attribute__((noinline)) void attend_unpacked_block(int64_t first, int count, Ahead& ahead) {
    using Source = UnpackedRows<Isa>;
    float* rows = unpacked();
    for (int head = 0; head < task_.kv_heads; ++head) {
      const typename Base::Slots slots{head * head_slots_, (head + 1) * head_slots_};
      Source(call_, Source::Of::k, task_.batch, task_.kv_head + head)
          .load(first, count, rows, layout_.query_stride, nullptr, ahead);
      score(StridedRows<float>{rows, layout_.query_stride}, count, FetchNothing(), slots);
      this->softmax(slots, first, count);
      Source(call_, Source::Of::v, task_.batch, task_.kv_head + head)
          .load(first, count, rows, layout_.value_stride, nullptr, ahead);
      multiply_values(StridedRows<float>{rows, layout_.value_stride}, count, FetchNothing(), slots);
    }
  }
  // The block of keys from `first` on, of which there is one at least.
  template <class Rows, int kListed>
  Block<Rows> block_at(int64_t first, int64_t (&offsets)[2][kListed]) const {
    const int count =
        end_ - first < layout_.block_keys ? static_cast<int>(end_ - first) : layout_.block_keys;
    return {this->template rows_at<Rows>(tensors_.k, problem_.k, first, count, offsets[0]),
            this->template rows_at<Rows>(tensors_.v, problem_.v, first, count, offsets[1]), count};
  }

  float* unpacked() const { return queries_ - layout_.queries + layout_.unpacked; }

  // scores[slot][key] of a block, raw; slots: of the rows' heads, from the first one on.
  template <class Rows, class Ahead>
  __attribute__((noinline)) void score(Rows rows, int count, Ahead ahead, typename Base::Slots of) {
    using E = typename Rows::Element;
    const int64_t query_stride = layout_.query_stride, dim = problem_.head_dim,
                  head_stride = problem_.k.strides[2];
    const int slots = of.end - of.begin, head_slots = head_slots_;
    for (int key = 0; key < count; key += kScoreKeys) {
      const E* keys[kScoreKeys];  // a last group repeats the last key; its scores are masked
#pragma GCC unroll 4
      for (int i = 0; i < kScoreKeys; ++i) keys[i] = rows[key + i < count ? key + i : count - 1];
      ahead.begin(key / kScoreKeys);
      int64_t offsets[kScoreKeys];
#pragma GCC unroll 4
      for (int i = 0; i < kScoreKeys; ++i) offsets[i] = keys[i] - keys[0];
      const E* head_keys = keys[0];
      const float* q = queries_ + of.begin * query_stride;
      float* out = scores_ + key;
      for (int slot = 0, left = head_slots; slot < slots; slot += kQuad) {
        score_quad(head_keys, offsets, q, query_stride, dim, out, ahead);
        q += kQuad * query_stride;
        out += static_cast<int64_t>(kQuad) * kDecodeRow;
        left -= kQuad;
        ahead.next_quad();
        if (left == 0) {
          left = head_slots;
          head_keys += head_stride;
          ahead.next_head();
        }
      }
    }
  }

  template <class E, class Ahead>
  FULMEN_INLINE static void score_quad(const E* keys, const int64_t (&offsets)[kScoreKeys],
                                       const float* q, int64_t query_stride, int64_t dim,
                                       float* out, Ahead& ahead) {
    Vec sum[kQuad][kScoreKeys];  // [row][key]
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kScoreKeys; ++i) sum[r][i] = Isa::zero();
    }
    int64_t at = 0;
    while (at + kStepVecs * kElements <= dim) {
      ahead.template read<Isa, kScoreKeys, kStepVecs * kVecBytes>(0, at);
#pragma GCC unroll 4
      for (int i = 0; i < kStepVecs; ++i, at += kElements, q += kLanes)
        add_products(keys + at, offsets, kElements, q, query_stride, sum);
    }
    if (at < dim) {
      ahead.template read<Isa, kScoreKeys, kStepVecs * kVecBytes>(0, at);
      for (; at < dim; at += kElements, q += kLanes)
        add_products(keys + at, offsets, dim - at, q, query_stride, sum);
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
  template <class E>
  FULMEN_INLINE static void add_products(const E* keys, const int64_t (&offsets)[kScoreKeys],
                                         int64_t left, const float* q, int64_t query_stride,
                                         Vec (&sum)[kQuad][kScoreKeys]) {
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
  template <class Rows, class Ahead>
  __attribute__((noinline)) void multiply_values(Rows rows, int count, Ahead ahead,
                                                 typename Base::Slots of) {
    const bool masked = this->masked();
    this->rescale_output(of);
    const int64_t value_stride = layout_.value_stride, dim = problem_.head_dim_v,
                  head_stride = problem_.v.strides[2];
    const int slots = of.end - of.begin, head_slots = head_slots_;
    for (int key = 0; key < count; key += kValueKeys) {
      const int keys = count - key < kValueKeys ? count - key : kValueKeys;
      Rows values = rows.from(key);
      ahead.begin(key / kValueKeys);
      float* out = output_ + of.begin * value_stride;
      const float* p = scores_ + key / kGroup;
      for (int slot = 0, left = head_slots; slot < slots; slot += kQuad) {
        if (keys == kValueKeys && !(masked && hides_key(of.begin + slot, p))) {
          value_quad<kValueKeys / kGroup, true>(values, 0, ~0U, p, out, value_stride, dim, ahead);
        } else {
          value_words(values, keys, masked, of.begin + slot, p, out, ahead);
        }
        out += kQuad * value_stride;
        p += static_cast<int64_t>(kQuad) * kDecodeRow;
        left -= kQuad;
        ahead.next_quad();
        if (left == 0) {
          left = head_slots;
          values.step(head_stride);
          ahead.next_head();
        }
      }
    }
  }

  // Word by word, where some keys are not there or not to be touched: what no row attends may be
  // anything, a NaN even.
  template <class Rows, class Ahead>
  __attribute__((noinline)) void value_words(Rows v, int keys, bool masked, int slot,
                                             const float* p, float* out, Ahead& ahead) {
    for (int key = 0; key < keys; key += kGroup, ++p) {
      unsigned alive = 0;
      for (int i = 0; i < kGroup && key + i < keys; ++i)
        alive |= !masked || attended(slot, p, i) ? 1U << i : 0U;
      if (alive == 0) continue;
      value_quad<1, false>(v.from(key), key, alive, p, out, layout_.value_stride,
                           problem_.head_dim_v, ahead);
    }
  }

  FULMEN_INLINE bool hides_key(int slot, const float* p) const {
    bool all = true;
    for (int key = 0; key < kValueKeys; ++key) all &= attended(slot, p, key);
    return !all;
  }

  // Whether one of the four rows from `slot` on has a probability for the key: its place in a word
  // tells its half.
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

  // kWords words of keys, from the first-th of the group on; not kWhole: only the keys whose bit in
  // alive is set, the others are zeros.
  template <int kWords, bool kWhole, class Rows, class Ahead>
  FULMEN_INLINE static void value_quad(Rows v, int first, unsigned alive, const float* p,
                                       float* out, int64_t value_stride, int64_t dim,
                                       Ahead& ahead) {
    constexpr int64_t kColumns = static_cast<int64_t>(kMostVecs) * kLanes;
    int64_t at = 0;
    for (; at + kColumns <= dim; at += kColumns)
      value_block<kWords, kMostVecs, kWhole, true>(v, first, alive, p, out, value_stride, at,
                                                   kColumns, ahead);
    const int64_t left = dim - at;
    if (left > 3 * kLanes) {
      value_block<kWords, 4, kWhole, false>(v, first, alive, p, out, value_stride, at, left, ahead);
    } else if (left > 2 * kLanes) {
      value_block<kWords, kGroup == 1 ? 3 : 4, kWhole, false>(v, first, alive, p, out, value_stride,
                                                              at, left, ahead);
    } else if (left > kLanes) {
      value_block<kWords, 2, kWhole, false>(v, first, alive, p, out, value_stride, at, left, ahead);
    } else if (left > 0) {
      value_block<kWords, kGroup, kWhole, false>(v, first, alive, p, out, value_stride, at, left,
                                                 ahead);
    }
  }

  // kVecs vectors of columns from `column` on, of which `left` elements are there: all (kFull), or
  // all but some of the last load's.
  template <int kWords, int kVecs, bool kWhole, bool kFull, class Rows, class Ahead>
  FULMEN_INLINE static void value_block(Rows v, int first, unsigned alive, const float* p,
                                        float* out, int64_t value_stride, int64_t column,
                                        int64_t left, Ahead& ahead) {
    const auto load = [&](int key, int64_t at) __attribute__((always_inline)) {
      if (!kWhole && (alive >> key & 1U) == 0) return Isa::zero();
      const bool last = at + kElements == kVecs * kLanes;
      return load_row_words<Isa>(v[key] + column + at, kFull || !last ? kElements : left - at);
    };
    out += column;
    Vec sum[kQuad][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::load(out + r * value_stride + c * kLanes);
    }
#pragma GCC unroll 8
    for (int word = 0; word < kWords; ++word) {
      ahead.template read<Isa, kGroup, kVecs / kGroup * kVecBytes>(first + word * kGroup, column);
      Vec value[kVecs];
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; c += kGroup) {
        if constexpr (kGroup == 1) {
          value[c] = load(word, c * kLanes);
        } else {
          Isa::interleave(load(2 * word, c * kLanes), load(2 * word + 1, c * kLanes), value[c],
                          value[c + 1]);
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
  if (decode_rows(*call.problem) > kFewDecodeRows)
    return DecodeTileTask<Isa, T>(call, task, scratch).run();
  if constexpr (Isa::kGroup == 1) {
    if (reads_stored(*call.problem)) {
      if (decode_rows(*call.problem) == 1)
        return DecodeStoredTask<Isa, 1>(call, task, scratch).template run<T>();
      if constexpr (Isa::kLanes == 16)
        return DecodeStoredTask<Isa, 4>(call, task, scratch).template run<T>();
    }
    if (call.problem->quantized_kv())
      return DecodeTaskRunner<Isa, Fp16, false>(call, task, scratch).template run_unpacked<T>();
  }
  if constexpr (requires { Isa::prefetch_l2(nullptr); }) {
    if (call.block_bytes > 0) return DecodeTaskRunner<Isa, T, true>(call, task, scratch).run();
  }
  DecodeTaskRunner<Isa, T, false>(call, task, scratch).run();
}

}  // namespace fulmen::cpu
