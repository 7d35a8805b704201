// Decode of a few query rows a KV head over keys and values of any format, which become numbers in
// registers: nothing is unpacked to memory.
//
//   S[rows, keys] = (Q K^T) k_scale, K of codes        four keys and all rows at a time
//   O[rows, dim] += (P v_scale) V, V of codes          sums in registers over kValueKeys keys
//
// Scales of rows multiply the finished scores and the probabilities; scales of channels multiply
// the queries. A block with a scale, or a task with a query, that is not ordinary (is_ordinary)
// is unpacked to numbers times their scales first, and so is fp32 and bf16 with any scale: products
// of those overflow and vanish where the contract says.
#pragma once

#include "cpu/decode/rows.h"
#include "cpu/decode/stored_numbers.h"
#include "cpu/tile/unpack.h"

namespace fulmen::cpu {

// kRows: query rows of a KV head that are computed, and its slots: 1, or a quad.
template <class Isa, int kRows>
class DecodeStoredTask : private DecodeRows<Isa> {
  using Base = DecodeRows<Isa>;
  using Base::kLanes;
  using typename Base::Vec;
  using Source = UnpackedRows<Isa>;
  static constexpr int kKeys = kLanes == 8 && kRows > 1 ? 2 : 4;  // of a block of scores
  static constexpr int kValueKeys = 16;  // for which the output stays in registers
  // Groups of kBlockNumbers columns of an output block: 8 or 16 sums.
  static constexpr int kGroupVecs = kBlockNumbers / kLanes;
  static constexpr int kMostGroups = kRows * kGroupVecs >= 8 ? 1 : 8 / (kRows * kGroupVecs);
  static constexpr int kMostAhead = 256;  // rows

 public:
  DecodeStoredTask(const ForwardCall& call, const DecodeTask& task, float* scratch)
      : Base(call, task, scratch, 0) {}

  template <class T>
  void run() {
    this->template begin<T>();
    attend();
  }

 private:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::head_slots_,
      Base::slots_, Base::begin_, Base::end_, Base::queries_, Base::scores_, Base::output_;

  // Rows of keys or of values of a block, and of those that are fetched beside them.
  struct Rows {
    const uint8_t* at[kMaxDecodeKeys + kMostAhead];
    int ahead;            // rows from one that is read to the one that is fetched
    int64_t head_stride;  // bytes
    DType dtype;
  };

  __attribute__((noinline)) void attend() {
    if (slots_ == 0 || begin_ >= end_) return;
    codes_ = scale_queries();
    Rows keys, values;
    start_rows(keys, problem_.k, problem_.head_dim);
    start_rows(values, problem_.v, problem_.head_dim_v);
    auto at = this->next_kept(begin_, layout_.block_keys);
    while (at.first < end_) {
      const int64_t first = at.first;
      const int count =
          end_ - first < layout_.block_keys ? static_cast<int>(end_ - first) : layout_.block_keys;
      this->masked_ = at.masked;
      list(keys, tensors_.k, problem_.k, first, count);
      list(values, tensors_.v, problem_.v, first, count);
      score_block(keys, first, count);
      this->softmax({0, static_cast<int>(layout_.slots)}, first, count);
      this->rescale_output({0, static_cast<int>(layout_.slots)});
      add_block(values, first, count);
      at = this->next_kept(first + count, layout_.block_keys);
    }
  }

  // Whether what is stored may itself be close to fp32's largest numbers.
  static FULMEN_INLINE bool is_wide(DType dtype) {
    return dtype == DType::fp32 || dtype == DType::bf16;
  }
  // Whether queries times codes stay in fp32; then they are multiplied with the channels' scales.
  __attribute__((noinline)) bool scale_queries() {
    const int64_t stride = layout_.query_stride;
    constexpr float kMost = 0x1p30F;
    if (is_wide(problem_.k_dtype) && (problem_.k_scale.present || problem_.q_scale.present))
      return false;
    for (int64_t i = 0; i < slots_ * stride; ++i) {
      if (!(queries_[i] <= kMost && queries_[i] >= -kMost)) return false;
    }
    for (int pass = 0; pass < 2; ++pass) {
      for (int head = 0; head < task_.kv_heads; ++head) {
        const Source source(call_, Source::Of::k, task_.batch, task_.kv_head + head);
        const float* channels = source.channels();
        if (channels == nullptr) return true;
        for (int64_t d = 0; pass == 0 && d < problem_.head_dim; ++d) {
          if (!Source::is_ordinary(channels[d])) return false;
        }
        for (int slot = head * head_slots_; pass == 1 && slot < (head + 1) * head_slots_; ++slot) {
          for (int64_t d = 0; d < problem_.head_dim; ++d)
            queries_[slot * stride + d] *= channels[d];
        }
      }
    }
    return true;
  }

