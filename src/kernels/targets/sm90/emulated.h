// NVIDIA's warpgroup products for the host, from the PTX documentation: computed by each wave for
// its 16 rows, and at the wait, not before: sums used earlier are the old ones, and operands in LDS
// that were overwritten meanwhile are the new ones. These are looked at when a product begins, too:
// what is written, or fenced, only between there and the wait comes too late.
#pragma once

#include "targets/sm80/target.h"
#include "targets/sm90/panels.h"

namespace fulmen::kernels {

FULMEN_DEVICE unsigned lds_matrix_place(int lds_offset) {
  return static_cast<unsigned>(lds_offset) >> 4U;
}

// The number of a code of E4M3.
FULMEN_DEVICE float e4m3_number(unsigned code) {
  const unsigned exponent = code >> 3U & 15U, mantissa = code & 7U;
  const float sign = (code & 0x80U) != 0 ? -1.0F : 1.0F;
  if ((code & 0x7FU) == 0x7FU) return kNan;
  if (exponent == 0) return sign * static_cast<float>(mantissa) / 512;
  return sign * bits_float((exponent + 127 - 7) << 23U | mantissa << 20U);
}

// 16 bytes of an operand in LDS: `row` counts lines of 128 bytes, `piece` the 16-byte pieces of all
// panels; transposed says which of both is the depth. Panels are as far apart as the operand says.
FULMEN_DEVICE Words<4> lds_matrix_piece(LdsMatrix matrix, int row, int piece, Position at) {
  constexpr int kPieces = kPanelRowBytes / 16;
  const int begin = static_cast<int>(matrix.bits() & 0x3FFFU) * 16,
            panel = static_cast<int>(matrix.bits() >> 16U & 0x3FFFU) * 16,
            eight_rows = static_cast<int>(matrix.bits() >> 32U & 0x3FFFU) * 16;
  const int place = begin + piece / kPieces * panel + row / 8 * eight_rows +
                    row % 8 * kPanelRowBytes + piece % kPieces * 16;
  Words<4> words;
  emulator->lds_read_matrix(place ^ (place >> 7 & 7) << 4, &words, sizeof(words), at.file, at.line);
  return words;
}

// Element `column` of a piece of 16 bytes.
template <class T>
FULMEN_DEVICE float element_of_piece(const Words<4>& piece, int column) {
  if constexpr (sizeof(T) == 1) {
    return e4m3_number(piece.word[column / 4] >> (8U * (column % 4)) & 0xFFU);
  } else {
    return element<T>(piece, column);
  }
}

// A product in flight. kA: a lies in LDS. Pieces of 16 bytes are 8 elements, or 16 of E4M3, and the
// depth is two of them.
template <class T, int kTiles, bool kA, bool kTurnA, bool kTurnB>
struct WarpgroupProduct {
  float (*d)[8];
  LdsMatrix a, b;
  Words<4> rows;  // else a wave's 16 rows, as sm80.h has them
  const Words<4>* rows_at;
  bool add;
  Position at;
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(T)), kDepth = 2 * kPiece;
  static_assert(sizeof(T) == 2 || !(kTurnA || kTurnB), "wgmma: E4M3 is never transposed");

  static void run(const void* data) {
    // The other lanes' next one may take its place meanwhile.
    const WarpgroupProduct p = *static_cast<const WarpgroupProduct*>(data);
    p.compute();
  }
  // A lane's pieces of the operands. Of 16 x 16 elements two pieces a line; transposed, lines are
  // the depth.
  Words<4> piece_of_a() const {
    const int l = lane_id(), row = 16 * (wave_id() % 4);
    return kTurnA ? lds_matrix_piece(a, l / 2, row / 8 + l % 2, at)
                  : lds_matrix_piece(a, row + l / 2, l % 2, at);
  }
  Words<4> piece_of_b(int tile) const {
    const int l = lane_id();
    return kTurnB ? lds_matrix_piece(b, l / 2, 2 * tile + l % 2, at)
                  : lds_matrix_piece(b, 16 * tile + l / 2, l % 2, at);
  }
  void begin() const {
    if constexpr (kA) piece_of_a();
    for (int t = 0; t < kTiles; ++t) piece_of_b(t);
    struct {
      unsigned long long a, b;
      int tiles, add;
    } const same{kA ? a.bits() : 0, b.bits(), kTiles, add ? 1 : 0};
    emulator->join_warpgroup("wgmma", &same, sizeof(same), false, at.file, at.line);
    emulator->defer(run, this, sizeof(*this), d, sizeof(*d) * kTiles, kA ? nullptr : rows_at,
                    at.file, at.line);
  }
  void compute() const {
    const int l = lane_id();
    struct Piece {
      Words<4> words;
    };
    Piece a_pieces[kWaveSize];
    Words<4> mine = rows;
    if constexpr (kA) mine = piece_of_a();
    const auto* all = all_lanes("wgmma", mine, at);
    for (int n = 0; n < kWaveSize; ++n) a_pieces[n].words = all[n];
    Piece b_pieces[kTiles][kWaveSize];
    for (int t = 0; t < kTiles; ++t) {
      const auto* of_all = all_lanes("wgmma", piece_of_b(t), at);
      for (int n = 0; n < kWaveSize; ++n) b_pieces[t][n].words = of_all[n];
    }
    // Element (i, k) of 16 x kDepth in such pieces.
    const auto of_lines = [](const Piece* pieces, int i, int k, bool transposed) {
      const int line = transposed ? k : i, column = transposed ? i : k;
      return element_of_piece<T>(pieces[2 * line + column / kPiece].words, column % kPiece);
    };
    const auto of_rows = [&](int i, int k) {
      if constexpr (kA) return of_lines(a_pieces, i, k, kTurnA);
      // A word of a lane is kWord neighbours of a row.
      constexpr int kWord = kPiece / 4;
      return element_of_piece<T>(a_pieces[i % 8 * 4 + k % kPiece / kWord].words,
                                 kWord * (i / 8 + 2 * (k / kPiece)) + k % kWord);
    };
    float a_rows[2][kDepth];
    for (int k = 0; k < kDepth; ++k) {
      a_rows[0][k] = of_rows(l / 4, k);
      a_rows[1][k] = of_rows(l / 4 + 8, k);
    }
    for (int t = 0; t < kTiles; ++t) {
      for (int e = 0; e < 8; ++e) {
        const int j = 8 * (e / 4) + 2 * (l % 4) + e % 2;
        float sum = add ? d[t][e] : 0.0F;
        for (int k = 0; k < kDepth; ++k)
          sum += a_rows[e / 2 % 2][k] * of_lines(b_pieces[t], j, k, kTurnB);
        d[t][e] = sum;
      }
    }
  }
};

