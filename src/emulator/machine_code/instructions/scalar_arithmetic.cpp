// Scalar arithmetic: functions of up to three registers or pairs of registers, and their SCC.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

enum class Scc : uint8_t { kept, is_not_zero };

template <class T>
T scalar_value(const Wave& w, const Operand& o) {
  if constexpr (sizeof(T) == 8) return std::bit_cast<T>(scalar64(w, o));
  if constexpr (sizeof(T) == 4) return std::bit_cast<T>(scalar32(w, o));
}
template <class T>
uint64_t scalar_bits(T value) {
  if constexpr (sizeof(T) == 8) return std::bit_cast<uint64_t>(value);
  if constexpr (sizeof(T) == 4) return std::bit_cast<uint32_t>(value);
}

template <Scc kScc, class Fn, class R, class... A, std::size_t... N>
void run_scalar(Wave& w, const Instruction& i, R (Fn::*)(A...) const, std::index_sequence<N...>) {
  const R result = Fn{}(scalar_value<A>(w, i.operand[N + 1])...);
  set_scalar(w, i.operand[0], scalar_bits(result));
  if (kScc == Scc::is_not_zero) w.scc = scalar_bits(result) != 0;
}

template <Scc kScc, class Fn>
void add(Table& t, std::string_view name, Fn /*function*/) {
  t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
    run_scalar<kScc>(w, i, &Fn::operator(), typename Arity<decltype(&Fn::operator())>::Indices{});
  });
}

template <class Fn>
void add_logic(Table& t, const std::string& name, Fn function) {
  add<Scc::is_not_zero>(t, name + "_b32",
                        [](uint32_t a, uint32_t b) { return static_cast<uint32_t>(Fn{}(a, b)); });
  add<Scc::is_not_zero>(t, name + "_b64", function);
}

// Returns the larger one; SCC says whether it is the first.
template <class T, bool kLarger>
void add_extreme(Table& t, std::string_view name) {
  t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
    const T a = scalar_value<T>(w, i.operand[1]), b = scalar_value<T>(w, i.operand[2]);
    w.scc = kLarger ? a >= b : a < b;
    set_scalar(w, i.operand[0], scalar_bits(w.scc ? a : b));
  });
}

void add_scalar_bits(Table& t) {
  for (const char* name : {"s_mov_b32"}) add<Scc::kept>(t, name, [](uint32_t x) { return x; });
  add<Scc::kept>(t, "s_mov_b64", [](uint64_t x) { return x; });
  add<Scc::is_not_zero>(t, "s_not_b32", [](uint32_t x) { return ~x; });
  add<Scc::is_not_zero>(t, "s_not_b64", [](uint64_t x) { return ~x; });
  add_logic(t, "s_and", [](uint64_t a, uint64_t b) { return a & b; });
  add_logic(t, "s_or", [](uint64_t a, uint64_t b) { return a | b; });
  add_logic(t, "s_xor", [](uint64_t a, uint64_t b) { return a ^ b; });
  add_logic(t, "s_nand", [](uint64_t a, uint64_t b) { return ~(a & b); });
  add_logic(t, "s_nor", [](uint64_t a, uint64_t b) { return ~(a | b); });
  add_logic(t, "s_xnor", [](uint64_t a, uint64_t b) { return ~(a ^ b); });
  for (const char* name : {"s_andn2", "s_and_not1"})
    add_logic(t, name, [](uint64_t a, uint64_t b) { return a & ~b; });
  for (const char* name : {"s_orn2", "s_or_not1"})
    add_logic(t, name, [](uint64_t a, uint64_t b) { return a | ~b; });
  add<Scc::is_not_zero>(t, "s_lshl_b32", [](uint32_t x, uint32_t n) { return x << (n & 31U); });
  add<Scc::is_not_zero>(t, "s_lshr_b32", [](uint32_t x, uint32_t n) { return x >> (n & 31U); });
  add<Scc::is_not_zero>(t, "s_ashr_i32", [](int32_t x, uint32_t n) { return x >> (n & 31U); });
  add<Scc::is_not_zero>(t, "s_lshl_b64", [](uint64_t x, uint32_t n) { return x << (n & 63U); });
  add<Scc::is_not_zero>(t, "s_lshr_b64", [](uint64_t x, uint32_t n) { return x >> (n & 63U); });
  add<Scc::is_not_zero>(t, "s_ashr_i64", [](int64_t x, uint32_t n) { return x >> (n & 63U); });
  add<Scc::kept>(t, "s_bfm_b32",
                 [](uint32_t n, uint32_t at) { return ((1U << (n & 31U)) - 1) << (at & 31U); });
  add<Scc::kept>(t, "s_brev_b32", [](uint32_t x) {
    uint32_t r = 0;
    for (int n = 0; n < 32; ++n) r |= (x >> n & 1U) << (31 - n);
    return r;
  });
  add<Scc::is_not_zero>(t, "s_bcnt1_i32_b32", [](uint32_t x) { return std::popcount(x); });
  add<Scc::is_not_zero>(t, "s_bcnt1_i32_b64", [](uint64_t x) { return std::popcount(x); });
  for (const char* name : {"s_ff1_i32_b32", "s_ctz_i32_b32"}) {
    add<Scc::kept>(t, name, [](uint32_t x) { return x == 0 ? -1 : std::countr_zero(x); });
  }
  for (const char* name : {"s_ff1_i32_b64", "s_ctz_i32_b64"}) {
    add<Scc::kept>(t, name, [](uint64_t x) { return x == 0 ? -1 : std::countr_zero(x); });
  }
  for (const char* name : {"s_flbit_i32_b32", "s_clz_i32_u32"}) {
    add<Scc::kept>(t, name, [](uint32_t x) { return x == 0 ? -1 : std::countl_zero(x); });
  }
  for (const char* name : {"s_flbit_i32", "s_cls_i32"}) {
    add<Scc::kept>(t, name, [](uint32_t x) {
      const uint32_t other = x >> 31U != 0 ? ~x : x;
      return other == 0 ? -1 : std::countl_zero(other);
    });
  }
  add<Scc::kept>(t, "s_pack_ll_b32_b16",
                 [](uint32_t a, uint32_t b) { return (a & 0xFFFFU) | b << 16U; });
  add<Scc::kept>(t, "s_pack_lh_b32_b16",
                 [](uint32_t a, uint32_t b) { return (a & 0xFFFFU) | (b & 0xFFFF0000U); });
  add<Scc::kept>(t, "s_pack_hh_b32_b16",
                 [](uint32_t a, uint32_t b) { return a >> 16U | (b & 0xFFFF0000U); });
}

