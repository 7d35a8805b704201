// Attention over up to 128 keys, chess boards above all: one head's rows as one task, the whole score row at once, no online
// rescale.
//
// Keys lie in SIMD lanes, S = Q K^T: bias and masks are then read in their natural layout, Q is read by broadcast where it is, and
// only K is transposed. A row's max and sum cross lanes, four rows at a time.
#pragma once

#include "cpu/finish_rows.h"
#include "cpu/forward_call.h"
#include "cpu/pack.h"
#include "cpu/tile.h"

namespace fulmen::cpu {

// What the scores of a task's rows need beyond the product; row and key pointers are those of the task's first row.
template <class BiasT>
struct ShortScores {
  const BiasT* bias = nullptr;
  int64_t bias_stride = 0;
  const uint8_t* keep = nullptr;
  int64_t keep_stride = 0;
  float alibi_slope = 0;
  float scale = 1;
  float softcap = 0;
  algorithm::Band band;
  int64_t first_row = 0;
};

enum class ShortKind {
  plain,    // scores stay raw
  bias,     // scale * raw + bias
  general,  // everything, in natural units
};

template <class Isa, class T>
class ShortTask {
 public:
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kQuad = 4;  // rows whose reductions across lanes are done together

  ShortTask(const ForwardCall& call, const TileTask& task, float* scratch)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        kv_head_(task.head / problem_.group_size()),
        rows_(static_cast<int>(task.row_end - task.row_begin)),
        keys_(static_cast<int>(problem_.seqlen_k)),
        planes_((keys_ + kBlockM - 1) / kBlockM),
        layout_(short_scratch(problem_, kLanes, Isa::kGroup)),
        scratch_(scratch) {}

  void run() {
    score();
    switch (problem_.bias.dtype) {
      case DType::fp16:
        softmax<Fp16>();
        break;
      case DType::bf16:
        softmax<Bf16>();
        break;
      default:
        softmax<float>();
        break;
    }
    output();
  }

 private:
  int plane_keys(int plane) const {
    const int left = keys_ - plane * kBlockM;
    return left < kBlockM ? left : kBlockM;
  }
  float* scores(int plane) { return scratch_ + layout_.scores + static_cast<int64_t>(plane) * kBlockM * kBlockM; }
  float* row_max() { return scratch_ + layout_.rows; }
  float* row_sum() { return scratch_ + layout_.rows + kBlockM; }
  float* row_factor() { return scratch_ + layout_.rows + 2 * kBlockM; }

  // The raw products: scores(plane)[row][key].
  void score() {
    const T* q = element<const T>(tensors_.q, problem_.q, task_.batch, task_.row_begin, task_.head);
    const int64_t q_stride = problem_.q.strides[1];
    const float* queries = reinterpret_cast<const float*>(q);
    int64_t query_stride = q_stride / Isa::kGroup;
    // In place: what the product reads is what is stored, and no word hangs over the end of a row.
    const bool in_place =
        sizeof(T) * Isa::kGroup == sizeof(float) && problem_.head_dim % Isa::kGroup == 0 && q_stride % Isa::kGroup == 0;
    if (!in_place) {
      pack_keys<Isa>(q, q_stride, rows_, problem_.head_dim, scratch_ + layout_.queries, layout_.query_stride);
      queries = scratch_ + layout_.queries;
      query_stride = layout_.query_stride;
    }
    float unused[kBlockM];
    for (int plane = 0; plane < planes_; ++plane) {
      const T* k = element<const T>(tensors_.k, problem_.k, task_.batch, static_cast<int64_t>(plane) * kBlockM, kv_head_);
      float* keys = scratch_ + layout_.keys + plane * layout_.key_plane;
      pack_queries<Isa>(k, problem_.k.strides[1], plane_keys(plane), problem_.head_dim, keys);
      score_tile<Isa, ScoreKind::plain>(keys, queries, query_stride, words_of<Isa>(problem_.head_dim), plane_keys(plane), rows_,
                                        call_.scale, scores(plane), scores(plane), unused);
    }
  }