template <class T, bool kTurnA, bool kTurnB, int kTiles>
FULMEN_DEVICE void wgmma(float (&d)[kTiles][8], LdsMatrix a, LdsMatrix b, bool add,
                         Position at = Position::here()) {
  using Product = WarpgroupProduct<T, kTiles, true, kTurnA, kTurnB>;
  Product{d, a, b, {}, nullptr, add, at}.begin();
}
template <class T, bool kTurnB, int kTiles>
FULMEN_DEVICE void wgmma(float (&d)[kTiles][8], const Words<4>& a, LdsMatrix b, bool add,
                         Position at = Position::here()) {
  using Product = WarpgroupProduct<T, kTiles, false, false, kTurnB>;
  Product{d, {}, b, a, &a, add, at}.begin();
}
// Registers that a product reads stay as they are until its wait.
template <class T, bool kTurnB, int kTiles>
void wgmma(float (&d)[kTiles][8], const Words<4>&& a, LdsMatrix b, bool add) = delete;

FULMEN_DEVICE void wgmma_fence(Position at = Position::here()) {
  emulator->join_warpgroup("wgmma_fence", nullptr, 0, false, at.file, at.line);
  emulator->registers_fence();
}
FULMEN_DEVICE void wgmma_commit(Position at = Position::here()) {
  emulator->join_warpgroup("wgmma_commit", nullptr, 0, false, at.file, at.line);
  emulator->defer_commit();
}
template <int kGroups>
FULMEN_DEVICE void wgmma_wait(Position at = Position::here()) {
  constexpr int kLeft = kGroups;
  emulator->join_warpgroup("wgmma_wait", &kLeft, sizeof(kLeft), true, at.file, at.line);
  emulator->defer_wait(kGroups);
}
template <int kTiles>
FULMEN_DEVICE void wgmma_hold(float (&d)[kTiles][8], Position at = Position::here()) {
  emulator->registers_hold(d, at.file, at.line);
}
FULMEN_DEVICE void lds_fence_for_matrices() { emulator->lds_fence(); }

// Lane l gives the address of row l % 8 of matrix l / 8; word w is of matrix w, row l / 4, elements
// 2 (l % 4) and the next.
FULMEN_DEVICE void stmatrix_x4(int lds_offset, const Words<4>& x, Position at = Position::here()) {
  const auto* lanes = all_lanes("stmatrix_x4", x, at);
  const int l = lane_id();
  Words<4> row;
  for (int w = 0; w < 4; ++w) row.word[w] = lanes[l % 8 * 4 + w].word[l / 8];
  lds_store(lds_offset, row, at);
}

// No lane leaves before all have arrived: what lanes do between the two halves is found to race
// with what others do after them.
template <int kGroups>
FULMEN_DEVICE void warpgroup_barrier_arrive(int /*turn*/, int /*group*/,
                                            Position at = Position::here()) {
  emulator->barrier(at.file, at.line);
}
template <int kGroups>
FULMEN_DEVICE void warpgroup_barrier_wait(int /*turn*/, int /*group*/) {}

