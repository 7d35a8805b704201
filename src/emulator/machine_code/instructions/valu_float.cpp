// Vector arithmetic in fp32 and fp16, and conversions.
#include <algorithm>
#include <cmath>
#include <limits>

#include "emulator/machine_code/instructions/table.h"
#include "runtime/kv_formats.h"

namespace fulmen::gpu::isa {
namespace {

constexpr Kind kTranscendental = Kind::transcendental;

// The larger or the smaller one; the number where the other is NaN.
float maximum(float a, float b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a > b || (a == b && !std::signbit(a)) ? a : b;
}
float minimum(float a, float b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a < b || (a == b && std::signbit(a)) ? a : b;
}

// A product that the host's compiler does not fuse with a sum.
float rounded(float product) {
  const volatile float kept = flush_subnormal(product);
  return kept;
}

// Rounds toward zero. A number that does not fit becomes the nearest one that does, NaN becomes 0.
template <class T>
T to_integer(float x) {
  if (std::isnan(x)) return 0;
  constexpr double kLeast = static_cast<double>(std::numeric_limits<T>::min()),
                   kMost = static_cast<double>(std::numeric_limits<T>::max());
  return static_cast<T>(std::clamp(static_cast<double>(x), kLeast, kMost));
}

Half half_sum(Half a, Half b) { return to_half(to_float(a) + to_float(b)); }
Half half_product(Half a, Half b) { return to_half(to_float(a) * to_float(b)); }
Half half_fma(Half a, Half b, Half c) {
  return to_half(static_cast<double>(to_float(a)) * static_cast<double>(to_float(b)) +
                 static_cast<double>(to_float(c)));
}

void add_float_arithmetic(Table& t) {
  t.lanes("v_add_f32", [](float a, float b) { return a + b; });
  t.lanes("v_sub_f32", [](float a, float b) { return a - b; });
  t.lanes("v_subrev_f32", [](float a, float b) { return b - a; });
  t.lanes("v_mul_f32", [](float a, float b) { return a * b; });
  t.lanes("v_mul_dx9_zero_f32", [](float a, float b) { return a == 0 || b == 0 ? 0.0F : a * b; });
  const auto fma = [](float a, float b, float c) { return std::fma(a, b, c); };
  for (const char* name : {"v_fma_f32", "v_fmaak_f32", "v_fmamk_f32"}) t.lanes(name, fma);
  t.lanes<1, true>("v_fmac_f32", fma);
  // gfx9's and gfx10.1's that round the product, too. Subnormal numbers count as 0.
  const auto mad = [](float a, float b, float c) {
    return flush_subnormal(rounded(flush_subnormal(a) * flush_subnormal(b)) + flush_subnormal(c));
  };
  for (const char* name : {"v_mad_f32", "v_madak_f32", "v_madmk_f32"}) t.lanes(name, mad);
  t.lanes<1, true>("v_mac_f32", mad);
  for (const char* name : {"v_max_f32", "v_max_num_f32"})
    t.lanes(name, [](float a, float b) { return maximum(a, b); });
  for (const char* name : {"v_min_f32", "v_min_num_f32"})
    t.lanes(name, [](float a, float b) { return minimum(a, b); });
  for (const char* name : {"v_max3_f32", "v_max3_num_f32"}) {
    t.lanes(name, [](float a, float b, float c) { return maximum(maximum(a, b), c); });
  }
  for (const char* name : {"v_min3_f32", "v_min3_num_f32"}) {
    t.lanes(name, [](float a, float b, float c) { return minimum(minimum(a, b), c); });
  }
  for (const char* name : {"v_maxmin_f32", "v_maxmin_num_f32"}) {
    t.lanes(name, [](float a, float b, float c) { return minimum(maximum(a, b), c); });
  }
  for (const char* name : {"v_minmax_f32", "v_minmax_num_f32"}) {
    t.lanes(name, [](float a, float b, float c) { return maximum(minimum(a, b), c); });
  }
  const auto median = [](float a, float b, float c) {
    if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return minimum(minimum(a, b), c);
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
  };
  for (const char* name : {"v_med3_f32", "v_med3_num_f32"}) t.lanes(name, median);
  t.lanes("v_trunc_f32", [](float x) { return std::trunc(x); });
  t.lanes("v_floor_f32", [](float x) { return std::floor(x); });
  t.lanes("v_ceil_f32", [](float x) { return std::ceil(x); });
  t.lanes("v_rndne_f32", [](float x) { return std::nearbyint(x); });
  t.lanes("v_fract_f32", [](float x) { return std::min(x - std::floor(x), 0x1.fffffep-1F); });
  t.lanes("v_ldexp_f32", [](float x, int32_t n) { return std::ldexp(x, n); });
  t.lanes("v_frexp_mant_f32", [](float x) {
    int exponent = 0;
    return std::isfinite(x) ? std::frexp(x, &exponent) : x;
  });
  t.lanes("v_frexp_exp_i32_f32", [](float x) {
    int exponent = 0;
    if (std::isfinite(x)) static_cast<void>(std::frexp(x, &exponent));
    return exponent;
  });
}

void add_transcendental(Table& t) {
  t.lanes(
      "v_exp_f32", [](float x) { return flush_subnormal(std::exp2(flush_subnormal(x))); },
      kTranscendental);
  t.lanes("v_log_f32", [](float x) { return std::log2(flush_subnormal(x)); }, kTranscendental);
  t.lanes("v_rcp_f32", [](float x) { return 1.0F / x; }, kTranscendental);
  t.lanes("v_rcp_iflag_f32", [](float x) { return 1.0F / x; }, kTranscendental);
  t.lanes("v_rsq_f32", [](float x) { return 1.0F / std::sqrt(x); }, kTranscendental);
  t.lanes("v_sqrt_f32", [](float x) { return std::sqrt(x); }, kTranscendental);
  t.lanes("v_rcp_f16", [](Half x) { return to_half(1.0F / to_float(x)); }, kTranscendental);
}

void add_halves(Table& t) {
  t.lanes("v_add_f16", [](Half a, Half b) { return half_sum(a, b); });
  t.lanes("v_sub_f16", [](Half a, Half b) { return to_half(to_float(a) - to_float(b)); });
  t.lanes("v_mul_f16", [](Half a, Half b) { return half_product(a, b); });
  t.lanes("v_fma_f16", [](Half a, Half b, Half c) { return half_fma(a, b, c); });
  t.lanes<1, true>("v_fmac_f16", [](Half a, Half b, Half c) { return half_fma(a, b, c); });
  for (const char* name : {"v_max_f16", "v_max_num_f16"}) {
    t.lanes(name, [](Half a, Half b) { return to_half(maximum(to_float(a), to_float(b))); });
  }
  for (const char* name : {"v_min_f16", "v_min_num_f16"}) {
    t.lanes(name, [](Half a, Half b) { return to_half(minimum(to_float(a), to_float(b))); });
  }
  t.lanes("v_pack_b32_f16", [](Half a, Half b) { return a.bits | uint32_t{b.bits} << 16U; });
}

template <DType kFormat>
uint16_t two_fp8(float a, float b) {
  return static_cast<uint16_t>(reference::to_fp8(kFormat, a) |
                               unsigned{reference::to_fp8(kFormat, b)} << 8U);
}

// Two codes -> the bits of two numbers.
template <DType kFormat>
uint64_t two_numbers(uint16_t codes) {
  const auto number = [](unsigned code) {
    return std::bit_cast<uint32_t>(reference::from_fp8(kFormat, static_cast<uint8_t>(code)));
  };
  return number(codes & 0xFFU) | uint64_t{number(codes >> 8U)} << 32U;
}

template <DType kE4m3, DType kE5m2>
void add_fp8(Table& t, const std::string& kind) {
  // To one half of the result; the other stays.
  t.lanes("v_cvt_pk_fp8_f32" + kind, [](float a, float b) { return two_fp8<kE4m3>(a, b); });
  // These convert the byte, or the half, that is named, else the lowest.
  t.lanes("v_cvt_f32_fp8" + kind,
          [](uint32_t x) { return reference::from_fp8(kE4m3, static_cast<uint8_t>(x & 0xFFU)); });
  t.lanes("v_cvt_f32_bf8" + kind,
          [](uint32_t x) { return reference::from_fp8(kE5m2, static_cast<uint8_t>(x & 0xFFU)); });
  t.lanes("v_cvt_pk_f32_fp8" + kind, [](uint16_t x) { return two_numbers<kE4m3>(x); });
  t.lanes("v_cvt_pk_f32_bf8" + kind, [](uint16_t x) { return two_numbers<kE5m2>(x); });
}

void add_conversions(Table& t) {
  t.lanes("v_cvt_f16_f32", [](float x) { return to_half(x); });
  t.lanes("v_cvt_f32_f16", [](Half x) { return to_float(x); });
  t.lanes("v_cvt_f32_bf16", [](uint16_t x) { return reference::from_bf16(x); });
  t.lanes("v_cvt_f32_u32", [](uint32_t x) { return static_cast<float>(x); });
  t.lanes("v_cvt_f32_i32", [](int32_t x) { return static_cast<float>(x); });
  t.lanes("v_cvt_u32_f32", [](float x) { return to_integer<uint32_t>(x); });
  t.lanes("v_cvt_i32_f32", [](float x) { return to_integer<int32_t>(x); });
  t.lanes("v_cvt_f32_ubyte0", [](uint32_t x) { return static_cast<float>(x & 0xFFU); });
  t.lanes("v_cvt_f32_ubyte1", [](uint32_t x) { return static_cast<float>(x >> 8U & 0xFFU); });
  t.lanes("v_cvt_f32_ubyte2", [](uint32_t x) { return static_cast<float>(x >> 16U & 0xFFU); });
  t.lanes("v_cvt_f32_ubyte3", [](uint32_t x) { return static_cast<float>(x >> 24U); });
  for (const char* name : {"v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32"}) {
    t.lanes(name, [](float a, float b) {
      return truncate_to_half(a) | uint32_t{truncate_to_half(b)} << 16U;
    });
  }
  t.lanes("v_cvt_pk_f16_f32",
          [](float a, float b) { return to_half(a).bits | uint32_t{to_half(b).bits} << 16U; });
  t.lanes("v_cvt_pk_bf16_f32", [](float a, float b) {
    return reference::to_bf16(a) | uint32_t{reference::to_bf16(b)} << 16U;
  });
  add_fp8<DType::fp8_e4m3, DType::fp8_e5m2>(t, "");
  add_fp8<DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz>(t, "_fnuz");
}

}  // namespace

void add_float_instructions(Table& table) {
  add_float_arithmetic(table);
  add_transcendental(table);
  add_halves(table);
  add_conversions(table);
}

}  // namespace fulmen::gpu::isa
