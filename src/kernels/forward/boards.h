// Forward for chess boards: 64 queries and 64 keys. A wave has 16 query rows of one head with their
// whole score rows, so nothing is rescaled. With two buffers a workgroup goes over boards of one
// head, the next in flight to LDS while one is computed, and has the bias of that head in registers
// for all of them; with one it has one board, and ends as soon as it can:
//   S = bias / scale + Q K^T      the bias is what the products are added to: no arithmetic of its
//                                 own; in natural units, where the quotient may overflow, S = scale
//                                 Q K^T + bias
//   P = e^(scale (S - max))
//   O = P V                       through the LDS of the wave's queries to memory, by 16 bytes a
//                                 lane
#include "forward/boards_layout.h"
#include "tile/modified_scores.h"
#include "tile/nvidia/swizzle.h"
#include "tile/rows.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

constexpr int kWaves = kWorkgroup / kWaveSize;
constexpr int kKeyTiles = kBlockN / kScoreTile, kMmaSteps = kHeadDim / kTileMmaK,
              kDimTiles = kHeadDim / kScoreTile;
static_assert(kBlockM == kScoreTile * kWaves && kBlockM == kBlockN, "boards: a wave has 16 rows");
static_assert(kHeadDim == kHeadDimV, "boards: outputs take the place of queries");

// A bias that all boards of a workgroup share stays in registers; else it comes with the board.
constexpr bool kBiasWithBoard = kBias && (kBatchBias || kBuffers == 1);
static_assert(!kBias || sizeof(BiasElement) == 2, "boards: a bias has 16 bits");

constexpr BoardsLayout kBoards = BoardsLayout::of({kHeadDim, kBlockN, kBuffers, kBiasWithBoard});
static_assert(kBoards.total == kLdsBytes, "boards: the host reserves the LDS that the tiles need");

using Rows = SwizzledRows<kHeadDim>;
using BiasRows = SwizzledRows<kBlockN>;
using Scores = TileRow<kKeyTiles>;

// Lanes that share a row when it moves, a piece each; those past its end have none.
FULMEN_DEVICE constexpr int lanes_of_row(int dims) { return dims <= 32 ? 4 : dims <= 64 ? 8 : 16; }

// A lane's share of a tensor in flight, board after board: a piece of every so many rows.
template <class T, int kDims>
class TensorCopies {
 public:
  // board: its first row; step: from one board of the workgroup to the next, in elements.
  // Whole rows are near.
  FULMEN_DEVICE TensorCopies(const T* board, Int64 row_stride, Int64 step)
      : from_(board + lane_row() * static_cast<int>(row_stride) + 8 * lane_piece()),
        rows_(kRows * static_cast<int>(row_stride)),
        step_(step) {}
  FULMEN_DEVICE void fetch(int at) {
    if (kIdle && 8 * lane_piece() >= kDims) return;
    const int to = at + SwizzledRows<kDims>::place(lane_row(), 16 * lane_piece());
#pragma unroll
    for (int n = 0; n < kBlockN / kRows; ++n) {
      const T* from = from_ + n * rows_;
      if constexpr (kWholeRows) {
        copy_async_16(to + n * kRows * SwizzledRows<kDims>::kPitch, from, true);
      } else {
        lds_store(to + n * kRows * SwizzledRows<kDims>::kPitch, load_piece(from, 0, 8));
      }
    }
    if constexpr (kBuffers > 1) from_ += step_;
  }
  FULMEN_DEVICE unsigned long long address() const {
    return reinterpret_cast<unsigned long long>(from_);
  }
  FULMEN_DEVICE void fetch_early() const {
    if (kIdle && 8 * lane_piece() >= kDims) return;
#pragma unroll
    for (int n = 0; n < kBlockN / kRows; ++n) fetch_to_l2(from_ + n * rows_);
  }

 private:
  static constexpr int kLanes = lanes_of_row(kDims), kRows = kWorkgroup / kLanes;
  static constexpr bool kIdle = kLanes * 8 != kDims;
  static_assert(kRows % 8 == 0, "boards: the swizzle is the same in all rows of a lane");
  FULMEN_DEVICE static int lane_row() { return thread_id() / kLanes; }
  FULMEN_DEVICE static int lane_piece() { return thread_id() % kLanes; }
  const T* from_;
  int rows_;
  Int64 step_;
};

