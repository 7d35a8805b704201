// The instructions of an fp32 division: AMD's RDNA3 ISA document, from v_div_scale_f32 on.
#include <cmath>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

int exponent(float x) { return static_cast<int>(std::bit_cast<uint32_t>(x) >> 23U & 255U); }
bool subnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }

// Scales a numerator or a denominator so that no intermediate result leaves the range. `scaled`:
// the quotient must be scaled back.
float scale(float x, float denominator, float numerator, bool& scaled) {
  constexpr int kStep = 64;
  const auto same = [](float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  };
  if (denominator == 0 || numerator == 0) return NAN;
  if (exponent(numerator) - exponent(denominator) >= 96) {
    scaled = true;
    return same(x, denominator) ? std::ldexp(x, kStep) : x;
  }
  if (subnormal(denominator)) return std::ldexp(x, kStep);
  const bool small_inverse = subnormal(1.0F / denominator),
             small_quotient = subnormal(numerator / denominator);
  if (small_inverse && small_quotient) {
    scaled = true;
    return same(x, denominator) ? std::ldexp(x, kStep) : x;
  }
  if (small_inverse) return std::ldexp(x, -kStep);
  if (small_quotient) {
    scaled = true;
    return same(x, numerator) ? std::ldexp(x, kStep) : x;
  }
  return exponent(numerator) <= 23 ? std::ldexp(x, kStep) : x;
}

template <int W>
void div_scale(Wave& w, const Instruction& i) {
  const Source<W, float> x(w, i, 2), denominator(w, i, 3), numerator(w, i, 4);
  alignas(64) float r[W];
  uint64_t mask = 0;
  for (int l = 0; l < W; ++l) {
    bool scaled = false;
    r[l] = scale(x[l], denominator[l], numerator[l], scaled);
    mask |= uint64_t{scaled} << l;
  }
  set_scalar(w, i.operand[1], mask & w.exec());
  store_result<W>(w, i, r);
}

template <int W>
void div_fmas(Wave& w, const Instruction& i) {
  const Source<W, float> a(w, i, 1), b(w, i, 2), c(w, i, 3);
  const uint64_t vcc =
      lane_mask(w, {.source = Operand::Source::scalar, .index = kVccLow, .count = W / 32});
  alignas(64) float r[W];
  for (int l = 0; l < W; ++l) {
    const float sum = std::fma(a[l], b[l], c[l]);
    r[l] = (vcc >> l & 1U) == 0 ? sum : std::ldexp(sum, exponent(c[l]) > 127 ? 64 : -64);
  }
  store_result<W>(w, i, r);
}

float fixed_up(float quotient, float denominator, float numerator) {
  const float sign = std::signbit(denominator) != std::signbit(numerator) ? -1.0F : 1.0F;
  if (std::isnan(numerator)) return numerator;
  if (std::isnan(denominator)) return denominator;
  if ((denominator == 0 && numerator == 0) || (std::isinf(denominator) && std::isinf(numerator)))
    return NAN;
  if (denominator == 0 || std::isinf(numerator)) return std::copysign(HUGE_VALF, sign);
  if (std::isinf(denominator) || numerator == 0) return std::copysign(0.0F, sign);
  return std::copysign(quotient, sign);
}

}  // namespace

void add_division(Table& t) {
  t.add("v_div_scale_f32", {div_scale<32>, div_scale<64>, Kind::valu, false});
  t.add("v_div_fmas_f32", {div_fmas<32>, div_fmas<64>, Kind::valu, false});
  t.lanes("v_div_fixup_f32", [](float quotient, float denominator, float numerator) {
    return fixed_up(quotient, denominator, numerator);
  });
}

}  // namespace fulmen::gpu::isa
