// Keys and values as operands straight from memory, without LDS: for kernels whose waves share
// little.
#pragma once

#include "core/stored_pairs.h"
#include "tile/kept_keys.h"
#include "tile/modified_scores.h"
#include "tile/register_pressure.h"
#include "tile/row_buffer.h"
#include "tile/rows.h"
#include "tile/softmax.h"

namespace fulmen::kernels {

// A lane takes kWidth neighbouring dims of each of its keys; tile t of a group of outputs has every
// kWidth-th dim, from t on. On gfx11 a lane has all 16 keys: 8 dims of each would fill 64
// registers. In 8 bits bf16 has room for them; fp16's conversions keep more in flight.
constexpr int kDimsOfWave = kHeadDimV / kConfig.dim_groups;  // of outputs
constexpr int kWidth = kDimsOfWave % (8 * kDirectDims) == 0 &&
                               kDirectKeys * kStoredBytes<true> <= (kIsHalf<Element> ? 8 : 16)
                           ? 8
                       : kDimsOfWave % (4 * kDirectDims) == 0 && !kFewDims ? 4
                                                                           : 2;
constexpr int kGroupDims = kWidth * kDirectDims;
constexpr int kGroups = kDimsOfWave / kGroupDims;
static_assert(kDimsOfWave % kGroupDims == 0,
              "direct: a wave's dims of v are rounded up to a multiple of 32");

struct DirectOutput {
  float value[kGroups][kWidth][kDirectElements];

  FULMEN_DEVICE void rescale(const float (&factor)[kRowsPerLane]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int t = 0; t < kWidth; ++t) {
#pragma unroll
        for (int e = 0; e < kDirectElements; ++e) value[g][t][e] *= factor[row_slot(e)];
      }
    }
  }
};

FULMEN_DEVICE int direct_dim(int group, int e) {
  return group * kGroupDims + direct_column(e) * kWidth;
}

// Keys [begin, end) of a head, at least one.
struct KeySource {
  const ForwardArguments& arguments;
  const View& view;
  const KvElement* rows;  // by head_rows()
  Int64 begin, end;
  int dims;
};

// A source's rows [first_key, first_key + kBlockN). Those past its end repeat the last one or are
// 0: their scores are masked. So are those before its begin, but a probability of 0 must not meet a
// value that may be NaN because no row attends it: these repeat the first one or are 0, too.
template <bool kValues>
class NearRows {
 public:
  FULMEN_DEVICE NearRows(const KeySource& source, const TilePlace& first)
      : source_(source),
        first_key_(first.key),
        rows_(first.row<kValues>(source.arguments, source.view, source.rows)),
        stride_(first.stride<kValues>(source.arguments, source.view)),
        skipped_(kSkips && first.key < source.begin ? static_cast<int>(source.begin - first.key)
                                                    : 0),
        last_(at_most(source.end - first.key, kBlockN) - 1),
        buffer_(rows_ + skipped_ * stride_,
                bytes_of(static_cast<unsigned>((last_ - skipped_) * stride_ +
                                               source.dims * kStoredUnits<kValues>))) {}
  // Elements of key first_key + key + fixed, from dim on, zeros beyond the row's end. `fixed` is
  // the same in all lanes; so is `key` with kUniform.
  template <bool kUniform, int kCount>
  FULMEN_DEVICE StoredWords<kValues, kCount> load(int key, int fixed, int dim) const {
    constexpr int kBytes = kStoredBytes<kValues>;
    // Two bytes are loaded as what they are.
    using Piece = Either<kCount * kBytes == 2, Half, StoredWords<kValues, kCount>>;
    if constexpr (kBuffered) {
      const unsigned stride = bytes_of(static_cast<unsigned>(stride_));
      const unsigned at_dim =
          kExactDims || dim < source_.dims ? kBytes * static_cast<unsigned>(dim) : kBeyond;
      // Keys before the buffer have distances below 0, which are past any end: these must not be
      // mended by the other part.
      if constexpr (kUniform)
        return words_of(
            buffer_.load<Piece>(at_dim, static_cast<unsigned>(key + fixed - skipped_) * stride));
      const auto row = static_cast<unsigned>(kSkips ? key + fixed - skipped_ : key) * stride;
      return words_of(buffer_.load<Piece>(kExactDims || dim < source_.dims ? at_dim + row : kBeyond,
                                          kSkips ? 0 : static_cast<unsigned>(fixed) * stride));
    }
    int row_id = key + fixed;
    row_id = row_id < skipped_ ? skipped_ : row_id < last_ ? row_id : last_;
    const KvElement* row = kScattered ? kv_row<kValues>(source_.arguments, source_.view,
                                                        source_.rows, first_key_ + row_id)
                                      : rows_ + row_id * stride_;
    Piece words{};
    if constexpr (kWholeRows) {
      if (kExactDims || dim < source_.dims)
        words = global_load(reinterpret_cast<const Piece*>(row + dim * kStoredUnits<kValues>));
    } else if constexpr (kWholeDims && kAnyAlignment) {
      const bool there = kExactDims || dim < source_.dims;
      words = global_load_unaligned<Piece>(row + (there ? dim * kStoredUnits<kValues> : 0));
      if constexpr (!kExactDims) return masked(words_of(words), there ? ~0U : 0U);
    } else {
      StoredWords<kValues, kCount> gathered{};
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        if (dim + e >= source_.dims) continue;
        if constexpr (kBytes == 1) {
          gathered.word[e / 4] |= static_cast<unsigned>(global_load(
                                      reinterpret_cast<const unsigned char*>(row) + dim + e))
                                  << (8U * (e % 4));
        } else {
          gathered.word[e / 2] |=
              static_cast<unsigned>(
                  global_load(reinterpret_cast<const Half*>(row + dim * kStoredUnits<kValues>) + e)
                      .bits)
              << (16U * (e % 2));
        }
      }
      return gathered;
    }
    return words_of(words);
  }

 private:
  static constexpr bool kSkips = kBand && kValues;
  FULMEN_DEVICE static constexpr unsigned bytes_of(unsigned units) {
    return kQuantized ? units : units * 2;
  }
  FULMEN_DEVICE static Words<1> words_of(Half x) { return {{x.bits}}; }
  template <int kWords>
  FULMEN_DEVICE static Words<kWords> words_of(const Words<kWords>& x) {
    return x;
  }
  const KeySource& source_;
  Int64 first_key_;
  const KvElement* rows_;  // of the first key; of no meaning where rows are scattered
  Int64 stride_;
  int skipped_;  // keys before the source's first
  int last_;
  static constexpr unsigned kBeyond = 0x80000000U;  // past every buffer's end
  RowBuffer buffer_;
};

