// What a launch passes to a kernel: one struct by value, the same on host and device. Plain data,
// fixed layout.
#pragma once

#include "algorithm/mask_bits.h"
#include "algorithm/philox.h"
#include "algorithm/sequences.h"
#include "algorithm/tensor_gradients.h"
#include "algorithm/work_tile.h"

namespace fulmen::kernels {

using Int64 = long long;
using algorithm::kMaskRows;
using algorithm::kMostRunTiles;
using algorithm::MaskBits;
using algorithm::TensorGradient;
using algorithm::TensorGradients;
using algorithm::WorkTable;
using algorithm::WorkTile;

// A tensor of the problem; strides in elements.
struct View {
  const void* data;
  // Strides of [batch, seqlen, head]; of bias and mask [batch, query, head]; 0 broadcasts.
  Int64 batch, row, head;
};

// What score functions read: addresses of their tensors, and extents and strides that are not
// constants of the kernel, as gpu/launch/score_functions.h counts them.
constexpr int kMostFunctionTensors = 16, kMostFunctionNumbers = 24;
struct FunctionTensors {
  const void* data[kMostFunctionTensors];
  Int64 number[kMostFunctionNumbers];
};

// A block mask's lists (runtime/block_lists.h), strides in elements, and the table that
// forward/block_states.h makes of them: [planes][query_blocks][key_blocks] bytes.
struct BlockLists {
  const int* counts;
  const int* indices;
  Int64 counts_batch, counts_head, counts_row;
  Int64 indices_batch, indices_head, indices_row;
};
constexpr int kMaskedBlock = 0, kPartialBlock = 1, kFullBlock = 2;
struct BlockMask {
  BlockLists partial, full;
  unsigned char* states;
  Int64 batch_planes, head_planes;  // as those of MaskBits
  int query_blocks, key_blocks;
  int block_q, block_k;
};

struct ForwardArguments {
  View q, k, v, out;
  View bias, keep_mask;
  MaskBits mask_bits;
  const float* alibi_slopes;
  Int64 alibi_batch;  // stride
  const float* sinks;
  float* lse;
  Int64 lse_batch, lse_head, lse_row;

  Int64 seqlen_q, seqlen_k;
  int batch, num_heads, num_kv_heads, group_size;
  int head_dim, head_dim_v;
  int row_tiles;      // query tiles a head (or a KV head, where a group shares tiles)
  int runs;           // boards.h: workgroups a head
  int fetches_early;  // boards.h: 1: a workgroup's board to the L2 while the work ahead still runs
  // forward/prefill.h and prefill_tma.h: the static scheduler's stride to a workgroup's next tile,
  // as a mixed-radix index (tile, head, batch). With splits or the dynamic scheduler step_tile
  // alone counts: the number of workgroups.
  int step_tile, step_head, step_batch;
  int section_heads;  // prefill_tma.h, backward_tma.h: whose tiles are interleaved

  float scale;    // of q.k, in the units of kUnitsOfScore (core/config.h), unless there is a
                  // softcap
  float softcap;  // c in these units: score = softcap * tanh(scale * q.k), where scale holds
                  // softmax_scale / c

  Int64 diagonal, window_left, window_right;  // algorithm/key_range.h

  // algorithm/philox.h: all rounds' keys, which instructions then read as constants; the offset's
  // low half.
  algorithm::PhiloxKeys dropout_keys;
  unsigned dropout_offset;
  int dropout;          // probability in units of 1 / 65536
  float dropout_scale;  // of what is kept

  // Split keys: unnormalised output, maxima and sums of each split, for forward/decode_combine.h.
  // Rows are those of [batch, num_heads, seqlen_q] from first_split_row on; those before it are not
  // split.
  // backward_wgmma.h: split_keys are queries, of dk's and dv's sums.
  Int64 split_keys;
  int num_splits;
  Int64 first_split_row;
  int whole_tiles;     // prefill_tma.h: tiles of queries before that row
  int* tile_counter;   // prefill_tma.h, dynamic scheduler: tiles taken so far, beside the first one
                       // of each workgroup
  WorkTable work;      // of sequences of different lengths: work tiles
  float* partial_out;  // [num_splits][rows][head_dim_v]
  float* partial_max;  // [num_splits][rows]
  float* partial_sum;

