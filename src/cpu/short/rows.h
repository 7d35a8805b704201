// The part of a short-sequence task that does not depend on the dtype of Q, K, V and O: where
// scores lie, the product that gives them, the softmax, and what is fetched for the tasks to come.
// It is compiled once for an instruction set, not once a dtype.
#pragma once

#include <type_traits>

#include "algorithm/online_softmax.h"
#include "cpu/short/call.h"
#include "cpu/tile/kept_rows.h"
#include "cpu/tile/output_product.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/row_scores.h"
#include "cpu/tile/score_product.h"
#include "cpu/tile/step_prefetch.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

template <class Isa>
class ShortRows {
 public:
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kQuad = 4;  // rows whose reductions across lanes are done together

  // element_bytes: of Q, K, V and O.
  __attribute__((noinline)) ShortRows(const ForwardCall& call, const PrefillRows& task,
                                      float* scratch, const ShortScratch& layout,
                                      int64_t element_bytes)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        element_bytes_(element_bytes),
        kv_head_(task.head / problem_.group_size()),
        rows_(static_cast<int>(task.row_end - task.row_begin)),
        keys_(static_cast<int>(problem_.seqlen_k)),
        planes_((keys_ + kBlockM - 1) / kBlockM),
        masked_(kept_of_rows<Isa>(problem_, tensors_,
                                  {task_.batch, task_.head, 1, task_.row_begin, rows_}, 0,
                                  keys_) != Kept::all),
        layout_(layout),
        scratch_(scratch) {
    const void* out = element_address(tensors_.out, problem_.out, element_bytes, task_.batch,
                                      task_.row_begin, task_.head);
    streams_ = call.stream_output && planes_ == 1 &&
               rows_are_lines(out, problem_.out.strides[1] * element_bytes,
                              problem_.head_dim_v * element_bytes);
  }

 protected:
  int plane_keys(int plane) const {
    const int left = keys_ - plane * kBlockM;
    return left < kBlockM ? left : kBlockM;
  }
  float* scores(int plane) {
    return scratch_ + layout_.scores + static_cast<int64_t>(plane) * kBlockM * kBlockM;
  }
  float* lane_max(int plane) {
    return scratch_ + layout_.lane_max + static_cast<int64_t>(plane) * kBlockM * kLanes;
  }
  float* row_max() { return scratch_ + layout_.rows; }
  float* row_sum() { return scratch_ + layout_.rows + kBlockM; }
  float* row_factor() { return scratch_ + layout_.rows + 2 * kBlockM; }

  // Whether the scores need more than a factor and a bias.
  bool general() const {
    return needs_row_scores(call_, masked_, task_.row_begin, task_.row_end, 0, keys_);
  }
  // As alive_keys().
  const uint8_t* alive_keys_of(int64_t first, int keys, uint8_t* alive) const {
    if (!masked_ && call_.band.left < 0 && call_.band.right < 0) return nullptr;
    return alive_keys<Isa>(call_, task_, first, keys, alive);
  }

  // The products with a plane's packed keys: scores(plane)[row][key] and
  // lane_max(plane)[row][lane]; with the problem's bias if add_bias, and -inf up to a whole vector.
  __attribute__((noinline)) void multiply_keys(int plane, bool add_bias, const float* queries,
                                               int64_t query_stride, StepPrefetch<Isa>& ahead) {
    ahead.spread(score_steps<Isa, false, kShortStepWords>(plane_keys(plane),
                                                          words_of<Isa>(problem_.head_dim), rows_));
    with_bias_type(problem_.bias.dtype, [&](auto* type) __attribute__((always_inline)) {
      using BiasT = std::remove_pointer_t<decltype(type)>;
      const BiasT* bias = nullptr;
      if (add_bias && problem_.bias.present) {
        bias = element<const BiasT>(tensors_.bias, problem_.bias, task_.batch, task_.head,
                                    task_.row_begin) +
               plane * kBlockM;
      }
      if (plane_keys(plane) % kLanes == 0) {
        multiply_keys<false>(plane, bias, queries, query_stride, ahead);
      } else {
        multiply_keys<true>(plane, bias, queries, query_stride, ahead);
      }
    });
  }
  template <bool kRagged, class BiasT>
  FULMEN_INLINE void multiply_keys(int plane, const BiasT* bias, const float* queries,
                                   int64_t query_stride, StepPrefetch<Isa>& ahead) {
    const KeyLaneScores<Isa, BiasT, kRagged> epilogue{
        plane_keys(plane), problem_.softmax_scale, bias,  problem_.bias.strides[2],
        scores(plane),     lane_max(plane),        &ahead};
    score_tile<Isa>(scratch_ + layout_.keys + plane * layout_.key_plane, plane_keys(plane), queries,
                    query_stride, words_of<Isa>(problem_.head_dim), rows_, epilogue);
  }

