// What the host decided for one compilation: all that changes code, and nothing else. The one
// definition for the host, which fills it in (gpu/launch), and for device and emulator, which read
// it as kConfig (core/base.h). Numbers of 32 bits alone: the host prints them in order (prelude()
// in gpu/launch/specialisation.cpp), so a field more is a line here.
#pragma once

namespace fulmen::kernels {

struct Configuration {
  int dtype = 0;           // of q and out: 0 fp32, 1 fp16, 2 bf16
  int kv_dtype = dtype;    // of k and v
  int head_dim = 0;        // dims of q.k, rounded up to what the kernel's tiles need
  int head_dim_v = 0;      // dims of v, the same
  int block_m = 0;         // query rows of a tile
  int block_n = 0;         // key rows of a tile
  int workgroup = 0;       // lanes
  int lds_bytes = 0;       // of a workgroup
  int min_waves = 1;       // AMD: waves a SIMD that registers are to leave room for
  int min_workgroups = 1;  // NVIDIA: workgroups a multiprocessor

  // How the kernel works; 0 or 1, but for the first two, `persistent` and `heads_in_row`.
  int buffers = 1;         // of K and V tiles
  int dim_groups = 1;      // waves that share their keys; prefill.h, backward.h: waves that share
                           // their rows; backward_atomic.h: one of 2, or two of 4, for dv, as many
                           // for dk
  int score_tile = 16;     // CDNA4: rows and columns of a product, 16 or 32
  int queries_in_lds = 0;  // Q waits in LDS, not in registers
  int direct_rows = 0;  // backward.h: the workgroup's rows come to registers straight from memory
  int persistent = 0;   // tile scheduler: 0 a single tile, 1 static persistent (grid stride), 2
                        // dynamic persistent (tile counter)
  int ping_pong = 0;    // by the TMA: products of one warpgroup beside another's softmax
  int tensor_maps = 0;  // tiles come by the TMA, which one more warpgroup asks for
  // forward/short.h loads V before it computes scores, backward.h the next columns before these;
  // backward_wgmma.h has both tensors of several tiles of columns in LDS.
  int early_loads = 0;
  // backward_tma.h: in what order a block of keys goes over its tiles of queries: 0 from the first
  // to the last, head after head; 1 from the last to the first; 2 the same, and each tile of all
  // heads before the next one.
  int query_order = 0;
  int packed_rows = 0;    // a tile's rows are the query heads of a KV head, query after query
  int shares_tiles = 0;   // prefill_tma.h: query heads of a KV head share the work tiles of a
                          // sequence with few queries (algorithm/work_tile.h)
  int splits = 0;         // partial results, for forward/decode_combine.h
  int chunk = 0;          // tile/square.h: dims of the columns that are in LDS at once
  int pair_products = 0;  // the same: fp16 numbers are multiplied in pairs
  int heads_in_row = 1;   // decode_tma.h: KV heads that are neighbours in memory are read as one;
                          // head_dim_v is of both then

  // What holds of the tensors; 0 or 1.
  int whole_rows = 0;   // rows are whole pieces of 16 bytes and start at multiples of 16: they move
                        // as vectors
  int whole_dims = 0;   // rows are whole pieces of 8 elements, wherever they start
  int exact_dims = 0;   // the tensors' dims are the rounded ones
  int whole_bias = 0;   // rows of the bias start at multiples of 16 bytes and of 8 keys
  int whole_tiles = 0;  // seqlen_q is block_m, seqlen_k is block_n, and there is no band
  int batch_bias = 0;   // each batch has a bias of its own
  int batch_dbias = 0;  // each batch has a gradient of its own of the bias

  // What is asked for; 0 or 1, but for the dtypes, the keep-mask and the page's size.
  int bias = -1;      // its dtype; -1: none
  int keep_mask = 0;  // 1: read as bytes; 2: as bits (tile/mask_bits.h)
  int alibi = 0;
  int softcap = 0;
  int sinks = 0;
  int band = 0;            // a window or a diagonal
  int plain_scale = 0;     // the scale is positive and nothing but the band changes scores: it
                           // rides in the exponent's FMA
  int dropout = 0;         // the softmax's elements are dropped at random
  int variable = 0;        // tables in memory say where each sequence lies and how long it is
  int page_size = 0;       // 0: k and v are not in pages; else a page's rows, -1 where the
                           // arguments say how many
  int tiles_in_pages = 0;  // pages begin with a tile of keys and end with one
  int outputs = 0;         // backward: the sum of 1 for dq, 2 for dk, 4 for dv, 8 for dbias, 16
                           // for functions' tensors
  int bias_gradient = -1;  // dbias's dtype; -1: none
  // backward/parts/row_statistics.h: keys of a block of those that it lists in a table
  // (backward/parts/block_table.h); 0: it makes none.
  int block_table = 0;

  // backward/parts/row_statistics.h leaves rounded rows to backward/rounded_rows.h, in which the
  // softmax's references are the maxima themselves.
  int rounded_apart = 0;

  // k and v in formats of their own (core/stored_number.h): addresses and strides of both are in
  // bytes then.
  int quantized = 0;
  int v_dtype = kv_dtype;  // kv_dtype is k's
  // Which scales rows have beside the head's: 1 for each token, in fp32, 2 the same in fp16; of k 3
  // for each channel, in fp32, 4 the same in fp16.
  int key_scales = 0;
  int value_scales = 0;
  int score_mod = 0;  // 1: scores go through it (core/score_functions.h)
  // What a mask's bits are made of: the sum of 1 for the keep-mask's bytes, 2 for mask_mod, 4 for a
  // block mask. Of bytes alone forward/pack_mask.h knows, for others it is 0.
  int mask_parts = 0;
  // fulmen::Precision of the products: 0 that of `dtype`, 1 int8 for q.k (forward/prefill_int8.h),
  // 2 fp8 (forward/prefill_fp8.h).
  int precision = 0;
};

}  // namespace fulmen::kernels
