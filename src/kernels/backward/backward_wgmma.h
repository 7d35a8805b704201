// Gradients as in backward.h, by Hopper's warpgroup products: one side's rows a launch, nothing
// added by atomics. A workgroup owns kBlockM rows of one head, a warpgroup 64 of them, and goes
// over the other side's rows, the columns, in tiles of kBlockN:
//
//           rows     columns  for each tile
//   dq      q, dout  k, v     S = q.k, D = dout.v, dS = P (D - delta)  dq += dS k
//   dk, dv  k, v     q, dout  the same transposed                      dv += P^T dout, dk += dS^T q
//
// What a wave's registers hold of P and dS is what its next product takes from there; only tensors
// go through LDS.
//
// kSplits: blocks of keys are too few to fill the chip. The queries are split, and
// backward/parts/key_sums.h adds what the splits give of dk and dv.
#include "backward/backward_wgmma_layout.h"
#include "backward/parts/key_parts.h"
#include "backward/parts/wgmma_panels.h"

namespace fulmen::kernels {

constexpr bool kSecondEarly = kEarlyLoads;
constexpr WarpgroupLayout kLdsLayout = WarpgroupLayout::of(
    {kHeadDim, kHeadDimV, kBlockM, kBlockN, kBuffers, kSecondEarly, kNeedsDout});
static_assert(kLdsLayout.total == kLdsBytes,
              "backward_wgmma: the host reserves the LDS that the tiles need");
static_assert(kGivesOneSide && !kAddsDq && !kGivesDbias, "backward_wgmma: one side's gradients");
static_assert(kBlockM == 64 * kWarpgroups && kHeadDim % kPanelColumns == 0 &&
                  kHeadDimV % kPanelColumns == 0,
              "backward_wgmma: a warpgroup has 64 rows and whole panels");
static_assert(!kSplits || (kRowsAreKeys && !kVariable), "backward_wgmma: queries are split");
static_assert(kSecondEarly || (kBuffers == 2 && !kGivesDv),
              "backward_wgmma: dv takes the second tensor to the end of a tile");

// Warpgroups go their ways, so that matrix units have work while exponentials are computed: one
// begins a tile when the others have done the exponentials of the tile before. Two buffers are too
// few: all then end a tile before one begins the next.
constexpr bool kOwnPace = kBuffers > 2;
constexpr int kAhead = kOwnPace ? kBuffers - 2 : 1;  // tiles in flight while one is computed

// A product gives so many dims, by 16.
FULMEN_DEVICE constexpr int product_tiles(int dims) { return dims % 128 == 0 ? 8 : 4; }
constexpr int kFirstWidth = product_tiles(kHeadDim), kSecondWidth = product_tiles(kHeadDimV);
constexpr int kFirstProducts = kGivesFirst ? kHeadDim / kScoreTile / kFirstWidth : 0,
              kSecondProducts = kGivesDv ? kHeadDimV / kScoreTile / kSecondWidth : 0;
// The gradient sums of a wave's rows.
struct RowSums {
  float first[kFirstProducts > 0 ? kFirstProducts : 1][1][kFirstWidth][kElements];      // dq or dk
  float second[kSecondProducts > 0 ? kSecondProducts : 1][1][kSecondWidth][kElements];  // dv
};

// The workgroup's loop over the columns of row_head, or of all query heads of a KV head.
class WarpgroupWalk {
 public:
  FULMEN_DEVICE WarpgroupWalk(const BackwardTask& task, const TileOrder& order, Int64 row_head,
                              Int64 row_begin, Int64 column_end,
                              const RowStatistics (&numbers)[kRowsPerLane])
      : task_(task),
        order_(order),
        numbers_(numbers),
        row_begin_(row_begin),
        columns_(static_cast<int>(column_end - order.begin)),
        first_head_(
            static_cast<int>(kRowsAreKeys ? row_head * task.arguments.group_size : row_head)),
        last_head_(first_head_ + (kRowsAreKeys ? task.arguments.group_size : 1)),
        next_head_(first_head_),
        warpgroup_(wave_id() / 4) {
    if constexpr (!kBand) return;
    const Int64 first = row_begin + 64 * warpgroup_,
                end = first + 64 < task.row_end ? first + 64 : task.row_end;
    const algorithm::KeyRange attended = task.band.any(first, end);
    attended_begin_ = static_cast<int>(attended.begin - order.begin);
    attended_end_ = static_cast<int>(attended.end - order.begin);
  }

