// Decode of more query rows a KV head than products with head_dim in lanes are made for: the
// products of prefill's tiles.
//
// S^T = K Q^T with the rows in lanes, a head after the other, is transposed into the rows of scores
// that the softmax takes, and what that leaves is the left operand of O = P V. K and V are read
// where they lie if their rows are fp32 or pairs, else packed, a block of one head at a time; the
// next block is fetched meanwhile.
#pragma once

#include <type_traits>

#include "cpu/decode/rows.h"
#include "cpu/tile/output_product.h"
#include "cpu/tile/score_product.h"
#include "cpu/tile/unpack.h"

namespace fulmen::cpu {

// Epilogue of S^T = K Q^T: raw [keys][kBlockM].
template <class Isa, class Ahead>
struct RawScores {
  static constexpr bool kNarrowTiles = true;
  float* raw;
  int lines;
  Ahead* ahead;

  template <int kVecs>
  struct Block {
    static constexpr int kStepWords = kFetchWords;
    FULMEN_INLINE Block(const RawScores& tile, int at) : tile_(tile), at_(at) {}
    FULMEN_INLINE void step() { tile_.ahead->template lines<Isa>(tile_.lines); }
    FULMEN_INLINE void row(const typename Isa::Vec (&sum)[kVecs], int key) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        Isa::store(tile_.raw + key * kBlockM + at_ + v * Isa::kLanes, sum[v]);
    }
    FULMEN_INLINE void end() {}
    const RawScores& tile_;
    int at_;
  };
};

// How P lies in memory (output_product.h).
struct SlotRows {
  static constexpr int kRowStride = kDecodeRow;
  static constexpr int kWordStride = 1;
};
// output += P V.
template <class Isa, class Ahead>
struct AddedOutput {
  using Vec = typename Isa::Vec;
  static constexpr int kStepWords = kFetchWords;
  float* out;
  int64_t stride;
  int lines;
  Ahead* ahead;

  FULMEN_INLINE void step() const { ahead->template lines<Isa>(lines); }
  FULMEN_INLINE Vec start(int row, int column) const {
    return Isa::load(out + row * stride + column);
  }
  FULMEN_INLINE bool writes(int /*row*/) const { return true; }
  FULMEN_INLINE void end(int row, int column, Vec sum, bool /*whole*/) const {
    Isa::store(out + row * stride + column, sum);
  }
};

// What does not depend on the dtype of Q, K and V.
template <class Isa>
class DecodeTileRows : protected DecodeRows<Isa> {
  using Base = DecodeRows<Isa>;

 protected:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::head_slots_,
      Base::slots_, Base::begin_, Base::end_, Base::queries_, Base::scores_, Base::output_;
  using Base::kLanes, Base::kGroup;
  using typename Base::Vec;

  __attribute__((noinline)) DecodeTileRows(const ForwardCall& call, const DecodeTask& task,
                                           float* scratch, int64_t element_bytes)
      : Base(call, task, scratch, element_bytes), words_(words_of<Isa>(problem_.head_dim)) {
    const DecodeTileScratch s = decode_tile_scratch(call, kLanes, kGroup);
    transposed_queries_ = scratch + s.queries;
    raw_ = scratch + s.scores;
    packed_ = scratch + s.packed;
  }

