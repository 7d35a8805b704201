// The keep-mask as bits (core/arguments.h: MaskBits): a row's bits of a tile, and which tiles no
// row attends or all rows do.
#pragma once

#include "core/matrix.h"
#include "core/scores.h"

namespace fulmen::kernels {

static_assert(!kMaskBits || kBlockN == kScoreTile || kBlockN % 32 == 0,
              "mask_bits: a tile has 16 columns, or whole words of them");

// True if tiles that no row attends are skipped, and whole ones are known. On AMD all of a
// workgroup's waves come to a barrier a tile, which the mask must not decide about, and a second
// code path for whole tiles would spill: there each score's bit is tested.
constexpr bool kKnowsTiles = kMaskBits && kCopiesToLds;

// The bits of a key's queries. Where all queries have one row of the mask, these are as many as a
// tile has.
FULMEN_DEVICE const unsigned* mask_column(const ForwardArguments& a, Int64 batch, Int64 head,
                                          Int64 key) {
  return a.mask_bits.by_key +
         (mask_plane(a, batch, head) * a.mask_bits.keys + key) * a.mask_bits.query_words;
}

// The bits of a tile's kBlockN columns, of one row.
struct TileBits {
  static constexpr int kCount = (kBlockN + 31) / 32;
  unsigned word[kCount];

  // row: the row's first word; first: the tile's first column, a multiple of kBlockN.
  FULMEN_DEVICE static TileBits of(const unsigned* row, Int64 first) {
    TileBits bits;
    if constexpr (kBlockN % 32 != 0) {
      bits.word[0] = global_load(row + first / 32) >> (first % 32 == 0 ? 0U : 16U) & 0xFFFFU;
    } else {
      constexpr int kStep = kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;
#pragma unroll
      for (int w = 0; w < kCount; w += kStep) {
        const auto piece = global_load(reinterpret_cast<const Words<kStep>*>(row + first / 32 + w));
#pragma unroll
        for (int n = 0; n < kStep; ++n) bits.word[w + n] = piece.word[n];
      }
    }
    return bits;
  }
  FULMEN_DEVICE static TileBits none() {
    TileBits bits;
#pragma unroll
    for (int w = 0; w < kCount; ++w) bits.word[w] = 0;
    return bits;
  }
  // Returns the bit of the lane's element e of columns [16 * f, 16 * f + 16).
  FULMEN_DEVICE bool has(int f, int e) const {
    // The lane's own columns are at fixed distances from its first: one shift for all.
    const unsigned own = word[f / 2] >> (static_cast<unsigned>(tile_column(0)) +
                                         16U * (static_cast<unsigned>(f) % 2));
    return (own >> static_cast<unsigned>(tile_column(e) - tile_column(0)) & 1U) != 0;
  }
  FULMEN_DEVICE void operator|=(const TileBits& other) {
#pragma unroll
    for (int w = 0; w < kCount; ++w) word[w] |= other.word[w];
  }
  // Those of columns [begin, end).
  FULMEN_DEVICE TileBits within(int begin, int end) const {
    TileBits bits;
#pragma unroll
    for (int w = 0; w < kCount; ++w)
      bits.word[w] = word[w] & bit_range(begin - 32 * w, end - 32 * w);
    return bits;
  }
  FULMEN_DEVICE bool is_empty() const {
    unsigned some = 0;
#pragma unroll
    for (int w = 0; w < kCount; ++w) some |= word[w];
    return some == 0;
  }
  FULMEN_DEVICE bool is_full() const {
    unsigned every = ~0U;
#pragma unroll
    for (int w = 0; w < kCount; ++w) every &= word[w];
    return every == (kBlockN == kScoreTile ? 0xFFFFU : ~0U);
  }
};

// What a range of queries attends of the keys.
struct MaskedRows {
  const unsigned* any;  // of their first block
  const unsigned* all;
  int blocks, words;
  Int64 all_blocks;  // of a plane

