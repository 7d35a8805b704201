// Sequences of different lengths: what a sequence's arguments would be if it were alone, so that
// kernels know nothing of the others.
#pragma once

#include "core/config.h"
#include "core/scale_types.h"

namespace fulmen::kernels {

// Where sequence b lies. Tables in device memory are unchecked: lengths and places are clamped to
// the tensors.
struct PlacedSequence : algorithm::Sequence {
  bool cut;  // the tables name rows that there are not

  FULMEN_DEVICE static PlacedSequence of(const ForwardArguments& call, Int64 b) {
    const algorithm::Sequence named =
        call.sequences.sequence(b, [](const int* number) { return global_load(number); });
    const auto clamp = [](Int64 x, Int64 most) { return algorithm::Band::clamp(x, 0, most); };
    PlacedSequence s{};
    s.q_row = clamp(named.q_row, call.rows_q);
    s.k_row = clamp(named.k_row, call.rows_k);
    s.q_len = clamp(clamp(named.q_len, call.seqlen_q), call.rows_q - s.q_row);
    s.k_len = clamp(clamp(named.k_len, call.seqlen_k), call.rows_k - s.k_row);
    s.cut = s.q_row != named.q_row || s.k_row != named.k_row || s.q_len != named.q_len ||
            s.k_len != named.k_len;
    return s;
  }
  FULMEN_DEVICE static PlacedSequence of(const WorkTile& tile) {
    PlacedSequence s{};
    s.q_row = tile.q_row;
    s.q_len = tile.q_len;
    s.k_row = tile.k_row;
    s.k_len = tile.k_len;
    s.cut = (tile.marks & WorkTile::kCut) != 0;
    return s;
  }
};

template <class T = Element>
FULMEN_DEVICE void begin_at(View& view, Int64 row) {
  if (view.data != nullptr) view.data = static_cast<const T*>(view.data) + row * view.row;
}

// Moves the backward pass's tensors to the sequence's rows; the forward pass has none.
FULMEN_DEVICE void begin_gradients_at(ForwardArguments& /*a*/, Int64 /*b*/,
                                      const algorithm::Sequence& /*s*/) {}
FULMEN_DEVICE void begin_gradients_at(BackwardArguments& a, Int64 b, const algorithm::Sequence& s) {
  begin_at(a.dout, s.q_row);
  begin_at(a.dq, s.q_row);
  begin_at<KvElement>(a.dk, s.k_row);
  begin_at<KvElement>(a.dv, s.k_row);
  if (a.dlse != nullptr) a.dlse += s.q_row * a.dlse_row;
  const bool packed = a.sequences.cu_seqlens_q != nullptr;
  const Int64 first_row = packed ? s.q_row : b * a.num_heads * a.rows_q;
  a.row_statistics += 2 * first_row;
  if constexpr (kNaturalUnits) a.row_shares += first_row;
  // Whole tiles of 16 queries, the sequences' one after the other: their number may be rounded up
  // once a sequence.
  if (a.query_sums != nullptr) {
    a.query_sums +=
        (packed ? s.q_row / 16 + b : b * a.num_heads * tiles_of(a.rows_q, 16)) * 16 * kHeadDim;
  }
}

// The arguments of sequence b, which lies at `s`. Batch indices still are b, and rows_q stays the
// call's.
template <class Arguments>
FULMEN_DEVICE Arguments sequence_at(const Arguments& call, Int64 b, const algorithm::Sequence& s) {
  Arguments a = call;
  a.seqlen_q = s.q_len;
  a.seqlen_k = s.k_len;
  a.diagonal = call.top_left != 0 ? 0 : s.k_len - s.q_len;
  begin_at(a.q, s.q_row);
  begin_at(a.out, s.q_row);
  if (a.lse != nullptr) a.lse += s.q_row * a.lse_row;
  if constexpr (kPaged) {
    a.sequences.block_table += b * a.sequences.table_stride;
    a.first_row = s.k_row;
  } else {
    begin_at<KvElement>(a.k, s.k_row);
    begin_at<KvElement>(a.v, s.k_row);
    if constexpr (kKeyScaleOfToken) begin_at<KeyScale>(a.k_scale, s.k_row);
    if constexpr (kValueScaleOfToken) begin_at<ValueScale>(a.v_scale, s.k_row);
  }
  begin_gradients_at(a, b, s);
  return a;
}
// What remains of a sequence that was cut is not its result: a scale of NaN makes all its rows NaN
// (see end_row(), too).
template <class Arguments>
FULMEN_DEVICE Arguments arguments_at(const Arguments& call, Int64 b, const PlacedSequence& s) {
  Arguments a = sequence_at(call, b, s);
  if (s.cut) a.scale = kNan;
  return a;
}
// The same, from the tables; the call's own arguments where all sequences have one length.
template <class Arguments>
FULMEN_DEVICE decltype(auto) sequence_of(const Arguments& call, Int64 b) {
  if constexpr (!kVariable) {
    return (call);
  } else {
    return arguments_at(call, b, PlacedSequence::of(call, b));
  }
}

// reload() of a sequence's arguments, which have been computed and stay where they are.
template <class Arguments>
FULMEN_DEVICE const Arguments& again(const Arguments& a, Int64 when) {
  if constexpr (kVariable) return a;
  return reload(a, when);
}

// Row 0 of a head of k or v: of the sequence's, or of page 0.
FULMEN_DEVICE const KvElement* head_rows(const View& view, Int64 batch, Int64 kv_head) {
  return at<KvElement>(view, kPaged ? 0 : batch, 0, kv_head);
}

// A row of a sequence in its pages: `page` as it stands in the table.
struct PagedRow {
  unsigned page, row;

