// Matrix instructions of 8-bit integers, by AMD's documented layouts (docs/internals/amd_facts.md).
// Lanes form blocks of 16. Lane n of a block holds row n of A, column n of B and column n of D.
// Sums are integers of 32 bits, which wrap.
#include <algorithm>
#include <array>

#include "emulator/machine_code/instructions/matrix_operands.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

constexpr int kBlockLanes = 16;

// Lane maps: depth() gives the k of byte e of A and B, result_row() D's row in register r. They are
// independent of targets/*; tests/support/lane_maps.cpp checks both.

// RDNA3, wave32: both blocks hold the same 16 bytes.
struct Gfx11Bytes {
  static constexpr int kWave = 32, kMmaK = 16, kBytes = 16, kResults = 8;
  static int depth(int /*block*/, int e) { return e; }
  static int result_row(int block, int r) { return 2 * r + block; }
};
// RDNA4, wave32: neighbours, which 16-bit elements are by fours.
struct Gfx12Bytes {
  static constexpr int kWave = 32, kMmaK = 16, kBytes = 8, kResults = 8;
  static int depth(int block, int e) { return 8 * block + e; }
  static int result_row(int block, int r) { return 8 * block + r; }
};
// CDNA, wave64.
template <int kOfLane>
struct MfmaBytes {
  static constexpr int kWave = 64, kMmaK = 4 * kOfLane, kBytes = kOfLane, kResults = 4;
  static int depth(int block, int e) { return kOfLane * block + e; }
  static int result_row(int block, int r) { return 4 * block + r; }
};

template <class Layout>
using Factor = std::array<std::array<int32_t, kBlockLanes>, Layout::kMmaK>;  // [k][row or column]

int32_t byte_of(uint32_t word, int e, bool is_signed) {
  const auto byte = static_cast<uint8_t>(word >> (8 * (e % 4)));
  return is_signed ? int32_t{static_cast<int8_t>(byte)} : int32_t{byte};
}

template <class Layout>
void read_bytes(const Wave& w, const Operand& o, bool is_signed, Factor<Layout>& to) {
  constexpr int kBlocks = Layout::kMmaK / Layout::kBytes;  // the first ones have every k
  if (o.source != Operand::Source::vector)
    fail("takes A and B from other than vector registers, which is not known to the emulator");
  for (int e = 0; e < Layout::kBytes; ++e) {
    const uint32_t* const lanes = row<Layout::kWave>(w, o.index + e / 4);
    for (int block = 0; block < kBlocks; ++block) {
      auto& numbers = to[static_cast<std::size_t>(Layout::depth(block, e))];
      for (int n = 0; n < kBlockLanes; ++n)
        numbers[static_cast<std::size_t>(n)] =
            byte_of(lanes[block * kBlockLanes + n], e, is_signed);
    }
  }
}

// D = A B + C of the wave.
template <class Layout>
void multiply_bytes(Wave& w, const Instruction& i, bool a_signed, bool b_signed) {
  Factor<Layout> a, b;
  read_bytes<Layout>(w, i.operand[1], a_signed, a);
  read_bytes<Layout>(w, i.operand[2], b_signed, b);
  const Operand &c = i.operand[3], &d = i.operand[0];
  // D may be C's registers in part alone: all of C is read before.
  std::array<std::array<uint32_t, Layout::kWave>, Layout::kResults> sums;
  for (int r = 0; r < Layout::kResults; ++r) {
    for (int l = 0; l < Layout::kWave; ++l) {
      const auto n = static_cast<std::size_t>(l % kBlockLanes),
                 m = static_cast<std::size_t>(Layout::result_row(l / kBlockLanes, r));
      uint32_t sum = c.source == Operand::Source::vector ? row<Layout::kWave>(w, c.index + r)[l]
                                                         : scalar32(w, c);
      for (std::size_t k = 0; k < Layout::kMmaK; ++k)
        sum += static_cast<uint32_t>(a[k][m] * b[k][n]);
      sums[static_cast<std::size_t>(r)][static_cast<std::size_t>(l)] = sum;
    }
  }
  for (int r = 0; r < Layout::kResults; ++r) {
    const auto& from = sums[static_cast<std::size_t>(r)];
    std::copy(from.begin(), from.end(), row<Layout::kWave>(w, d.index + r));
  }
}

// WMMA: neg_lo says that A (bit 0) and B (bit 1) are signed. The number of an operand's registers
// tells which of the two RDNA layouts it has.
void wmma_iu8(Wave& w, const Instruction& i) {
  constexpr unsigned kOfA = 1, kOfB = 2;
  if (!w.all_on()) fail("is a matrix instruction where lanes are off");
  if ((i.neg_lo & ~(kOfA | kOfB)) != 0 || i.neg_hi != 0 || i.clamp)
    fail("modifies C or limits D, which is not known to the emulator");
  const bool a_signed = (i.neg_lo & kOfA) != 0, b_signed = (i.neg_lo & kOfB) != 0;
  if (i.operand[1].count == 4) {
    check_halves_equal(w, i.operand[1]);
    check_halves_equal(w, i.operand[2]);
    multiply_bytes<Gfx11Bytes>(w, i, a_signed, b_signed);
  } else {
    multiply_bytes<Gfx12Bytes>(w, i, a_signed, b_signed);
  }
}

// MFMA: always signed.
template <int kOfLane>
void mfma_i8(Wave& w, const Instruction& i) {
  multiply_bytes<MfmaBytes<kOfLane>>(w, i, true, true);
}

}  // namespace

void add_int8_matrix_instructions(Table& t) {
  t.add("v_wmma_i32_16x16x16_iu8", {wmma_iu8, nullptr, Kind::matrix, false});
  t.add("v_mfma_i32_16x16x32_i8", {nullptr, mfma_i8<8>, Kind::matrix, false});
  // As CDNA1 and CDNA2 name it.
  t.add("v_mfma_i32_16x16x16i8", {nullptr, mfma_i8<4>, Kind::matrix, false});
}

}  // namespace fulmen::gpu::isa