  // The first tile comes after the rows.
  FULMEN_DEVICE void over_all(RowSums& sums) {
    fetch_next();
    if constexpr (!kSecondEarly) fetch_second();
    copy_commit();
#pragma unroll
    for (int n = 1; n < kAhead; ++n) {
      fetch_next();
      copy_commit();
    }
    arrive();
    for (int head = first_head_; head < last_head_; ++head) {
      int n = 0;
      for (; n < order_.masked; ++n) tile<true>(sums, head, order_.first_key(n));
      for (; n < order_.count; ++n) tile<false>(sums, head, order_.first_key(n));
    }
    await();
  }

 private:
  // Starts the copy of the next tile of columns, if there is one: of their first tensor, or of
  // both.
  FULMEN_DEVICE void fetch_next() {
    if (next_head_ >= last_head_) return;
    const BackwardArguments& a = task_.arguments;
    const Side side = side_of(next_head_);
    const Int64 first = order_.first_key(next_);
    const int left = at_most(columns_ - static_cast<int>(first - order_.begin), kBlockN);
    copy<kHeadDim>(side.first, side.first_stride, a.head_dim, first, left,
                   kLdsLayout.first_at + next_buffer_ * kLdsLayout.first_bytes);
    if constexpr (kRowsAreKeys) {
      if (const int row = recompute(thread_id()); row < kBlockN) {
        copy_async_8(kLdsLayout.numbers_at + next_buffer_ * kLdsLayout.number_bytes + 8 * row,
                     RowStatistics::first_of(a, task_.batch, next_head_) + first + row, row < left);
      }
    }
    if constexpr (kSecondEarly) {
      copy<kHeadDimV>(side.second, side.second_stride, a.head_dim_v, first, left,
                      kLdsLayout.second_at + next_buffer_ * kLdsLayout.second_bytes);
      go_on();
    }
  }
  // The second tensor of that tile.
  FULMEN_DEVICE void fetch_second() {
    if (next_head_ >= last_head_) return;
    const Side side = side_of(next_head_);
    const Int64 first = order_.first_key(next_);
    copy<kHeadDimV>(side.second, side.second_stride, task_.arguments.head_dim_v, first,
                    at_most(columns_ - static_cast<int>(first - order_.begin), kBlockN),
                    kLdsLayout.second_at);
    go_on();
  }
  // Replaces this tile's second tensor by the next tile's, once all waves have read it, where LDS
  // has room for one tile of it.
  FULMEN_DEVICE void replace_second() {
    if constexpr (kSecondEarly) return;
    barrier();
    fetch_second();
    copy_commit();
  }
  FULMEN_DEVICE void go_on() {
    next_buffer_ = following(next_buffer_);
    if (++next_ == order_.count) {
      next_ = 0;
      ++next_head_;
    }
  }
  FULMEN_DEVICE static int following(int buffer) { return buffer + 1 == kBuffers ? 0 : buffer + 1; }
  FULMEN_DEVICE Side side_of(int head) const {
    const BackwardArguments& a = task_.arguments;
    return kRowsAreKeys ? Side::queries(a, task_.batch, head)
                        : Side::keys(a, task_.batch, head / a.group_size);
  }
  // Keys that none of the rows attends, and their values, may be NaN, and are taken times 0: they
  // become 0.
  template <int kDims>
  FULMEN_DEVICE void copy(const Element* rows, Int64 stride, int dims, Int64 first, int left,
                          int at) const {
    if constexpr (!kRowsAreKeys && (kKeepMask || (kDropout && kBand))) {
      const auto alive = [&](int row) {
        const Int64 j = first + row;
        return j >= task_.band.first(row_begin_) &&
               any_row_attends(task_.arguments, task_.batch, first_head_, row_begin_, task_.row_end,
                               j);
      };
      copy_panels<kDims, kBlockN, false>(rows + first * stride, stride, dims, left, at, alive);
    } else {
      copy_panels<kDims, kBlockN>(rows + first * stride, stride, dims, left, at);
    }
  }