using NearKeys = NearRows<false>;
using NearValues = NearRows<true>;

// Key tile `tile` of the near ones.
struct StoredKeys {
  StoredWords<false, 8> piece[kPieces];
};
template <class Keys>
FULMEN_DEVICE StoredKeys load_keys(const Keys& keys, int tile, int dim) {
  StoredKeys stored;
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    stored.piece[p] =
        keys.template load<false, 8>(piece_row(p), kScoreTile * tile, dim + piece_dim(p));
  return stored;
}
FULMEN_DEVICE RowOperand key_operand(const StoredKeys& stored) {
  RowOperand operand;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) operand.piece[p] = piece_of<false, Element>(stored.piece[p]);
  return operand;
}

// kValueDepth keys' values of one group of dims.
constexpr bool kSameKeys = kDirectKeys == 16;  // in all lanes
struct DirectValues {
  StoredWords<true, kWidth> key[kDirectKeys];
};

// Which of kBlockN keys from first_key on the keep-mask shows to any of the rows [row_begin,
// row_end).
FULMEN_DEVICE KeptKeys<kBlockN> kept_keys(const RowMap& map, Int64 row_begin, Int64 row_end,
                                          const KeySource& source, Int64 first_key) {
  if constexpr (!kKeepMask) return {};
  const Int64 first_query = map.query(row_begin), query_end = map.query(row_end - 1) + 1;
  if constexpr (kMaskBits) {
    const ForwardArguments& a = map.arguments;
    const MaskedRows rows = MaskedRows::of(a, map.batch, map.first_head, first_query, query_end);
    // Heads that share a plane of bits attend the same.
    const int heads = kPackedRows && a.mask_bits.head_planes != 0 ? a.group_size : 1;
    TileBits bits = rows.attended(first_key, heads);
#pragma unroll
    for (int w = 0; w < TileBits::kCount; ++w) bits.word[w] = uniform(bits.word[w]);
    KeptKeys<kBlockN> kept = KeptKeys<kBlockN>::of(bits);
    if (first_key < source.begin) kept.drop_before(static_cast<int>(source.begin - first_key));
    kept.drop_behind(at_most(source.end - first_key, kBlockN) - 1);
    return kept;
  }
  const ForwardArguments& a = again(map.arguments, first_key);
  return KeptKeys<kBlockN>::of([&](int n) {
    const Int64 key = first_key + n;
    if (key < source.begin || key >= source.end) return false;
    const int heads = kPackedRows ? a.group_size : 1;
    for (int h = 0; h < heads; ++h) {
      if (any_row_keeps(a, map.batch, map.first_head + h, first_query, query_end, key)) return true;
    }
    return false;
  });
}

// What the keep-mask hides from all rows becomes 0, as it may be NaN.
template <class Values>
FULMEN_DEVICE DirectValues load_direct(const Values& values, const KeptKeys<kBlockN>& kept,
                                       int step, int group) {
  DirectValues loaded;
  const int dim = group * kGroupDims + direct_lane() * kWidth;
#pragma unroll
  for (int m = 0; m < kDirectKeys; ++m) {
    loaded.key[m] = values.template load<kSameKeys, kWidth>(
        direct_key(0), kValueDepth * step + direct_key(m) - direct_key(0), dim);
    if constexpr (kKeepMask)
      loaded.key[m] =
          kept.template or_zero<kSameKeys>(kValueDepth * step + direct_key(m), loaded.key[m]);
    constexpr int kAtOnce = kWidth == 8 ? 2 : 4;  // addresses and masks of some keys at a time
    if constexpr (kManyArguments || (kSameKeys && !kBuffered)) {
      if (m % kAtOnce == kAtOnce - 1) schedule_fence();
    }
  }
  return loaded;
}

FULMEN_DEVICE void multiply_values(DirectOutput& out, int group, const ProbabilityOperand& p,
                                   const DirectValues& values) {
#pragma unroll
  for (int t = 0; t < kWidth; ++t) {
    unsigned pairs[kDirectKeys / 2];
#pragma unroll
    for (int m = 0; m < kDirectKeys / 2; ++m) {
      pairs[m] = pair_of_rows<true, Element>(values.key[2 * m], values.key[2 * m + 1], t);
    }
    multiply_direct<Element>(out.value[group][t], p, pairs);
  }
}

}  // namespace fulmen::kernels
