// The launch behind pack_mask.h: which keys a block of queries attends, and which queries a block
// of keys, from the first to the last (algorithm/mask_spans.h). A workgroup has a block.
#include "tile/mask_span.h"

namespace fulmen::kernels {

static_assert(kLdsBytes == 8 * (kWorkgroup / 32),
              "mask_spans: the host reserves LDS for its waves");

FULMEN_DEVICE MaskSpan widest(const MaskSpan& x, const MaskSpan& y) {
  return {x.begin < y.begin ? x.begin : y.begin, x.end > y.end ? x.end : y.end};
}

// A lane's part of a block's.
FULMEN_DEVICE MaskSpan lanes_span(const MaskBits& bits, const unsigned* any, Int64 block) {
  MaskSpan span = kNoSpan;
  if (block < bits.blocks) {
    for (int w = thread_id(); w < bits.words; w += kWorkgroup) {
      const unsigned key = 32U * static_cast<unsigned>(w);
      if (global_load(any + block * bits.words + w) != 0) span = widest(span, {key, key + 32});
    }
    return span;
  }
  const unsigned* const keys = any + (block - bits.blocks) * (kMaskRows / 32);
  for (int n = thread_id(); n < bits.blocks; n += kWorkgroup) {
    const auto words = global_load(reinterpret_cast<const Words<2>*>(keys + Int64{n} * bits.words));
    if ((words.word[0] | words.word[1]) == 0) continue;
    // One block stands for all queries, maybe.
    const unsigned query = static_cast<unsigned>(kMaskRows) * static_cast<unsigned>(n);
    span = widest(span, {query, bits.blocks == 1 ? ~0U : query + kMaskRows});
  }
  return span;
}

FULMEN_DEVICE void mask_spans(const ForwardArguments& call) {
  const MaskBits& bits = call.mask_bits;
  const MaskSpans spans = mask_spans_of(call);
  const Int64 id = workgroup_id(), plane = id / spans.count();
  const Int64 batch = plane / (bits.head_planes == 0 ? 1 : call.num_heads);
  const ForwardArguments& a = sequence_of(call, batch);
  if (a.seqlen_q <= 0 || a.seqlen_k <= 0) return;  // its bits were not made
  MaskSpan span = lanes_span(bits, bits.any + plane * bits.blocks * bits.words, id % spans.count());
#pragma unroll
  for (int mask = 1; mask < kWaveSize; mask *= 2)
    span = widest(span, {shuffle_xor(span.begin, mask), shuffle_xor(span.end, mask)});
  const int wave = wave_id();  // which all lanes of a wave ask for together
  if (lane_id() == 0) lds_store(8 * wave, Words<2>{{span.begin, span.end}});
  barrier();
  if (thread_id() != 0) return;
  for (int n = 0; n < kWorkgroup / kWaveSize; ++n) {
    const auto part = lds_load<Words<2>>(8 * n);
    span = widest(span, {part.word[0], part.word[1]});
  }
  global_store(reinterpret_cast<Words<2>*>(spans.at + 2 * id), Words<2>{{span.begin, span.end}});
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::mask_spans)