  // Others may begin the next tile: its columns are there, as far as this thread brought them, and
  // those whose place the tile after takes are read.
  FULMEN_DEVICE void arrive() {
    copy_wait<kSecondEarly ? kAhead - 1 : 0>();
    lds_fence_for_matrices();
    warpgroup_barrier_arrive<kWarpgroups>(turn_, warpgroup_);
  }
  FULMEN_DEVICE void await() {
    warpgroup_barrier_wait<kWarpgroups>(turn_, warpgroup_);
    turn_ = 1 - turn_;
  }

  template <bool kMasked>
  FULMEN_DEVICE void tile(RowSums& sums, int head, Int64 first_column) {
    await();
    const auto at = static_cast<int>(first_column - order_.begin);
    if (kMasked && kBand && (at >= attended_end_ || at + kBlockN <= attended_begin_)) {
      pass();
    } else {
      step<kMasked>(sums, head, first_column);
    }
    buffer_ = following(buffer_);
  }
  // A tile that only other warpgroups' rows meet.
  FULMEN_DEVICE void pass() {
    fetch_next();
    copy_commit();
    replace_second();
    arrive();
  }
  template <bool kMasked>
  FULMEN_DEVICE void step(RowSums& sums, int head, Int64 first_column) {
    const int first_at = kLdsLayout.first_at + buffer_ * kLdsLayout.first_bytes;
    float score[kColumnTiles][kElements], gradient[kColumnTiles][kElements];
    multiply_panels<kHeadDimTiles>(score, own(kLdsLayout.first_rows_at),
                                   matrix_at(first_at, kBlockN));
    if constexpr (kNeedsDout) {
      multiply_panels<kHeadDimVTiles>(gradient, own(kLdsLayout.second_rows_at),
                                      matrix_at(second_at(), kBlockN));
    }
    fetch_next();
    copy_commit();
    wait_for_scores<kMasked, 0>(task_, head, first_column, 0,
                                kLdsLayout.numbers_at + buffer_ * kLdsLayout.number_bytes, numbers_,
                                score, gradient);
    replace_second();
    ProbabilityOperand p[kColumnTiles], ds[kColumnTiles];
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
      if constexpr (kGivesDv) p[f] = to_operand<Element>(score[f]);
      if constexpr (kGivesFirst) ds[f] = to_operand<Element>(gradient[f]);
    }
    wgmma_fence();
    if constexpr (kGivesDv) add_products(sums.second, p, matrix_at(second_at(), kBlockN));
    if constexpr (kGivesFirst) add_products(sums.first, ds, matrix_at(first_at, kBlockN));
    wgmma_commit();
    if constexpr (kOwnPace) arrive();
    wait(sums);
    if constexpr (!kOwnPace) arrive();
  }

  FULMEN_DEVICE int second_at() const {
    return kLdsLayout.second_at + (kSecondEarly ? buffer_ * kLdsLayout.second_bytes : 0);
  }
  // The warpgroup's of the workgroup's rows.
  FULMEN_DEVICE LdsMatrix own(int rows_at) const {
    return matrix_at(rows_at, kBlockM).rows_further(64 * warpgroup_);
  }

  template <int kProducts, int kTiles>
  FULMEN_DEVICE static void add_products(float (&sums)[kProducts][1][kTiles][kElements],
                                         const ProbabilityOperand (&rows)[kColumnTiles],
                                         const LdsMatrix& columns) {
#pragma unroll
    for (int f = 0; f < kColumnTiles; ++f) {
#pragma unroll
      for (int g = 0; g < kProducts; ++g) {
        wgmma<Element, true>(
            sums[g][0], rows[f].words,
            columns.rows_further(kWgmmaDepth * f).columns_further(kScoreTile * kTiles * g, kBlockN),
            true);
      }
    }
  }
  FULMEN_DEVICE static void wait(RowSums& sums) {
    wgmma_wait<0>();
#pragma unroll
    for (int g = 0; g < kSecondProducts; ++g) wgmma_hold(sums.second[g][0]);
#pragma unroll
    for (int g = 0; g < kFirstProducts; ++g) wgmma_hold(sums.first[g][0]);
  }