  FULMEN_DEVICE static PagedRow of(const ForwardArguments& a, Int64 key) {
    const auto row = static_cast<unsigned>(a.first_row + key);
    const auto size = static_cast<unsigned>(kPageSize > 0 ? kPageSize : a.sequences.page_size);
    return {static_cast<unsigned>(global_load(a.sequences.block_table + row / size)), row % size};
  }
  FULMEN_DEVICE bool exists(const ForwardArguments& a) const {
    return page < static_cast<unsigned>(a.num_pages);
  }
  // A page that does not exist has keys of NaN, which makes NaN of all that attend them; its values
  // are page 0's.
  template <bool kValues>
  FULMEN_DEVICE const KvElement* in(const ForwardArguments& a, const View& view,
                                    const KvElement* head) const {
    const KvElement* const place = head + (exists(a) ? page : 0U) * view.batch + row * view.row;
    if constexpr (kValues || kQuantized) return place;  // quantized keys have a scale of NaN
    return exists(a) ? place : static_cast<const KvElement*>(a.missing_row);
  }
};

// Where a row of k or v is; head: by head_rows().
template <bool kValues>
FULMEN_DEVICE const KvElement* kv_row(const ForwardArguments& a, const View& view,
                                      const KvElement* head, Int64 key) {
  if constexpr (!kPaged) return head + key * view.row;
  return PagedRow::of(a, key).in<kValues>(a, view, head);
}
FULMEN_DEVICE const KvElement* key_row(const ForwardArguments& a, const KvElement* head,
                                       Int64 key) {
  return kv_row<false>(a, a.k, head, key);
}
FULMEN_DEVICE const KvElement* value_row(const ForwardArguments& a, const KvElement* head,
                                         Int64 key) {
  return kv_row<true>(a, a.v, head, key);
}

// Tiles of keys begin at multiples of kBlockN, and lie in a page each.
constexpr bool kTilesInPages = kConfig.tiles_in_pages != 0;
// The rows of a tile are anywhere: each is looked up.
constexpr bool kScattered = kPaged && !kTilesInPages;

// A tile's first key, which is the same in all lanes. Looking up its page, and using it, are apart:
// the former can come early.
struct TilePlace {
  Int64 key;
  PagedRow place;

  FULMEN_DEVICE static TilePlace of(const ForwardArguments& a, Int64 key) {
    if constexpr (!kTilesInPages) return {key, {}};
    return {key, PagedRow::of(a, key)};
  }
  // Its row; nothing where rows are scattered.
  template <bool kValues>
  FULMEN_DEVICE const KvElement* row(const ForwardArguments& a, const View& view,
                                     const KvElement* head) const {
    if constexpr (!kPaged) return head + key * view.row;
    if constexpr (kScattered) return head;
    return PagedRow{uniform(place.page), place.row}.in<kValues>(a, view, head);
  }
  // From there to the tile's next row: none where each is the missing one.
  template <bool kValues>
  FULMEN_DEVICE Int64 stride(const ForwardArguments& a, const View& view) const {
    if constexpr (!kTilesInPages || kValues) return view.row;
    return PagedRow{uniform(place.page), place.row}.exists(a) ? view.row : 0;
  }
};

// Where tiles begin, given the first key that is attended: maybe before it.
constexpr bool kTilesBeginEarly = kTilesInPages || kDropout || kMaskBits || kFp8Products;
FULMEN_DEVICE Int64 first_tile_key(Int64 begin) {
  // A row's bits of a tile are whole words; transposed values in 8 bits are whole panels.
  if constexpr (kTilesInPages || kMaskBits || kFp8Products || (kPaged && kTensorMaps))
    return begin - begin % kBlockN;
  // Where blocks of random numbers do (tile/dropout_tile.h).
  return kDropout ? begin / 16 * 16 : begin;
}
// What tiles go over, given the keys that are attended; backward, or the queries that attend.
FULMEN_DEVICE algorithm::KeyRange tile_range(const algorithm::KeyRange& attended) {
  return attended.end > attended.begin
             ? algorithm::KeyRange{first_tile_key(attended.begin), attended.end}
             : attended;
}

}  // namespace fulmen::kernels