// The workgroup's boards in flight, one after the other: first what scores need.
class BoardCopies {
 public:
  FULMEN_DEVICE BoardCopies(const ForwardArguments& a, unsigned batch, unsigned head,
                            unsigned kv_head)
      : q_(at<Element>(a.q, batch, 0, head), a.q.row, a.runs * a.q.batch),
        k_(at<KvElement>(a.k, batch, 0, kv_head), a.k.row, a.runs * a.k.batch),
        v_(at<KvElement>(a.v, batch, 0, kv_head), a.v.row, a.runs * a.v.batch),
        // Elements of 16 bits, whichever they are.
        bias_(reinterpret_cast<const Element*>(at<BiasElement>(a.bias, batch, 0, head)), a.bias.row,
              a.runs * a.bias.batch) {}
  FULMEN_DEVICE unsigned long long addresses() const {
    return q_.address() | k_.address() | v_.address() | (kBiasWithBoard ? bias_.address() : 0);
  }
  FULMEN_DEVICE void fetch_early() const {
    q_.fetch_early();
    k_.fetch_early();
    if constexpr (kBiasWithBoard) bias_.fetch_early();
    v_.fetch_early();
  }
  FULMEN_DEVICE void fetch(int at) {
    q_.fetch(at);
    k_.fetch(at + kBoards.k_at);
    if constexpr (kBiasWithBoard) bias_.fetch(at + kBoards.bias_at);
    if constexpr (kBuffers == 1) copy_commit();
    v_.fetch(at + kBoards.v_at);
    copy_commit();
  }

 private:
  TensorCopies<Element, kHeadDim> q_;
  TensorCopies<KvElement, kHeadDim> k_, v_;
  TensorCopies<Element, kBlockN> bias_;
};

// What a wave's scores begin with, or end with in natural units: the bias of its rows.
class ScoreBias {
 public:
  FULMEN_DEVICE void hold(const ForwardArguments& a, int batch, int head, int row) {
    if constexpr (kBias) unit_ = kNaturalUnits ? 1.0F : kLog2E / a.scale;
    if constexpr (kBias && !kBiasWithBoard) {
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
        unsigned bits[kElements];
#pragma unroll
        for (int slot = 0; slot < kRowsPerLane; ++slot) {
          load_columns<false, kWholeBias>(
              at<BiasElement>(a.bias, batch, row + tile_row(slot), head) + kScoreTile * f,
              kBlockN - kScoreTile * f, slot, bits);
        }
#pragma unroll
        for (int e = 0; e < kElements; ++e) held_[f][e] = unit_ * of_bits<BiasElement>(bits[e]);
      }
    }
  }
  FULMEN_DEVICE void begin(unsigned lane, int at, int row, Scores& score) const {
    if constexpr (kNaturalUnits) {
#pragma unroll
      for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
        for (float& s : score[f]) s = 0.0F;
      }
    } else {
      take(lane, at, row, score);
    }
  }
  FULMEN_DEVICE void end(float scale, unsigned lane, int at, int row, Scores& score) const {
    if constexpr (!kNaturalUnits) return;
    Scores bias;
    take(lane, at, row, bias);
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) score[f][e] = score[f][e] * scale + bias[f][e];
    }
  }

 private:
  FULMEN_DEVICE void take(unsigned lane, int at, int row, Scores& score) const {
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
      Words<4> words{};
      if constexpr (kBiasWithBoard)
        words = BiasRows::queries(lane, at + kBoards.bias_at, row, f).words;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if constexpr (kBiasWithBoard) {
          score[f][e] = unit_ * of_bits<BiasElement>(words.word[e / 2] >> (16U * (e % 2)));
        } else {
          score[f][e] = kBias ? held_[f][e] : 0.0F;
        }
      }
    }
  }

  float unit_;
  float held_[kBias && !kBiasWithBoard ? kKeyTiles : 1][kElements];
};

FULMEN_DEVICE float scale_of_exponent(const ForwardArguments& a) {
  return kNaturalUnits ? kLog2OfUnit : a.scale;
}

FULMEN_DEVICE void multiply_keys(unsigned lane, int at, int row, Scores& score) {
#pragma unroll
  for (int d = 0; d < kMmaSteps; ++d) {
    const QueryOperand queries = Rows::queries(lane, at, row, d);
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
      multiply_scores<Element>(score[f], Rows::keys(lane, at + kBoards.k_at, kScoreTile * f, d),
                               queries);
    }
  }
}

using Outputs = TileRow<kDimTiles>;

// Where a lane's pieces of its wave's outputs go.
class OutputRows {
 public:
  FULMEN_DEVICE OutputRows(const ForwardArguments& a, int batch, int head, int row)
      : to_(out_row(a, batch, head, row) + lane_row() * static_cast<int>(a.out.row) +
            8 * lane_piece()),
        rows_(kRows * static_cast<int>(a.out.row)),
        step_(a.runs * a.out.batch) {}
  // From LDS, [row][dim] at `at`.
  FULMEN_DEVICE void store(int at, int row) {
    if (!kIdle || 8 * lane_piece() < kHeadDim) {
#pragma unroll
      for (int n = 0; n < kScoreTile / kRows; ++n) {
        const auto piece =
            lds_load<Words<4> >(at + Rows::place(row + n * kRows + lane_row(), 16 * lane_piece()));
        Element* to = to_ + n * rows_;
        if constexpr (kWholeRows) {
          global_store(reinterpret_cast<Words<4>*>(to), piece);
        } else {
          store_elements(to, piece, 8);
        }
      }
    }
    if constexpr (kBuffers > 1) to_ += step_;
  }
  FULMEN_DEVICE unsigned long long address() const {
    return reinterpret_cast<unsigned long long>(to_);
  }