  // [slot][word] -> [word][kBlockM]; lanes past the last slot are zeros.
  __attribute__((noinline)) void transpose_queries() {
    for (int64_t i = 0; i < layout_.query_stride * kBlockM; i += kLanes)
      Isa::store(transposed_queries_ + i, Isa::zero());
    for (int slot = 0; slot < slots_; slot += kLanes) {
      for (int64_t word = 0; word < layout_.query_stride; word += kLanes) {
        Vec block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          block[i] = slot + i < slots_
                         ? Isa::load(queries_ + (slot + i) * layout_.query_stride + word)
                         : Isa::zero();
        }
        Isa::transpose(block);
        for (int i = 0; i < kLanes; ++i)
          Isa::store(transposed_queries_ + (word + i) * kBlockM + slot, block[i]);
      }
    }
  }

  // Cache lines that each of the products' steps fetches, so that all of a block's are.
  __attribute__((noinline)) int lines_a_step(int count) const {
    const int64_t bytes = this->row_bytes(problem_.k, problem_.head_dim) +
                          this->row_bytes(problem_.v, problem_.head_dim_v);
    const int64_t steps =
        score_steps<Isa, true>(head_slots_, words_, count) +
        output_steps<Isa>(layout_.value_stride, words_of<Isa>(count), head_slots_);
    return static_cast<int>((bytes * count / 64 + steps * task_.kv_heads - 1) /
                            (steps * task_.kv_heads));
  }

  // raw_ -> scores_ from `slot` on; keys up to a whole vector, of which the softmax masks what is
  // not there.
  __attribute__((noinline)) void transpose_scores(int first_slot, int count) {
    for (int slot = 0; slot < head_slots_; slot += kLanes) {
      for (int key = 0; key < count; key += kLanes) {
        Vec block[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) block[i] = Isa::load(raw_ + (key + i) * kBlockM + slot);
        Isa::transpose(block);
        float* to = scores_ + static_cast<int64_t>(first_slot + slot) * kDecodeRow + key;
        const int rows = head_slots_ - slot < kLanes ? head_slots_ - slot : kLanes;
        for (int i = 0; i < rows; ++i)
          Isa::store(to + static_cast<int64_t>(i) * kDecodeRow, block[i]);
      }
    }
  }

  // Which keys some row has a probability for: the others' values may be anything, a NaN even.
  __attribute__((noinline)) void find_attended(int first_slot, const float* p, int count,
                                               uint8_t* alive) const {
    for (int key = 0; key < count; ++key) {
      const uint32_t half = kGroup == 1 ? ~0U : 0xFFFFU << 16 * (key % kGroup);
      uint32_t words = 0;
      for (int slot = 0; slot < head_slots_; ++slot) {
        if (!this->tells_attended(first_slot + slot)) continue;
        uint32_t word;
        __builtin_memcpy(&word, p + static_cast<int64_t>(slot) * kDecodeRow + key / kGroup,
                         sizeof word);
        words |= word;
      }
      alive[key] = (words & half) != 0;
    }
  }

  int words_;
  float* transposed_queries_;
  float* raw_;
  float* packed_;
};

template <class Isa, class T>
class DecodeTileTask : private DecodeTileRows<Isa> {
  using Base = DecodeTileRows<Isa>;
  using Base::kLanes, Base::kGroup;
  // The products' words are what is stored.
  static constexpr bool kWholeWords = sizeof(T) * kGroup == sizeof(float);

 public:
  DecodeTileTask(const ForwardCall& call, const DecodeTask& task, float* scratch)
      : Base(call, task, scratch, sizeof(T)) {}

  void run() {
    this->template begin<T>();
    if (slots_ == 0 || begin_ >= end_) return;
    this->transpose_queries();
    const int block = layout_.block_keys < kTileDecodeKeys ? layout_.block_keys : kTileDecodeKeys;
    this->for_each_block(
        block, [&](int64_t first, int count, auto& ahead) { attend_block(first, count, ahead); });
  }

 private:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::head_slots_,
      Base::slots_, Base::begin_, Base::end_, Base::scores_, Base::output_, Base::words_,
      Base::transposed_queries_, Base::raw_, Base::packed_;

  template <class Ahead>
  __attribute__((noinline)) void attend_block(int64_t first, int count, Ahead& ahead) {
    if constexpr (kGroup == 1) {
      if (problem_.quantized_kv()) return attend_unpacked_block(first, count, ahead);
    }
    const int lines = this->lines_a_step(count);
    with_rows<Ahead::kPaged>(tensors_.k, problem_.k, first, count, [&](auto rows) {
      for (int head = 0; head < task_.kv_heads; ++head, rows.step(problem_.k.strides[2])) {
        score(rows, count, head, lines, ahead);
        this->transpose_scores(head * head_slots_, count);
      }
    });
    this->softmax({0, slots_}, first, count);
    this->rescale_output({0, slots_});
    const bool masked = hides_keys(first, count);
    with_rows<Ahead::kPaged>(tensors_.v, problem_.v, first, count, [&](auto rows) {
      for (int head = 0; head < task_.kv_heads; ++head, rows.step(problem_.v.strides[2])) {
        multiply_values(rows, count, head, masked, lines, ahead);
      }
    });
  }

  // Whether some row may not attend some key of the block.
  bool hides_keys(int64_t first, int count) const {
    const auto all = call_.band.all(0, problem_.seqlen_q);
    return this->masked_ || first < all.begin || first + count > all.end;
  }