  // Sequences of different lengths (sequence.h): seqlen_q and seqlen_k are the most that any has,
  // `diagonal` says nothing.
  algorithm::SequenceTable sequences;
  // Rows that the table can name: of packed tensors, or of each sequence.
  Int64 rows_q, rows_k;
  int num_pages;
  int top_left;
  Int64 first_row;  // of a sequence's pages; filled in on the device
  // [256] of 4 bytes, all bits set: NaN in every dtype. It stands for each key of a page that does
  // not exist (sequence.h).
  const void* missing_row;

  // What numbers of quantized k and v are multiplied with, k's with q's, too. Without data: 1.
  // Strides of a page where a token has its own.
  View k_scale, v_scale, q_scale;
  int half_scales;  // of fp16: the sum of 1 for k's, 2 for v's, 4 for q's; else of fp32
  FunctionTensors functions;
  BlockMask block_mask;

  // Products in 8 bits: q, k and, in fp8, v as codes, and their scales (tile/fp8_workspace.h,
  // tile/int8_workspace.h); of a tile what sums of P V are multiplied with, filled in on the
  // device.
  unsigned char* codes;
  float value_scale;
};

// A tensor [batch, head, row, column] as the tensor memory accelerator (TMA) of NVIDIA's Hopper
// sees it: the driver fills it in (gpu/driver.h), and a kernel passes its address on.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// forward/prefill_tma.h: its boxes are tiles of rows by 64 columns.
struct TmaForwardArguments : ForwardArguments {
  TensorMap q_map, k_map, v_map, out_map;
  TensorMap shared_q_map;  // of q with heads before rows: algorithm::SharedTiles
};

// The backward kernels' own: out and lse are inputs.
struct BackwardArguments : ForwardArguments {
  View dout, dq, dk, dv, dbias;  // dbias: a stride of 0 where it is summed over
  const float* dlse;
  Int64 dlse_batch, dlse_head, dlse_row;
  float* dsinks;
  float softmax_scale;  // of dq and dk
  // [batch, num_heads, seqlen_q] or, where q is packed, [num_heads, total_q] pairs: lse in the
  // units of kUnitsOfScore (+inf where it is -inf), delta
  float* row_statistics;
  float* row_shares;  // of the same rows, in natural units: core/row_statistics.h
  // The bias's gradient in parts:
  // [bias_parts][what dbias holds, row-major][rows of a tile where it is summed over queries]
  float* bias_partials;
  int bias_parts;
  // backward_atomic.h: dq / softmax_scale, backward/parts/query_sums.h says where each element is.
  float* query_sums;
  Int64 query_sum_floats;
  // backward_tma.h: the last ones of these are counters, which alone begin with 0:
  // [batch, num_heads, tiles of queries, parts], and as the very last one the tile counter, of the
  // blocks of keys that are taken.
  Int64 query_counters;
  // The same: how many of the floats do not begin with 0, as the first block of keys stores them;
  // 0: none, blocks add to zeros, and no block waits for another.
  Int64 stored_sum_floats;
  int run_batches;  // short_backward.h: batches that a workgroup goes over
  // backward_tma.h's order of blocks (BlockId::nth): of the last `last_heads` heads (at least one),
  // `first_blocks` blocks of keys come before the others, and between these two `middle_heads`
  // whole heads.
  int last_heads, first_blocks, middle_heads;
  int adds_in_order;  // backward_tma.h: dq's sums have the same bits in every run
  // Sequences of different lengths (backward/parts/block_table.h): how many blocks run at once, and
  // how many of the last ones are taken in two parts, 0 for none.
  int block_slots, last_blocks;
  TensorGradients tensor_gradients;
};

// backward/backward_tma.h.
struct TmaBackwardArguments : BackwardArguments {
  TensorMap q_map, k_map, v_map, dout_map;
};

// append_kv.h: fulmen/kv_cache.h explains each.
struct AppendArguments {
  View k_new, v_new, k_cache, v_cache, q, q_out;  // of a paged cache `batch` is from page to page
  const int* seqlens_k;
  const int* block_table;  // null: padded
  int* seqlens_k_out;
  const void* rotary_cos;
  const void* rotary_sin;
  Int64 cos_row, sin_row, table_stride;  // strides
  Int64 rows, positions, num_pages, page_size;
  Int64 seqlen_new, seqlen_q;
  int batch, num_heads, num_kv_heads;
  int head_dim, head_dim_v;
  int half;  // rotary_dim / 2
  int rotary_fp32, interleaved, queries_advance;
  // A quantized cache's, as ForwardArguments has them; strides of the cache are then in bytes. A
  // scale of each token is written.
  View k_scale, v_scale;
  int half_scales;
};

}  // namespace fulmen::kernels
