// A head's keys -> codes of int8, in two steps, a part of the keys each: sums, from which the mean
// follows, then the codes. Keys that no query attends do not count, and their codes are 0.
#pragma once

#include "cpu/prefill_int8/call.h"
#include "cpu/prefill_int8/code_rows.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/unpack.h"

namespace fulmen::cpu {

// The mean of a head's attended keys to mean[dims].
template <class Isa>
__attribute__((noinline)) void key_mean(const ForwardCall& call, int64_t batch, int64_t kv_head,
                                        float* mean) {
  const KeyCodes& codes = call.codes;
  const auto keys = call.band.any(0, call.problem->seqlen_q);
  const int64_t count = keys.end - keys.begin;
  const auto divisor = Isa::set1(static_cast<float>(count > 0 ? count : 1));
  const int64_t first = keys.begin / codes.part_keys,
                end = (keys.end + codes.part_keys - 1) / codes.part_keys;
  for (int64_t d = 0; d < codes.dims; d += Isa::kLanes) {
    auto sum = Isa::zero();
    for (int64_t part = first; part < end; ++part)
      sum = Isa::add(sum, Isa::load(codes.sums_of(batch, kv_head, part) + d));
    Isa::store(mean + d, Isa::div(sum, divisor));
  }
}

template <class Product, class T>
class KeyCoder {
  using Isa = typename Product::Numbers;
  using Vec = typename Isa::Vec;

 public:
  // rows: [kCodedKeys][dims], mean: [dims] of scratch.
  KeyCoder(const ForwardCall& call, const KeyCodesTask& task, float* rows, float* mean)
      : call_(call), codes_(call.codes), task_(task), rows_(rows), mean_(mean) {
    const auto attended = call.band.any(0, call.problem->seqlen_q);
    const int64_t first = task.part * codes_.part_keys;
    begin_ = attended.begin > first ? attended.begin : first;
    end_ = attended.end < first + codes_.part_keys ? attended.end : first + codes_.part_keys;
  }

  void run() {
    if (begin_ >= end_) return;
    if (task_.step == KeyCodesTask::Step::sums) return add();
    key_mean<Isa>(call_, task_.batch, task_.kv_head, mean_);
    for (int64_t first = begin_ / kCodedKeys * kCodedKeys; first < end_; first += kCodedKeys)
      code(first);
  }

 private:
  // Loads attended keys from `first` on, `most` of them at most.
  int load(int64_t first, int64_t most) {
    const int count = static_cast<int>(end_ - first < most ? end_ - first : most);
    const Problem& p = *call_.problem;
    if (p.quantized_kv()) {
      NoLinesAhead none;
      using Source = UnpackedRows<Isa>;
      Source(call_, Source::Of::k, task_.batch, task_.kv_head)
          .load(first, count, rows_, codes_.dims, nullptr, none);
    } else {
      pack_keys<Isa>(
          StridedRows<T>{element<const T>(call_.tensors->k, p.k, task_.batch, first, task_.kv_head),
                         p.k.strides[1]},
          count, p.head_dim, rows_, codes_.dims);
    }
    return count;
  }

  __attribute__((noinline)) void add() {
    constexpr int64_t kAtOnce = 16;  // stay in L1
    float* sums = codes_.sums_of(task_.batch, task_.kv_head, task_.part);
    for (int64_t d = 0; d < codes_.dims; d += Isa::kLanes) Isa::store(sums + d, Isa::zero());
    for (int64_t first = begin_; first < end_; first += kAtOnce) {
      const int count = load(first, kAtOnce);
      for (int64_t d = 0; d < codes_.dims; d += Isa::kLanes) {
        Vec sum = Isa::zero();
        for (int key = 0; key < count; ++key)
          sum = Isa::add(sum, Isa::load(rows_ + key * codes_.dims + d));
        Isa::store(sums + d, Isa::add(Isa::load(sums + d), sum));
      }
    }
  }

  // The block of keys that begins at `block`.
  __attribute__((noinline)) void code(int64_t block) {
    const int64_t first = begin_ > block ? begin_ : block;
    const int count = load(first, block + kCodedKeys - first);
    Vec most = Isa::zero();
    for (int key = 0; key < count; ++key)
      most = largest_of<Isa>(rows_ + key * codes_.dims, mean_, codes_.dims, most);
    const float largest = Isa::reduce_max(most);
    *codes_.scale_of(task_.batch, task_.kv_head, block) = code_scale(largest);
    const Vec factor = Isa::set1(code_factor(largest)), origin = Isa::set1(kCodeOrigin);
    float* words = codes_.words_of(task_.batch, task_.kv_head, block);
    const int64_t stride = codes_.key_stride;
    clear_others(words, first - block, first - block + count);
    for (int key = 0; key < count; ++key) {
      const float* row = rows_ + key * codes_.dims;
      for (int64_t d = 0; d < codes_.dims; d += Isa::kLanes) {
        const Vec distance = Isa::sub(Isa::load(row + d), Isa::load(mean_ + d));
        Product::store_key_codes(
            words + code_place<Product>(first - block + key, d / Product::kGroup, stride),
            Isa::fused(distance, factor, origin));
      }
    }
  }

  // What products may read of a block beside its keys [first, end): those before them, and the rest
  // of the last group.
  void clear_others(float* words, int64_t first, int64_t end) const {
    constexpr int64_t kTogether = kHasKeyGroups<Product> ? kKeyGroup : 1;
    const int64_t stride = codes_.key_stride;
    for (int64_t i = 0; i < round_up(first, kTogether) * stride; ++i) words[i] = 0;
    for (int64_t i = end / kTogether * kTogether * stride; i < round_up(end, kTogether) * stride;
         ++i)
      words[i] = 0;
  }

  const ForwardCall& call_;
  const KeyCodes& codes_;
  const KeyCodesTask& task_;
  float* rows_;
  float* mean_;
  int64_t begin_, end_;  // the part's attended keys
};

}  // namespace fulmen::cpu
