// What the tasks of the backward pass share, on vectors and on matrix tiles: a unit's keys in
// blocks, its query tiles, their numbers.
#pragma once

#include "cpu/backward/bias.h"
#include "cpu/backward/call.h"
#include "cpu/backward/row_base.h"
#include "cpu/backward/tile.h"
#include "cpu/tile/additive_tile.h"
#include "cpu/tile/alive_keys.h"
#include "cpu/tile/dropout_tile.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/function_tile.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/row_prefetch.h"
#include "cpu/tile/row_spans.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// Compiled once for an instruction set, not once a dtype.
template <class Isa>
class BackwardUnitTask {
 protected:
  static constexpr float kMinusInfinity = -__builtin_inff();

  struct Held {
    int64_t first = 0;
    int64_t count = 0;
  };
  // A query tile, and what it attends of the split's keys.
  struct Rows {
    int64_t first = 0;
    int count = 0;
    algorithm::KeyRange keys;  // attended by any
    algorithm::KeyRange all;   // attended by all
    algorithm::KeyRange held;  // of those attended by any, the held ones
  };

  // element_bytes: of all tensors but biases and statistics. row_products: of their type.
  __attribute__((noinline)) BackwardUnitTask(const BackwardCall& call, const BackwardUnit& unit,
                                             float* sums, float* scratch, int64_t element_bytes,
                                             RowProducts row_products)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        element_bytes_(element_bytes),
        row_products_(row_products),
        unit_(unit),
        scratch_(scratch),
        sums_(sums),
        sums_layout_(query_sums(problem_, Isa::kLanes)) {
    keys_.begin = unit.split * call.cut.split_keys;
    keys_.end = problem_.seqlen_k - keys_.begin < call.cut.split_keys
                    ? problem_.seqlen_k
                    : keys_.begin + call.cut.split_keys;
  }

  // Each block of keys that is held at a time, and within it each head that shares them.
  template <class Load, class Attend, class Store>
  void for_blocks(const Load& load_keys, const Attend& attend_head, const Store& store_keys) {
    for (int64_t first = keys_.begin; first < keys_.end; first += call_.cut.held_keys) {
      const int64_t left = keys_.end - first;
      held_ = {first, left < call_.cut.held_keys ? left : call_.cut.held_keys};
      load_keys();
      for (int64_t g = 0; g < problem_.group_size(); ++g) {
        select_head(g);
        attend_head();
      }
      store_keys();
    }
  }

  float* at(int64_t offset) const { return scratch_ + offset; }
  // A block of held keys sees each row tile once; where there are several, dQ and delta wait for
  // the next one in the sums.
  bool one_block() const { return call_.cut.held_keys >= call_.cut.split_keys; }

  void select_head(int64_t g) {
    group_head_ = g;
    head_ = unit_.kv_head * problem_.group_size() + g;
    alibi_slope_ = alibi_slope_of(problem_, tensors_, unit_.batch, head_);
  }

  int64_t rows_from(int64_t row) const {
    return problem_.seqlen_q - row < kBlockM ? problem_.seqlen_q - row : kBlockM;
  }

  // The split's keys that some of the rows attend.
  algorithm::KeyRange split_keys_of(int64_t row, int64_t rows) const {
    algorithm::KeyRange range = call_.band.any(row, row + rows);
    if (range.begin < keys_.begin) range.begin = keys_.begin;
    if (range.end > keys_.end) range.end = keys_.end;
    return range;
  }

  // The query tile at `row`.
  Rows select_rows(int64_t row) const {
    const int64_t count = rows_from(row);
    Rows rows{row,
              static_cast<int>(count),
              split_keys_of(row, count),
              call_.band.all(row, row + count),
              {}};
    const int64_t held_end = held_.first + held_.count;
    rows.held.begin = rows.keys.begin > held_.first ? rows.keys.begin : held_.first;
    rows.held.end = rows.keys.end < held_end ? rows.keys.end : held_end;
    return rows;
  }
  static bool attends_held(const Rows& rows) { return rows.held.begin < rows.held.end; }
  // Whether the held keys are the first, or the last, that the rows attend.
  bool first_block(const Rows& rows) const { return rows.keys.begin >= held_.first; }
  bool last_block(const Rows& rows) const { return rows.keys.end <= held_.first + held_.count; }

  // The unit's sums of the query tile at `row`.
  float* dq_sums(int64_t row) const {
    return sums_ + sums_layout_.dq + (group_head_ * sums_layout_.rows + row) * sums_layout_.stride;
  }
  float* delta_sums(int64_t row) const {
    return sums_ + sums_layout_.delta + group_head_ * sums_layout_.rows + row;
  }

