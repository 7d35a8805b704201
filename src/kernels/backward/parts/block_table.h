// Sequences of different lengths: in what order backward_tma.h takes their blocks of keys. A table
// in memory, which make_block_table.h writes, lists runs of blocks. A run is a sequence's tiles of
// keys, or a part of them, for all KV heads.
#pragma once

#include "core/sequence.h"

namespace fulmen::kernels {

// A sequence's place in the table, and in a block that was taken: numbers of 32 bits.
struct SequenceRows {
  int q_row, q_len, k_row, k_len;

  FULMEN_DEVICE static SequenceRows from(const Words<4>& words) {
    return {static_cast<int>(words.word[0]), static_cast<int>(words.word[1]),
            static_cast<int>(words.word[2]), static_cast<int>(words.word[3])};
  }
  FULMEN_DEVICE Words<4> words() const {
    return {{static_cast<unsigned>(q_row), static_cast<unsigned>(q_len),
             static_cast<unsigned>(k_row), static_cast<unsigned>(k_len)}};
  }
  FULMEN_DEVICE algorithm::Sequence sequence() const { return {q_row, q_len, k_row, k_len}; }
};

// Runs lie one after the other. `first` of each is the number of its first block among all.
struct BlockRun {
  static constexpr int kWords = 12;
  int first, batch;
  int first_tile, step;  // of keys: the run goes from its first tile up (1) or down (-1)
  SequenceRows rows;
  int tiles, section_heads;  // of each head; heads whose blocks are interleaved
  int first_blocks;          // AddOrder: of the sequence's blocks, those of its first run

  FULMEN_DEVICE static BlockRun load(const int* from) {
    const auto* pieces = reinterpret_cast<const Words<4>*>(from);
    const auto one = global_load(pieces), rows = global_load(pieces + 1),
               two = global_load(pieces + 2);
    return {static_cast<int>(one.word[0]), static_cast<int>(one.word[1]),
            static_cast<int>(one.word[2]), static_cast<int>(one.word[3]),
            SequenceRows::from(rows),      static_cast<int>(two.word[0]),
            static_cast<int>(two.word[1]), static_cast<int>(two.word[2])};
  }
  FULMEN_DEVICE void store(int* to) const {
    auto* pieces = reinterpret_cast<Words<4>*>(to);
    global_store(pieces,
                 Words<4>{{static_cast<unsigned>(first), static_cast<unsigned>(batch),
                           static_cast<unsigned>(first_tile), static_cast<unsigned>(step)}});
    global_store(pieces + 1, rows.words());
    global_store(pieces + 2,
                 Words<4>{{static_cast<unsigned>(tiles), static_cast<unsigned>(section_heads),
                           static_cast<unsigned>(first_blocks)}});
  }
};

// Before the counters of tiles of queries: how many blocks there are in all, and how many runs; two
// words that nobody reads; the runs, up to two of each sequence.
struct BlockTable {
  static constexpr int kHeaderWords = 4;
  int* words;

  FULMEN_DEVICE static BlockTable of(const BackwardArguments& call) {
    return {reinterpret_cast<int*>(call.query_sums + call.query_sum_floats) - call.query_counters -
            (kHeaderWords + 2 * call.batch * BlockRun::kWords)};
  }
  FULMEN_DEVICE int* run(int n) const { return words + kHeaderWords + n * BlockRun::kWords; }
  FULMEN_DEVICE int first_of(int n) const { return global_load(run(n)); }
  FULMEN_DEVICE void store_counts(int blocks, int runs) const {
    global_store(reinterpret_cast<Words<2>*>(words),
                 Words<2>{{static_cast<unsigned>(blocks), static_cast<unsigned>(runs)}});
  }
};

// Finds blocks in the table. All lanes of a wave come here together: each looks at one run of 32.
// What it looks at first is the same for all blocks, and is loaded once.
class BlockFinder {
 public:
  FULMEN_DEVICE explicit BlockFinder(const BackwardArguments& call) : table_(BlockTable::of(call)) {
    const auto counts = global_load(reinterpret_cast<const Words<2>*>(table_.words));
    blocks_ = static_cast<int>(counts.word[0]);
    runs_ = static_cast<int>(counts.word[1]);
    first_ = first_of_lane(0, runs_);
  }
  // Returns false if there is no block n.
  FULMEN_DEVICE bool find(int n, BlockRun& found) const {
    if (n >= blocks_) return false;
    int begin = 0, count = runs_, first = first_;
#pragma unroll 1
    while (true) {
      // Runs are sorted by their first blocks: these are the bits of the first lanes.
      const int skipped = stride_of(count) * highest_bit(static_cast<unsigned>(ballot(first <= n)));
      begin += skipped;
      const int left = count - skipped;
      count = left < stride_of(count) ? left : stride_of(count);
      if (count <= 1) break;
      first = first_of_lane(begin, count);
    }
    found = BlockRun::load(table_.run(begin));
    return true;
  }

 private:
  FULMEN_DEVICE static int stride_of(int count) { return (count + kWaveSize - 1) / kWaveSize; }
  // Behind all blocks where the lane has no run.
  FULMEN_DEVICE int first_of_lane(int begin, int count) const {
    const int at = lane_id() * stride_of(count);
    return at < count ? table_.first_of(begin + at) : blocks_;
  }
  FULMEN_DEVICE static int highest_bit(unsigned bits) {
    int n = 0;
#pragma unroll
    for (int shift = 16; shift > 0; shift /= 2) {
      if (bits >> static_cast<unsigned>(n + shift) != 0) n += shift;
    }
    return n;
  }

  BlockTable table_;
  int blocks_, runs_, first_;
};

}  // namespace fulmen::kernels