  void softmax(bool general) {
    softmax(general, [] {});
  }
  // Scores -> P, as words, and the rows' maxima and sums. meanwhile: called for every four rows of
  // exponentials.
  template <class Meanwhile>
  void softmax(bool general, const Meanwhile& meanwhile) {
    using algorithm::ScoreUnits;
    const bool are_scores = general || problem_.bias.present;  // and not raw products
    const float factor = are_scores ? algorithm::kLog2E : call_.scale.log2_scale;
    if (call_.scale.units == ScoreUnits::natural) {
      softmax_in<ScoreUnits::natural>(general, factor, meanwhile);
    } else {
      softmax_in<ScoreUnits::base2>(general, factor, meanwhile);
    }
  }
  template <algorithm::ScoreUnits kUnits, class Meanwhile>
  void softmax_in(bool general, float factor, const Meanwhile& meanwhile) {
    for (int plane = 0; plane < planes_; ++plane) {
      if (general) adjust(plane);
      find_maxima<kUnits>(plane, factor);
    }
    for (int plane = 0; plane < planes_; ++plane) {
      if (general || problem_.lse.present) {
        exponentials<5, kUnits, 0>(plane, factor, meanwhile);
      } else if (round_up(plane_keys(plane), kLanes) == 4 * kLanes) {
        exponentials<Isa::kExp2Degree, kUnits, 4 * kLanes>(plane, factor, meanwhile);
      } else {
        exponentials<Isa::kExp2Degree, kUnits, 0>(plane, factor, meanwhile);
      }
    }
  }

  void adjust(int plane) {
    with_bias_type(problem_.bias.dtype, [&](auto* type) __attribute__((always_inline)) {
      adjust_by<std::remove_pointer_t<decltype(type)>>(plane);
    });
  }

  // Raw products -> scores in natural units, in place, and their lanes' maxima.
  template <class BiasT>
  __attribute__((noinline)) void adjust_by(int plane) {
    for (int row = 0; row < rows_; ++row) {
      const RowScores<BiasT> rule(call_, task_.batch, task_.head, task_.row_begin + row);
      float* s = scores(plane) + row * kBlockM;
      Vec max = Isa::set1(-__builtin_inff());
      for (int key = 0; key < plane_keys(plane); key += kLanes) {
        const Vec x =
            rule.template scores<Isa>(call_, Isa::load(s + key), plane * kBlockM + key, keys_);
        Isa::store(s + key, x);
        max = Isa::max(max, x);
      }
      Isa::store(lane_max(plane) + row * kLanes, max);
    }
  }

  // The rows' maxima. Four rows cross the lanes together; rows past the end give numbers that
  // nobody uses.
  template <algorithm::ScoreUnits kUnits>
  __attribute__((noinline)) void find_maxima(int plane, float factor) {
    for (int row = 0; row < rows_; row += kQuad) {
      const float* lanes = lane_max(plane) + row * kLanes;
      const Vec max[kQuad] = {Isa::load(lanes), Isa::load(lanes + kLanes),
                              Isa::load(lanes + 2 * kLanes), Isa::load(lanes + 3 * kLanes)};
      Vec quad = algorithm::maximum_of<Isa, kUnits>(Isa::quad_max(max), Isa::set1(factor));
      if (plane > 0) quad = Isa::max(Isa::load_quad(row_max() + row), quad);
      Isa::store_quad(row_max() + row, quad);
    }
  }

