// Attention of few query rows over many keys, all but the products (cpu/decode/vector.h,
// cpu/decode/amx.h): what a task's rows are, the order in which keys and values are fetched, and
// the softmax.
//
// What limits decode is memory, and memory is fast only when it is read in order: the KV heads that
// lie side by side in a row are therefore streamed together, a block of keys at a time, with a
// prefetch that runs ahead through the same addresses in order, or through those of the next block
// (cpu/decode/prefetch.h, stream_prefetch.h). The keys are cut into splits, each a task, so that
// all cores have work even for one sequence; a split leaves its unnormalised output with the rows'
// maxima and sums, and whoever ends a group's last split merges them, in order
// (cpu/decode/combine.h).
//
// Paged keys and values are read where they are, too: rows are then listed for a block at a time,
// and the prefetches of stream_prefetch.h walk the pages.
//
// Scores are [slots][keys] with every query row of every head in a slot of its own.
#pragma once

#include <type_traits>

#include "algorithm/online_softmax.h"
#include "cpu/decode/call.h"
#include "cpu/decode/prefetch.h"
#include "cpu/decode/stream_prefetch.h"
#include "cpu/tile/kept_rows.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/row_scores.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// Compiled once for an instruction set: what needs the tensors' dtype is a template of its own.
template <class Isa>
class DecodeRows {
 public:
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kGroup = Isa::kGroup;
  static constexpr int kElements = kLanes * kGroup;  // of a vector of words
  static constexpr int kQuad = 4;                    // query rows of a register block

  // element_bytes: of Q, K and V.
  __attribute__((noinline)) DecodeRows(const ForwardCall& call, const DecodeTask& task,
                                       float* scratch, int64_t element_bytes)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        element_bytes_(element_bytes),
        layout_(decode_scratch(call, kLanes, kGroup)),
        rows_(decode_rows(problem_)),
        head_slots_(decode_slots(problem_)),
        slots_(head_slots_ * task.kv_heads),
        queries_(scratch + layout_.queries),
        scores_(scratch + layout_.scores),
        output_(task.partials + task.split * call.partial_stride),
        max_(output_ + layout_.state),
        sum_(max_ + layout_.state_stride),
        rescale_(sum_ + layout_.state_stride) {}

 protected:
  // Queries, of type T, an empty state, and the split's keys [begin_, end_).
  template <class T>
  FULMEN_INLINE void begin() {
    load_queries<T>();
    clear_state();
  }
  __attribute__((noinline)) void clear_state() {
    for (int64_t i = 0; i < layout_.state_stride; i += kLanes) {
      Isa::store(max_ + i, Isa::set1(-__builtin_inff()));
      Isa::store(sum_ + i, Isa::zero());
      Isa::store(rescale_ + i, Isa::zero());
    }
    for (int64_t i = 0; i < layout_.slots * layout_.value_stride; i += kLanes)
      Isa::store(output_ + i, Isa::zero());
    // Slots that no product writes.
    for (int64_t i = slots_ * int64_t{kDecodeRow}; i < layout_.slots * kDecodeRow; ++i)
      scores_[i] = 0.0F;
    const auto keys = call_.band.any(0, problem_.seqlen_q);
    const int64_t split_begin = task_.split * call_.split_keys,
                  split_end = split_begin + call_.split_keys;
    begin_ = keys.begin > split_begin ? keys.begin : split_begin;
    end_ = keys.end < split_end ? keys.end : split_end;
  }

  // A slot's row: query of head. A quad's missing rows repeat the last one, and missing heads too.
  struct Row {
    int64_t head;
    int64_t query;
  };
  Row row_of(int slot) const {
    slot = slot < slots_ ? slot : slots_ - 1;
    int row = slot % head_slots_;
    row = row < rows_ ? row : rows_ - 1;
    return {(task_.kv_head + slot / head_slots_) * problem_.group_size() + row / problem_.seqlen_q,
            row % problem_.seqlen_q};
  }