template <int kCount>
FULMEN_DEVICE void setmaxnreg_dec(Position at = Position::here()) {
  emulator->join_warpgroup("setmaxnreg_dec", nullptr, 0, false, at.file, at.line);
  emulator->set_registers(kCount, false, kMinWorkgroups, at.file, at.line);
}
template <int kCount>
FULMEN_DEVICE void setmaxnreg_inc(Position at = Position::here()) {
  emulator->join_warpgroup("setmaxnreg_inc", nullptr, 0, false, at.file, at.line);
  emulator->set_registers(kCount, true, kMinWorkgroups, at.file, at.line);
}

FULMEN_DEVICE void mbarrier_init(int at, int arrivals, Position p = Position::here()) {
  emulator->mbarrier_init(at, arrivals, p.file, p.line);
}
FULMEN_DEVICE void mbarrier_init_fence() {}
FULMEN_DEVICE void mbarrier_arrive(int at, Position p = Position::here()) {
  emulator->mbarrier_arrive(at, 0, p.file, p.line);
}
FULMEN_DEVICE void mbarrier_arrive_expect(int at, int bytes, Position p = Position::here()) {
  emulator->mbarrier_arrive(at, bytes, p.file, p.line);
}
FULMEN_DEVICE void mbarrier_wait(int at, int parity, Position p = Position::here()) {
  emulator->mbarrier_wait(at, parity, p.file, p.line);
}
FULMEN_DEVICE void mbarrier_wait_unless(bool passed, int at, int parity,
                                        Position p = Position::here()) {
  if (!passed) mbarrier_wait(at, parity, p);
}
// It may always say no.
FULMEN_DEVICE bool mbarrier_test(int /*at*/, int /*parity*/) { return false; }
struct L2Policy {
  FULMEN_DEVICE static L2Policy evict_first() { return {}; }
  FULMEN_DEVICE static L2Policy evict_last() { return {}; }
};
FULMEN_DEVICE void tma_load(int to, const void* map, int column, Int64 row, int head, int batch,
                            int barrier, L2Policy /*policy*/, Position p = Position::here()) {
  const int first[4] = {column, static_cast<int>(row), head, batch};
  emulator->tma_load(to, map, &first, barrier, p.file, p.line);
}
FULMEN_DEVICE void tma_add(float* to, int at, int bytes, Position p = Position::here()) {
  emulator->tma_store(to, at, bytes, true, p.file, p.line);
}
FULMEN_DEVICE void tma_store(float* to, int at, int bytes, Position p = Position::here()) {
  emulator->tma_store(to, at, bytes, false, p.file, p.line);
}
FULMEN_DEVICE void tma_store(const void* map, int at, int column, Int64 row, int head, int batch,
                             Position p = Position::here()) {
  const int first[4] = {column, static_cast<int>(row), head, batch};
  emulator->tma_store_box(at, map, &first, p.file, p.line);
}
FULMEN_DEVICE void tma_wait_read() { emulator->tma_wait_read(); }
template <int kLeft>
FULMEN_DEVICE void tma_wait() {
  emulator->tma_wait(kLeft);
}
FULMEN_DEVICE void counter_wait(const int* at, int count, Position p = Position::here()) {
  emulator->counter_wait(at, count, p.file, p.line);
}
FULMEN_DEVICE void counter_pass(int* at, Position p = Position::here()) {
  emulator->counter_pass(at, p.file, p.line);
}
FULMEN_DEVICE int counter_fetch_add(int* at, Position p = Position::here()) {
  int before = 0;
  if (lane_id() == 0) before = emulator->counter_pass(at, p.file, p.line);
  return all_lanes("counter_fetch_add", before, p)[0];
}
template <int kOffset>
FULMEN_DEVICE void global_store_or_add(float* to, const Words<kAddWidth>& values, bool stores,
                                       bool adds, Position at = Position::here()) {
  if (stores) global_store(reinterpret_cast<Words<kAddWidth>*>(to + kOffset), values, at);
  if (adds) global_add<kOffset>(to, values, at);
}
FULMEN_DEVICE int cluster_rank() { return emulator->cluster_rank(); }
FULMEN_DEVICE void cluster_barrier(Position p = Position::here()) {
  emulator->cluster_barrier(p.file, p.line);
}
FULMEN_DEVICE void mbarrier_arrive_at(int rank, int at, Position p = Position::here()) {
  emulator->mbarrier_arrive_at(rank, at, p.file, p.line);
}
FULMEN_DEVICE void cluster_copy(int rank, int to, int from, int bytes, int barrier_at,
                                Position p = Position::here()) {
  emulator->cluster_copy(rank, to, from, bytes, barrier_at, p.file, p.line);
}
FULMEN_DEVICE void tma_prefetch(const void* /*map*/) {}
FULMEN_DEVICE void warpgroup_turn_wait(int group, Position p = Position::here()) {
  emulator->turn(1 + group, true, p.file, p.line);
}
FULMEN_DEVICE void warpgroup_turn_pass(int next, Position p = Position::here()) {
  emulator->turn(1 + next, false, p.file, p.line);
}

}  // namespace fulmen::kernels