  // dQ of rows without any key, and dbias. first_of_sums: nothing was added to the unit's sums of
  // dbias yet.
  __attribute__((noinline)) void clear_what_stays_empty(bool first_of_sums) {
    const int64_t group = problem_.group_size();
    for (int64_t g = 0; g < group; ++g) {
      select_head(g);
      if (problem_.dbias.present && (first_of_sums || call_.bias_sums.data == nullptr) &&
          (g == 0 || !call_.cut.sums_heads)) {
        clear_bias_gradient<Isa>(call_, unit_, head_, keys_.begin, keys_.end - keys_.begin);
      }
      if (!problem_.dq.present || call_.cut.num_splits > 1) continue;
      for (int64_t row = 0; row < problem_.seqlen_q; row += kBlockM) {
        const algorithm::KeyRange range = split_keys_of(row, rows_from(row));
        if (range.begin < range.end) continue;
        clear_rows(
            element_address(tensors_.dq, problem_.dq, element_bytes_, unit_.batch, row, head_),
            rows_from(row), problem_.dq.strides[1] * element_bytes_,
            problem_.head_dim * element_bytes_);
      }
    }
  }

  // Which keys some query of the group attends, or null for all: what the others hold, a NaN even,
  // must not reach a gradient.
  __attribute__((noinline)) const uint8_t* alive_keys_of_group(uint8_t* alive) const {
    const bool masked = problem_.keep_mask.present;
    if (!masked && call_.band.left < 0 && call_.band.right < 0) return nullptr;
    const int count = static_cast<int>(held_.count);
    for (int i = 0; i < count; ++i) alive[i] = 0;
    bool some = false;
    for (int64_t g = 0; g < (masked ? problem_.group_size() : 1); ++g) {
      const int64_t head = unit_.kv_head * problem_.group_size() + g;
      const uint8_t* keep = masked ? element<const uint8_t>(tensors_.keep_mask, problem_.keep_mask,
                                                            unit_.batch, head, 0)
                                   : nullptr;
      const auto kept = [&](int64_t row, int64_t key, int64_t keys) __attribute__((always_inline)) {
        return kept_of(problem_, call_.mask, unit_.batch, head, row, key, keys);
      };
      const bool left_out =
          mark_alive_tiles<Isa>(call_.band, keep, problem_.keep_mask.strides[2], 0,
                                problem_.seqlen_q, held_.first, count, alive, kept);
      some = some || left_out;
    }
    return some ? alive : nullptr;
  }

  // numbers: LseNumbers. A row with an LSE of -inf has no gradient, whatever it holds: not alive.
  __attribute__((noinline)) void load_lse(const Rows& rows, float* numbers, uint8_t* alive) const {
    const float* lse =
        element<const float>(tensors_.lse, problem_.lse, unit_.batch, head_, rows.first);
    for (int i = 0; i < kBlockM; ++i) {
      const float x = i < rows.count ? lse[i * problem_.lse.strides[2]] : kMinusInfinity;
      alive[i] = x == kMinusInfinity ? 0 : 1;
      const double exact = -static_cast<double>(x) * call_.lse_scale;
      numbers[i] = alive[i] != 0 ? static_cast<float>(exact) : kMinusInfinity;
      numbers[kLog2LseRest * kBlockM + i] =
          alive[i] != 0 ? static_cast<float>(exact - static_cast<double>(numbers[i])) : 0.0F;
      numbers[kMinusMax * kBlockM + i] = alive[i] != 0 ? -x : kMinusInfinity;
      numbers[kMinusLog2Sum * kBlockM + i] = 0.0F;
    }
    if (call_.scale.units == algorithm::ScoreUnits::natural) {
      load_bases(rows, lse, alive, numbers + kMinusMax * kBlockM,
                 numbers + kMinusLog2Sum * kBlockM);
    }
  }

  // Computed once a row, like delta.
  void load_bases(const Rows& rows, const float* lse, const uint8_t* alive, float* minus_max,
                  float* minus_log2_sum) const {
    float* kept =
        one_block() ? nullptr
                    : sums_ + sums_layout_.bases + 2 * group_head_ * sums_layout_.rows + rows.first;
    float* kept_sums = kept == nullptr ? kept : kept + sums_layout_.rows;
    for (int i = 0; i < rows.count; ++i) {
      if (alive[i] == 0) continue;
      if (!first_block(rows)) {
        minus_max[i] = kept[i];
        minus_log2_sum[i] = kept_sums[i];
        continue;
      }
      const RowBase base =
          row_base<Isa>(call_, unit_.batch, head_, rows.first + i,
                        lse[static_cast<int64_t>(i) * problem_.lse.strides[2]], row_products_);
      minus_max[i] = -base.max;
      minus_log2_sum[i] = -base.log2_sum;
      if (kept != nullptr) {
        kept[i] = minus_max[i];
        kept_sums[i] = minus_log2_sum[i];
      }
    }
  }