  template <class T>
  __attribute__((noinline)) void load_queries() {
    for (int slot = 0; slot < slots_; ++slot) {
      const Row row = row_of(slot);
      const T* q = element<const T>(tensors_.q, problem_.q, task_.batch, row.query, row.head);
      pack_keys<Isa>(StridedRows<T>{q}, 1, problem_.head_dim,
                     queries_ + slot * layout_.query_stride, 0);
    }
  }

  // K's and V's dtypes are those of Q but where rows are unpacked.
  DType dtype_of(const TensorSpec& spec) const {
    return &spec == &problem_.k ? problem_.k_dtype : problem_.v_dtype;
  }
  int64_t element_bytes(const TensorSpec& spec) const {
    return problem_.quantized_kv() ? size_of(dtype_of(spec)) : element_bytes_;
  }
  // Bytes of all the task's heads in a row of K or V.
  int64_t row_bytes(const TensorSpec& spec, int64_t dim) const {
    if (problem_.quantized_kv()) dim = row_elements(dtype_of(spec), dim);
    return (dim + (task_.kv_heads - 1) * (task_.kv_heads > 1 ? spec.strides[2] : 0)) *
           element_bytes(spec);
  }
  template <class Walk>
  Walk walk_from(const Tensor& tensor, const TensorSpec& spec, int64_t key) const {
    const int64_t bytes = element_bytes(spec);
    if constexpr (Walk::kPaged) {
      return {element_address(tensor, spec, bytes, 0, 0, task_.kv_head), bytes,
              PageWalk(call_.pages, spec, key)};
    } else {
      return {element_address(tensor, spec, bytes, task_.batch, key, task_.kv_head),
              spec.strides[1] * bytes};
    }
  }
  // As many rows, as far as they are the task's, StreamPrefetch::kAheadBytes behind [first,
  // first + count).
  template <class Walk>
  __attribute__((noinline)) StreamAhead<Walk> rows_ahead(const Tensor& tensor,
                                                         const TensorSpec& spec, int64_t dim,
                                                         int64_t first, int count) const {
    const int64_t bytes = row_bytes(spec, dim);
    const int64_t from =
        first + round_up((StreamPrefetch<Walk>::kAheadBytes + bytes - 1) / bytes, kQuad);
    const int64_t rows = end_ - from < count ? end_ - from : count;
    return StreamAhead<Walk>({walk_from<Walk>(tensor, spec, rows > 0 ? from : first), bytes, rows});
  }
  // The block from `first` on, as far as it is the task's.
  template <class Walk>
  __attribute__((noinline)) BlockPrefetch<Walk> block_ahead(int64_t first, int block) const {
    const int64_t rows = end_ - first < block ? end_ - first : block, half = (rows + 1) / 2;
    const int64_t from = rows > 0 ? first : end_ - 1,
                  middle = rows > 0 ? first + rows - half : from;
    const Walk walks[] = {walk_from<Walk>(tensors_.k, problem_.k, from),
                          walk_from<Walk>(tensors_.v, problem_.v, from),
                          walk_from<Walk>(tensors_.k, problem_.k, middle),
                          walk_from<Walk>(tensors_.v, problem_.v, middle)};
    return {walks, row_bytes(problem_.k, problem_.head_dim),
            row_bytes(problem_.v, problem_.head_dim_v), half};
  }
  // attend(first, count, ahead) for each block of the task's keys; ahead fetches the next block's
  // keys and values.
  template <class Attend>
  void for_each_block(int block, Attend attend) {
    if (call_.pages.pages != nullptr) {
      walk_blocks<PagedWalk>(block, attend);
    } else {
      walk_blocks<StridedWalk>(block, attend);
    }
  }
  template <class Walk, class Attend>
  void walk_blocks(int block, Attend& attend) {
    KeptBlock at = next_kept(begin_, block);
    block_ahead<Walk>(at.first, block).template all<Isa>();
    while (at.first < end_) {
      const int count = end_ - at.first < block ? static_cast<int>(end_ - at.first) : block;
      const KeptBlock next = next_kept(at.first + count, block);
      auto ahead = block_ahead<Walk>(next.first, block);
      masked_ = at.masked;
      attend(at.first, count, ahead);
      at = next;
    }
  }

