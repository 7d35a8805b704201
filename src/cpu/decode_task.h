// Attention of few query rows over many keys: K and V stream through once, read where they are.
//
// What limits it is memory, and memory is fast only when it is read in order: the KV heads that lie side by side in a row are
// therefore streamed together, a few key rows at a time, with a prefetch that runs ahead through the same addresses in order, or
// through those of the next block (stream_prefetch.h). The keys are cut into splits, each a task, so that all cores have work even
// for one sequence; a split leaves its unnormalised output with the rows' maxima and sums, and whoever ends a group's last split
// merges them, in order.
//
// Paged keys and values are read where they are, too: rows are then listed for a block at a time, and the prefetch walks the pages.
//
// Products keep head_dim in lanes; scores are [slots][keys] with every query row of every head in a slot of its own.
#pragma once

#include "algorithm/online_softmax.h"
#include "cpu/forward_call.h"
#include "cpu/pack.h"
#include "cpu/row_scores.h"
#include "cpu/storage.h"
#include "cpu/stream_prefetch.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

// kBlocks: a block of keys and values is fetched during the one before it (BlockPrefetch), else as it is read (StreamPrefetch).
template <class Isa, class T, bool kBlocks>
class DecodeTaskRunner {
 public:
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kGroup = Isa::kGroup;
  static constexpr int kElements = kLanes * kGroup;  // of a vector of words
  static constexpr int kQuad = 4;                    // query rows of a register block
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

  DecodeTaskRunner(const ForwardCall& call, const DecodeTask& task, float* scratch)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        layout_(decode_scratch(call, kLanes, kGroup)),
        rows_(decode_rows(problem_)),
        head_slots_(decode_slots(problem_)),
        slots_(head_slots_ * task.kv_heads),
        queries_(scratch + layout_.queries),
        scores_(scratch + layout_.scores),
        output_(task.partials + task.split * call.partial_stride),
        state_(*reinterpret_cast<SoftmaxState*>(output_ + round_up(layout_.slots * layout_.value_stride, 16))) {}

  void run() {
    load_queries();
    for (int i = 0; i < kBlockM; i += kLanes) {
      Isa::store(state_.max + i, Isa::set1(-__builtin_inff()));
      Isa::store(state_.sum + i, Isa::zero());
      Isa::store(state_.rescale + i, Isa::zero());
    }
    for (int64_t i = 0; i < slots_ * layout_.value_stride; i += kLanes) Isa::store(output_ + i, Isa::zero());
    const auto keys = call_.band.any(0, problem_.seqlen_q);
    const int64_t split_begin = task_.split * call_.split_keys, split_end = split_begin + call_.split_keys;
    const int64_t begin = keys.begin > split_begin ? keys.begin : split_begin;
    end_ = keys.end < split_end ? keys.end : split_end;
    if (call_.pages.pages != nullptr) {
      attend<PagedWalk>(begin);
    } else {
      attend<StridedWalk>(begin);
    }
  }

 private:
  template <class Walk>
  void attend(int64_t begin) {
    const int block = layout_.block_keys;
    for (int64_t first = begin; first < end_; first += block) {
      const int count = end_ - first < block ? static_cast<int>(end_ - first) : block;
      if constexpr (kBlocks) {
        auto next = block_ahead<Walk>(first + count, block);
        score(first, count, next);
        softmax(first, count);
        multiply_values(first, count, next);
      } else {
        auto keys = rows_ahead<Walk>(tensors_.k, problem_.k, problem_.head_dim, first, count);
        score(first, count, keys);
        softmax(first, count);
        auto values = rows_ahead<Walk>(tensors_.v, problem_.v, problem_.head_dim_v, first, count);
        multiply_values(first, count, values);
      }
    }
  }

  // A slot's row: query of head. A quad's missing rows repeat the last one.
  struct Row {
    int64_t head;
    int64_t query;
  };
  Row row_of(int slot) const {
    int row = slot % head_slots_;
    row = row < rows_ ? row : rows_ - 1;
    return {(task_.kv_head + slot / head_slots_) * problem_.group_size() + row / problem_.seqlen_q, row % problem_.seqlen_q};
  }

  void load_queries() {
    for (int slot = 0; slot < slots_; ++slot) {
      const Row row = row_of(slot);
      const T* q = element<const T>(tensors_.q, problem_.q, task_.batch, row.query, row.head);
      pack_keys<Isa>(StridedRows<T>{q}, 1, problem_.head_dim, queries_ + slot * layout_.query_stride, 0);
    }
  }