 private:
  static constexpr int kLanes = lanes_of_row(kHeadDim), kRows = kWaveSize / kLanes;
  static constexpr bool kIdle = kLanes * 8 != kHeadDim;
  FULMEN_DEVICE static int lane_row() { return lane_id() / kLanes; }
  FULMEN_DEVICE static int lane_piece() { return lane_id() % kLanes; }
  Element* to_;
  int rows_;
  Int64 step_;
};

// Outputs of a wave's rows over the probabilities' sums, and their log-sum-exp.
FULMEN_DEVICE void finish(const ForwardArguments& a, unsigned lane, int batch, int head, int at,
                          int row, const RowState& rows, const Outputs& out,
                          OutputRows& output_rows) {
  RowEnd end[kRowsPerLane];
#pragma unroll
  for (int slot = 0; slot < kRowsPerLane; ++slot) {
    end[slot] =
        end_row(a, head, row_maximum(rows, scale_of_exponent(a), slot), total(rows.sum[slot]));
  }
  if (a.lse != nullptr && tile_column(0) == 0) {
#pragma unroll
    for (int slot = 0; slot < kRowsPerLane; ++slot)
      store_lse(a, batch, head, row + tile_row(slot), end[slot].lse);
  }
  wave_barrier();  // all of the wave's queries have been read
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
    Words<4> words;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float factor = end[w % 2].output_factor;
      words.word[w] = pack<Element>(out[d][2 * w] * factor, out[d][2 * w + 1] * factor);
    }
    Rows::leave(lane, at, row, d, words);
  }
  wave_barrier();
  output_rows.store(at, row);
}

// The same in all lanes. A shuffle that says so takes longer than it gains where a workgroup has
// one board.
FULMEN_DEVICE unsigned own_number(unsigned x) {
  return kBuffers == 1 ? x : static_cast<unsigned>(broadcast(static_cast<int>(x)));
}

FULMEN_DEVICE void boards(const ForwardArguments& a) {
  if constexpr (kBuffers > 1) grid_dependency_wait();  // it is not launched early
  const auto id = static_cast<unsigned>(workgroup_id()), heads = static_cast<unsigned>(a.num_heads);
  const unsigned head = own_number(id % heads), first = own_number(id / heads);
  // The division takes long.
  const unsigned kv_head = a.group_size == 1 ? head : head / static_cast<unsigned>(a.group_size);
  const int row = kScoreTile * wave_id();
  BoardCopies copies(a, first, head, kv_head);
  // What is known without memory is computed before the wait; with 32 dims what follows it is the
  // faster for less of that.
  const auto output_rows_of = [&] {
    return OutputRows(a, static_cast<int>(first), static_cast<int>(head), row);
  };
  if (kBuffers == 1 && a.fetches_early != 0) copies.fetch_early();
  if constexpr (kBuffers == 1)
    grid_dependency_wait(copies.addresses() | (kHeadDim > 32 ? output_rows_of().address() : 0));
  copies.fetch(0);
  OutputRows output_rows = output_rows_of();
  ScoreBias bias;
  bias.hold(a, static_cast<int>(first), static_cast<int>(head), row);
  int at = 0;  // the current buffer
  for (int batch = static_cast<int>(first); kBuffers == 1 || batch < a.batch; batch += a.runs) {
    copy_wait<kBuffers == 1 ? 1 : 0>();
    barrier();
    if (kBuffers == 2 && a.batch - batch > a.runs) copies.fetch(kBoards.buffer_bytes - at);
    // Addresses that follow from it are few, and quickly computed.
    const auto lane = static_cast<unsigned>(recompute(lane_id()));
    Scores score;
    bias.begin(lane, at, row, score);
    multiply_keys(lane, at, row, score);
    RowState rows;
    rows.clear();
    bias.end(a.scale, lane, at, row, score);
    find_maxima(rows, scale_of_exponent(a), score, rows.reference);
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) exponentiate_keys(rows, scale_of_exponent(a), score[f]);
    if constexpr (kBuffers == 1) {
      copy_wait<0>();
      barrier();
    }
    Outputs out = {};
#pragma unroll
    for (int f = 0; f < kKeyTiles; ++f) {
      const ProbabilityOperand p = to_operand<Element, true>(score[f]);
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        multiply_output<Element>(out[d], p, Rows::values(lane, at + kBoards.v_at, f, d));
      }
    }
    finish(a, lane, batch, static_cast<int>(head), at, row, rows, out, output_rows);
    if constexpr (kBuffers == 1) return;
    at = kBoards.buffer_bytes - at;
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::boards)
