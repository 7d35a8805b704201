// Gradients of the tensors that score_mod reads: any dtype, any head_dim, any chip. A workgroup of
// 16 x 16 lanes has kBlockM queries of one head, and algorithm::kTensorRunTiles tiles of keys:
//
//   for each tile of keys:  S = q.k, D = dout.v       by chunks of dims, then to LDS
//                           P (D - delta) times score_mod's derivatives, a pair a turn
//                           to the elements' sums
//
// Sums are exact (parts/exact_sum.h): no order of the atomics changes a bit. Where an element's
// place is the same in all lanes that have a query, a key or the tile, these are added up first, in
// an order that the place alone decides. So are a lane's pairs one after the other, and then the
// lanes, where the places happen to be the same: tables have few elements for most distances.
#include "backward/parts/exact_sum.h"
#include "backward/parts/square_products.h"
#include "backward/parts/tensor_loads.h"

namespace fulmen::kernels {

static_assert(kGivesTensors && kScoreMod, "tensor_gradients: of tensors that score_mod reads");
static_assert(kLdsBytes == kLayout.total,
              "tensor_gradients: the host reserves the LDS that the tiles need");

// A lane's products of a tile, which wait in LDS: a loop over pairs has no array in registers.
struct LanePairs {
  FULMEN_DEVICE static int place(int number, int r, int c) {
    return kLayout.columns_at +
           4 * (((number * kRows + r) * kColumns + c) * kWorkgroup + thread_id());
  }
  FULMEN_DEVICE static void store(int number, const RowsByColumns& product) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) lds_store(place(number, r, c), product[r][c]);
    }
  }
};

// The loop over a lane's pairs has its rows (columns) outside where a place depends on the query
// (key): such loads are summed over the inner loop, and only then over lanes.
constexpr LoadRank kOuterRank = some_load_has(LoadRank::query) ? LoadRank::query : LoadRank::key;
constexpr int kOuter = kOuterRank == LoadRank::query ? kRows : kColumns,
              kInner = kOuterRank == LoadRank::query ? kColumns : kRows;