  // Keys and values that become fp32 on the way to the packed ones. What is fetched ahead is fetched
  // beside that.
  template <class Ahead>
  __attribute__((noinline)) void attend_unpacked_block(int64_t first, int count, Ahead& ahead) {
    using Source = UnpackedRows<Isa>;
    const int64_t key_stride = round_up(words_, kLanes);
    for (int head = 0; head < task_.kv_heads; ++head) {
      Source(call_, Source::Of::k, task_.batch, task_.kv_head + head)
          .load(first, count, packed_, key_stride, nullptr, ahead);
      score_packed(count, head, 0, ahead);
      this->transpose_scores(head * head_slots_, count);
    }
    this->softmax({0, slots_}, first, count);
    this->rescale_output({0, slots_});
    const bool masked = hides_keys(first, count);
    for (int head = 0; head < task_.kv_heads; ++head) {
      uint8_t alive[kTileDecodeKeys];
      if (masked) this->find_attended(head * head_slots_, probabilities(head), count, alive);
      Source(call_, Source::Of::v, task_.batch, task_.kv_head + head)
          .load(first, count, packed_, layout_.value_stride, masked ? alive : nullptr, ahead);
      add_values(packed_, layout_.value_stride, count, head, 0, ahead);
    }
  }
  const float* probabilities(int head) const {
    return scores_ + static_cast<int64_t>(head) * head_slots_ * kDecodeRow;
  }

  // body(rows [first, first + count) of the task's first KV head).
  template <bool kPaged, class Body>
  FULMEN_INLINE void with_rows(const Tensor& tensor, const TensorSpec& spec, int64_t first,
                               int count, Body body) {
    int64_t offsets[kPaged ? kTileDecodeKeys : 1];
    body(this->template rows_at<std::conditional_t<kPaged, ListedRows<T>, StridedRows<T>>>(
        tensor, spec, first, count, offsets));
  }

  // How many rows from `row` on follow each other as in a tensor without pages.
  static FULMEN_INLINE int run_of(const StridedRows<T>& /*rows*/, int row, int count, int64_t) {
    return count - row;
  }
  static FULMEN_INLINE int run_of(const ListedRows<T>& rows, int row, int count, int64_t stride) {
    int run = 1;
    while (row + run < count && rows[row + run] == rows[row] + run * stride) ++run;
    return run;
  }

  template <class Rows, class Ahead>
  FULMEN_INLINE void score(Rows rows, int count, int head, int lines, Ahead& ahead) {
    const float* queries = transposed_queries_ + head * head_slots_;
    const int64_t stride = problem_.k.strides[1];
    if constexpr (kWholeWords) {
      constexpr int64_t kShortRun = 16;  // a few register blocks of keys
      if (problem_.head_dim % kGroup == 0 && stride % kGroup == 0 &&
          (!Ahead::kPaged || call_.pages.page_size >= kShortRun)) {
        for (int key = 0, run = 0; key < count; key += run) {
          run = run_of(rows, key, count, stride);
          score_tile<Isa>(queries, head_slots_, reinterpret_cast<const float*>(rows[key]),
                          stride / kGroup, words_, run,
                          RawScores<Isa, Ahead>{raw_ + key * kBlockM, lines, &ahead});
        }
        return;
      }
    }
    pack_keys<Isa>(rows, count, problem_.head_dim, packed_, round_up(words_, kLanes));
    score_packed(count, head, lines, ahead);
  }
  template <class Ahead>
  FULMEN_INLINE void score_packed(int count, int head, int lines, Ahead& ahead) {
    score_tile<Isa>(transposed_queries_ + head * head_slots_, head_slots_, packed_,
                    round_up(words_, kLanes), words_, count,
                    RawScores<Isa, Ahead>{raw_, lines, &ahead});
  }

  template <class Rows, class Ahead>
  FULMEN_INLINE void multiply_values(Rows rows, int count, int head, bool masked, int lines,
                                     Ahead& ahead) {
    const float* p = probabilities(head);
    const float* values = packed_;
    int64_t stride = layout_.value_stride;
    bool in_place = false;
    if constexpr (kGroup == 1 && std::is_same_v<T, float>) {
      in_place = !masked && problem_.head_dim_v % kLanes == 0 &&
                 run_of(rows, 0, count, problem_.v.strides[1]) == count;
      if (in_place) {
        values = rows[0];
        stride = problem_.v.strides[1];
      }
    }
    if (!in_place) {
      uint8_t alive[kTileDecodeKeys];
      if (masked) this->find_attended(head * head_slots_, p, count, alive);
      pack_values<Isa>(rows, count, problem_.head_dim_v, packed_, stride, masked ? alive : nullptr);
    }
    add_values(values, stride, count, head, lines, ahead);
  }
  template <class Ahead>
  FULMEN_INLINE void add_values(const float* values, int64_t stride, int count, int head, int lines,
                                Ahead& ahead) {
    const AddedOutput<Isa, Ahead> to{
        output_ + static_cast<int64_t>(head) * head_slots_ * layout_.value_stride,
        layout_.value_stride, lines, &ahead};
    output_tile<Isa, SlotRows>(probabilities(head), values, stride, layout_.value_stride,
                               words_of<Isa>(count), head_slots_, to);
  }
};

}  // namespace fulmen::cpu
