// Makes the table of block_table.h, in one workgroup of the launch before backward_tma.h.
//
// Sequences are taken from the longest to the shortest, so that the blocks that are taken last have
// little work. Under a causal mask a sequence's first keys have the most work, and are taken last,
// as blocks of a head add to dq in the order in which they are taken. So the shortest sequences, as
// many as have call.last_blocks blocks, are taken in two parts, which shortens the tail wave: the
// first halves of their keys, then the others, from more work to less.
#pragma once

#include "backward/parts/block_table.h"

namespace fulmen::kernels {

class BlockTableMaker {
 public:
  FULMEN_DEVICE explicit BlockTableMaker(const BackwardArguments& call)
      : call_(call), table_(BlockTable::of(call)) {}
  FULMEN_DEVICE void run() const {
    if (call_.batch <= kMostSorted) {
      sorted();
    } else {
      in_turn();
    }
  }

 private:
  // More sequences are taken in the order in which they lie: each is compared with all others.
  static constexpr int kSequenceBytes = 12, kMostSorted = kLdsBytes / kSequenceBytes;

  // What the order goes by. blocks: of one head.
  struct Length {
    int queries, blocks;
    FULMEN_DEVICE static Length load(int b) {
      const auto words = lds_load<Words<2>>(8 * b);
      return {static_cast<int>(words.word[0]), static_cast<int>(words.word[1])};
    }
    FULMEN_DEVICE void store(int b) const {
      lds_store(8 * b, Words<2>{{static_cast<unsigned>(queries), static_cast<unsigned>(blocks)}});
    }
    // Returns true if this one, of sequence b, is taken before sequence c.
    FULMEN_DEVICE bool is_before(int b, const Length& other, int c) const {
      return queries > other.queries || (queries == other.queries && b < c);
    }
  };
  // How many of the blocks of sequence b's first part there are.
  FULMEN_DEVICE static int first_part_at(int b) { return 8 * kMostSorted + 4 * b; }

  // All blocks of sequence b, from the last keys to the first.
  FULMEN_DEVICE BlockRun run_of(int b) const {
    const PlacedSequence s = PlacedSequence::of(call_, b);
    const auto k_len = static_cast<int>(s.k_len);
    BlockRun run{};
    run.batch = b;
    run.rows = {static_cast<int>(s.q_row), static_cast<int>(s.q_len), static_cast<int>(s.k_row),
                k_len};
    run.tiles = (k_len + kTableBlockKeys - 1) / kTableBlockKeys;
    run.step = -1;
    return run;
  }
  // Stores a run of the sequence's first blocks. Enough heads are interleaved that their blocks
  // fill the chip: blocks of one head follow each other in time, as they add to dq one after the
  // other.
  FULMEN_DEVICE void store_first(BlockRun& run, int nth, int first, int tiles) const {
    run.first = first * call_.num_kv_heads;
    run.tiles = run.first_blocks = tiles;
    run.first_tile = tiles - 1;
    const int fill = tiles > 0 ? (call_.block_slots + tiles - 1) / tiles : 1;
    run.section_heads = fill < call_.section_heads ? fill : call_.section_heads;
    run.store(table_.run(nth));
  }

  FULMEN_DEVICE void sorted() const {
    const int batch = call_.batch, heads = call_.num_kv_heads;
    for (int b = thread_id(); b < batch; b += kWorkgroup) {
      const BlockRun run = run_of(b);
      Length{run.rows.q_len, run.tiles}.store(b);
    }
    barrier();
    for (int b = thread_id(); b < batch; b += kWorkgroup) {
      const Length own = Length::load(b);
      Int64 behind = 0;
      for (int c = 0; c < batch; ++c) {
        const Length other = Length::load(c);
        behind += own.is_before(b, other, c) ? other.blocks : 0;
      }
      const bool in_two = behind * heads < call_.last_blocks && own.blocks > 1;
      lds_store(first_part_at(b), in_two ? own.blocks / 2 : own.blocks);
    }
    barrier();
    for (int b = thread_id(); b < batch; b += kWorkgroup) store_runs(b);
  }
  FULMEN_DEVICE void store_runs(int b) const {
    const int batch = call_.batch, heads = call_.num_kv_heads;
    const Length own = Length::load(b);
    int rank = 0, first_before = 0, second_before = 0, first_all = 0, second_all = 0;
    for (int c = 0; c < batch; ++c) {
      const Length other = Length::load(c);
      const int first = lds_load<int>(first_part_at(c)), second = other.blocks - first;
      const bool is_before = other.is_before(c, own, b);
      rank += is_before ? 1 : 0;
      first_before += is_before ? first : 0;
      second_before += is_before ? second : 0;
      first_all += first;
      second_all += second;
    }
    const bool two_parts = call_.last_blocks > 0;
    BlockRun run = run_of(b);
    const int all = run.tiles, first = lds_load<int>(first_part_at(b));
    store_first(run, rank, first_before, first);
    if (two_parts) {  // empty where the sequence is taken whole
      run.first = (first_all + second_before) * heads;
      run.tiles = all - first;
      run.first_tile = first;
      run.step = 1;
      run.section_heads = heads;
      run.store(table_.run(batch + rank));
    }
    if (b == 0)
      table_.store_counts((first_all + second_all) * heads, two_parts ? 2 * batch : batch);
  }

  FULMEN_DEVICE void in_turn() const {
    int before = 0;  // blocks of a head, of the sequences before these
    for (int begin = 0; begin < call_.batch; begin += kWorkgroup) {
      const int b = begin + thread_id();
      const bool exists = b < call_.batch;
      BlockRun run{};
      if (exists) run = run_of(b);
      barrier();
      lds_store(4 * thread_id(), run.tiles);
      barrier();
      int sum = before;
      for (int n = 0; n < kWorkgroup; ++n) {
        const int tiles = lds_load<int>(4 * n);
        sum += n < thread_id() ? tiles : 0;
        before += tiles;
      }
      if (exists) store_first(run, b, sum, run.tiles);
    }
    if (thread_id() == 0) table_.store_counts(before * call_.num_kv_heads, call_.batch);
  }

  const BackwardArguments& call_;
  BlockTable table_;
};

}  // namespace fulmen::kernels