// x of all lanes of the wave for which the place is the same.
template <LoadRank kRank>
FULMEN_DEVICE float sum_over_lanes(float x) {
  constexpr int kFirst = kRank == LoadRank::key ? kSide : 1,
                kEnd = kRank == LoadRank::query ? kSide : kWaveSize;
#pragma unroll
  for (int mask = kFirst; mask < kEnd; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}
template <LoadRank kRank>
FULMEN_DEVICE bool adds_for_lanes() {
  if constexpr (kRank == LoadRank::none) return lane_id() == 0;
  if constexpr (kRank == LoadRank::query) return lane_column() == 0;
  if constexpr (kRank == LoadRank::key) return lane_id() < kSide;
}

// Adds what all lanes have that share the place of load kLoad's element.
template <int kLoad>
FULMEN_DEVICE void add_to_element(const TensorGradients& g, int place, float x) {
  constexpr LoadRank kRank = load_rank(kLoad);
  x = sum_over_lanes<kRank>(x);
  if (!adds_for_lanes<kRank>() || place < 0 || x == 0) return;
  add_exactly(g, g.of[loaded_tensor(kLoad)].first + place, x);
}

// The largest of all lanes of the wave.
FULMEN_DEVICE int largest_of_lanes(int x) {
#pragma unroll
  for (int mask = 1; mask < kWaveSize; mask *= 2) {
    const int other = static_cast<int>(shuffle_xor(static_cast<unsigned>(x), mask));
    x = other > x ? other : x;
  }
  return x;
}

// What a lane has for one place, -1 if it has nothing.
struct HeldSum {
  int place = -1;
  float sum = 0.0F;

  // All lanes of the wave come here together.
  FULMEN_DEVICE void add(const TensorGradients& g, int first, int at, float x) {
    const bool adds = at >= 0 && x != 0;
    if (any_lane(adds && place >= 0 && place != at)) give(g, first);
    if (!adds) return;
    place = at;
    sum += x;
  }
  FULMEN_DEVICE void give(const TensorGradients& g, int first) {
    // A scalar: a branch by it turns no lane off, so that lanes may read each other behind it.
    const int shared = static_cast<int>(uniform(static_cast<unsigned>(largest_of_lanes(place))));
    if (shared >= 0) {
      if (any_lane(place >= 0 && place != shared)) {
        if (place >= 0) add_exactly(g, first + place, sum);
      } else {
        const float all = sum_over_lanes<LoadRank::none>(sum);
        if (lane_id() == 0) add_exactly(g, first + shared, all);
      }
    }
    place = -1;
    sum = 0.0F;
  }
};

// A pair's share of the gradients, and where it belongs.
struct PairGradients {
  float by[kLoads];
  int place[kLoads];
};

// Those of a head's tile, of queries from first_row and keys from first_key on; end: no keys from
// there on.
class TileGradients {
 public:
  FULMEN_DEVICE TileGradients(const BackwardArguments& a, Int64 batch, int head, Int64 first_row,
                              Int64 first_key, Int64 end)
      : a_(a),
        dropout_(a, batch, head),
        batch_(batch),
        head_(head),
        first_row_(first_row),
        first_key_(first_key),
        end_(end) {}

  FULMEN_DEVICE void add() {
    float of_tile[kLoads] = {};
    int tile_place[kLoads] = {};
    HeldSum held[kLoads];
#pragma unroll 1
    for (int outer = 0; outer < kOuter; ++outer) {
      float of_outer[kLoads] = {};
      int outer_place[kLoads] = {};
#pragma unroll 1
      for (int inner = 0; inner < kInner; ++inner) {
        const bool by_rows = kOuterRank == LoadRank::query;
        const PairGradients pair = of_pair(by_rows ? outer : inner, by_rows ? inner : outer);
        add_pair<0>(pair, of_tile, tile_place, of_outer, outer_place, held);
      }
      add_sums<0, kOuterRank>(of_outer, outer_place);
    }
    add_sums<0, LoadRank::none>(of_tile, tile_place);
    give_held<0>(held);
  }

 private:
  FULMEN_DEVICE PairGradients of_pair(int r, int c) {
    // Scalar registers do not hold all arguments.
    const BackwardArguments& a = again(a_, kColumns * r + c);
    const Int64 i = first_row_ + lane_row() + kSide * r, j = first_key_ + lane_column() + kSide * c;
    const float dot = lds_load<float>(LanePairs::place(0, r, c)),
                dprobability = lds_load<float>(LanePairs::place(1, r, c));
    const RowStatistics numbers = RowStatistics::of(a, batch_, head_, i);
    bool attended = i < a.seqlen_q && j < end_ && in_band(a, i, j) && numbers.has_keys();
    if constexpr (kMaskBits) attended = attended && mask_bit(a, batch_, head_, i, j);
    const ScoreInputs inputs =
        ScoreInputs::of(a, batch_, head_, attended ? i : 0, attended ? j : 0);
    const ScoreTerms terms = ScoreTerms::of(inputs, attended);
    ScoreSlopes slopes;
    const float before = score_before_mod(a, terms, dot, slopes);
    // A place that lanes share is right in each of them, whatever pairs are attended.
    const TensorLoads loads = tensor_loads(a.functions, {before, static_cast<int>(batch_), head_,
                                                         static_cast<int>(i), static_cast<int>(j)});
    const float score = before == -kInfinity ? before : loads.score;  // core/score_functions.h
    const float share = RowShares::load(inputs.share, numbers.offset),
                probability = share * exp2(kLog2E * (score - numbers.offset));
    float dropped = 1.0F;
    if constexpr (kDropout) dropped = dropout_.keeps(i, j) ? a.dropout_scale : 0.0F;
    const float gradient = probability * (dprobability * dropped - numbers.delta);
    const bool counts = terms.attended && !adds_nothing(probability);
    PairGradients pair;
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const float product = gradient * loads.by[n];
      pair.by[n] = counts ? product : 0.0F;
      pair.place[n] = loads.place[n];
    }
    return pair;
  }

  // To sums of the outer loop, the tile or a place, or straight to memory.
  template <int kLoad>
  FULMEN_DEVICE void add_pair(const PairGradients& pair, float (&of_tile)[kLoads],
                              int (&tile_place)[kLoads], float (&of_outer)[kLoads],
                              int (&outer_place)[kLoads], HeldSum (&held)[kLoads]) const {
    if constexpr (kLoad < kLoads) {
      constexpr LoadRank kRank = load_rank(kLoad);
      if constexpr (kRank == LoadRank::none) {
        of_tile[kLoad] += pair.by[kLoad];
        tile_place[kLoad] = pair.place[kLoad];
      } else if constexpr (kRank == kOuterRank) {
        of_outer[kLoad] += pair.by[kLoad];
        outer_place[kLoad] = pair.place[kLoad];
      } else if constexpr (kRank == LoadRank::pair) {
        held[kLoad].add(a_.tensor_gradients, first_of<kLoad>(), pair.place[kLoad], pair.by[kLoad]);
      } else {
        add_to_element<kLoad>(a_.tensor_gradients, pair.place[kLoad], pair.by[kLoad]);
      }
      add_pair<kLoad + 1>(pair, of_tile, tile_place, of_outer, outer_place, held);
    }
  }
  template <int kLoad>
  FULMEN_DEVICE void give_held(HeldSum (&held)[kLoads]) const {
    if constexpr (kLoad < kLoads) {
      if constexpr (load_rank(kLoad) == LoadRank::pair)
        held[kLoad].give(a_.tensor_gradients, first_of<kLoad>());
      give_held<kLoad + 1>(held);
    }
  }
  // The first element of the tensor that a load reads.
  template <int kLoad>
  FULMEN_DEVICE int first_of() const {
    return a_.tensor_gradients.of[loaded_tensor(kLoad)].first;
  }
  // The sums of loads with this rank, to memory.
  template <int kLoad, LoadRank kRank>
  FULMEN_DEVICE void add_sums(const float (&sum)[kLoads], const int (&place)[kLoads]) const {
    if constexpr (kLoad < kLoads) {
      if constexpr (load_rank(kLoad) == kRank)
        add_to_element<kLoad>(a_.tensor_gradients, place[kLoad], sum[kLoad]);
      add_sums<kLoad + 1, kRank>(sum, place);
    }
  }

  const BackwardArguments& a_;
  DropoutMask dropout_;
  Int64 batch_;
  int head_;
  Int64 first_row_, first_key_, end_;
};