  template <class BiasT>
  void softmax() {
    ShortScores<BiasT> extra;
    if (problem_.bias.present) {
      extra.bias = element<const BiasT>(tensors_.bias, problem_.bias, task_.batch, task_.head, task_.row_begin);
      extra.bias_stride = problem_.bias.strides[2];
    }
    if (problem_.keep_mask.present) {
      extra.keep = element<const uint8_t>(tensors_.keep_mask, problem_.keep_mask, task_.batch, task_.head, task_.row_begin);
      extra.keep_stride = problem_.keep_mask.strides[2];
    }
    if (problem_.alibi_slopes.present) {
      extra.alibi_slope = *element<const float>(tensors_.alibi_slopes, problem_.alibi_slopes, task_.batch, 0, 0, task_.head);
    }
    extra.scale = problem_.softmax_scale;
    extra.softcap = problem_.softcap;
    extra.band = call_.band;
    extra.first_row = task_.row_begin;
    const auto all = call_.band.all(task_.row_begin, task_.row_end);
    const bool general = keys_ % kLanes != 0 || extra.keep != nullptr || extra.alibi_slope != 0.0F || extra.softcap > 0.0F ||
                         all.begin > 0 || all.end < keys_ || !(extra.scale > 0.0F);
    const int degree = problem_.lse.present ? 5 : Isa::kExp2Degree;
    if (general) {
      softmax_kind<ShortKind::general, 5>(extra);
    } else if (extra.bias != nullptr) {
      degree == 5 ? softmax_kind<ShortKind::bias, 5>(extra) : softmax_kind<ShortKind::bias, Isa::kExp2Degree>(extra);
    } else {
      degree == 5 ? softmax_kind<ShortKind::plain, 5>(extra) : softmax_kind<ShortKind::plain, Isa::kExp2Degree>(extra);
    }
  }

  template <ShortKind kKind, int kDegree, class BiasT>
  __attribute__((noinline)) void softmax_kind(const ShortScores<BiasT>& extra) {
    const float factor = kKind == ShortKind::plain ? extra.scale * algorithm::kLog2E : algorithm::kLog2E;
    for (int row = 0; row < rows_; row += kQuad) {
      Vec max[kQuad];
#pragma GCC unroll 4
      for (int r = 0; r < kQuad; ++r) max[r] = Isa::set1(-__builtin_inff());
      for (int plane = 0; plane < planes_; ++plane) {
        float* s = scores(plane) + row * kBlockM;
        for (int key = 0; key < plane_keys(plane); key += kLanes) {
#pragma GCC unroll 4
          for (int r = 0; r < kQuad; ++r) {
            Vec x = Isa::load(s + r * kBlockM + key);
            if constexpr (kKind != ShortKind::plain) {
              // Rows past the end repeat the last one; their results are not used.
              const int source = row + r < rows_ ? row + r : rows_ - 1;
              x = adjust<kKind>(x, extra, source, plane * kBlockM + key);
              Isa::store(s + r * kBlockM + key, x);
            }
            max[r] = Isa::max(max[r], x);
          }
        }
      }
      const Vec quad_max = Isa::mul(Isa::quad_max(max), Isa::set1(factor));
      Isa::store_quad(row_max() + row, quad_max);
      const Vec minus_offset = Isa::sub(Isa::zero(), Isa::replace_minus_infinity(quad_max, Isa::zero()));
      const Vec offset[kQuad] = {Isa::template quad_broadcast<0>(minus_offset), Isa::template quad_broadcast<1>(minus_offset),
                                 Isa::template quad_broadcast<2>(minus_offset), Isa::template quad_broadcast<3>(minus_offset)};
      Vec sum[kQuad] = {Isa::zero(), Isa::zero(), Isa::zero(), Isa::zero()};
      for (int plane = 0; plane < planes_; ++plane) {
        exponentials<kDegree>(scores(plane) + row * kBlockM, plane_keys(plane), factor, offset, sum);
      }
      Isa::store_quad(row_sum() + row, Isa::quad_add(sum));
    }
  }

  // Four rows of scores -> P in place, as words.
  template <int kDegree>
  FULMEN_INLINE void exponentials(float* s, int keys, float factor, const Vec (&offset)[kQuad], Vec (&sum)[kQuad]) {
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
        for (int r = 0; r < kQuad; ++r) p[i][r] = Isa::fma(Isa::load(s + r * kBlockM + at), Isa::set1(factor), offset[r]);
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
  }

