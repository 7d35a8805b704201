// Attention of few query rows over many keys: K and V stream through once, read where they are, for all query heads that share
// them.
//
// head_dim lies in SIMD lanes. The keys are cut into splits, each a task, so that all cores have work even for one sequence; a
// split leaves its unnormalised output with the rows' maxima and sums, and whoever ends a KV head's last split merges them in
// order.
#pragma once

#include "cpu/finish_rows.h"
#include "cpu/forward_call.h"
#include "cpu/row_scores.h"
#include "cpu/storage.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

template <class Isa, class T>
class DecodeTaskRunner {
 public:
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kQuad = 4;            // rows, and keys, of a register block
  static constexpr int kKeys = kDecodeKeys;  // of a block: K and V of it stay in L1 until they are used

  DecodeTaskRunner(const ForwardCall& call, const DecodeTask& task, float* scratch)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        layout_(decode_scratch(problem_, kLanes)),
        rows_(decode_rows(problem_)),
        queries_(scratch + layout_.queries),
        scores_(scratch + layout_.scores),
        rescale_(scratch + layout_.rescale),
        partial_(call.partials + decode_partial(call, layout_, task)) {}

  void run() {
    load_queries();
    float* max = partial_ + rows_ * layout_.value_stride;
    float* sum = max + layout_.padded_rows;
    for (int row = 0; row < layout_.padded_rows; ++row) {
      max[row] = -__builtin_inff();
      sum[row] = 0;
    }
    for (int64_t i = 0; i < static_cast<int64_t>(rows_) * layout_.value_stride; i += kLanes) Isa::store(partial_ + i, Isa::zero());
    const auto keys = call_.band.any(0, problem_.seqlen_q);
    const int64_t split_begin = task_.split * call_.split_keys, split_end = split_begin + call_.split_keys;
    const int64_t begin = keys.begin > split_begin ? keys.begin : split_begin;
    const int64_t end = keys.end < split_end ? keys.end : split_end;
    for (int64_t first = begin; first < end; first += kKeys) {
      const int count = end - first < kKeys ? static_cast<int>(end - first) : kKeys;
      score(first, count);
      switch (problem_.bias.dtype) {
        case DType::fp16:
          softmax<Fp16>(first, count, max, sum);
          break;
        case DType::bf16:
          softmax<Bf16>(first, count, max, sum);
          break;
        default:
          softmax<float>(first, count, max, sum);
          break;
      }
      multiply_values(first, count, end - first - count);
    }
  }

 private:
  // Row r of the task is query r % seqlen_q of head r / seqlen_q of the group.
  int64_t head_of(int row) const { return task_.kv_head * problem_.group_size() + row / problem_.seqlen_q; }
  int64_t query_of(int row) const { return row % problem_.seqlen_q; }

  void load_queries() {
    for (int row = 0; row < layout_.padded_rows; ++row) {
      float* to = queries_ + row * layout_.query_stride;
      const T* q = row < rows_ ? element<const T>(tensors_.q, problem_.q, task_.batch, query_of(row), head_of(row)) : nullptr;
      for (int64_t d = 0; d < problem_.head_dim; d += kLanes) {
        const int64_t left = problem_.head_dim - d;
        Isa::store(to + d, q == nullptr     ? Isa::zero()
                           : left >= kLanes ? Isa::load_as_float(q + d)
                                            : Isa::load_as_float(q + d, static_cast<int>(left)));
      }
    }
  }

