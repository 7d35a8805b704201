// Matrix instructions by AMD's documented layouts (docs/internals/amd_facts.md). Products of 16-bit
// numbers are exact in fp32 and are added in the order of k, as in the emulator of the source; the
// hardware's order is not documented.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "emulator/machine_code/instructions/matrix_layouts.h"
#include "emulator/machine_code/instructions/matrix_operands.h"
#include "emulator/machine_code/instructions/matrix_product.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

// CDNA1 and CDNA2: subnormal numbers count as 0, in operands and in sums.
inline float flushed(float x, float smallest) { return std::fabs(x) < smallest ? 0.0F : x; }
template <class T>
struct Flushed : T {
  static float number(uint32_t bits) { return flushed(T::number(bits), T::kSmallestNormal); }
};
template <class T>
constexpr bool kFlushes = false;
template <class T>
constexpr bool kFlushes<Flushed<T>> = true;

template <class T>
void flush_sums(std::span<float> sums) {
  if constexpr (kFlushes<T>) {
    for (float& x : sums) x = flushed(x, std::numeric_limits<float>::min());
  }
}

template <class Layout, class T, bool kNeedsAllLanes, bool kRepeated>
void multiply(Wave& w, const Instruction& i) {
  constexpr int kSize = Layout::kSize;
  if (kNeedsAllLanes && !w.all_on()) fail("is a matrix instruction where lanes are off");
  if (kRepeated) {
    check_halves_equal(w, i.operand[1]);
    check_halves_equal(w, i.operand[2]);
  }
  alignas(64) float a[Layout::kMmaK][kSize], b[Layout::kMmaK][kSize];
  read_operand<Layout, T>(w, i.operand[1], a);
  read_operand<Layout, T>(w, i.operand[2], b);
  const Operand &c = i.operand[3], &d = i.operand[0];
  const auto constant = std::bit_cast<float>(scalar32(w, c));
  const AddendModifiers modifiers(i);
  alignas(64) float result[kSize][kSize];
  for (int r = 0; r < Layout::kResults; ++r) {
    for (int block = 0; block < Layout::kWave / kSize; ++block) {
      float* const to = result[Layout::result_row(block, r)];
      if (c.source == Operand::Source::vector) {
        std::memcpy(to, row<Layout::kWave>(w, c.index + r) + block * kSize, sizeof *result);
      } else {
        std::fill_n(to, kSize, constant);
      }
      modifiers.apply({to, kSize});
    }
  }
  flush_sums<T>(std::span(&result[0][0], kSize * kSize));
  add_product<kSize>(a, b, result, Layout::kMmaK);
  flush_sums<T>(std::span(&result[0][0], kSize * kSize));
  for (int r = 0; r < Layout::kResults; ++r) {
    for (int block = 0; block < Layout::kWave / kSize; ++block) {
      const float* const from = result[Layout::result_row(block, r)];
      std::memcpy(row<Layout::kWave>(w, d.index + r) + block * kSize, from, sizeof *result);
    }
  }
}

// The number of an operand's registers tells which of the two RDNA layouts it has.
template <class T>
void wmma(Wave& w, const Instruction& i) {
  if (i.operand[1].count == 8) {
    multiply<Gfx11, T, true, true>(w, i);
  } else {
    multiply<Gfx12, T, true, false>(w, i);
  }
}

template <class Layout, class T>
Entry mfma() {
  return {nullptr, multiply<Layout, T, false, false>, Kind::matrix, false};
}

}  // namespace

void check_halves_equal(const Wave& w, const Operand& o) {
  for (int r = o.index; r < o.index + o.count; ++r) {
    const uint32_t* const lanes = row<32>(w, r);
    if (std::memcmp(lanes, lanes + 16, 16 * sizeof(uint32_t)) != 0)
      fail("has different operands in lanes l and l + 16");
  }
}

void add_matrix_instructions(Table& t) {
  t.add("v_wmma_f32_16x16x16_f16", {wmma<Fp16>, nullptr, Kind::matrix, false});
  t.add("v_wmma_f32_16x16x16_bf16", {wmma<Bf16>, nullptr, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x16_f16", mfma<Mfma16<4>, Fp16>());
  t.add("v_mfma_f32_16x16x16_bf16", mfma<Mfma16<4>, Bf16>());
  t.add("v_mfma_f32_32x32x8_f16", mfma<Mfma32<4>, Fp16>());
  t.add("v_mfma_f32_32x32x8_bf16", mfma<Mfma32<4>, Bf16>());
  t.add("v_mfma_f32_16x16x32_f16", mfma<Mfma16<8>, Fp16>());
  t.add("v_mfma_f32_16x16x32_bf16", mfma<Mfma16<8>, Bf16>());
  t.add("v_mfma_f32_32x32x16_f16", mfma<Mfma32<8>, Fp16>());
  t.add("v_mfma_f32_32x32x16_bf16", mfma<Mfma32<8>, Bf16>());
  t.add("v_wmma_f32_16x16x16_fp8_fp8",
        {multiply<Gfx12Fp8, Fp8<DType::fp8_e4m3>, true, false>, nullptr, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x32_fp8_fp8", mfma<Mfma16<8>, Fp8<DType::fp8_e4m3>>());
  t.add("v_mfma_f32_16x16x32_fp8_fp8_fnuz", mfma<Mfma16<8>, Fp8<DType::fp8_e4m3fnuz>>());
  t.add("v_mfma_f32_16x16x4_f32", mfma<Mfma16<1>, Fp32>());
  t.add("v_mfma_f32_32x32x2_f32", mfma<Mfma32<1>, Fp32>());
  // As CDNA1 and CDNA2 name them.
  t.add("v_mfma_f32_16x16x16f16", mfma<Mfma16<4>, Flushed<Fp16>>());
  t.add("v_mfma_f32_16x16x16bf16_1k", mfma<Mfma16<4>, Flushed<Bf16>>());
  t.add("v_mfma_f32_32x32x8f16", mfma<Mfma32<4>, Flushed<Fp16>>());
  t.add("v_mfma_f32_32x32x8bf16_1k", mfma<Mfma32<4>, Flushed<Bf16>>());
  t.add("v_mfma_f32_16x16x8bf16", mfma<Mfma16<2>, Flushed<Bf16>>());
  t.add("v_mfma_f32_32x32x4bf16", mfma<Mfma32<2>, Flushed<Bf16>>());
}

}  // namespace fulmen::gpu::isa