  FULMEN_DEVICE static MaskedRows of(const ForwardArguments& a, Int64 batch, Int64 head,
                                     Int64 row_begin, Int64 row_end) {
    const MaskBits& bits = a.mask_bits;
    const Int64 first = bits.blocks == 1 ? 0 : row_begin / kMaskRows;
    const Int64 end = bits.blocks == 1 ? 1 : tiles_of(row_end, kMaskRows);
    const Int64 at = (mask_plane(a, batch, head) * bits.blocks + first) * bits.words;
    return {bits.any + at, bits.all + at, row_end > row_begin ? static_cast<int>(end - first) : 0,
            bits.words, bits.blocks};
  }
  FULMEN_DEVICE bool attend(Int64 key) const {
    unsigned word = 0;
    for (int n = 0; n < blocks; ++n) word |= global_load(any + n * words + key / 32);
    return (word >> static_cast<unsigned>(key % 32) & 1U) != 0;
  }
  FULMEN_DEVICE bool attend_some(Int64 key_begin, Int64 key_end) const {
    bool some = false;
    for (Int64 key = key_begin; key < key_end && !some; ++key) some = attend(key);
    return some;
  }
  // Which keys of a tile some query attends. heads: that have planes of their own, this one and
  // those behind it.
  FULMEN_DEVICE TileBits attended(Int64 first_key, int heads = 1) const {
    TileBits bits = TileBits::none();
    for (int h = 0; h < heads; ++h) {
      const unsigned* const plane = any + h * all_blocks * words;
      for (int n = 0; n < blocks; ++n) bits |= TileBits::of(plane + n * words, first_key);
    }
    return bits;
  }
  // Returns true if the mask lets every query attend every key of the tile.
  FULMEN_DEVICE bool all_keep(Int64 first_key) const {
    bool whole = blocks > 0;
    for (int n = 0; n < blocks; ++n)
      whole = whole && TileBits::of(all + n * words, first_key).is_full();
    return whole;
  }
};

// Returns true if some query of [row_begin, row_end) attends key j, which is in some query's band.
// As any_row_keeps(), but bits are of whole blocks.
FULMEN_DEVICE bool any_row_attends(const ForwardArguments& a, Int64 batch, Int64 head,
                                   Int64 row_begin, Int64 row_end, Int64 j) {
  if constexpr (kMaskBits) return MaskedRows::of(a, batch, head, row_begin, row_end).attend(j);
  return any_row_keeps(a, batch, head, row_begin, row_end, j);
}

// What the mask says of the tiles of an order. Each lane looks at one tile of 32, and all lanes
// keep what they found: a tile costs a bit's test. All lanes of a wave come here together, with n
// from 0 up.
template <class Order>
class LookedAtTiles {
 public:
  FULMEN_DEVICE LookedAtTiles(const MaskedRows& rows, const Order& order)
      : rows_(rows), order_(order) {}

 protected:
  // The first tile from n on whose bit of kept_ is set; order.count behind the last one.
  // look(there, first_key): at the lane's tile, sets kept_.
  template <class Look>
  FULMEN_DEVICE int next(int n, const Look& look) {
#pragma unroll 1
    while (n < order_.count) {
      if (n / 32 != looked_at_) {
        looked_at_ = n / 32;
        const int own = 32 * looked_at_ + lane_id();
        const bool there = lane_id() < 32 && own < order_.count;
        look(there, order_.first_key(there ? own : 0));
      }
      const unsigned rest = kept_ >> (static_cast<unsigned>(n) % 32);
      if (rest != 0) return n + lowest_bit(rest);
      n = 32 * (looked_at_ + 1);
    }
    return n < order_.count ? n : order_.count;
  }
  FULMEN_DEVICE static bool has(unsigned tiles, int n) {
    return (tiles >> (static_cast<unsigned>(n) % 32) & 1U) != 0;
  }

  MaskedRows rows_;
  const Order& order_;
  int looked_at_ = -1;
  unsigned kept_ = 0;
};

// For a range of queries.
template <class Order>
class KeptTiles : LookedAtTiles<Order> {
  using Base = LookedAtTiles<Order>;

 public:
  using Base::Base;
  // The first tile from n on of which some query attends some key.
  FULMEN_DEVICE int next(int n) {
    return Base::next(n, [&](bool there, Int64 first_key) {
      TileBits keys = TileBits::none();
      bool whole = false;
      if (there) {
        keys = this->rows_.attended(first_key);
        whole = this->rows_.all_keep(first_key);
      }
      this->kept_ = static_cast<unsigned>(ballot(!keys.is_empty()));
      full_ = static_cast<unsigned>(ballot(keys.is_full()));
      whole_ = static_cast<unsigned>(ballot(whole));
    });
  }
  // The mask lets each query attend all of tile n.
  FULMEN_DEVICE bool is_whole(int n) const { return Base::has(whole_, n); }
  // Each key is attended by some query.
  FULMEN_DEVICE bool has_all_keys(int n) const { return Base::has(full_, n); }

 private:
  unsigned whole_ = 0, full_ = 0;
};

// The kept tiles of an order, one after the other.
template <class Order>
class KeptWalk {
 public:
  FULMEN_DEVICE KeptWalk(const MaskedRows& rows, const Order& order)
      : tiles_(rows, order), order_(order), n_(tiles_.next(0)) {}
  FULMEN_DEVICE bool there() const { return n_ < order_.count; }
  FULMEN_DEVICE void advance() { n_ = tiles_.next(n_ + 1); }
  FULMEN_DEVICE Int64 first_key() const { return order_.first_key(n_); }
  // Neither the mask nor the band or an end hides anything of it.
  FULMEN_DEVICE bool is_whole() const { return n_ >= order_.masked && tiles_.is_whole(n_); }
  FULMEN_DEVICE bool has_all_keys() const { return tiles_.has_all_keys(n_); }

 private:
  KeptTiles<Order> tiles_;
  const Order& order_;
  int n_;
};

}  // namespace fulmen::kernels