  const BackwardTask& task_;
  const TileOrder& order_;
  const RowStatistics (&numbers_)[kRowsPerLane];  // of queries that are rows
  Int64 row_begin_;
  int columns_;                 // from the first tile on
  int first_head_, last_head_;  // of the columns, or the one of the rows
  int next_head_;               // of the tile to fetch
  int warpgroup_;
  // Columns that some of the warpgroup's rows meet, from the first tile on.
  int attended_begin_ = 0, attended_end_ = 0;
  int next_ = 0, next_buffer_ = 0;
  int buffer_ = 0;  // of the tile now
  int turn_ = 0;    // of two barriers
};

FULMEN_DEVICE void fetch_rows(const BackwardTask& task, Int64 head, Int64 row_begin,
                              const algorithm::KeyRange& attended) {
  const BackwardArguments& a = task.arguments;
  const Side side =
      kRowsAreKeys ? Side::keys(a, task.batch, head) : Side::queries(a, task.batch, head);
  const auto left = static_cast<int>(task.row_end - row_begin);
  const auto alive = [&](int row) {
    return row < left && (!kRowsAreKeys || key_is_attended(a, task.batch, head, task.band, attended,
                                                           row_begin + row));
  };
  copy_panels<kHeadDim, kBlockM, true>(side.first + row_begin * side.first_stride,
                                       side.first_stride, a.head_dim, left,
                                       kLdsLayout.first_rows_at, alive);
  if constexpr (kNeedsDout) {
    copy_panels<kHeadDimV, kBlockM, true>(side.second + row_begin * side.second_stride,
                                          side.second_stride, a.head_dim_v, left,
                                          kLdsLayout.second_rows_at, alive);
  }
}

template <int kProducts, int kTiles>
FULMEN_DEVICE void store_sums(const BackwardTask& task, const View& view, Int64 head, int dims,
                              float factor, const float (&sums)[kProducts][1][kTiles][kElements]) {
#pragma unroll
  for (int g = 0; g < kProducts; ++g)
    store_rows(task, view, head, g * kTiles, dims, factor, sums[g]);
}

// The same of a split: KeyParts.
template <int kDims, int kProducts, int kTiles>
FULMEN_DEVICE void store_part(const BackwardTask& task, float* part, Int64 kv_head,
                              const float (&sums)[kProducts][1][kTiles][kElements]) {
  const BackwardArguments& a = task.arguments;
  float* const head = part + (task.batch * a.num_kv_heads + kv_head) * a.seqlen_k * kDims;
#pragma unroll
  for (int g = 0; g < kProducts; ++g) {
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        const Int64 row = task.wave_row + tile_row(row_slot(e));
        const int dim = kScoreTile * (g * kTiles + d) + tile_column(e);
        const float(&x)[kElements] = sums[g][0][d];
        if (row < task.row_end) {
          global_store(reinterpret_cast<Words<2>*>(head + row * kDims + dim),
                       Words<2>{{float_bits(x[e]), float_bits(x[e + 1])}});
        }
      }
    }
  }
}

// A workgroup's kBlockM rows of a head.
struct RowBlock {
  int batch, head;
  Int64 row_begin;

  // In the order of KeyBlock; the last queries have most to do. No launch has more than 2^31 - 1
  // workgroups, and divisions of 64 bits take long.
  FULMEN_DEVICE static RowBlock of(const BackwardArguments& call, Int64 workgroup) {
    const auto id = static_cast<unsigned>(workgroup),
               tiles = static_cast<unsigned>(
                   tiles_of(kRowsAreKeys ? call.seqlen_k : call.seqlen_q, kBlockM)),
               heads = static_cast<unsigned>(kRowsAreKeys ? call.num_kv_heads : call.num_heads),
               all_heads = heads * static_cast<unsigned>(call.batch);
    unsigned together = 1;
    if constexpr (kBand) {
      constexpr unsigned kCachedColumns = (16U << 20U) / (2 * (kHeadDim + kHeadDimV));
      const Int64 columns = kRowsAreKeys ? call.seqlen_q * call.group_size : call.seqlen_k;
      const unsigned fit = kCachedColumns / (static_cast<unsigned>(at_most(columns, 1 << 30)) + 1);
      together = fit < 1 ? 1 : fit > all_heads ? all_heads : fit;
    }
    const unsigned first_head = id / (tiles * together) * together, rest = id % (tiles * together);
    const unsigned width = all_heads - first_head < together ? all_heads - first_head : together;
    const unsigned batch_head = first_head + rest % width, nth = rest / width;
    return {static_cast<int>(batch_head / heads), static_cast<int>(batch_head % heads),
            Int64{kRowsAreKeys || !kBand ? nth : tiles - 1 - nth} * kBlockM};
  }
};

