// What the backward kernels need of each query row, before them: lse in the scores' units, and
// delta = sum of dout * out - dlse. 8 lanes a row. In natural units also its share: where the LSE
// is rounded, by another pass over the row's keys.
#include "backward/parts/make_block_table.h"
#include "core/row_statistics.h"
#include "core/scores.h"

namespace fulmen::kernels {

constexpr int kLanesOfRow = 8;

// Sum of out * dout over every kTurns-th piece of 8 dims, from piece `turn` on.
template <int kTurns, class T>
FULMEN_DEVICE float product_of_pieces(const T* out, const T* dout, int dims, int turn) {
  float sum = 0;
  for (int dim = 8 * turn; dim < dims; dim += 8 * kTurns) {
    if constexpr (kWholeRows && sizeof(T) == 2) {
      const auto x = global_load(reinterpret_cast<const Words<4>*>(out + dim));
      const auto y = global_load(reinterpret_cast<const Words<4>*>(dout + dim));
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        sum += to_float(__builtin_bit_cast(
                   T, static_cast<unsigned short>(x.word[e / 2] >> (16U * (e % 2))))) *
               to_float(__builtin_bit_cast(
                   T, static_cast<unsigned short>(y.word[e / 2] >> (16U * (e % 2)))));
      }
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (dim + e < dims)
          sum += to_float(global_load(out + dim + e)) * to_float(global_load(dout + dim + e));
      }
    }
  }
  return sum;
}

struct RowPlace {
  Int64 batch, head, i;

  // Divisions of 64 bits would take longer than a row's products: for numbers that need them alone.
  FULMEN_DEVICE static RowPlace of(const BackwardArguments& call, Int64 row, Int64 rows) {
    constexpr Int64 kMost = 0xFFFFFFFF;
    return rows <= kMost ? divided<unsigned>(call, row) : divided<unsigned long long>(call, row);
  }

 private:
  template <class Number>
  FULMEN_DEVICE static RowPlace divided(const BackwardArguments& call, Int64 asked) {
    const auto row = static_cast<Number>(asked), seqlen = static_cast<Number>(call.seqlen_q),
               heads = static_cast<Number>(call.num_heads), head = row / seqlen;
    return {static_cast<Int64>(head / heads), static_cast<Int64>(head % heads),
            static_cast<Int64>(row % seqlen)};
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
    const float dot = products ? product_of_pieces<1>(q, k, a.head_dim, 0) : 0.0F;
    all.add({modifiers.finish(a, dot, bias, modifiers.distance(j), j), 1.0F});
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

FULMEN_DEVICE void backward_rows(const BackwardArguments& call) {
  const Int64 rows = static_cast<Int64>(call.batch) * call.num_heads * call.seqlen_q;
  Int64 workgroup = workgroup_id();
  if constexpr (kMakesBlockTable) {
    if (workgroup == 0) {
      BlockTableMaker(call).run();
      return;
    }
    --workgroup;
  }
  const Int64 asked = workgroup * (kWorkgroup / kLanesOfRow) + thread_id() / kLanesOfRow;
  // The sums that atomics add to begin with 0, or the counters behind those that the first block of
  // keys stores.
  const Int64 kept = call.query_counters > 0 ? call.query_sum_floats - call.query_counters : 0;
  const Int64 lanes = tiles_of(rows, kWorkgroup / kLanesOfRow) * kWorkgroup;
  for (Int64 n = kept + 4 * (workgroup * kWorkgroup + thread_id()); n < call.query_sum_floats;
       n += 4 * lanes) {
    global_store(reinterpret_cast<Words<4>*>(call.query_sums + n), Words<4>{});
  }
  const Int64 row = asked < rows ? asked : rows - 1;  // all lanes meet in the exchange
  const auto [batch, head, i] = RowPlace::of(call, row, rows);
  const BackwardArguments& a = sequence_of(call, batch);
  const bool there = !kVariable || i < a.seqlen_q;
  float delta = product_of_pieces<kLanesOfRow>(at<Element>(a.out, batch, i, head),
                                               at<Element>(a.dout, batch, i, head),
                                               there ? a.head_dim_v : 0, thread_id() % kLanesOfRow);
#pragma unroll
  for (int mask = 1; mask < kLanesOfRow; mask *= 2) delta += shuffle_xor(delta, mask);
  // A row without any key: e^(score - infinity) is 0. Its out is 0, so delta is -dlse: times a
  // probability of 0.
  const auto offset_of = [](float lse) {
    return lse == -kInfinity ? kInfinity : kUnitsOfScore * lse;
  };
  const float* at_lse = a.lse + batch * a.lse_batch + head * a.lse_head + i * a.lse_row;
  RowBase base{0.0F, 1.0F};
  if constexpr (kNaturalUnits) {
    const float lse = there ? global_load(at_lse) : 0.0F;
    base = base_of(a, batch, head, i, lse, offset_of(lse));
  }
  if (thread_id() % kLanesOfRow != 0 || asked >= rows || !there) return;
  if (a.dlse != nullptr)
    delta -= global_load(a.dlse + batch * a.dlse_batch + head * a.dlse_head + i * a.dlse_row);
  if constexpr (!kNaturalUnits) base.offset = offset_of(global_load(at_lse));
  // What remains of a sequence that was cut is NaN, for kernels that do not see its scale.
  if constexpr (kMakesBlockTable) base.offset += 0.0F * a.scale;
  global_store(RowStatistics::first_of(a, batch, head) + i,
               RowStatistics{base.offset, delta}.words());
  if constexpr (kNaturalUnits) global_store(RowShares::first_of(a, batch, head) + i, base.share);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_rows)