  // Scores -> P in place, as words, and the rows' sums. kKeys: the plane's keys where known,
  // else 0.
  template <int kDegree, algorithm::ScoreUnits kUnits, int kKeys, class Meanwhile>
  __attribute__((noinline)) void exponentials(int plane, float factor, const Meanwhile& meanwhile) {
    const int keys = kKeys > 0 ? kKeys : plane_keys(plane);
    for (int row = 0; row < rows_; row += kQuad) {
      meanwhile();
      float* s = scores(plane) + row * kBlockM;
      Vec offset[kQuad], sum[kQuad];
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) {
        const Vec max = Isa::broadcast(row_max() + row + r);
        offset[r] = Isa::sub(Isa::zero(), Isa::replace_minus_infinity(max, Isa::zero()));
        sum[r] = Isa::zero();
      }
#pragma GCC unroll 4
      for (int key = 0; key < keys; key += kLanes * Isa::kGroup) {
        Vec p[Isa::kGroup][kQuad];
#pragma GCC unroll 2
        for (int i = 0; i < Isa::kGroup; ++i) {
          const int at = key + i * kLanes;
          if (i > 0 && at >= keys) {
#pragma GCC unroll 4
            for (int r = 0; r < kQuad; ++r) p[i][r] = Isa::zero();
            break;
          }
#pragma GCC unroll 4
          for (int r = 0; r < kQuad; ++r)
            p[i][r] = algorithm::exponent_of<Isa, kUnits>(Isa::load(s + r * kBlockM + at),
                                                          Isa::set1(factor), offset[r]);
          Isa::template exp2<kDegree>(p[i]);
#pragma GCC unroll 4
          for (int r = 0; r < kQuad; ++r) sum[r] = Isa::add(sum[r], p[i][r]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kQuad; ++r) {
          float* word = s + r * kBlockM + key / Isa::kGroup;
          if constexpr (Isa::kGroup == 1) {
            Isa::store(word, p[0][r]);
          } else {
            Isa::store(word, Isa::pack_sequence(p[0][r], p[1][r]));
          }
        }
      }
      Vec total = Isa::quad_add(sum);
      if (plane > 0) total = Isa::add(Isa::load_quad(row_sum() + row), total);
      Isa::store_quad(row_sum() + row, total);
    }
  }

  // What is fetched over the product with a plane's keys.
  __attribute__((noinline)) StepPrefetch<Isa> ahead_of_scores(int plane) const {
    StepPrefetch<Isa> ahead(call_.fetch_batches && call_.fetch_into_l2);
    if (call_.fetch_batches) {
      add_next_batch(ahead, plane);
    } else {
      ahead.add(lines_of(tensors_.v, problem_.v, problem_.head_dim_v, task_, kv_head_,
                         plane * kBlockM, plane_keys(plane)));
    }
    if (plane == 0 && !streams_)
      ahead.add(lines_of(tensors_.out, problem_.out, problem_.head_dim_v, task_, task_.head,
                         task_.row_begin, rows_));
    return ahead;
  }
  // Over the product with the values, of one plane.
  __attribute__((noinline)) StepPrefetch<Isa> ahead_of_output() const {
    StepPrefetch<Isa> ahead(call_.fetch_batches && call_.fetch_into_l2);
    if (call_.fetch_batches) {
      add_next_batch(ahead, 1);
    } else if (const PrefillRows* next = task_.next; next != nullptr) {
      ahead.add(lines_of(tensors_.k, problem_.k, problem_.head_dim, *next,
                         next->head / problem_.group_size(), 0, keys_));
      ahead.add(lines_of(tensors_.q, problem_.q, problem_.head_dim, *next, next->head,
                         next->row_begin, next->row_end - next->row_begin));
      ahead.add(bias_of(next->batch, next->head, next->row_begin, next->row_end - next->row_begin));
    }
    ahead.spread(
        output_steps<Isa, kShortStepWords>(layout_.value_stride, words_of<Isa>(keys_), rows_));
    return ahead;
  }