// Extracts a bit field. Bits 0 to 5 of the second operand are its offset, bits 16 to 22 its width.
void add_fields(Table& t) {
  add<Scc::is_not_zero>(t, "s_bfe_u32", [](uint32_t x, uint32_t f) {
    const uint32_t bits = f >> 16U & 127U;
    return bits >= 32 ? x >> (f & 31U) : x >> (f & 31U) & ((1U << bits) - 1);
  });
  add<Scc::is_not_zero>(t, "s_bfe_i32", [](uint32_t x, uint32_t f) {
    const uint32_t at = f & 31U, bits = std::min(f >> 16U & 127U, 32 - at);
    return bits == 0 ? 0 : static_cast<int32_t>(x >> at << (32 - bits)) >> (32 - bits);
  });
  add<Scc::is_not_zero>(t, "s_bfe_u64", [](uint64_t x, uint32_t f) {
    const uint32_t bits = f >> 16U & 127U;
    return bits >= 64 ? x >> (f & 63U) : x >> (f & 63U) & ((uint64_t{1} << bits) - 1);
  });
  add<Scc::is_not_zero>(t, "s_bfe_i64", [](uint64_t x, uint32_t f) {
    const uint32_t at = f & 63U, bits = std::min(f >> 16U & 127U, 64 - at);
    return bits == 0 ? int64_t{0} : static_cast<int64_t>(x >> at << (64 - bits)) >> (64 - bits);
  });
}

void add_products(Table& t) {
  add<Scc::kept>(t, "s_mul_i32", [](uint32_t a, uint32_t b) { return a * b; });
  add<Scc::kept>(t, "s_mul_hi_u32", [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(uint64_t{a} * b >> 32U);
  });
  add<Scc::kept>(t, "s_mul_hi_i32",
                 [](int32_t a, int32_t b) { return static_cast<int32_t>(int64_t{a} * b >> 32U); });
  add<Scc::kept>(t, "s_mul_u64", [](uint64_t a, uint64_t b) { return a * b; });
  for (const char* name : {"s_add_nc_u64", "s_add_u64"})
    add<Scc::kept>(t, name, [](uint64_t a, uint64_t b) { return a + b; });
  for (const char* name : {"s_sub_nc_u64", "s_sub_u64"})
    add<Scc::kept>(t, name, [](uint64_t a, uint64_t b) { return a - b; });
  add<Scc::is_not_zero>(t, "s_abs_i32", [](int32_t x) {
    return x < 0 ? 0U - static_cast<uint32_t>(x) : static_cast<uint32_t>(x);
  });
  add<Scc::is_not_zero>(t, "s_absdiff_i32", [](uint32_t a, uint32_t b) {
    const uint32_t d = a - b;
    return static_cast<int32_t>(d) < 0 ? 0U - d : d;
  });
  add<Scc::kept>(t, "s_sext_i32_i8",
                 [](uint32_t x) { return static_cast<int32_t>(static_cast<int8_t>(x)); });
  add<Scc::kept>(t, "s_sext_i32_i16",
                 [](uint32_t x) { return static_cast<int32_t>(static_cast<int16_t>(x)); });
  add_extreme<int32_t, true>(t, "s_max_i32");
  add_extreme<uint32_t, true>(t, "s_max_u32");
  add_extreme<int32_t, false>(t, "s_min_i32");
  add_extreme<uint32_t, false>(t, "s_min_u32");
}

