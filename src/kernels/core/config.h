// What the host decided for this compilation, from the prelude's #defines: only what changes code. gpu/launch/specialisation.cpp
// writes them.
//   FULMEN_DTYPE            0 fp32, 1 fp16, 2 bf16
//   FULMEN_HEAD_DIM(_V)     dims of q.k and of v, rounded up to what the kernel's tiles need
//   FULMEN_WHOLE_ROWS       1: rows are whole pieces of 16 bytes and start at multiples of 16: they move as vectors
//   FULMEN_WHOLE_DIMS       1: rows are whole pieces of 8 elements, wherever they start
//   FULMEN_EXACT_DIMS       1: the tensors' dims are the rounded ones
//   FULMEN_BIAS             -1 none, else its dtype
//   FULMEN_KEEP_MASK FULMEN_ALIBI FULMEN_SOFTCAP FULMEN_SINKS FULMEN_BAND   0 or 1
//   FULMEN_PLAIN_SCALE      1: the scale is positive and nothing but the band changes scores: it rides in the exponent's FMA
//   FULMEN_WHOLE_BIAS       1: rows of the bias start at multiples of 16 bytes and of 8 keys
//   FULMEN_BATCH_BIAS       short_backward.h: the sum of 1 where each batch has a bias of its own, 2 where a gradient of it
//   FULMEN_WHOLE_TILES      1: seqlen_q is block_m, seqlen_k is block_n, and there is no band
//   FULMEN_PACKED_ROWS      1: a tile's rows are the query heads of a KV head, query after query
//   FULMEN_VARIABLE         1: tables in memory say where each sequence lies and how long it is
//   FULMEN_PAGE_SIZE        0: k and v are not in pages; else a page's rows, -1 where the arguments say how many
//   FULMEN_TILES_IN_PAGES   1: pages begin with a tile of keys and end with one
//   FULMEN_DROPOUT          1: the softmax's elements are dropped at random
//   FULMEN_OUTPUTS          backward: the sum of 1 for dq, 2 for dk, 4 for dv, 8 for dbias
//   FULMEN_SPLITS           1: partial results, for forward/decode_combine.h
//   FULMEN_BLOCK_M FULMEN_BLOCK_N   query and key rows of a tile
//   FULMEN_BUFFERS FULMEN_QUERIES_IN_LDS   of K and V tiles; 1: Q waits in LDS, not in registers
//   FULMEN_PERSISTENT          1: persistent kernel: forward/prefill.h's workgroups take further rows, in flight before these end
//   FULMEN_PING_PONG        1: forward/prefill_tma.h: warpgroups begin products in turn
//   FULMEN_DIM_GROUPS       waves that share their keys; backward_atomic.h: one of 2, or two of 4, for dv, as many for dk
//   FULMEN_EARLY_LOADS     1: forward/short.h loads V before it computes scores, backward.h the next columns before these;
//                           backward_wgmma.h has both tensors of several tiles of columns in LDS
//   FULMEN_WORKGROUP        lanes of a workgroup;  FULMEN_LDS_BYTES what it uses
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
using Element = ElementOf<FULMEN_DTYPE>::Type;
using BiasElement = ElementOf<(FULMEN_BIAS < 0 ? 0 : FULMEN_BIAS)>::Type;

constexpr int kHeadDim = FULMEN_HEAD_DIM;
constexpr int kHeadDimV = FULMEN_HEAD_DIM_V;
constexpr int kBlockM = FULMEN_BLOCK_M;
constexpr int kBlockN = FULMEN_BLOCK_N;
constexpr int kWorkgroup = FULMEN_WORKGROUP;
constexpr int kLdsBytes = FULMEN_LDS_BYTES;
constexpr bool kWholeRows = FULMEN_WHOLE_ROWS != 0;
constexpr bool kWholeDims = FULMEN_WHOLE_DIMS != 0;
constexpr bool kExactDims = FULMEN_EXACT_DIMS != 0;
constexpr int kBuffers = FULMEN_BUFFERS;
constexpr bool kQueriesInLds = FULMEN_QUERIES_IN_LDS != 0;
constexpr bool kPersistent = FULMEN_PERSISTENT != 0;
constexpr bool kPingPong = FULMEN_PING_PONG != 0;
constexpr bool kWholeBias = FULMEN_WHOLE_BIAS != 0;
constexpr bool kBatchBias = (FULMEN_BATCH_BIAS & 1) != 0, kBatchDbias = (FULMEN_BATCH_BIAS & 2) != 0;
constexpr bool kWholeTiles = FULMEN_WHOLE_TILES != 0;
constexpr bool kPackedRows = FULMEN_PACKED_ROWS != 0;
constexpr bool kSplits = FULMEN_SPLITS != 0;
constexpr bool kBias = FULMEN_BIAS >= 0;
constexpr bool kKeepMask = FULMEN_KEEP_MASK != 0;
constexpr bool kAlibi = FULMEN_ALIBI != 0;
constexpr bool kSoftcap = FULMEN_SOFTCAP != 0;
constexpr bool kSinks = FULMEN_SINKS != 0;
constexpr bool kDropout = FULMEN_DROPOUT != 0;
constexpr bool kBand = FULMEN_BAND != 0;
constexpr bool kVariable = FULMEN_VARIABLE != 0;
constexpr int kPageSize = FULMEN_PAGE_SIZE;
constexpr bool kPaged = kPageSize != 0;
constexpr bool kPlainScale = FULMEN_PLAIN_SCALE != 0;

// Features whose arguments do not fit in scalar registers beside those of the loop.
constexpr bool kManyArguments = kKeepMask || (kBias && kAlibi);

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

FULMEN_DEVICE algorithm::Band band_of(const ForwardArguments& a) { return {a.seqlen_k, a.diagonal, a.window_left, a.window_right}; }

FULMEN_DEVICE Int64 tiles_of(Int64 length, int block) { return (length + block - 1) / block; }

// The first element of a head's row.
template <class T>
FULMEN_DEVICE const T* at(const View& view, Int64 batch, Int64 row, Int64 head) {
  return static_cast<const T*>(view.data) + (batch * view.batch + row * view.row + head * view.head);
}

}  // namespace fulmen::kernels