  // delta = sum of dout out - dlse, computed once a row: later blocks of keys find it in the sums.
  // sum_products(delta) is asked for the first part.
  template <class SumProducts>
  void load_deltas(const Rows& rows, const uint8_t* alive, float* delta,
                   const SumProducts& sum_products) const {
    float* kept = one_block() ? nullptr : delta_sums(rows.first);
    if (!first_block(rows)) {
      for (int i = 0; i < kBlockM; ++i) delta[i] = kept[i];
      return;
    }
    sum_products();
    const float* dlse = problem_.dlse.present ? element<const float>(tensors_.dlse, problem_.dlse,
                                                                     unit_.batch, head_, rows.first)
                                              : nullptr;
    for (int i = 0; i < kBlockM; ++i) {
      if (i >= rows.count || alive[i] == 0) {
        delta[i] = 0.0F;
      } else if (dlse != nullptr) {
        delta[i] -= dlse[i * problem_.dlse.strides[2]];
      }
      if (kept != nullptr) kept[i] = delta[i];
    }
  }

  // What the bool mask keeps of rows and keys [key, key + count).
  Kept kept(const Rows& rows, int64_t key, int64_t count) const {
    return kept_of(problem_, call_.mask, unit_.batch, head_, rows.first, key, count);
  }
  // Whether a tile adds nothing to any gradient; where the gradients go straight to memory, each of
  // its products writes them all the same.
  bool is_left_out(const Rows& rows, int64_t key, int64_t count) const {
    return !call_.direct_keys && !call_.direct_queries && kept(rows, key, count) == Kept::none;
  }

  // Where the additive tile of rows and keys [key, key + count) is something else than 0.
  bool is_additive(const Rows& rows, int64_t key, int count) const {
    return is_partial(rows, key, count) || is_masked(rows, key, count) || problem_.bias.present ||
           alibi_slope_ != 0.0F;
  }
  bool is_masked(const Rows& rows, int64_t key, int count) const {
    return kept(rows, key, count) != Kept::all;
  }
  static bool is_partial(const Rows& rows, int64_t key, int count) {
    return rows.all.begin > key || rows.all.end < key + count;
  }
  // The first of the tile's keys that some row attends; a multiple of kSpanKeys.
  int first_key(const Rows& rows, int64_t key, int count) const {
    return first_attended(rows.keys, key, count,
                          [&](int at, int keys) __attribute__((always_inline)) {
                            return kept(rows, key + at, keys);
                          });
  }
  // The tiles [count][kBlockM] that are added to scores, from the key `begin` on, a multiple of
  // kSpanKeys; is_additive() of them. all_columns: those without a query become 0.
  // functions: registers of mask_mod.
  bool build_tiles(const Rows& rows, int64_t key, int count, bool all_columns, float* additive,
                   float* dropout, float* functions = nullptr, int begin = 0) const {
    const bool adds = is_additive(rows, key, count);
    if (adds || problem_.softcap > 0.0F || call_.score_function.any()) {
      const bool masked = is_masked(rows, key, count);
      if (all_columns) clear(additive, static_cast<int64_t>(count) * kBlockM);
      additive_tile<Isa>(problem_, tensors_, call_.band, alibi_slope_,
                         {unit_.batch, head_, rows.first, rows.count, key + begin, count - begin,
                          is_partial(rows, key, count), masked},
                         additive + static_cast<int64_t>(begin) * kBlockM);
      if (call_.mask.functions && masked) mask(rows, key, {begin, count}, additive, functions);
    }
    if (problem_.dropout > 0) {
      if (all_columns) clear(dropout, static_cast<int64_t>(count) * kBlockM);
      head_dropout_tile<Isa>(problem_, tensors_, unit_.batch, head_, rows.first, rows.count, key,
                             count, dropout);
    }
    return adds;
  }
  void mask(const Rows& rows, int64_t key, KeySpan keys, float* additive, float* functions) const {
    const KeySpan asked =
        asked_keys(keys.begin, keys.end, [&](int at, int count) __attribute__((always_inline)) {
          return kept(rows, key + at, count);
        });
    if (asked.count() <= 0) return;
    mask_tile<Isa>(call_.mask_function, call_.mask.blocks,
                   {unit_.batch, head_, rows.first, key + asked.begin}, asked.count(),
                   additive + static_cast<int64_t>(asked.begin) * kBlockM, functions);
  }

  static void clear(float* x, int64_t floats) {
    for (int64_t i = 0; i < floats; i += Isa::kLanes) Isa::store(x + i, Isa::zero());
  }

