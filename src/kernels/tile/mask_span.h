// What the mask as bits leaves of a range of keys or queries, from the first to the last
// (algorithm/mask_spans.h): loops over tiles begin and end there. The numbers are scalars, so that
// no loop of AMD's waves depends on what a lane has read.
#pragma once

#include "algorithm/mask_spans.h"
#include "core/scores.h"

namespace fulmen::kernels {

using algorithm::MaskSpan;
using algorithm::MaskSpans;

constexpr MaskSpan kNoSpan{~0U, 0};

FULMEN_DEVICE MaskSpans mask_spans_of(const ForwardArguments& a) {
  const MaskBits& bits = a.mask_bits;
  const Int64 batches = bits.batch_planes == 0 ? 1 : a.batch,
              heads = bits.head_planes == 0 ? 1 : a.num_heads;
  return MaskSpans::of(bits, batches * heads);
}

// Widens a span by those of blocks [block, last) of a plane; block 0 is the table's first.
FULMEN_DEVICE void add_spans(const MaskSpans& spans, Int64 plane, Int64 block, Int64 last,
                             MaskSpan& to) {
  for (; block < last; ++block) {
    const auto one = global_load(
        reinterpret_cast<const Words<2>*>(spans.at + 2 * (plane * spans.count() + block)));
    const unsigned begin = uniform(one.word[0]), end = uniform(one.word[1]);
    to.begin = begin < to.begin ? begin : to.begin;
    to.end = end > to.end ? end : to.end;
  }
}

FULMEN_DEVICE algorithm::KeyRange within(const MaskSpan& span, const algorithm::KeyRange& range) {
  const Int64 begin = span.begin > range.begin ? span.begin : range.begin,
              end = span.end < range.end ? span.end : range.end;
  return end > begin ? algorithm::KeyRange{begin, end}
                     : algorithm::KeyRange{range.begin, range.begin};
}

// The keys that the band of queries [begin, end) has, from the first that the mask lets one of them
// attend to the last. Only kernels in the host's list (gpu/launch/mask_bits.cpp) have a table.
FULMEN_DEVICE algorithm::KeyRange keys_in_mask(const ForwardArguments& a, Int64 batch, Int64 head,
                                               Int64 begin, Int64 end,
                                               const algorithm::KeyRange& keys) {
  if (!kMaskBits || keys.end <= keys.begin) return keys;
  MaskSpan span = kNoSpan;
  const bool one = a.mask_bits.blocks == 1;
  add_spans(mask_spans_of(a), mask_plane(a, batch, head), one ? 0 : begin / kMaskRows,
            one ? 1 : tiles_of(end, kMaskRows), span);
  return within(span, keys);
}
// The same of queries: from the first that attends one of keys [begin, end) to the last, in any of
// the heads [head, last_head).
FULMEN_DEVICE algorithm::KeyRange queries_in_mask(const ForwardArguments& a, Int64 batch,
                                                  Int64 head, Int64 last_head, Int64 begin,
                                                  Int64 end, const algorithm::KeyRange& queries) {
  if (!kMaskBits || queries.end <= queries.begin) return queries;
  MaskSpan span = kNoSpan;
  const MaskSpans spans = mask_spans_of(a);
  if (a.mask_bits.head_planes == 0) last_head = head + 1;
  for (; head < last_head; ++head) {
    add_spans(spans, mask_plane(a, batch, head), spans.blocks + begin / kMaskRows,
              spans.blocks + tiles_of(end, kMaskRows), span);
  }
  return within(span, queries);
}

// What needs no mask by the band, of a range that is in the mask.
FULMEN_DEVICE algorithm::KeyRange whole_in_mask(const algorithm::KeyRange& whole,
                                                const algorithm::KeyRange& range) {
  if constexpr (!kMaskBits) return whole;
  const Int64 begin = whole.begin > range.begin ? whole.begin : range.begin,
              end = whole.end < range.end ? whole.end : range.end;
  return end > begin ? algorithm::KeyRange{begin, end} : algorithm::KeyRange{};
}

}  // namespace fulmen::kernels
