// WMMA that adds to fp16: sums are fp32 here and rounded at the end, the hardware's are not
// documented.
#include "emulator/machine_code/instructions/matrix_layouts.h"
#include "emulator/machine_code/instructions/matrix_operands.h"
#include "emulator/machine_code/instructions/matrix_product.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

// Where a lane's result r is. RDNA3 has one a register, in the half that op_sel says of C and D;
// the other half stays. RDNA4 has two.
struct Place {
  int word, shift;
};
template <class Layout>
Place place_of(const Instruction& i, int r) {
  if constexpr (Layout::kElements == 16) {
    return {r, (i.op_sel & 4U) != 0 ? 16 : 0};
  } else {
    return {r / 2, 16 * (r % 2)};
  }
}

template <class Layout>
void multiply_halves(Wave& w, const Instruction& i) {
  constexpr int kSize = Layout::kSize;
  if (!w.all_on()) fail("is a matrix instruction where lanes are off");
  alignas(64) float a[Layout::kMmaK][kSize], b[Layout::kMmaK][kSize], sums[kSize][kSize];
  read_operand<Layout, Fp16>(w, i.operand[1], a);
  read_operand<Layout, Fp16>(w, i.operand[2], b);
  const Operand &c = i.operand[3], &d = i.operand[0];
  const Half constant{static_cast<uint16_t>(scalar32(w, c))};
  const AddendModifiers modifiers(i);
  for (int r = 0; r < Layout::kResults; ++r) {
    const Place place = place_of<Layout>(i, r);
    for (int block = 0; block < Layout::kWave / kSize; ++block) {
      float* const to = sums[Layout::result_row(block, r)];
      for (int n = 0; n < kSize; ++n) {
        to[n] =
            c.source != Operand::Source::vector
                ? to_float(constant)
                : Fp16::number(row<32>(w, c.index + place.word)[block * kSize + n] >> place.shift);
      }
      modifiers.apply({to, kSize});
    }
  }
  add_product<kSize>(a, b, sums, Layout::kMmaK);
  for (int r = 0; r < Layout::kResults; ++r) {
    const Place place = place_of<Layout>(i, r);
    uint32_t* const to = row<32>(w, d.index + place.word);
    for (int l = 0; l < Layout::kWave; ++l) {
      const uint32_t sum = to_half(sums[Layout::result_row(l / kSize, r)][l % kSize]).bits;
      to[l] = (to[l] & ~(0xFFFFU << place.shift)) | sum << place.shift;
    }
  }
}

void wmma_halves(Wave& w, const Instruction& i) {
  if (i.operand[1].count != 8) return multiply_halves<Gfx12>(w, i);
  check_halves_equal(w, i.operand[1]);
  check_halves_equal(w, i.operand[2]);
  multiply_halves<Gfx11>(w, i);
}

}  // namespace

void add_half_matrix_instructions(Table& t) {
  t.add("v_wmma_f16_16x16x16_f16", {wmma_halves, nullptr, Kind::matrix, true});
}

}  // namespace fulmen::gpu::isa
