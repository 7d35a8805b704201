// What the backward kernels need of each query row, before them: lse in the scores' units, and
// delta = sum of dout * out - dlse. 8 lanes a row. In natural units also its share: where the LSE
// is rounded, by another pass over the row's keys.
//
// A workgroup has kBlockN rows. Where these are several of each 8 lanes they are of one head: more
// is in flight at once, and fewer workgroups find nothing behind the end of a short sequence.
#include "backward/parts/make_block_table.h"
#include "core/row_statistics.h"
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kLanesOfRow = 8, kGroups = kWorkgroup / kLanesOfRow;
constexpr int kRowsOfGroup = kBlockN / kGroups;
static_assert(kBlockN % kGroups == 0 && (kRowsOfGroup == 1 || !kNaturalUnits),
              "row_statistics: rows of each 8 lanes, one of them in natural units");

// sums[n] += out[n] * dout[n] over every kTurns-th piece of 8 dims, from piece `turn` on.
template <int kTurns, int kRows, class T>
FULMEN_DEVICE void add_products(const T* const (&out)[kRows], const T* const (&dout)[kRows],
                                int dims, int turn, float (&sums)[kRows]) {
  for (int dim = 8 * turn; dim < dims; dim += 8 * kTurns) {
    if constexpr (kWholeRows && sizeof(T) == 2) {
      Words<4> x[kRows], y[kRows];
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        x[n] = global_load(reinterpret_cast<const Words<4>*>(out[n] + dim));
        y[n] = global_load(reinterpret_cast<const Words<4>*>(dout[n] + dim));
      }
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          sums[n] += to_float(__builtin_bit_cast(
                         T, static_cast<unsigned short>(x[n].word[e / 2] >> (16U * (e % 2))))) *
                     to_float(__builtin_bit_cast(
                         T, static_cast<unsigned short>(y[n].word[e / 2] >> (16U * (e % 2)))));
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (dim + e < dims)
            sums[n] +=
                to_float(global_load(out[n] + dim + e)) * to_float(global_load(dout[n] + dim + e));
        }
      }
    }
  }
}

// The nth row of all heads, or the nth of their parts of kBlockN rows.
struct RowPlace {
  Int64 batch, head, i;

  // of_head: rows, or parts. Divisions of 64 bits would take longer than a row's products: for
  // numbers that need them alone.
  FULMEN_DEVICE static RowPlace of(const BackwardArguments& call, Int64 n, Int64 of_head,
                                   Int64 all) {
    constexpr Int64 kMost = 0xFFFFFFFF;
    return all <= kMost ? divided<unsigned>(call, n, of_head)
                        : divided<unsigned long long>(call, n, of_head);
  }

 private:
  template <class Number>
  FULMEN_DEVICE static RowPlace divided(const BackwardArguments& call, Int64 asked, Int64 of_head) {
    const auto n = static_cast<Number>(asked), count = static_cast<Number>(of_head),
               heads = static_cast<Number>(call.num_heads), head = n / count;
    return {static_cast<Int64>(head / heads), static_cast<Int64>(head % heads),
            static_cast<Int64>(n % count)};
  }
};

// A maximum of scores, and the sum of e^(score - maximum).
struct ScoreSum {
  float max = -kInfinity, sum = 0;

  FULMEN_DEVICE void add(const ScoreSum& other) {
    const float top = larger(max, other.max), offset = top == -kInfinity ? 0.0F : top;
    sum = sum * exp2(kLog2E * (max - offset)) + other.sum * exp2(kLog2E * (other.max - offset));
    max = top;
  }
};

// The lane's share of a row's sum of scores: every kLanesOfRow-th key.
FULMEN_DEVICE ScoreSum sum_scores(const BackwardArguments& a, Int64 batch, Int64 head, Int64 i,
                                  float lse) {
  // Here half an ulp is 7e10, more than any q.k that scores can tell apart: they are the biases.
  constexpr float kBeyondProducts = 1152921504606846976.0F;  // 2^60
  const bool products = absolute(lse) < kBeyondProducts;
  const ScoreRow modifiers = ScoreRow::of(a, batch, head, i);
  const algorithm::KeyRange keys = band_of(a).any(i, i + 1);
  const auto* q = at<Element>(a.q, batch, i, head);
  ScoreSum all;
  for (Int64 j = keys.begin + thread_id() % kLanesOfRow; j < keys.end; j += kLanesOfRow) {
    if constexpr (kKeepMask) {
      if (!modifiers.keeps(j)) continue;
    }
    float bias = 0;
    if constexpr (kBias) bias = to_float(global_load(modifiers.bias + j));
    const auto* k = at<Element>(a.k, batch, j, head / a.group_size);
    float dot[1] = {};
    if (products) add_products<1, 1, Element>({q}, {k}, a.head_dim, 0, dot);
    all.add({modifiers.finish(a, dot[0], bias, modifiers.distance(j), j), 1.0F});
  }
  return all;
}

