// A block of keys of sequences of different lengths, as backward_tma.h and backward_tma_wide.h take
// it from the table of block_table.h.
#pragma once

#include "backward/parts/block_table.h"
#include "backward/parts/uniform_blocks.h"

namespace fulmen::kernels {

// What UniformBlock is for sequences of one length, with the same functions.
struct SequenceBlock {
  static constexpr int kBytes = 32;  // in LDS
  static constexpr int kNone = -1;
  int nth_batch, nth_head;  // nth_batch: kNone where no block is left
  int tile, first;          // of keys; blocks of the head that are taken from the last to the first
  SequenceRows rows;

  using Finder = BlockFinder;
  // All lanes of a wave come here together.
  FULMEN_DEVICE static SequenceBlock nth(const BackwardArguments& call, const BlockFinder& finder,
                                         int n) {
    BlockRun run{};
    if (!finder.find(n, run)) return {kNone, 0, 0, 0, {}};
    const int section_blocks = run.tiles * run.section_heads, in_run = n - run.first,
              head = in_run / section_blocks * run.section_heads, rest = in_run % section_blocks,
              heads = at_most(call.num_kv_heads - head, run.section_heads),
              tile = run.first_tile + run.step * (rest / heads);
    return {run.batch, head + rest % heads, tile, run.first_blocks, run.rows};
  }
  FULMEN_DEVICE bool exists(const BackwardArguments& /*call*/) const { return nth_batch != kNone; }
  FULMEN_DEVICE int batch(const BackwardArguments& /*call*/) const { return nth_batch; }
  FULMEN_DEVICE int kv_head(const BackwardArguments& /*call*/) const { return nth_head; }
  // Without the scale of NaN of a sequence that was cut: its row statistics are NaN, and the scale
  // need not stay in registers.
  FULMEN_DEVICE BackwardArguments sequence_in(const BackwardArguments& call) const {
    return sequence_at(call, nth_batch, rows.sequence());
  }
  FULMEN_DEVICE int first_blocks(const BackwardArguments& /*call*/, int /*batch*/,
                                 int /*kv_head*/) const {
    return first;
  }
  // Packed sequences begin with tiles of their own: their number may be rounded up once a sequence.
  FULMEN_DEVICE int query_tile(const BackwardArguments& call, int batch, int query_head,
                               int nth) const {
    const bool packed = call.sequences.cu_seqlens_q != nullptr;
    const auto row_tiles = static_cast<int>(tiles_of(call.rows_q, kBlockN));
    const int all = packed ? static_cast<int>(call.rows_q / kBlockN) + call.batch
                           : call.batch * row_tiles,
              before = packed ? rows.q_row / kBlockN + batch : batch * row_tiles;
    return query_head * all + before + nth;
  }
  FULMEN_DEVICE TensorRows query_rows(const BackwardArguments& call, int batch) const {
    return {rows.q_row, call.sequences.cu_seqlens_q != nullptr ? 0 : batch};
  }
  FULMEN_DEVICE TensorRows key_rows(const BackwardArguments& call, int batch) const {
    return {rows.k_row, call.sequences.cu_seqlens_k != nullptr ? 0 : batch};
  }
  FULMEN_DEVICE int queries(const BackwardArguments& /*call*/) const { return rows.q_len; }

  FULMEN_DEVICE void store(int at) const {
    lds_store(at, Words<4>{{static_cast<unsigned>(nth_batch), static_cast<unsigned>(nth_head),
                            static_cast<unsigned>(tile), static_cast<unsigned>(first)}});
    lds_store(at + 16, rows.words());
  }
  FULMEN_DEVICE static SequenceBlock load(int at) {
    const auto one = uniform_words(at), rows = uniform_words(at + 16);
    return {static_cast<int>(one.word[0]), static_cast<int>(one.word[1]),
            static_cast<int>(one.word[2]), static_cast<int>(one.word[3]), SequenceRows::from(rows)};
  }

 private:
  // Compilers learn that they are the same in all lanes.
  FULMEN_DEVICE static Words<4> uniform_words(int at) {
    auto words = lds_load<Words<4>>(at);
#pragma unroll
    for (unsigned& word : words.word)
      word = static_cast<unsigned>(broadcast(static_cast<int>(word)));
    return words;
  }
};

}  // namespace fulmen::kernels