  // To be fetched ahead: `rows` rows of the head from `row` on.
  template <class Ahead>
  void add_query_rows(int64_t row, int64_t rows, bool with_out, Ahead& ahead) const {
    ahead.add(rows_of(tensors_.q, problem_.q, unit_.batch, row, head_, problem_.head_dim, rows));
    ahead.add(
        rows_of(tensors_.dout, problem_.dout, unit_.batch, row, head_, problem_.head_dim_v, rows));
    if (with_out)
      ahead.add(
          rows_of(tensors_.out, problem_.out, unit_.batch, row, head_, problem_.head_dim_v, rows));
  }

  // The next unit's rows, all of them.
  template <class Ahead>
  void add_unit(const BackwardUnit& next, Ahead& ahead) const {
    for_tensors([&](const Tensor& tensor, const TensorSpec& spec,
                    const Share& all) __attribute__((always_inline)) {
      ahead.add(rows_of(tensor, spec, next.batch, 0, next.kv_head * all.heads, all.dim, all.rows));
    });
  }
  // This unit's share of the rows of the next call.fetch_heads KV heads, be they the next
  // sequence's; the next unit's, if there is one, where heads do not lie side by side.
  template <class Ahead>
  void add_share(const BackwardUnit* next, Ahead& ahead) const {
    const int64_t heads = call_.fetch_heads;
    BackwardUnit there = unit_;
    there.kv_head = (unit_.kv_head / heads + 1) * heads;
    if (there.kv_head == problem_.num_kv_heads) {
      there.kv_head = 0;
      ++there.batch;
    }
    for_tensors([&](const Tensor& tensor, const TensorSpec& spec,
                    const Share& all) __attribute__((always_inline)) {
      if (!side_by_side(spec, all.dim)) {
        if (next != nullptr)
          ahead.add(
              rows_of(tensor, spec, next->batch, 0, next->kv_head * all.heads, all.dim, all.rows));
      } else if (there.batch < problem_.batch) {
        const int64_t row = (heads * all.heads - 1) * spec.strides[2] + all.dim;
        ahead.add(rows_of(tensor, spec, there.batch, 0, there.kv_head * all.heads, row, all.rows),
                  unit_.kv_head % heads, heads);
      }
    });
  }

  // Whether rows may go past the caches.
  bool streams(const void* out, int64_t stride, int64_t dim) const {
    return call_.stream_output &&
           rows_are_lines(out, stride * element_bytes_, dim * element_bytes_);
  }

  // What a unit reads and writes of a tensor: its heads for each KV head, the elements of a row of
  // one, and rows.
  struct Share {
    int64_t heads;
    int64_t dim;
    int64_t rows;
  };
  // add(tensor, spec, share) for each that is there and not written past the caches.
  template <class Add>
  void for_tensors(const Add& add) const {
    const Share keys{1, problem_.head_dim, problem_.seqlen_k},
        values{1, problem_.head_dim_v, problem_.seqlen_k};
    const Share queries{problem_.group_size(), problem_.head_dim, problem_.seqlen_q};
    const Share outputs{problem_.group_size(), problem_.head_dim_v, problem_.seqlen_q};
    add(tensors_.k, problem_.k, keys);
    add(tensors_.v, problem_.v, values);
    add(tensors_.q, problem_.q, queries);
    add(tensors_.dout, problem_.dout, outputs);
    add(tensors_.out, problem_.out, outputs);
    if (call_.stream_output) return;
    if (problem_.dv.present) add(tensors_.dv, problem_.dv, values);
    if (problem_.dk.present) add(tensors_.dk, problem_.dk, keys);
    if (problem_.dq.present) add(tensors_.dq, problem_.dq, queries);
  }
  RowPrefetch rows_of(const Tensor& tensor, const TensorSpec& spec, int64_t batch, int64_t first,
                      int64_t head, int64_t dim, int64_t rows) const {
    const int64_t bytes = element_bytes_;
    return fetch_rows(element_address(tensor, spec, bytes, batch, first, head),
                      spec.strides[1] * bytes, dim * bytes, rows);
  }

  bool short_unit() const {
    return problem_.seqlen_q <= kBlockM && problem_.seqlen_k <= kMaxBlockN;
  }

  const BackwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  int64_t element_bytes_;
  RowProducts row_products_;
  BackwardUnit unit_;
  float* scratch_;
  float* sums_;  // the unit's slot of QuerySums, where one is needed
  QuerySums sums_layout_;
  algorithm::KeyRange keys_;  // of the split
  Held held_;
  int64_t group_head_ = 0;
  int64_t head_ = 0;
  float alibi_slope_ = 0;
};

}  // namespace fulmen::cpu