  __attribute__((noinline)) void start_rows(Rows& rows, const TensorSpec& spec, int64_t dim) const {
    constexpr int64_t kAheadBytes = 10 * 1024;
    const int64_t bytes = this->row_bytes(spec, dim),
                  ahead = bytes > 0 ? (kAheadBytes + bytes - 1) / bytes : 0;
    rows.ahead = static_cast<int>(ahead < kMostAhead ? ahead : kMostAhead);
    rows.dtype = &spec == &problem_.k ? problem_.k_dtype : problem_.v_dtype;
    rows.head_stride = spec.strides[2] * size_of(rows.dtype);
  }
  // Those of the block from `first` on, at the task's first head, and those that follow it: the
  // last one again where there are no more.
  __attribute__((noinline)) void list(Rows& rows, const Tensor& tensor, const TensorSpec& spec,
                                      int64_t first, int count) const {
    const int64_t bytes = size_of(rows.dtype), left = end_ - first;
    const int wanted = count + rows.ahead, some = left < wanted ? static_cast<int>(left) : wanted;
    if (call_.pages.pages != nullptr) {
      const char* base = element_address(tensor, spec, bytes, 0, 0, task_.kv_head);
      PageWalk walk(call_.pages, spec, first);
      for (int i = 0;; walk.next()) {
        rows.at[i] = reinterpret_cast<const uint8_t*>(base + walk.offset() * bytes);
        if (++i == some) break;
      }
    } else {
      const char* at = element_address(tensor, spec, bytes, task_.batch, first, task_.kv_head);
      for (int i = 0; i < some; ++i, at += spec.strides[1] * bytes)
        rows.at[i] = reinterpret_cast<const uint8_t*>(at);
    }
    for (int i = some; i < wanted; ++i) rows.at[i] = rows.at[some - 1];
  }

  typename Base::Slots slots_of(int head) const {
    return {head * head_slots_, (head + 1) * head_slots_};
  }
  float* unpacked() const { return queries_ - layout_.queries + layout_.unpacked; }
  // A head's rows as numbers times their scales.
  __attribute__((noinline)) void unpack(const Source& source, int64_t first, int count,
                                        int64_t stride, Rows& rows) const {
    NoLinesAhead none;
    source.load(first, count, unpacked(), stride, nullptr, none);
    for (int i = 0; i < count; ++i)
      rows.at[i] = reinterpret_cast<const uint8_t*>(unpacked() + i * stride);
    rows.ahead = 0;
    rows.head_stride = 0;
    rows.dtype = DType::fp32;
  }

  __attribute__((noinline)) void score_block(const Rows& keys, int64_t first, int count) {
    float factor = 1;
    with_stored_dtype(keys.dtype, [&](auto dtype) __attribute__((always_inline)) {
      using Numbers = StoredNumbers<Isa, dtype()>;
      factor = Numbers::kFactor;
      if (codes_) score<Numbers>(keys, count, 0, task_.kv_heads);
    });
    for (int head = 0; head < task_.kv_heads; ++head) {
      const Source source(call_, Source::Of::k, task_.batch, task_.kv_head + head);
      float scales[kMaxDecodeKeys];
      if (codes_ && factor == 1.0F && !source.has_row_scales()) continue;
      if (codes_ && source.scales_of_rows(first, count, factor, scales)) {
        scale_rows(scores_of(head), scales, count);
      } else {
        Rows numbers;
        unpack(source, first, count, layout_.query_stride, numbers);
        score<StoredNumbers<Isa, DType::fp32>>(numbers, count, head, head + 1);
      }
    }
  }
  float* scores_of(int head) const {
    return scores_ + static_cast<int64_t>(head) * head_slots_ * kDecodeRow;
  }
  // A head's scores, or probabilities, times their keys' scales.
  __attribute__((noinline)) void scale_rows(float* rows, float* scales, int count) const {
    for (int key = count; key % kLanes != 0; ++key) scales[key] = 0;
    for (int r = 0; r < kRows; ++r, rows += kDecodeRow) {
      for (int key = 0; key < count; key += kLanes)
        Isa::store(rows + key, Isa::mul(Isa::load(rows + key), Isa::load(scales + key)));
    }
  }