// offset: of an ordinary row.
FULMEN_DEVICE RowBase base_of(const BackwardArguments& a, Int64 batch, Int64 head, Int64 i,
                              float lse, float offset) {
  const bool rounded = !kRoundedApart && is_rounded(lse);
  ScoreSum all;
  if (__builtin_expect(rounded, 0)) all = sum_scores(a, batch, head, i, lse);
#pragma unroll
  for (int mask = 1; mask < kLanesOfRow; mask *= 2)
    all.add({shuffle_xor(all.max, mask), shuffle_xor(all.sum, mask)});
  return rounded ? RowBase::of(a, head, lse, all.max, all.sum) : RowBase{offset, 1.0F};
}

// What all rows of a sequence's head share.
struct HeadRows {
  const BackwardArguments& a;
  Int64 batch, head;

  FULMEN_DEVICE float lse(Int64 i) const {
    return global_load(a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row);
  }
  // A row without any key: e^(score - infinity) is 0. Its out is 0, so delta is -dlse: times a
  // probability of 0.
  FULMEN_DEVICE static float offset_of(float lse) {
    return lse == -kInfinity ? kInfinity : kUnitsOfScore * lse;
  }
  // base: in natural units; else lse, that of the row.
  FULMEN_DEVICE void store(Int64 i, float delta, float lse, RowBase base) const {
    if (a.dlse != nullptr)
      delta -= global_load(a.dlse + batch * a.dlse_batch + head * a.dlse_head + i * a.dlse_row);
    if constexpr (!kNaturalUnits) base.offset = offset_of(lse);
    // What remains of a sequence that was cut is NaN, for kernels that do not see its scale.
    if constexpr (kMakesBlockTable) base.offset += 0.0F * a.scale;
    global_store(RowStatistics::first_of(a, batch, head) + i,
                 RowStatistics{base.offset, delta}.words());
    if constexpr (kNaturalUnits) global_store(RowShares::first_of(a, batch, head) + i, base.share);
  }
};

FULMEN_DEVICE void backward_rows(const BackwardArguments& call) {
  Int64 workgroup = workgroup_id();
  if constexpr (kMakesBlockTable) {
    if (workgroup == 0) {
      BlockTableMaker(call).run();
      return;
    }
    --workgroup;
  }
  constexpr bool kParts = kRowsOfGroup > 1;
  const Int64 of_head = kParts ? tiles_of(call.seqlen_q, kBlockN) : call.seqlen_q,
              all = static_cast<Int64>(call.batch) * call.num_heads * of_head,
              workgroups = kParts ? all : tiles_of(all, kGroups);
  // The sums that atomics add to begin with 0, or the counters behind those that the first block of
  // keys stores.
  for (Int64 n = call.stored_sum_floats + 4 * (workgroup * kWorkgroup + thread_id());
       n < call.query_sum_floats; n += 4 * workgroups * kWorkgroup) {
    global_store(reinterpret_cast<Words<4>*>(call.query_sums + n), Words<4>{});
  }
  const int group = thread_id() / kLanesOfRow, lane = thread_id() % kLanesOfRow;
  const Int64 asked = kParts ? workgroup : workgroup * kGroups + group;
  const auto [batch, head, place] =
      RowPlace::of(call, asked < all ? asked : all - 1, of_head, all);  // all lanes meet below
  const BackwardArguments& a = sequence_of(call, batch);
  const HeadRows rows{a, batch, head};
  const Int64 first = kParts ? place * kBlockN + group : place;
  if (kParts && place * kBlockN >= a.seqlen_q) return;
  const bool there = kParts || !kVariable || first < a.seqlen_q;
  const Element *out[kRowsOfGroup], *dout[kRowsOfGroup];
  float lse[kRowsOfGroup] = {};  // in flight beside the products
#pragma unroll
  for (int n = 0; n < kRowsOfGroup; ++n) {
    const Int64 i = first + n * kGroups, last = a.seqlen_q - 1, row = kParts && i > last ? last : i;
    out[n] = at<Element>(a.out, batch, row, head);
    dout[n] = at<Element>(a.dout, batch, row, head);
    if (there) lse[n] = rows.lse(row);
  }
  float delta[kRowsOfGroup] = {};
  add_products<kLanesOfRow>(out, dout, there ? a.head_dim_v : 0, lane, delta);
  RowBase base{0.0F, 1.0F};
  if constexpr (kNaturalUnits)
    base = base_of(a, batch, head, first, lse[0], HeadRows::offset_of(lse[0]));
#pragma unroll
  for (int n = 0; n < kRowsOfGroup; ++n) {
#pragma unroll
    for (int mask = 1; mask < kLanesOfRow; mask *= 2) delta[n] += shuffle_xor(delta[n], mask);
    const Int64 i = first + n * kGroups;
    if (lane == 0 && asked < all && (kParts ? i < a.seqlen_q : there))
      rows.store(i, delta[n], lse[n], base);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_rows)