  // scores[row][key] of a block, raw; V's rows of the block are fetched meanwhile.
  __attribute__((noinline)) void score(int64_t first, int count) {
    const T* k = element<const T>(tensors_.k, problem_.k, task_.batch, first, task_.kv_head);
    const RowPrefetch values = rows_ahead(tensors_.v, problem_.v, problem_.head_dim_v, first, count);
    for (int key = 0; key < count; key += kQuad) {
      for (int i = 0; i < kQuad; ++i) values.row<Isa>(key + i);
      const T* rows[kQuad];
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) rows[i] = k + (key + i < count ? key + i : count - 1) * problem_.k.strides[1];
      for (int row = 0; row < layout_.padded_rows; row += kQuad) score_quad(rows, row, scores_ + row * kBlockM + key);
    }
  }

  FULMEN_INLINE void score_quad(const T* const (&keys)[kQuad], int row, float* out) {
    Vec sum[kQuad][kQuad];  // [row][key]
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) sum[r][i] = Isa::zero();
    }
    const float* q = queries_ + row * layout_.query_stride;
    int64_t d = 0;
    for (; d + kLanes <= problem_.head_dim; d += kLanes) {
      Vec key[kQuad];
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) key[i] = Isa::load_as_float(keys[i] + d);
      add_products(sum, key, q + d);
    }
    if (d < problem_.head_dim) {
      Vec key[kQuad];
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) key[i] = Isa::load_as_float(keys[i] + d, static_cast<int>(problem_.head_dim - d));
      add_products(sum, key, q + d);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) Isa::store_quad(out + r * kBlockM, Isa::quad_add(sum[r]));
  }

  FULMEN_INLINE void add_products(Vec (&sum)[kQuad][kQuad], const Vec (&key)[kQuad], const float* q) {
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      const Vec query = Isa::load(q + r * layout_.query_stride);
#pragma GCC unroll 4
      for (int i = 0; i < kQuad; ++i) sum[r][i] = Isa::fma(query, key[i], sum[r][i]);
    }
  }

  // Scores -> probabilities in place; the rows' state; what the output so far is to be rescaled by.
  template <class BiasT>
  __attribute__((noinline)) void softmax(int64_t first, int count, float* max, float* sum) {
    const bool general =
        count % kLanes != 0 || problem_.bias.present || needs_row_scores(call_, 0, problem_.seqlen_q, first, first + count);
    const Vec factor = Isa::set1(general ? algorithm::kLog2E : call_.scale.log2_scale);
    for (int row = 0; row < rows_; ++row) {
      float* s = scores_ + row * kBlockM;
      Vec row_max = Isa::set1(-__builtin_inff());
      if (general) {
        const RowScores<BiasT> rule(call_, task_.batch, head_of(row), query_of(row));
        for (int key = 0; key < count; key += kLanes) {
          const Vec x = rule.template scores<Isa>(call_, Isa::load(s + key), first + key, first + count);
          Isa::store(s + key, x);
          row_max = Isa::max(row_max, x);
        }
      } else {
        for (int key = 0; key < count; key += kLanes) row_max = Isa::max(row_max, Isa::load(s + key));
      }
      const Vec tile_max = Isa::mul(Isa::set1(Isa::reduce_max(row_max)), factor);
      const auto step = algorithm::softmax_step<Isa>(Isa::set1(max[row]), tile_max);
      const Vec offset = Isa::sub(Isa::zero(), step.offset);
      Vec total = Isa::zero();
      for (int key = 0; key < count; key += kLanes) {
        const Vec p = Isa::template exp2<5>(Isa::fma(Isa::load(s + key), factor, offset));
        total = Isa::add(total, p);
        Isa::store(s + key, p);
      }
      alignas(64) float lanes[2 * kLanes];
      Isa::store(lanes, step.max);
      Isa::store(lanes + kLanes, step.rescale);
      max[row] = lanes[0];
      rescale_[row] = lanes[kLanes];
      sum[row] = sum[row] * rescale_[row] + Isa::reduce_add(total);
    }
  }

  // partial[row] = rescale[row] * partial[row] + P V; the next block's keys are fetched meanwhile.
  __attribute__((noinline)) void multiply_values(int64_t first, int count, int64_t left) {
    const T* v = element<const T>(tensors_.v, problem_.v, task_.batch, first, task_.kv_head);
    const int ahead = left < kKeys ? static_cast<int>(left) : kKeys;
    RowPrefetch keys = rows_ahead(tensors_.k, problem_.k, problem_.head_dim, first + count, ahead);
    for (int row = 0; row < rows_; row += kQuad) {
      int64_t d = 0;
      for (; d + 4 * kLanes <= problem_.head_dim_v; d += 4 * kLanes) {
        value_block<4>(v + d, row, d, count, keys, kLanes);
        keys.rows = 0;
      }
      for (; d < problem_.head_dim_v; d += kLanes) {
        const int64_t lanes = problem_.head_dim_v - d;
        value_block<1>(v + d, row, d, count, keys, lanes < kLanes ? static_cast<int>(lanes) : kLanes);
        keys.rows = 0;
      }
    }
  }

  template <int kVecs>
  FULMEN_INLINE void value_block(const T* v, int row, int64_t column, int count, const RowPrefetch& ahead, int lanes) {
    // A group's last quad may hang over: its missing rows repeat the last one, with the same result.
    float* to[kQuad];
    const float* p[kQuad];
    Vec sum[kQuad][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
      const int source = row + r < rows_ ? row + r : rows_ - 1;
      to[r] = partial_ + source * layout_.value_stride + column;
      p[r] = scores_ + source * kBlockM;
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::mul(Isa::load(to[r] + c * kLanes), Isa::broadcast(rescale_ + source));
    }
    for (int key = 0; key < count; ++key) {
      ahead.row<Isa>(key);
      const T* source = v + key * problem_.v.strides[1];
      Vec value[kVecs];
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) {
        value[c] = kVecs > 1 || lanes == kLanes ? Isa::load_as_float(source + c * kLanes) : Isa::load_as_float(source, lanes);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) {
        const Vec probability = Isa::broadcast(p[r] + key);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) sum[r][c] = Isa::fma(value[c], probability, sum[r][c]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kQuad; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) Isa::store(to[r] + c * kLanes, sum[r][c]);
    }
  }

  RowPrefetch rows_ahead(const Tensor& tensor, const TensorSpec& spec, int64_t dim, int64_t first, int rows) const {
    const T* base = element<const T>(tensor, spec, task_.batch, rows > 0 ? first : 0, task_.kv_head);
    return {reinterpret_cast<const char*>(base), spec.strides[1] * static_cast<int64_t>(sizeof(T)),
            dim * static_cast<int64_t>(sizeof(T)), rows};
  }

  const ForwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  const DecodeTask& task_;
  DecodeScratch layout_;
  int rows_;
  float* queries_;
  float* scores_;
  float* rescale_;
  float* partial_;
};