// Scalar floating point of RDNA3.5 and RDNA4.
void add_floats(Table& t) {
  add<Scc::kept>(t, "s_add_f32", [](float a, float b) { return a + b; });
  add<Scc::kept>(t, "s_sub_f32", [](float a, float b) { return a - b; });
  add<Scc::kept>(t, "s_mul_f32", [](float a, float b) { return a * b; });
  for (const char* name : {"s_fmamk_f32", "s_fmaak_f32"}) {
    add<Scc::kept>(t, name, [](float a, float b, float c) { return std::fma(a, b, c); });
  }
  t.add("s_fmac_f32", Kind::salu, [](Wave& w, const Instruction& i) {
    const auto number = [&](int n) {
      return scalar_value<float>(w, i.operand[static_cast<std::size_t>(n)]);
    };
    set_scalar(w, i.operand[0], scalar_bits(std::fma(number(1), number(2), number(0))));
  });
  for (const char* name : {"s_max_f32", "s_max_num_f32"})
    add<Scc::kept>(t, name, [](float a, float b) { return std::fmax(a, b); });
  for (const char* name : {"s_min_f32", "s_min_num_f32"})
    add<Scc::kept>(t, name, [](float a, float b) { return std::fmin(a, b); });
  add<Scc::kept>(t, "s_trunc_f32", [](float x) { return std::trunc(x); });
  add<Scc::kept>(t, "s_floor_f32", [](float x) { return std::floor(x); });
  add<Scc::kept>(t, "s_ceil_f32", [](float x) { return std::ceil(x); });
  add<Scc::kept>(t, "s_rndne_f32", [](float x) { return std::nearbyint(x); });
  add<Scc::kept>(t, "s_cvt_f16_f32", [](float x) { return uint32_t{to_half(x).bits}; });
  add<Scc::kept>(t, "s_cvt_f32_f16",
                 [](uint32_t x) { return to_float(Half{static_cast<uint16_t>(x)}); });
  add<Scc::kept>(t, "s_cvt_hi_f32_f16",
                 [](uint32_t x) { return to_float(Half{static_cast<uint16_t>(x >> 16U)}); });
  add<Scc::kept>(t, "s_cvt_f32_u32", [](uint32_t x) { return static_cast<float>(x); });
  add<Scc::kept>(t, "s_cvt_f32_i32", [](int32_t x) { return static_cast<float>(x); });
  add<Scc::kept>(t, "s_cvt_u32_f32", [](float x) {
    return std::isnan(x)
               ? 0U
               : static_cast<uint32_t>(std::clamp(static_cast<double>(x), 0.0, 4294967295.0));
  });
  add<Scc::kept>(t, "s_cvt_i32_f32", [](float x) {
    return std::isnan(x) ? 0
                         : static_cast<int32_t>(
                               std::clamp(static_cast<double>(x), -2147483648.0, 2147483647.0));
  });
  add<Scc::kept>(t, "v_s_exp_f32", [](float x) { return std::exp2(x); });
  add<Scc::kept>(t, "v_s_log_f32", [](float x) { return std::log2(x); });
  add<Scc::kept>(t, "v_s_rcp_f32", [](float x) { return 1.0F / x; });
  add<Scc::kept>(t, "v_s_rsq_f32", [](float x) { return 1.0F / std::sqrt(x); });
  add<Scc::kept>(t, "v_s_sqrt_f32", [](float x) { return std::sqrt(x); });
}

}  // namespace

void add_scalar_arithmetic(Table& t) {
  add_scalar_bits(t);
  add_fields(t);
  add_products(t);
  add_floats(t);
}

}  // namespace fulmen::gpu::isa