  // A block of keys of which the bool mask keeps something.
  struct KeptBlock {
    int64_t first;
    bool masked;  // but not all
  };
  // The first one from `first` on; without one, end_.
  __attribute__((noinline)) KeptBlock next_kept(int64_t first, int block) const {
    const MaskRows rows{task_.batch, task_.kv_head * problem_.group_size(),
                        task_.kv_heads * problem_.group_size(), 0, problem_.seqlen_q};
    for (; first < end_; first += block) {
      const Kept kept = kept_of_rows<Isa>(problem_, tensors_, rows, first,
                                          end_ - first < block ? end_ - first : block);
      if (kept != Kept::none) return {first, kept == Kept::some};
    }
    return {end_, false};
  }
  // Rows [first, first + count) of the task's first KV head, count > 0; those of pages are listed
  // in offsets.
  template <class Rows>
  FULMEN_INLINE Rows rows_at(const Tensor& tensor, const TensorSpec& spec, int64_t first, int count,
                             int64_t* offsets) const {
    using T = typename Rows::Element;
    if constexpr (std::is_same_v<Rows, ListedRows<T>>) {
      list_rows(call_.pages, spec, first, count, offsets);
      return {element<const T>(tensor, spec, 0, 0, task_.kv_head), offsets};
    } else {
      return {element<const T>(tensor, spec, task_.batch, first, task_.kv_head), spec.strides[1]};
    }
  }

  // Slots that go through a softmax together; their scores are the first rows of scores_.
  struct Slots {
    int begin;
    int end;
  };
  // Scores -> probabilities in place, as words, and the state. The maxima of all rows come first:
  // their latency is what would be waited for.
  __attribute__((noinline)) void softmax(Slots slots, int64_t first, int count) {
    const bool general =
        count % kLanes != 0 || problem_.bias.present ||
        needs_row_scores(call_, masked_, 0, problem_.seqlen_q, first, first + count);
    if (general) {
      with_bias_type(problem_.bias.dtype, [&](auto* type) __attribute__((always_inline)) {
        adjust<std::remove_pointer_t<decltype(type)>>(slots, first, count);
      });
    }
    const float factor = general ? algorithm::kLog2E : call_.scale.log2_scale;
    using algorithm::ScoreUnits;
    if (call_.scale.units == ScoreUnits::natural) {
      softmax_in<ScoreUnits::natural>(slots, count, factor);
    } else {
      softmax_in<ScoreUnits::base2>(slots, count, factor);
    }
  }
  template <algorithm::ScoreUnits kUnits>
  FULMEN_INLINE void softmax_in(Slots slots, int count, float factor) {
    for (int slot = slots.begin; slot < slots.end; slot += kQuad)
      find_maxima<kUnits>(slot, scores_of(slots, slot), count, factor);
    for (int slot = slots.begin; slot < slots.end; slot += kQuad)
      exponentials<kUnits>(slot, scores_of(slots, slot), count, factor);
  }

  // Raw products -> scores in natural units, -inf up to a whole vector.
  template <class BiasT>
  void adjust(Slots slots, int64_t first, int count) {
    for (int slot = slots.begin; slot < slots.end; ++slot) {
      const Row row = row_of(slot);
      const RowScores<BiasT> rule(call_, task_.batch, row.head, row.query);
      float* s = scores_of(slots, slot);
      for (int key = 0; key < count; key += kLanes) {
        Isa::store(s + key, rule.template scores<Isa>(call_, Isa::load(s + key), first + key,
                                                      first + count));
      }
    }
  }

  float* scores_of(Slots slots, int slot) const {
    return scores_ + static_cast<int64_t>(slot - slots.begin) * kDecodeRow;
  }