FULMEN_DEVICE void tensor_gradients(const BackwardArguments& call) {
  const auto id = static_cast<unsigned>(workgroup_id()),
             runs = static_cast<unsigned>(
                 tiles_of(call.seqlen_k, algorithm::kTensorRunTiles * kBlockN)),
             tiles = static_cast<unsigned>(tiles_of(call.seqlen_q, kBlockM)),
             heads = static_cast<unsigned>(call.num_heads);
  const Int64 run = id % runs, first_row = Int64{id / runs % tiles} * kBlockM;
  const int head = static_cast<int>(id / runs / tiles % heads),
            batch = static_cast<int>(id / runs / tiles / heads);
  const BackwardArguments& a = sequence_of(call, batch);
  const RowRange rows{first_row, a.seqlen_q};
  if (kVariable && first_row >= a.seqlen_q) return;
  const Int64 row_end = first_row + kBlockM < rows.end ? first_row + kBlockM : rows.end;
  algorithm::KeyRange keys = band_of(a).any(first_row, row_end);
  const Int64 run_begin = run * (algorithm::kTensorRunTiles * kBlockN),
              run_end = run_begin + algorithm::kTensorRunTiles * kBlockN;
  keys.begin = keys.begin > run_begin ? keys.begin : run_begin;
  keys.end = keys.end < run_end ? keys.end : run_end;
  if (keys.end <= keys.begin) return;
  stage_staying_rows(SquareSide::rows(a, batch, head), rows);
  for (Int64 key = keys.begin; key < keys.end; key += kBlockN) {
    // They need not stay in registers.
    const BackwardArguments& now = sequence_of(reload(call, key), batch);
    const RowRange tile{key, keys.end};
    {
      const SquareSide queries = SquareSide::rows(now, batch, head),
                       columns = SquareSide::columns(now, batch, head);
      RowsByColumns dot = {}, dprobability = {};
      multiply<kLayout.first_pitch, true>(queries.first, rows, 0, columns.first, tile, kChunks,
                                          dot);
      multiply<kLayout.second_pitch, true>(queries.second, rows, kLayout.second_at, columns.second,
                                           tile, kChunksV, dprobability);
      barrier();  // the columns are read by now
      LanePairs::store(0, dot);
      LanePairs::store(1, dprobability);
    }
    TileGradients(now, batch, head, first_row, key, keys.end).add();
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::tensor_gradients)
