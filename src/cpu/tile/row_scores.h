// From raw products to scores, for kernels with keys in lanes: everything of the contract between
// q.k and the softmax.
#pragma once

#include "algorithm/key_range.h"
#include "cpu/tile/alive_keys.h"
#include "cpu/tile/call.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// Which keys of a tile some row of the task may attend, or null where all may be touched: what the
// others hold, a NaN even, must not reach the output. Fills alive[keys].
template <class Isa>
FULMEN_INLINE const uint8_t* alive_keys(const ForwardCall& call, const PrefillRows& task,
                                        int64_t first, int keys, uint8_t* alive) {
  const Problem& problem = *call.problem;
  const bool masked = problem.keep_mask.present;
  if (!masked && call.band.left < 0 && call.band.right < 0) return nullptr;
  const uint8_t* keep = masked ? element<const uint8_t>(call.tensors->keep_mask, problem.keep_mask,
                                                        task.batch, task.head, 0)
                               : nullptr;
  for (int i = 0; i < keys; ++i) alive[i] = 0;
  const bool some = mark_alive_tiles<Isa>(
      call.band, keep, problem.keep_mask.strides[2], task.row_begin, task.row_end, first, keys,
      alive, [&](int64_t row, int64_t key, int64_t count) __attribute__((always_inline)) {
        return kept_of(problem, call.mask, task.batch, task.head, row, key, count);
      });
  return some ? alive : nullptr;
}

// One query row of one head. Keys count from the sequence's first.
template <class BiasT>
struct RowScores {
  const BiasT* bias = nullptr;  // of key 0
  const uint8_t* keep = nullptr;
  float alibi_slope = 0;
  float alibi_center = 0;  // the key at distance 0
  int64_t first = 0;       // keys [first, end) are attended
  int64_t end = 0;

  template <class Call>  // forward or backward
  FULMEN_INLINE RowScores(const Call& call, int64_t batch, int64_t head, int64_t row) {
    const Problem& problem = *call.problem;
    const AttentionTensors& tensors = *call.tensors;
    if (problem.bias.present)
      bias = element<const BiasT>(tensors.bias, problem.bias, batch, head, row);
    if (problem.keep_mask.present)
      keep = element<const uint8_t>(tensors.keep_mask, problem.keep_mask, batch, head, row);
    if (problem.alibi_slopes.present) {
      alibi_slope =
          *element<const float>(tensors.alibi_slopes, problem.alibi_slopes, batch, 0, 0, head);
      alibi_center = static_cast<float>(row + problem.diagonal);
    }
    first = call.band.first(row);
    end = call.band.last_plus_one(row);
  }

  // kLanes products from `key` on -> scores in natural units, -inf where masked or from `stop` on.
  template <class Isa, class Call>
  FULMEN_INLINE typename Isa::Vec scores(const Call& call, typename Isa::Vec x, int64_t key,
                                         int64_t stop) const {
    using Vec = typename Isa::Vec;
    const Problem& problem = *call.problem;
    const int count = stop - key < Isa::kLanes ? static_cast<int>(stop - key) : Isa::kLanes;
    Vec added = Isa::zero();
    if (bias != nullptr)
      added = count == Isa::kLanes ? Isa::load_as_float(bias + key)
                                   : Isa::load_as_float(bias + key, count);
    if (problem.softcap > 0.0F) {
      x = Isa::fused(tanh_from_log2<Isa>(Isa::mul(x, Isa::set1(call.scale.tanh_scale))),
                     Isa::set1(problem.softcap), added);
    } else {
      x = Isa::fused(x, Isa::set1(problem.softmax_scale), added);
    }
    if (alibi_slope != 0.0F) {
      const Vec distance = Isa::add(Isa::iota(), Isa::set1(static_cast<float>(key) - alibi_center));
      x = Isa::fused(Isa::abs(distance), Isa::set1(-alibi_slope), x);
    }
    const Vec minus_infinity = Isa::set1(-__builtin_inff());
    if (keep != nullptr) {
      const Vec kept = count == Isa::kLanes ? Isa::load_as_float(keep + key)
                                            : Isa::load_as_float(keep + key, count);
      x = Isa::select_less(Isa::zero(), kept, x, minus_infinity);
    }
    const auto near = [](int64_t distance) {
      return static_cast<float>(algorithm::Band::clamp(distance, 0, Isa::kLanes));
    };
    x = Isa::select_less(Isa::iota(), Isa::set1(near(first - key)), minus_infinity, x);
    return Isa::select_less(Isa::iota(), Isa::set1(near((end < stop ? end : stop) - key)), x,
                            minus_infinity);
  }
};

// Whether keys [first, stop) of the rows need RowScores, and not just the scale. masked: the bool
// mask may leave some of them out.
FULMEN_INLINE bool needs_row_scores(const ForwardCall& call, bool masked, int64_t row_begin,
                                    int64_t row_end, int64_t first, int64_t stop) {
  const Problem& p = *call.problem;
  const auto all = call.band.all(row_begin, row_end);
  return masked || p.alibi_slopes.present || p.softcap > 0.0F || !(p.softmax_scale > 0.0F) ||
         all.begin > first || all.end < stop;
}

}  // namespace fulmen::cpu