  // Rows of a head that this task, or the next one, is about to use.
  RowPrefetch rows_of(const Tensor& tensor, const TensorSpec& spec, int64_t dim,
                      const PrefillRows& task, int64_t head, int64_t first, int64_t rows) const {
    const int64_t bytes = element_bytes_;
    return fetch_rows(element_address(tensor, spec, bytes, task.batch, first, head),
                      spec.strides[1] * bytes, dim * bytes, rows);
  }
  // The same for a StepPrefetch, to which a row may be long: as one where they follow each other.
  RowPrefetch lines_of(const Tensor& tensor, const TensorSpec& spec, int64_t dim,
                       const PrefillRows& task, int64_t head, int64_t first, int64_t rows) const {
    const bool one = spec.strides[1] == dim;
    return rows_of(tensor, spec, one ? dim * rows : dim, task, head, first, one ? 1 : rows);
  }
  RowPrefetch bias_of(int64_t batch, int64_t head, int64_t first, int64_t rows) const {
    if (!problem_.bias.present) return {};
    const int64_t size = problem_.bias.dtype == DType::fp32 ? 4 : 2,
                  stride = problem_.bias.strides[2];
    return fetch_rows(element_address(tensors_.bias, problem_.bias, size, batch, head, first),
                      stride * size, problem_.seqlen_k * size, stride == 0 ? 1 : rows);
  }

  // A share of the next batch element's memory for each of this one's tasks, half of it in each of
  // the two products: in the order of addresses, since rows of one head that lie between those of
  // others are slow to read (docs/lab/cpu_xeon.md).
  void add_next_batch(StepPrefetch<Isa>& ahead, int product) const {
    const TensorSpec& bias = problem_.bias;
    // A bias that all share stays in the cache. One of its own lies together for each head, so the
    // next head's is soon enough.
    if (const PrefillRows* next = task_.next;
        next != nullptr && bias.strides[0] != 0 && bias.strides[1] != 0)
      ahead.add(bias_of(next->batch, next->head, next->row_begin, next->row_end - next->row_begin),
                product, 2);
    PrefillRows there = task_;
    if (++there.batch == problem_.batch) return;
    // The last one is a head's first task.
    const int64_t blocks = (problem_.seqlen_q + kBlockM - 1) / kBlockM;
    const int64_t part =
        (task_.head * blocks + blocks - 1 - task_.row_begin / kBlockM) * 2 + product;
    const int64_t parts = problem_.num_heads * blocks * 2;
    const auto add = [&](const Tensor& tensor, const TensorSpec& spec, int64_t rows, int64_t heads,
                         int64_t dim) {
      if (spec.strides[0] == 0) return;  // the same one
      if (side_by_side(spec, dim)) {
        const int64_t row = (heads - 1) * spec.strides[2] + dim;
        return ahead.add(lines_of(tensor, spec, row, there, 0, 0, rows), part, parts);
      }
      const int64_t head = task_.head * heads / problem_.num_heads,
                    of_head = part - head * parts / heads;
      ahead.add(lines_of(tensor, spec, dim, there, head, 0, rows), of_head, parts / heads);
    };
    add(tensors_.q, problem_.q, problem_.seqlen_q, problem_.num_heads, problem_.head_dim);
    add(tensors_.k, problem_.k, problem_.seqlen_k, problem_.num_kv_heads, problem_.head_dim);
    add(tensors_.v, problem_.v, problem_.seqlen_k, problem_.num_kv_heads, problem_.head_dim_v);
    if (bias.strides[0] != 0 && bias.strides[1] == 0)
      ahead.add(bias_of(there.batch, 0, 0, problem_.seqlen_q), part, parts);
  }

  const ForwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  PrefillRows task_;
  int64_t element_bytes_;
  int64_t kv_head_;
  int rows_;
  int keys_;
  int planes_;
  bool masked_;           // the bool mask leaves some keys out
  bool streams_ = false;  // the output goes past the caches, if it is written in whole lines
  const ShortScratch& layout_;
  float* scratch_;
};

}  // namespace fulmen::cpu