  template <algorithm::ScoreUnits kUnits>
  FULMEN_INLINE void find_maxima(int slot, const float* s, int count, float factor) {
    Vec max[kQuad];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) max[r] = Isa::set1(-__builtin_inff());
    for (int key = 0; key < count; key += kLanes) {
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r)
        max[r] = Isa::max(max[r], Isa::load(s + r * kDecodeRow + key));
    }
    const Vec new_max = algorithm::maximum_of<Isa, kUnits>(Isa::quad_max(max), Isa::set1(factor));
    const auto step = algorithm::softmax_step<Isa, kUnits>(Isa::load_quad(max_ + slot), new_max);
    Isa::store_quad(max_ + slot, step.max);
    Isa::store_quad(rescale_ + slot, step.rescale);
  }

  template <algorithm::ScoreUnits kUnits>
  FULMEN_INLINE void exponentials(int slot, float* s, int count, float factor) {
    Vec offset[kQuad], sum[kQuad];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      const Vec max = Isa::broadcast(max_ + slot + r);
      offset[r] = Isa::sub(Isa::zero(), Isa::replace_minus_infinity(max, Isa::zero()));
      sum[r] = Isa::zero();
    }
    for (int key = 0; key < count; key += kElements) {
      Vec p[kGroup][kQuad];
#pragma GCC unroll 2
      for (int i = 0; i < kGroup; ++i) {
        const int at = key + i * kLanes;
#pragma GCC unroll 4
        for (int r = 0; r < kQuad; ++r) {
          p[i][r] = i > 0 && at >= count
                        ? Isa::set1(-__builtin_inff())
                        : algorithm::exponent_of<Isa, kUnits>(Isa::load(s + r * kDecodeRow + at),
                                                              Isa::set1(factor), offset[r]);
        }
        Isa::template exp2<5>(p[i]);
#pragma GCC unroll 4
        for (int r = 0; r < kQuad; ++r) sum[r] = Isa::add(sum[r], p[i][r]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) {
        float* word = s + r * kDecodeRow + key / kGroup;
        if constexpr (kGroup == 1) {
          Isa::store(word, p[0][r]);
        } else {
          Isa::store(word, Isa::pack_sequence(p[0][r], p[1][r]));
        }
      }
    }
    const Vec old = Isa::mul(Isa::load_quad(sum_ + slot), Isa::load_quad(rescale_ + slot));
    Isa::store_quad(sum_ + slot, Isa::add(old, Isa::quad_add(sum)));
  }

  // output *= rescale.
  void rescale_output(Slots slots) {
    for (int slot = slots.begin; slot < slots.end; ++slot) {
      const float factor = rescale_[slot];
      if (factor == 1.0F) continue;
      float* o = output_ + slot * layout_.value_stride;
      for (int64_t d = 0; d < layout_.value_stride; d += kLanes)
        Isa::store(o + d, Isa::mul(Isa::load(o + d), Isa::set1(factor)));
    }
  }
  // Whether a slot's probabilities tell which keys it attends. Those of a row that has a NaN are
  // NaN for all keys, and so is its output, whatever the values.
  FULMEN_INLINE bool tells_attended(int slot) const { return max_[slot] == max_[slot]; }
  // Whether some keys of the block may not be attended by any row.
  bool masked() const { return masked_ || call_.band.left >= 0 || call_.band.right >= 0; }

  const ForwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  const DecodeTask& task_;
  int64_t element_bytes_;
  DecodeScratch layout_;
  int rows_;
  int head_slots_;
  int slots_;
  int64_t begin_ = 0, end_ = 0;
  bool masked_ = false;  // the bool mask leaves out keys of the block at hand
  float* queries_;
  float* scores_;
  float* output_;
  float* max_;  // of each slot
  float* sum_;
  float* rescale_;  // of what the output holds, by the last block
};

}  // namespace fulmen::cpu
