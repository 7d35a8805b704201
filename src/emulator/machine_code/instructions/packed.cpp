// Two numbers in one instruction (VOP3P), and sums of fp16 and fp32 numbers.
#include <cmath>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

bool bit(uint8_t bits, int n) { return (bits >> n & 1U) != 0; }

// Reads a source of v_pk_*_f32. op_sel selects the word for the low result, op_sel_hi for the high
// one. A literal has one word for both.
template <int W>
void pair_source(const Wave& w, const Instruction& i, int n, bool high, float* to) {
  const Operand& o = i.operand[static_cast<std::size_t>(n)];
  const bool second = bit(high ? i.op_sel_hi : i.op_sel, n - 1),
             negative = bit(high ? i.neg_hi : i.neg_lo, n - 1);
  const bool literal = o.source == Operand::Source::literal;
  const auto scalar = static_cast<uint32_t>(scalar64(w, o) >> (second && !literal ? 32 : 0));
  const uint32_t* const from =
      o.source == Operand::Source::vector ? row<W>(w, o.index + (second ? 1 : 0)) : nullptr;
  for (int l = 0; l < W; ++l)
    to[l] =
        std::bit_cast<float>((from != nullptr ? from[l] : scalar) ^ (negative ? 0x80000000U : 0));
}

template <int W, int kSources, class Fn>
void packed_floats(Wave& w, const Instruction& i) {
  alignas(64) uint32_t r[2][W];
  for (int half = 0; half < 2; ++half) {
    alignas(64) float source[3][W] = {};
    for (int n = 0; n < kSources; ++n) pair_source<W>(w, i, n + 1, half != 0, source[n]);
    for (int l = 0; l < W; ++l)
      r[half][l] = std::bit_cast<uint32_t>(Fn{}(source[0][l], source[1][l], source[2][l]));
  }
  for (int half = 0; half < 2; ++half)
    store_lanes<W>(row<W>(w, i.operand[0].index + half), r[half], w.exec());
}

// Returns half a register, for v_pk_*_f16 and v_fma_mix.
template <int W>
void half_source(const Wave& w, const Instruction& i, int n, bool second, bool negative,
                 uint16_t* to) {
  const Source<W, uint32_t> from(w, i, n);
  for (int l = 0; l < W; ++l)
    to[l] = static_cast<uint16_t>((from[l] >> (second ? 16 : 0)) ^ (negative ? 0x8000U : 0));
}

template <int W, int kSources, class Fn>
void packed_halves(Wave& w, const Instruction& i) {
  alignas(64) uint32_t r[W] = {};
  for (int half = 0; half < 2; ++half) {
    uint16_t source[3][W] = {};
    for (int n = 0; n < kSources; ++n) {
      half_source<W>(w, i, n + 1, bit(half != 0 ? i.op_sel_hi : i.op_sel, n),
                     bit(half != 0 ? i.neg_hi : i.neg_lo, n), source[n]);
    }
    for (int l = 0; l < W; ++l)
      r[l] |= uint32_t{Fn{}(source[0][l], source[1][l], source[2][l])} << (16 * half);
  }
  store_lanes<W>(row<W>(w, i.operand[0].index), r, w.exec());
}

// Two words, of either source one: op_sel selects them.
template <int W>
void move_pair(Wave& w, const Instruction& i) {
  alignas(64) uint32_t r[2][W];
  for (int half = 0; half < 2; ++half) {
    const Operand& o = i.operand[static_cast<std::size_t>(half) + 1];
    const bool second = bit(i.op_sel, half);
    const auto scalar = static_cast<uint32_t>(scalar64(w, o) >> (second ? 32 : 0));
    for (int l = 0; l < W; ++l) {
      r[half][l] =
          o.source == Operand::Source::vector ? row<W>(w, o.index + (second ? 1 : 0))[l] : scalar;
    }
  }
  for (int half = 0; half < 2; ++half)
    store_lanes<W>(row<W>(w, i.operand[0].index + half), r[half], w.exec());
}

// op_sel_hi: the source is an fp16 number, with op_sel in the upper half; otherwise it is fp32.
template <int W>
void mixed_source(const Wave& w, const Instruction& i, int n, float* to) {
  Instruction plain = i;  // signs apply to the number, not to the register
  Operand& o = plain.operand[static_cast<std::size_t>(n)];
  const bool negate = o.negate, absolute = o.absolute, half = bit(i.op_sel_hi, n - 1);
  o.negate = o.absolute = false;
  const Source<W, uint32_t> from(w, plain, n);
  for (int l = 0; l < W; ++l) {
    const float x =
        half ? to_float(Half{static_cast<uint16_t>(from[l] >> (bit(i.op_sel, n - 1) ? 16 : 0))})
             : std::bit_cast<float>(from[l]);
    const float magnitude = absolute ? std::abs(x) : x;
    to[l] = negate ? -magnitude : magnitude;
  }
}

enum class Into : uint8_t { word, low, high };