  // Bytes of all the task's heads in a row of K or V.
  int64_t row_bytes(const TensorSpec& spec, int64_t dim) const {
    return (dim + (task_.kv_heads - 1) * (task_.kv_heads > 1 ? spec.strides[2] : 0)) * static_cast<int64_t>(sizeof(T));
  }
  template <class Walk>
  Walk walk_from(const Tensor& tensor, const TensorSpec& spec, int64_t key) const {
    constexpr int64_t kSize = sizeof(T);
    if constexpr (Walk::kPaged) {
      return {head_of(tensor, spec), kSize, PageWalk(call_.pages, spec, key)};
    } else {
      return {element<const T>(tensor, spec, task_.batch, key, task_.kv_head), spec.strides[1] * kSize};
    }
  }
  // As many rows, as far as they are the task's, StreamPrefetch::kAheadBytes behind [first, first + count).
  template <class Walk>
  StreamPrefetch<Walk> rows_ahead(const Tensor& tensor, const TensorSpec& spec, int64_t dim, int64_t first, int count) const {
    const int64_t bytes = row_bytes(spec, dim);
    const int64_t from = first + round_up((StreamPrefetch<Walk>::kAheadBytes + bytes - 1) / bytes, kQuad);
    const int64_t rows = end_ - from < count ? end_ - from : count;
    return {walk_from<Walk>(tensor, spec, rows > 0 ? from : first), bytes, rows};
  }
  // The block from `first` on, as far as it is the task's.
  template <class Walk>
  BlockPrefetch<Walk> block_ahead(int64_t first, int block) const {
    const int64_t rows = end_ - first < block ? end_ - first : block, half = (rows + 1) / 2;
    const int64_t from = rows > 0 ? first : end_ - 1, middle = rows > 0 ? first + rows - half : from;
    const Walk walks[] = {walk_from<Walk>(tensors_.k, problem_.k, from), walk_from<Walk>(tensors_.v, problem_.v, from),
                          walk_from<Walk>(tensors_.k, problem_.k, middle), walk_from<Walk>(tensors_.v, problem_.v, middle)};
    return {walks, row_bytes(problem_.k, problem_.head_dim), row_bytes(problem_.v, problem_.head_dim_v), half};
  }
  // Where the pages' rows of the task's first KV head are counted from.
  const T* head_of(const Tensor& tensor, const TensorSpec& spec) const {
    return element<const T>(tensor, spec, 0, 0, task_.kv_head);
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
    const T* k =
        kPaged ? head_of(tensors_.k, problem_.k) : element<const T>(tensors_.k, problem_.k, task_.batch, first, task_.kv_head);
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

  void softmax(int64_t first, int count) {
    switch (problem_.bias.dtype) {
      case DType::fp16:
        return softmax_of<Fp16>(first, count);
      case DType::bf16:
        return softmax_of<Bf16>(first, count);
      default:
        return softmax_of<float>(first, count);
    }
  }
  // Scores -> probabilities in place, as words, and the state. The maxima of all rows come first: their latency is what would be
  // waited for.
  template <class BiasT>
  __attribute__((noinline)) void softmax_of(int64_t first, int count) {
    const bool general =
        count % kLanes != 0 || problem_.bias.present || needs_row_scores(call_, 0, problem_.seqlen_q, first, first + count);
    if (general) adjust<BiasT>(first, count);
    const float factor = general ? algorithm::kLog2E : call_.scale.log2_scale;
    for (int slot = 0; slot < slots_; slot += kQuad) find_maxima(slot, count, factor);
    for (int slot = 0; slot < slots_; slot += kQuad) exponentials(slot, count, factor);
  }

  // Raw products -> scores in natural units, -inf up to a whole vector.
  template <class BiasT>
  void adjust(int64_t first, int count) {
    for (int slot = 0; slot < slots_; ++slot) {
      const Row row = row_of(slot);
      const RowScores<BiasT> rule(call_, task_.batch, row.head, row.query);
      float* s = scores_ + slot * kDecodeRow;
      for (int key = 0; key < count; key += kLanes) {
        Isa::store(s + key, rule.template scores<Isa>(call_, Isa::load(s + key), first + key, first + count));
      }
    }
  }

  FULMEN_INLINE void find_maxima(int slot, int count, float factor) {
    Vec max[kQuad];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) max[r] = Isa::set1(-__builtin_inff());
    for (int key = 0; key < count; key += kLanes) {
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) max[r] = Isa::max(max[r], Isa::load(scores_ + (slot + r) * kDecodeRow + key));
    }
    const auto step =
        algorithm::softmax_step<Isa>(Isa::load_quad(state_.max + slot), Isa::mul(Isa::quad_max(max), Isa::set1(factor)));
    Isa::store_quad(state_.max + slot, step.max);
    Isa::store_quad(state_.rescale + slot, step.rescale);
  }

  FULMEN_INLINE void exponentials(int slot, int count, float factor) {
    float* s = scores_ + slot * kDecodeRow;
    Vec offset[kQuad], sum[kQuad];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      const Vec max = Isa::broadcast(state_.max + slot + r);
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
          p[i][r] = i > 0 && at >= count ? Isa::set1(-__builtin_inff())
                                         : Isa::fused(Isa::load(s + r * kDecodeRow + at), Isa::set1(factor), offset[r]);
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
    const Vec old = Isa::mul(Isa::load_quad(state_.sum + slot), Isa::load_quad(state_.rescale + slot));
    Isa::store_quad(state_.sum + slot, Isa::add(old, Isa::quad_add(sum)));
  }

  // output = rescale * output + P V.
  template <class Ahead>
  __attribute__((noinline)) void multiply_values(int64_t first, int count, Ahead ahead) {
    constexpr bool kPaged = Ahead::kPaged;
    int64_t offsets[kPaged ? kMaxDecodeKeys : 1];
    if constexpr (kPaged) list_rows(call_.pages, problem_.v, first, count, offsets);
    const bool masked = problem_.keep_mask.present || call_.band.left >= 0 || call_.band.right >= 0;
    for (int slot = 0; slot < slots_; ++slot) {
      const float factor = state_.rescale[slot];
      if (factor == 1.0F) continue;
      float* o = output_ + slot * layout_.value_stride;
      for (int64_t d = 0; d < layout_.value_stride; d += kLanes) Isa::store(o + d, Isa::mul(Isa::load(o + d), Isa::set1(factor)));
    }
    const int64_t stride = problem_.v.strides[1], head_stride = problem_.v.strides[2];
    const int64_t value_stride = layout_.value_stride, dim = problem_.head_dim_v;
    const int slots = slots_, head_slots = head_slots_;
    const T* v =
        kPaged ? head_of(tensors_.v, problem_.v) : element<const T>(tensors_.v, problem_.v, task_.batch, first, task_.kv_head);
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
        if (keys == kValueKeys && !(masked && hides_key(p))) {
          value_quad<kValueKeys / kGroup, true>(values_at(values), ~0U, p, out, value_stride, dim, ahead);
        } else {
          value_words(values_at(values), keys, masked, p, out, ahead);
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
  __attribute__((noinline)) void value_words(Rows v, int keys, bool masked, const float* p, float* out, Ahead& ahead) {
    for (int key = 0; key < keys; key += kGroup, ++p) {
      unsigned alive = 0;
      for (int i = 0; i < kGroup && key + i < keys; ++i) alive |= !masked || attended(p, i) ? 1U << i : 0U;
      if (alive == 0) continue;
      value_quad<1, false>(rows_from(v, key), alive, p, out, layout_.value_stride, problem_.head_dim_v, ahead);
    }
  }

  static FULMEN_INLINE StridedRows<T> rows_from(StridedRows<T> v, int key) { return {v[key], v.stride}; }
  static FULMEN_INLINE ListedRows<T> rows_from(ListedRows<T> v, int key) { return {v.base, v.offsets + key}; }
  static FULMEN_INLINE void step_columns(StridedRows<T>& v, int64_t columns) { v.first += columns; }
  static FULMEN_INLINE void step_columns(ListedRows<T>& v, int64_t columns) { v.base += columns; }

  FULMEN_INLINE static bool hides_key(const float* p) {
    bool all = true;
    for (int key = 0; key < kValueKeys; ++key) all &= attended(p, key);
    return !all;
  }

  // Whether one of four rows has a probability for the key: its place in a word tells its half.
  FULMEN_INLINE static bool attended(const float* p, int key) {
    const uint32_t half = kGroup == 1 ? ~0U : 0xFFFFU << 16 * (key % kGroup);
    uint32_t words = 0;
    for (int r = 0; r < kQuad; ++r) {
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

  const ForwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  const DecodeTask& task_;
  DecodeScratch layout_;
  int rows_;
  int head_slots_;
  int slots_;
  int64_t end_ = 0;
  float* queries_;
  float* scores_;
  float* output_;
  SoftmaxState& state_;
};

template <class Isa, class T>
void decode_task(const ForwardCall& call, const DecodeTask& task, float* scratch) {
  if constexpr (requires { Isa::prefetch_l2(nullptr); }) {
    if (call.fetch_blocks) return DecodeTaskRunner<Isa, T, true>(call, task, scratch).run();
  }
  DecodeTaskRunner<Isa, T, false>(call, task, scratch).run();
}

}  // namespace fulmen::cpu
