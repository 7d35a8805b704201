// The configuration as constants and types. core/configuration.h explains each field.
#pragma once

#include "algorithm/key_range.h"
#include "core/arguments.h"
#include "core/base.h"

namespace fulmen::kernels {

template <int kDType>
struct ElementOf;
template <>
struct ElementOf<0> {
  using Type = float;
};
template <>
struct ElementOf<1> {
  using Type = Half;
};
template <>
struct ElementOf<2> {
  using Type = Bfloat16;
};
using Element = ElementOf<kConfig.dtype>::Type;  // of q, out, dout and dq
constexpr bool kQuantized = kConfig.quantized != 0;
// An element of k and v where forward kernels read them; a byte where they are quantized.
using KvElement =
    Either<kQuantized, unsigned char, ElementOf<(kQuantized ? 0 : kConfig.kv_dtype)>::Type>;
using BiasElement = ElementOf<(kConfig.bias < 0 ? 0 : kConfig.bias)>::Type;

constexpr int kHeadDim = kConfig.head_dim;
constexpr int kHeadDimV = kConfig.head_dim_v;
constexpr int kBlockM = kConfig.block_m;
constexpr int kBlockN = kConfig.block_n;
constexpr bool kWholeRows = kConfig.whole_rows != 0;
constexpr bool kWholeDims = kConfig.whole_dims != 0;
constexpr bool kExactDims = kConfig.exact_dims != 0;
constexpr int kBuffers = kConfig.buffers;
constexpr bool kQueriesInLds = kConfig.queries_in_lds != 0;
constexpr bool kDirectRows = kConfig.direct_rows != 0;
constexpr bool kPersistent = kConfig.persistent != 0, kDynamicTiles = kConfig.persistent == 2;
constexpr bool kPingPong = kConfig.ping_pong != 0;
constexpr bool kTensorMaps = kConfig.tensor_maps != 0;
constexpr bool kTilesDown = kConfig.query_order > 0, kTileByTile = kConfig.query_order == 2;
constexpr bool kWholeBias = kConfig.whole_bias != 0;
constexpr bool kBatchBias = kConfig.batch_bias != 0, kBatchDbias = kConfig.batch_dbias != 0;
constexpr bool kWholeTiles = kConfig.whole_tiles != 0;
constexpr bool kPackedRows = kConfig.packed_rows != 0;
constexpr bool kSharesTiles = kConfig.shares_tiles != 0;
constexpr bool kSplits = kConfig.splits != 0;
constexpr int kHeadsInRow = kConfig.heads_in_row;
constexpr bool kBias = kConfig.bias >= 0;
constexpr bool kKeepMask = kConfig.keep_mask != 0, kMaskBytes = kConfig.keep_mask == 1,
               kMaskBits = kConfig.keep_mask == 2;
constexpr bool kAlibi = kConfig.alibi != 0;
constexpr bool kScoreMod = kConfig.score_mod != 0;
constexpr bool kSoftcap = kConfig.softcap != 0;
constexpr bool kSinks = kConfig.sinks != 0;
constexpr bool kDropout = kConfig.dropout != 0;
constexpr bool kBand = kConfig.band != 0;
constexpr bool kVariable = kConfig.variable != 0;
constexpr int kPageSize = kConfig.page_size;
constexpr bool kPaged = kPageSize != 0;
constexpr bool kPlainScale = kConfig.plain_scale != 0;
constexpr bool kEarlyLoads = kConfig.early_loads != 0;
constexpr bool kMakesBlockTable = kConfig.block_table > 0;
constexpr bool kRoundedApart = kConfig.rounded_apart != 0;
// What the bits of a mask are made of.
constexpr bool kMaskOfBytes = (kConfig.mask_parts & 1) != 0,
               kMaskOfFunction = (kConfig.mask_parts & 2) != 0,
               kMaskOfBlocks = (kConfig.mask_parts & 4) != 0;
constexpr bool kInt8Products = kConfig.precision == 1, kFp8Products = kConfig.precision == 2;
// Keys and queries are codes of 8 bits, in kernels whose lanes load operands; with fp8 values and
// probabilities are, too.
constexpr bool kCodeValues = kFp8Products && !kTensorMaps, kCodeKeys = kInt8Products || kCodeValues;
// Quantized keys and values come by the TMA as numbers of q's dtype (forward/kv_numbers.h).
constexpr bool kKvNumbers = kConfig.quantized != 0 && kConfig.tensor_maps != 0;
constexpr int kTableBlockKeys = kMakesBlockTable ? kConfig.block_table : 1;

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

// Scores and rows' maxima are in natural units where a bias, or what score_mod gives, may be any
// finite number of fp32's range: log2(e) times a huge one overflows, or is rounded by more than the
// exponential's range. The maximum is then subtracted before that factor. Else they are in base-2
// units.
constexpr bool kNaturalUnits = (kBias && !kIsHalf<BiasElement>) || kScoreMod;
// Times a natural score: in its units.
constexpr float kUnitsOfScore = kNaturalUnits ? 1.0F : kLog2E;
// Times a difference of scores: the exponent of 2.
constexpr float kLog2OfUnit = kNaturalUnits ? kLog2E : 1.0F;

FULMEN_DEVICE algorithm::Band band_of(const ForwardArguments& a) {
  return {a.seqlen_k, a.diagonal, a.window_left, a.window_right};
}

FULMEN_DEVICE Int64 tiles_of(Int64 length, int block) { return (length + block - 1) / block; }

// The first element of a head's row.
template <class T>
FULMEN_DEVICE const T* at(const View& view, Int64 batch, Int64 row, Int64 head) {
  return static_cast<const T*>(view.data) +
         (batch * view.batch + row * view.row + head * view.head);
}

}  // namespace fulmen::kernels