// The part of a range that a split has.
FULMEN_DEVICE algorithm::KeyRange in_split(const BackwardArguments& a, int split,
                                           algorithm::KeyRange range) {
  if constexpr (!kSplits) return range;
  const Int64 begin = split * a.split_keys, end = begin + a.split_keys;
  range.begin = range.begin > begin ? range.begin : begin;
  range.end = range.end < end ? range.end : end;
  return range.end > range.begin ? range : algorithm::KeyRange{};
}
// The same from a whole tile on, as splits begin: no tile crosses the split's end, behind which
// rows are 0 and in the band.
FULMEN_DEVICE algorithm::KeyRange tiles_in_split(const BackwardArguments& a, int split,
                                                 algorithm::KeyRange range) {
  range = in_split(a, split, range);
  if constexpr (kSplits) range.begin -= range.begin % kBlockN;
  return range;
}

FULMEN_DEVICE void gradients_of_rows(const BackwardArguments& a, const RowBlock& block, int split) {
  const Int64 length = kRowsAreKeys ? a.seqlen_k : a.seqlen_q, row_begin = block.row_begin;
  const Int64 row_end = row_begin + kBlockM < length ? row_begin + kBlockM : length;
  const algorithm::Band band =
      kBand ? column_band(a) : algorithm::Band{kRowsAreKeys ? a.seqlen_q : a.seqlen_k};
  const algorithm::KeyRange attended =
      tiles_in_split(a, split, met_columns(a, band, block.batch, block.head, row_begin, row_end));
  const TileOrder order =
      TileOrder::of(tile_range(attended),
                    whole_in_mask(in_split(a, split, band.all(row_begin, row_end)), attended));
  const BackwardTask task{a, block.batch, band, row_begin + kScoreTile * wave_id(), row_end, 0, 0};
  RowSums sums = {};
  if (order.count > 0) {
    RowStatistics numbers[kRowsPerLane] = {};
    if constexpr (!kRowsAreKeys) {
#pragma unroll
      for (int slot = 0; slot < kRowsPerLane; ++slot) {
        numbers[slot] =
            RowStatistics::of(a, block.batch, block.head, task.wave_row + tile_row(slot));
      }
    }
    WarpgroupWalk walk(task, order, block.head, row_begin, attended.end, numbers);
    fetch_rows(task, block.head, row_begin, attended);
    walk.over_all(sums);
    if constexpr (kGivesDq) {
#pragma unroll
      for (int g = 0; g < kFirstProducts; ++g)
        finish_queries(task, block.head, task.wave_row, numbers, sums.first[g][0]);
    }
  }
  if constexpr (kSplits) {
    const KeyParts parts = KeyParts::of(a, split);
    if constexpr (kGivesDk) store_part<kHeadDim>(task, parts.dk, block.head, sums.first);
    if constexpr (kGivesDv) store_part<kHeadDimV>(task, parts.dv, block.head, sums.second);
    return;
  }
  if constexpr (kGivesDq)
    store_sums(task, a.dq, block.head, a.head_dim, a.softmax_scale, sums.first);
  if constexpr (kGivesDk)
    store_sums(task, a.dk, block.head, a.head_dim, a.softmax_scale, sums.first);
  if constexpr (kGivesDv) store_sums(task, a.dv, block.head, a.head_dim_v, 1.0F, sums.second);
}

FULMEN_DEVICE void backward_wgmma(const BackwardArguments& call) {
  const int splits = kSplits ? call.num_splits : 1,
            split = kSplits ? static_cast<int>(workgroup_id() % splits) : 0;
  const RowBlock block = RowBlock::of(call, workgroup_id() / splits);
  const BackwardArguments& a = sequence_of(call, block.batch);
  if (kVariable && block.row_begin >= (kRowsAreKeys ? a.seqlen_k : a.seqlen_q)) return;
  gradients_of_rows(a, block, split);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::backward_wgmma)