template <class Isa, class T>
void decode_task(const ForwardCall& call, const DecodeTask& task, float* scratch) {
  DecodeTaskRunner<Isa, T>(call, task, scratch).run();
}

// Merges the splits of a KV head, always in the same order, and writes its rows.
template <class Isa, class T>
void decode_combine(const ForwardCall& call, int64_t batch, int64_t kv_head) {
  using Vec = typename Isa::Vec;
  const Problem& problem = *call.problem;
  const AttentionTensors& tensors = *call.tensors;
  const DecodeScratch layout = decode_scratch(problem, Isa::kLanes);
  const int rows = decode_rows(problem);
  const auto partial = [&](int split) { return call.partials + decode_partial(call, layout, {batch, kv_head, split}); };
  const int64_t max_at = rows * layout.value_stride, sum_at = max_at + layout.padded_rows;
  for (int row = 0; row < rows; ++row) {
    float max = -__builtin_inff();
    for (int split = 0; split < call.num_splits; ++split) {
      const float other = partial(split)[max_at + row];
      max = other > max || other != other ? other : max;
    }
    const int64_t head = kv_head * problem.group_size() + row / problem.seqlen_q, query = row % problem.seqlen_q;
    // The weights of the splits replace their maxima: nobody reads those again for this row.
    float sum = 0;
    for (int split = 0; split < call.num_splits; ++split) {
      float* part_max = partial(split) + max_at + row;
      alignas(64) float lanes[Isa::kLanes];
      Isa::store(lanes, algorithm::combine_weight<Isa>(Isa::set1(*part_max), Isa::set1(max)));
      *part_max = lanes[0];
      sum += lanes[0] * partial(split)[sum_at + row];
    }
    const float log2_sink =
        problem.sinks.present ? *element<const float>(tensors.sinks, problem.sinks, 0, 0, 0, head) * algorithm::kLog2E : 0.0F;
    float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
    if (problem.sinks.present || problem.lse.present) {
      const RowEnd end = finish_row(max, sum, problem.sinks.present, log2_sink);
      factor = end.factor;
      if (problem.lse.present) *element<float>(tensors.lse, problem.lse, batch, head, query) = end.lse;
    }
    T* out = element<T>(tensors.out, problem.out, batch, query, head);
    for (int64_t d = 0; d < problem.head_dim_v; d += Isa::kLanes) {
      Vec total = Isa::zero();
      for (int split = 0; split < call.num_splits; ++split) {
        const float* part = partial(split);
        total = Isa::fma(Isa::load(part + row * layout.value_stride + d), Isa::broadcast(part + max_at + row), total);
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