  // scores[slot][key] of a block, raw, of some heads.
  template <class Numbers>
  __attribute__((noinline)) void score(const Rows& rows, int count, int head, int last_head) const {
    const int64_t stride = layout_.query_stride;
    const int groups = static_cast<int>(problem_.head_dim / kBlockNumbers);
    for (int key = 0; key < count; key += kKeys) {
      const uint8_t* keys[kKeys];  // a last group repeats the last key; its scores are masked
      const uint8_t* ahead[kKeys];
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) {
        const int row = key + i < count ? key + i : count - 1;
        keys[i] = rows.at[row];
        ahead[i] = rows.at[row + rows.ahead];
      }
      for (int h = head; h < last_head; ++h) {
        const int64_t offset = (h - head) * rows.head_stride;
        const float* q = queries_ + h * kRows * stride;
        Vec sum[kRows][kKeys];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
          for (int i = 0; i < kKeys; ++i) sum[r][i] = Isa::zero();
        }
        for (int group = 0; group < groups; ++group, q += kBlockNumbers) {
          const int64_t at = offset + static_cast<int64_t>(group) * Numbers::kBytes;
          fetch<Numbers::kBytes>(ahead, at, group);
#pragma GCC unroll 4
          for (int i = 0; i < kKeys; ++i) {
            Vec x[kGroupVecs];
            Numbers::load(keys[i] + at, x);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
              for (int v = 0; v < kGroupVecs; ++v)
                sum[r][i] = Isa::fma(Isa::load(q + r * stride + v * kLanes), x[v], sum[r][i]);
            }
          }
        }
        float* out = scores_ + static_cast<int64_t>(h) * kRows * kDecodeRow + key;
        store_sums(sum, out);
      }
    }
  }
  static FULMEN_INLINE void store_sums(const Vec (&sum)[kRows][kKeys], float* out) {
    if constexpr (kKeys == 4) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) Isa::store_quad(out + r * kDecodeRow, Isa::quad_add(sum[r]));
    } else {
#pragma GCC unroll 2
      for (int r = 0; r < kRows; r += 2) {
        const Vec pairs[4] = {sum[r][0], sum[r][1], sum[r + 1][0], sum[r + 1][1]};
        float scores[4];
        Isa::store_quad(scores, Isa::quad_add(pairs));
        __builtin_memcpy(out + r * kDecodeRow, scores, 2 * sizeof(float));
        __builtin_memcpy(out + (r + 1) * kDecodeRow, scores + 2, 2 * sizeof(float));
      }
    }
  }
  // The lines of the group-th kBlockNumbers numbers of some rows, each line once or twice.
  template <int kBytes, int kCount>
  static FULMEN_INLINE void fetch(const uint8_t* const (&rows)[kCount], int64_t at, int group) {
    constexpr int kEvery = kBytes >= 64 ? 1 : 64 / kBytes;
    if (kEvery > 1 && group % kEvery != 0) return;
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 2
      for (int byte = 0; byte < kBytes; byte += 64) Isa::prefetch(rows[i] + at + byte);
    }
  }

  // output += (P v_scale) V.
  __attribute__((noinline)) void add_block(const Rows& values, int64_t first, int count) {
    float factor = 1;
    with_stored_dtype(values.dtype, [&](auto dtype) __attribute__((always_inline)) {
      factor = StoredNumbers<Isa, dtype()>::kFactor;
    });
    const bool masked = this->masked();
    uint64_t odd = 0;  // heads
    for (int head = 0; head < task_.kv_heads; ++head) {
      const Source source(call_, Source::Of::v, task_.batch, task_.kv_head + head);
      float scales[kMaxDecodeKeys];
      if (factor == 1.0F && !source.has_row_scales()) continue;
      if (!is_wide(values.dtype) && source.scales_of_rows(first, count, factor, scales)) {
        scale_rows(scores_of(head), scales, count);
      } else {
        Rows numbers;
        unpack(source, first, count, layout_.value_stride, numbers);
        add_values<StoredNumbers<Isa, DType::fp32>>(numbers, count, masked, head, head + 1, 0);
        odd |= uint64_t{1} << head;
      }
    }
    with_stored_dtype(values.dtype, [&](auto dtype) __attribute__((always_inline)) {
      add_values<StoredNumbers<Isa, dtype()>>(values, count, masked, 0, task_.kv_heads, odd);
    });
  }

  // output += P V of some heads, but those whose bit in done is set.
  template <class Numbers>
  __attribute__((noinline)) void add_values(const Rows& rows, int count, bool masked, int head,
                                            int last_head, uint64_t done) const {
    const int groups = static_cast<int>(problem_.head_dim_v / kBlockNumbers);
    for (int key = 0; key < count; key += kValueKeys) {
      const int keys = count - key < kValueKeys ? count - key : kValueKeys;
      for (int h = head; h < last_head; ++h) {
        if ((done >> h & 1U) != 0) continue;
        const int64_t offset = (h - head) * rows.head_stride;
        const uint8_t* const* at = rows.at + key;
        const uint8_t* seen[kValueKeys];
        int64_t from = offset;
        if (masked) {
          for (int i = 0; i < keys; ++i) seen[i] = attended(h, key + i) ? at[i] + offset : kNothing;
          from = 0;
        }
        const Block block{masked ? seen : at,
                          at + rows.ahead,
                          keys,
                          scores_of(h) + key,
                          output_ + static_cast<int64_t>(h) * kRows * layout_.value_stride,
                          layout_.value_stride};
        int group = 0;
        for (; group + kMostGroups <= groups; group += kMostGroups)
          add_columns<Numbers, kMostGroups>(block, from, offset, group);
        for (; group < groups; ++group) add_columns<Numbers, 1>(block, from, offset, group);
      }
    }
  }
  // Some keys of a head.
  struct Block {
    const uint8_t* const* rows;
    const uint8_t* const* ahead;
    int keys;
    const float* p;  // [kRows][kDecodeRow]
    float* out;      // [kRows][stride]
    int64_t stride;
  };
  template <class Numbers, int kGroups>
  static FULMEN_INLINE void add_columns(const Block& b, int64_t from, int64_t ahead, int group) {
    constexpr int kVecs = kGroups * kGroupVecs;
    const int64_t at = static_cast<int64_t>(group) * Numbers::kBytes;
    float* out = b.out + group * kBlockNumbers;
    Vec sum[kRows][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) sum[r][v] = Isa::load(out + r * b.stride + v * kLanes);
    }
    for (int key = 0; key < b.keys; ++key) {
      Vec p[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) p[r] = Isa::broadcast(b.p + r * kDecodeRow + key);
      const uint8_t* row = b.rows[key] + from + at;
#pragma GCC unroll 4
      for (int byte = 0; byte < kGroups * Numbers::kBytes; byte += 64)
        Isa::prefetch(b.ahead[key] + ahead + at + byte);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        Vec x[kGroupVecs];
        Numbers::load(row + g * Numbers::kBytes, x);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
          for (int v = 0; v < kGroupVecs; ++v)
            sum[r][g * kGroupVecs + v] = Isa::fma(x[v], p[r], sum[r][g * kGroupVecs + v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) Isa::store(out + r * b.stride + v * kLanes, sum[r][v]);
    }
  }
  // Whether a head's rows have a probability for the key: what no row attends may be anything, a
  // NaN even.
  FULMEN_INLINE bool attended(int head, int key) const {
    for (int r = 0; r < kRows; ++r) {
      if (this->tells_attended(head * kRows + r) && scores_of(head)[r * kDecodeRow + key] != 0)
        return true;
    }
    return false;
  }
  // A row of zeros in any format.
  alignas(64) static constexpr uint8_t kNothing[kMaxHeadDim * sizeof(float)] = {};

  bool codes_ = true;  // what is stored is multiplied, not the numbers
};

}  // namespace fulmen::cpu
