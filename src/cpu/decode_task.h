// Attention of few query rows over many keys: K and V stream through once, read where they are.
//
// What limits it is memory, and memory is fast only when it is read in order: the KV heads that lie side by side in a row are
// therefore streamed together, four key rows at a time, with a prefetch that runs ahead through the same addresses in order. The
// keys are cut into splits, each a task, so that all cores have work even for one sequence; a split leaves its unnormalised output
// with the rows' maxima and sums, and whoever ends a group's last split merges them, in order.
//
// Products keep head_dim in lanes; scores are [keys][slots] with every query row of every head in a slot of its own, so that the
// softmax is the tile kernels'.
#pragma once

#include "cpu/finish_rows.h"
#include "cpu/forward_call.h"
#include "cpu/row_scores.h"
#include "cpu/storage.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

// Fetches rows of memory in the order of their addresses, a line or two at a time: the processor drops prefetches that come in
// bursts.
class StreamPrefetch {
 public:
  FULMEN_INLINE StreamPrefetch(const void* base, int64_t stride, int64_t row_bytes, int64_t first, int64_t last)
      : at_(static_cast<const char*>(base) + first * stride), stride_(stride), row_bytes_(row_bytes), rows_left_(last - first) {}

  template <class Isa, int kLines>
  FULMEN_INLINE void lines() {
    if (rows_left_ <= 0) return;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) Isa::prefetch(at_ + offset_ + i * 64);
    offset_ += kLines * 64;
    if (offset_ >= row_bytes_) {
      offset_ = 0;
      at_ += stride_;
      --rows_left_;
    }
  }

 private:
  const char* at_;
  int64_t stride_;
  int64_t row_bytes_;
  int64_t rows_left_;
  int64_t offset_ = 0;
};

template <class Isa, class T>
class DecodeTaskRunner {
 public:
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kQuad = 4;  // rows, and keys, of a register block
  // Lines that a step of kLanes of head_dim takes from four rows: the prefetch keeps the same pace.
  static constexpr int kLines =
      kQuad * kLanes * static_cast<int>(sizeof(T)) < 64 ? 1 : kQuad * kLanes * static_cast<int>(sizeof(T)) / 64;
  static constexpr int64_t kAheadBytes = 16 * 1024;  // measured: 8 KiB and less leave bandwidth unused, more falls out of L1