  // Raw products of kLanes keys of a row -> scores.
  template <ShortKind kKind, class BiasT>
  FULMEN_INLINE Vec adjust(Vec x, const ShortScores<BiasT>& extra, int row, int key) {
    if constexpr (kKind == ShortKind::bias) {
      return Isa::fma(x, Isa::set1(extra.scale), Isa::load_as_float(extra.bias + row * extra.bias_stride + key));
    } else {
      const int count = keys_ - key < kLanes ? keys_ - key : kLanes;
      if (extra.softcap > 0.0F) {
        x = Isa::mul(tanh_from_log2<Isa>(Isa::mul(x, Isa::set1(call_.scale.tanh_scale))), Isa::set1(extra.softcap));
      } else {
        x = Isa::mul(x, Isa::set1(extra.scale));
      }
      if (extra.bias != nullptr) {
        const BiasT* bias = extra.bias + row * extra.bias_stride + key;
        x = Isa::add(x, count == kLanes ? Isa::load_as_float(bias) : Isa::load_as_float(bias, count));
      }
      const Vec key_index = Isa::add(Isa::iota(), Isa::set1(static_cast<float>(key)));
      if (extra.alibi_slope != 0.0F) {
        const auto center = static_cast<float>(extra.first_row + row + extra.band.diagonal);
        x = Isa::fma(Isa::abs(Isa::sub(key_index, Isa::set1(center))), Isa::set1(-extra.alibi_slope), x);
      }
      const Vec minus_infinity = Isa::set1(-__builtin_inff());
      if (extra.keep != nullptr) {
        const uint8_t* keep = extra.keep + row * extra.keep_stride + key;
        const Vec kept = count == kLanes ? Isa::load_as_float(keep) : Isa::load_as_float(keep, count);
        x = Isa::select_less(Isa::zero(), kept, x, minus_infinity);
      }
      const auto first = static_cast<float>(extra.band.first(extra.first_row + row));
      const auto end = static_cast<float>(extra.band.last_plus_one(extra.first_row + row));  // at most seqlen_k: covers the tail
      x = Isa::select_less(key_index, Isa::set1(first), minus_infinity, x);
      return Isa::select_less(key_index, Isa::set1(end), x, minus_infinity);
    }
  }

  void output() {
    float* out = scratch_ + layout_.output;
    finish_rows<Isa>(problem_, tensors_, task_.batch, task_.head, task_.row_begin, rows_, row_max(), row_sum(), row_factor());
    float* values = scratch_ + layout_.values;
    for (int plane = 0; plane < planes_; ++plane) {
      const T* v = element<const T>(tensors_.v, problem_.v, task_.batch, static_cast<int64_t>(plane) * kBlockM, kv_head_);
      pack_values<Isa>(v, problem_.v.strides[1], plane_keys(plane), problem_.head_dim_v, values, layout_.value_stride);
      const int words = words_of<Isa>(plane_keys(plane));
      if (plane == 0) {
        output_tile<Isa, OutputKind::first, KeysInLanes>(scores(plane), values, layout_.value_stride, words, rows_, row_factor(),
                                                         out);
      } else {
        output_tile<Isa, OutputKind::accumulate, KeysInLanes>(scores(plane), values, layout_.value_stride, words, rows_,
                                                              row_factor(), out);
      }
    }
    if (planes_ == 0) {
      for (int64_t i = 0; i < rows_ * layout_.value_stride; i += kLanes) Isa::store(out + i, Isa::zero());
    }
    store_output<Isa>(out, layout_.value_stride, row_factor(), rows_, problem_.head_dim_v,
                      element<T>(tensors_.out, problem_.out, task_.batch, task_.row_begin, task_.head), problem_.out.strides[1]);
  }

  const ForwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  const TileTask& task_;
  int64_t kv_head_;
  int rows_;
  int keys_;
  int planes_;
  ShortScratch layout_;
  float* scratch_;
};

template <class Isa, class T>
void short_task(const ForwardCall& call, const TileTask& task, float* scratch) {
  ShortTask<Isa, T>(call, task, scratch).run();
}

}  // namespace fulmen::cpu