template <int W, Into kInto>
void fma_mix(Wave& w, const Instruction& i) {
  alignas(64) float source[3][W];
  for (int n = 0; n < 3; ++n) mixed_source<W>(w, i, n + 1, source[n]);
  alignas(64) uint32_t r[W];
  uint32_t* const to = row<W>(w, i.operand[0].index);
  for (int l = 0; l < W; ++l) {
    float sum = std::fma(source[0][l], source[1][l], source[2][l]);
    if (i.clamp) sum = clamped(sum);
    if (kInto == Into::word) {
      r[l] = std::bit_cast<uint32_t>(sum);
    } else {
      const uint32_t half = to_half(sum).bits;
      r[l] = kInto == Into::low ? (to[l] & 0xFFFF0000U) | half : (to[l] & 0xFFFFU) | half << 16U;
    }
  }
  store_lanes<W>(to, r, w.exec());
}

// c + a[0] b[0] + a[1] b[1], products exact, sums in fp32. Subnormal sums count as 0.
template <int W, bool kHalf>
void dot2(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> a(w, i, 1), b(w, i, 2), c(w, i, i.operands > 3 ? 3 : 0);
  const auto number = [](uint32_t bits) {
    return kHalf ? to_float(Half{static_cast<uint16_t>(bits)}) : std::bit_cast<float>(bits << 16U);
  };
  alignas(64) float r[W];
  for (int l = 0; l < W; ++l) {
    const float low = number(a[l] & 0xFFFFU) * number(b[l] & 0xFFFFU),
                high = number(a[l] >> 16U) * number(b[l] >> 16U);
    r[l] = flush_subnormal(flush_subnormal(std::bit_cast<float>(c[l])) + low + high);
  }
  store_result<W>(w, i, r);
}

template <int kSources, class Fn>
void add_floats(Table& t, std::string_view name, Fn /*function*/) {
  t.add(name,
        {packed_floats<32, kSources, Fn>, packed_floats<64, kSources, Fn>, Kind::valu, false});
}
template <int kSources, class Fn>
void add_halves(Table& t, std::string_view name, Fn /*function*/) {
  t.add(name, {packed_halves<32, kSources, Fn>, packed_halves<64, kSources, Fn>, Kind::valu, true});
}

float wide(uint16_t x) { return to_float(Half{x}); }

}  // namespace

void add_packed_instructions(Table& t) {
  add_floats<2>(t, "v_pk_add_f32", [](float a, float b, float /*c*/) { return a + b; });
  add_floats<2>(t, "v_pk_mul_f32", [](float a, float b, float /*c*/) { return a * b; });
  add_floats<3>(t, "v_pk_fma_f32", [](float a, float b, float c) { return std::fma(a, b, c); });
  t.add("v_pk_mov_b32", {move_pair<32>, move_pair<64>, Kind::valu, false});
  add_halves<2>(t, "v_pk_add_f16", [](uint16_t a, uint16_t b, uint16_t /*c*/) {
    return to_half(wide(a) + wide(b)).bits;
  });
  add_halves<2>(t, "v_pk_mul_f16", [](uint16_t a, uint16_t b, uint16_t /*c*/) {
    return to_half(wide(a) * wide(b)).bits;
  });
  add_halves<3>(t, "v_pk_fma_f16", [](uint16_t a, uint16_t b, uint16_t c) {
    return to_half(static_cast<double>(wide(a)) * static_cast<double>(wide(b)) +
                   static_cast<double>(wide(c)))
        .bits;
  });
  add_halves<2>(t, "v_pk_add_u16", [](uint16_t a, uint16_t b, uint16_t /*c*/) {
    return static_cast<uint16_t>(a + b);
  });
  add_halves<2>(t, "v_pk_sub_i16", [](uint16_t a, uint16_t b, uint16_t /*c*/) {
    return static_cast<uint16_t>(a - b);
  });
  add_halves<2>(t, "v_pk_mul_lo_u16", [](uint16_t a, uint16_t b, uint16_t /*c*/) {
    return static_cast<uint16_t>(uint32_t{a} * b);
  });
  add_halves<2>(t, "v_pk_lshlrev_b16", [](uint16_t a, uint16_t b, uint16_t /*c*/) {
    return static_cast<uint16_t>(b << (a & 15U));
  });
  t.add("v_fma_mix_f32", {fma_mix<32, Into::word>, fma_mix<64, Into::word>, Kind::valu, false});
  t.add("v_fma_mixlo_f16", {fma_mix<32, Into::low>, fma_mix<64, Into::low>, Kind::valu, false});
  t.add("v_fma_mixhi_f16", {fma_mix<32, Into::high>, fma_mix<64, Into::high>, Kind::valu, false});
  for (const char* name : {"v_dot2_f32_f16", "v_dot2c_f32_f16", "v_dot2acc_f32_f16"})
    t.add(name, {dot2<32, true>, dot2<64, true>, Kind::valu, true});
  t.add("v_dot2_f32_bf16", {dot2<32, false>, dot2<64, false>, Kind::valu, false});
}

}  // namespace fulmen::gpu::isa