  DecodeTaskRunner(const ForwardCall& call, const DecodeTask& task, float* scratch)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        layout_(decode_scratch(problem_, kLanes, call.heads_per_task)),
        rows_(decode_rows(problem_)),
        head_slots_(decode_slots(problem_)),
        slots_(head_slots_ * task.kv_heads),
        queries_(scratch + layout_.queries),
        scores_(scratch + layout_.scores),
        output_(call.partials + decode_partial(call, layout_, task, task.split)),
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
    for (int64_t first = begin; first < end_; first += kDecodeKeys) {
      const int count = end_ - first < kDecodeKeys ? static_cast<int>(end_ - first) : kDecodeKeys;
      score(first, count);
      switch (problem_.bias.dtype) {
        case DType::fp16:
          softmax<Fp16>(first, count);
          break;
        case DType::bf16:
          softmax<Bf16>(first, count);
          break;
        default:
          softmax<float>(first, count);
          break;
      }
      multiply_values(first, count);
    }
  }

 private:
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
      float* to = queries_ + slot * layout_.query_stride;
      for (int64_t d = 0; d < problem_.head_dim; d += kLanes) {
        const int64_t left = problem_.head_dim - d;
        Isa::store(to + d, left >= kLanes ? Isa::load_as_float(q + d) : Isa::load_as_float(q + d, static_cast<int>(left)));
      }
    }
  }

  StreamPrefetch stream(const Tensor& tensor, const TensorSpec& spec, int64_t dim, int64_t first, int count) const {
    const int64_t size = sizeof(T);
    const int64_t row_bytes = (task_.kv_heads > 1 ? (task_.kv_heads - 1) * spec.strides[2] + dim : dim) * size;
    const int64_t ahead = round_up((kAheadBytes + row_bytes - 1) / row_bytes, kQuad);
    const int64_t last = first + count + ahead < end_ ? first + count + ahead : end_;
    const int64_t from = first + ahead < last ? first + ahead : last;
    return {element<const T>(tensor, spec, task_.batch, 0, task_.kv_head), spec.strides[1] * size, row_bytes, from, last};
  }

  // scores[key][slot] of a block, raw.
  __attribute__((noinline)) void score(int64_t first, int count) {
    StreamPrefetch ahead = stream(tensors_.k, problem_.k, problem_.head_dim, first, count);
    for (int key = 0; key < count; key += kQuad) {
      for (int h = 0; h < task_.kv_heads; ++h) {
        const T* k = element<const T>(tensors_.k, problem_.k, task_.batch, first + key, task_.kv_head + h);
        const T* keys[kQuad];  // a last quad repeats the last key; nobody reads those scores
#pragma GCC unroll 4
        for (int i = 0; i < kQuad; ++i) keys[i] = k + (key + i < count ? i : count - 1 - key) * problem_.k.strides[1];
        for (int slot = h * head_slots_; slot < (h + 1) * head_slots_; slot += kQuad) {
          score_quad(keys, queries_ + slot * layout_.query_stride, scores_ + key * kBlockM + slot, ahead);
        }
      }
    }
  }

  FULMEN_INLINE void score_quad(const T* const (&keys)[kQuad], const float* q, float* out, StreamPrefetch& ahead) {
    Vec sum[kQuad][kQuad];  // [key][row]
#pragma GCC unroll 4
    for (int i = 0; i < kQuad; ++i) {
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) sum[i][r] = Isa::zero();
    }
    int64_t d = 0;
    for (; d + kLanes <= problem_.head_dim; d += kLanes) {
      Vec key[kQuad];
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) key[i] = Isa::load_as_float(keys[i] + d);
      ahead.template lines<Isa, kLines>();
      add_products(sum, key, q + d);
    }
    if (d < problem_.head_dim) {
      Vec key[kQuad];
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) key[i] = Isa::load_as_float(keys[i] + d, static_cast<int>(problem_.head_dim - d));
      add_products(sum, key, q + d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQuad; ++i) Isa::store_quad(out + i * kBlockM, Isa::quad_add(sum[i]));
  }

  FULMEN_INLINE void add_products(Vec (&sum)[kQuad][kQuad], const Vec (&key)[kQuad], const float* q) {
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      const Vec query = Isa::load(q + r * layout_.query_stride);
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) sum[i][r] = Isa::fma(query, key[i], sum[i][r]);
    }
  }

  // Scores -> probabilities in place, and the state. Lanes past the last slot hold whatever was there; nobody reads them.
  template <class BiasT>
  __attribute__((noinline)) void softmax(int64_t first, int count) {
    const bool general = problem_.bias.present || needs_row_scores(call_, 0, problem_.seqlen_q, first, first + count);
    if (general) adjust<BiasT>(first, count);
    alignas(64) float tile_max[kBlockM];
    for (int slot = 0; slot < slots_; slot += kLanes) {
      Vec max = Isa::set1(-__builtin_inff());
      for (int key = 0; key < count; ++key) max = Isa::max(max, Isa::load(scores_ + key * kBlockM + slot));
      Isa::store(tile_max + slot, max);
    }
    softmax_tile<Isa, 5>(scores_, tile_max, slots_, count, general ? algorithm::kLog2E : call_.scale.log2_scale, state_);
  }

  // Raw products -> scores in natural units: blocks are turned so that a row's keys lie in lanes, and back.
  template <class BiasT>
  void adjust(int64_t first, int count) {
    for (int slot = 0; slot < slots_; slot += kLanes) {
      for (int key = 0; key < count; key += kLanes) {
        Vec block[kLanes];
        for (int i = 0; i < kLanes; ++i) block[i] = Isa::load(scores_ + (key + i) * kBlockM + slot);
        Isa::transpose(block);
        for (int i = 0; i < kLanes && slot + i < slots_; ++i) {
          const Row row = row_of(slot + i);
          const RowScores<BiasT> rule(call_, task_.batch, row.head, row.query);
          block[i] = rule.template scores<Isa>(call_, block[i], first + key, first + count);
        }
        Isa::transpose(block);
        for (int i = 0; i < kLanes; ++i) Isa::store(scores_ + (key + i) * kBlockM + slot, block[i]);
      }
    }
  }

  // output = rescale * output + P V.
  __attribute__((noinline)) void multiply_values(int64_t first, int count) {
    StreamPrefetch ahead = stream(tensors_.v, problem_.v, problem_.head_dim_v, first, count);
    const bool masked = problem_.keep_mask.present || call_.band.left >= 0 || call_.band.right >= 0;
    for (int slot = 0; slot < slots_; ++slot) {
      const float factor = state_.rescale[slot];
      if (factor == 1.0F) continue;
      float* o = output_ + slot * layout_.value_stride;
      for (int64_t d = 0; d < layout_.value_stride; d += kLanes) Isa::store(o + d, Isa::mul(Isa::load(o + d), Isa::set1(factor)));
    }
    for (int key = 0; key < count; key += kQuad) {
      for (int h = 0; h < task_.kv_heads; ++h) {
        const T* v = element<const T>(tensors_.v, problem_.v, task_.batch, first + key, task_.kv_head + h);
        for (int slot = h * head_slots_; slot < (h + 1) * head_slots_; slot += kQuad) {
          if (count - key >= kQuad && !(masked && hides_key(scores_ + key * kBlockM + slot))) {
            value_quad<kQuad>(v, scores_ + key * kBlockM + slot, output_ + slot * layout_.value_stride, ahead);
          } else {
            for (int i = 0; i < count - key && i < kQuad; ++i) {
              // A key that no row attends may hold anything, a NaN even: it is not touched.
              if (masked && all_zero(scores_ + (key + i) * kBlockM + slot)) continue;
              value_quad<1>(v + i * problem_.v.strides[1], scores_ + (key + i) * kBlockM + slot,
                            output_ + slot * layout_.value_stride, ahead);
            }
          }
        }
      }
    }
  }

  FULMEN_INLINE static bool all_zero(const float* p) { return p[0] == 0.0F && p[1] == 0.0F && p[2] == 0.0F && p[3] == 0.0F; }
  FULMEN_INLINE static bool hides_key(const float* p) {
    return all_zero(p) || all_zero(p + kBlockM) || all_zero(p + 2 * kBlockM) || all_zero(p + 3 * kBlockM);
  }

  template <int kKeys>
  FULMEN_INLINE void value_quad(const T* v, const float* p, float* out, StreamPrefetch& ahead) {
    int64_t d = 0;
    for (; d + 4 * kLanes <= problem_.head_dim_v; d += 4 * kLanes) value_block<kKeys, 4>(v + d, p, out + d, kLanes, ahead);
    for (; d < problem_.head_dim_v; d += kLanes) {
      const int64_t left = problem_.head_dim_v - d;
      value_block<kKeys, 1>(v + d, p, out + d, left < kLanes ? static_cast<int>(left) : kLanes, ahead);
    }
  }

  template <int kKeys, int kVecs>
  FULMEN_INLINE void value_block(const T* v, const float* p, float* out, int lanes, StreamPrefetch& ahead) {
    Vec sum[kQuad][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::load(out + r * layout_.value_stride + c * kLanes);
    }
#pragma GCC unroll 4
    for (int key = 0; key < kKeys; ++key) {
      const T* source = v + key * problem_.v.strides[1];
      if (kVecs > 1) ahead.template lines<Isa, kLines>();
      Vec value[kVecs];
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) {
        value[c] = kVecs > 1 || lanes == kLanes ? Isa::load_as_float(source + c * kLanes) : Isa::load_as_float(source, lanes);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) {
        const Vec probability = Isa::broadcast(p + key * kBlockM + r);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::fma(value[c], probability, sum[r][c]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) Isa::store(out + r * layout_.value_stride + c * kLanes, sum[r][c]);
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
  DecodeTaskRunner<Isa, T>(call, task, scratch).run();
}

// Merges the splits of a group of KV heads, always in the same order, and writes its rows.
template <class Isa, class T>
void decode_combine(const ForwardCall& call, const DecodeTask& task) {
  using Vec = typename Isa::Vec;
  const Problem& problem = *call.problem;
  const AttentionTensors& tensors = *call.tensors;
  const DecodeScratch layout = decode_scratch(problem, Isa::kLanes, call.heads_per_task);
  const int rows = decode_rows(problem), head_slots = decode_slots(problem);
  const int64_t max_at = round_up(layout.slots * layout.value_stride, 16), sum_at = max_at + kBlockM;
  const auto partial = [&](int split) { return call.partials + decode_partial(call, layout, task, split); };
  for (int index = 0; index < task.kv_heads * rows; ++index) {
    const int row = index % rows, slot = index / rows * head_slots + row;
    const int64_t head = (task.kv_head + index / rows) * problem.group_size() + row / problem.seqlen_q;
    const int64_t query = row % problem.seqlen_q;
    float max = -__builtin_inff();
    for (int split = 0; split < call.num_splits; ++split) {
      const float other = partial(split)[max_at + slot];
      max = other > max || other != other ? other : max;
    }
    // The weights of the splits replace their maxima: nobody reads those again for this row.
    float sum = 0;
    for (int split = 0; split < call.num_splits; ++split) {
      float* part_max = partial(split) + max_at + slot;
      alignas(64) float lanes[Isa::kLanes];
      Isa::store(lanes, algorithm::combine_weight<Isa>(Isa::set1(*part_max), Isa::set1(max)));
      *part_max = lanes[0];
      sum += lanes[0] * partial(split)[sum_at + slot];
    }
    const float log2_sink =
        problem.sinks.present ? *element<const float>(tensors.sinks, problem.sinks, 0, 0, 0, head) * algorithm::kLog2E : 0.0F;
    float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
    if (problem.sinks.present || problem.lse.present) {
      const RowEnd end = finish_row(max, sum, problem.sinks.present, log2_sink);
      factor = end.factor;
      if (problem.lse.present) *element<float>(tensors.lse, problem.lse, task.batch, head, query) = end.lse;
    }
    T* out = element<T>(tensors.out, problem.out, task.batch, query, head);
    for (int64_t d = 0; d < problem.head_dim_v; d += Isa::kLanes) {
      Vec total = Isa::zero();
      for (int split = 0; split < call.num_splits; ++split) {
        const float* part = partial(split);
        total = Isa::fma(Isa::load(part + slot * layout.value_stride + d), Isa::broadcast(part + max_at + slot), total);
      }
      total = Isa::mul(total, Isa::set1(factor));
      const int64_t left = problem.head_dim_v - d;
      if (left >= Isa::kLanes) {
        Isa::store_from_float(out + d, total);
      } else {
        Isa::store_from_float(out + d, total, static_cast<int>(left));
      }
    }
  }
}

}  // namespace fulmen::cpu
