// The table of vector instructions.
#include <algorithm>
#include <bit>
#include <cmath>

#include "isa/manual.h"

namespace fulmen::testing::manual {
namespace {

Names rdna(const char* name) { return {nullptr, name, name}; }

double f(U x) { return number(x, kSingle); }
double h(U x) { return number(x & 0xFFFFU, kHalf); }
U to_f(double x) { return bits(x, kSingle); }
U to_h(double x) { return bits(x, kHalf); }
int64_t s16(U x) { return static_cast<int16_t>(static_cast<uint16_t>(x)); }
int64_t s24(U x) { return static_cast<int64_t>(x << 40U) >> 40U; }
U low(U x, int count) { return count >= 64 ? x : x & ((U{1} << count) - 1); }
U u32(int64_t x) { return low(static_cast<U>(x), 32); }

// -0 is less than 0; a number beats NaN.
double least(double a, double b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
double most(double a, double b) { return -least(-a, -b); }

U clamped_integer(double x, double from, double to) {
  if (std::isnan(x)) return 0;
  return static_cast<U>(static_cast<int64_t>(std::trunc(std::min(std::max(x, from), to))));
}

U chosen_byte(U a, U b, U selector) {
  const U all_bytes = b | a << 32U;
  if (selector >= 13) return 0xFF;
  if (selector == 12) return 0;
  if (selector >= 8) return (all_bytes >> (16 * (selector - 8) + 15) & 1U) != 0 ? 0xFF : 0;
  return all_bytes >> (8 * selector) & 0xFFU;
}

double flush(double x) { return std::fabs(x) < 0x1p-126 ? std::copysign(0.0, x) : x; }

void add_floats(std::vector<VectorRow>& t) {
  t.push_back(
      {all("v_add_f32"), "fff", [](U a, U b, U) { return Result(to_f(odd_sum(f(a), f(b)))); }});
  t.push_back(
      {all("v_sub_f32"), "fff", [](U a, U b, U) { return Result(to_f(odd_sum(f(a), -f(b)))); }});
  t.push_back(
      {all("v_subrev_f32"), "fff", [](U a, U b, U) { return Result(to_f(odd_sum(f(b), -f(a)))); }});
  t.push_back({all("v_mul_f32"), "fff", [](U a, U b, U) { return Result(to_f(f(a) * f(b))); }});
  t.push_back({all("v_fma_f32"), "ffff",
               [](U a, U b, U c) { return Result(to_f(odd_sum(f(a) * f(b), f(c)))); }});
  t.push_back({all("v_fmac_f32"), "fffd",
               [](U a, U b, U c) { return Result(to_f(odd_sum(f(a) * f(b), f(c)))); }});
  // Before gfx942: product and sum are rounded, subnormal numbers flushed.
  const auto mad = [](U a, U b, U c) {
    const double product = flush(f(to_f(flush(f(a)) * flush(f(b)))));
    return Result(to_f(flush(f(to_f(product + flush(f(c)))))));
  };
  t.push_back({{"v_mad_f32", nullptr, nullptr, "v_mad_f32"}, "ffff", mad});
  t.push_back({{"v_mac_f32", nullptr, nullptr, "v_mac_f32"}, "fffd", mad});
  t.push_back({{"v_max_f32", "v_max_f32", "v_max_num_f32"}, "fff", [](U a, U b, U) {
                 return Result(to_f(most(f(a), f(b))));
               }});
  t.push_back({{"v_min_f32", "v_min_f32", "v_min_num_f32"}, "fff", [](U a, U b, U) {
                 return Result(to_f(least(f(a), f(b))));
               }});
  t.push_back({{"v_max3_f32", "v_max3_f32", "v_max3_num_f32"}, "ffff", [](U a, U b, U c) {
                 return Result(to_f(most(most(f(a), f(b)), f(c))));
               }});
  t.push_back({{"v_min3_f32", "v_min3_f32", "v_min3_num_f32"}, "ffff", [](U a, U b, U c) {
                 return Result(to_f(least(least(f(a), f(b)), f(c))));
               }});
  t.push_back({{nullptr, "v_maxmin_f32", "v_maxmin_num_f32"}, "ffff", [](U a, U b, U c) {
                 return Result(to_f(least(most(f(a), f(b)), f(c))));
               }});
  t.push_back({{nullptr, "v_minmax_f32", "v_minmax_num_f32"}, "ffff", [](U a, U b, U c) {
                 return Result(to_f(most(least(f(a), f(b)), f(c))));
               }});
  t.push_back(
      {{"v_med3_f32", "v_med3_f32", "v_med3_num_f32"}, "ffff", [](U a, U b, U c) {
         const double x = f(a), y = f(b), z = f(c), largest = most(most(x, y), z);
         if (std::isnan(x) || std::isnan(y) || std::isnan(z))
           return Result(to_f(least(least(x, y), z)));
         return Result(to_f(largest == x ? most(y, z) : largest == y ? most(x, z) : most(x, y)));
       }});
  t.push_back({all("v_trunc_f32"), "ff", [](U a, U, U) { return Result(to_f(std::trunc(f(a)))); }});
  t.push_back({all("v_floor_f32"), "ff", [](U a, U, U) { return Result(to_f(std::floor(f(a)))); }});
  t.push_back({all("v_ceil_f32"), "ff", [](U a, U, U) { return Result(to_f(std::ceil(f(a)))); }});
  t.push_back(
      {all("v_rndne_f32"), "ff", [](U a, U, U) { return Result(to_f(std::nearbyint(f(a)))); }});
  t.push_back({all("v_ldexp_f32"), "ffu", [](U a, U b, U) {
                 return Result(to_f(
                     std::ldexp(f(a), static_cast<int>(std::clamp<int64_t>(s32(b), -600, 600)))));
               }});
  t.push_back({all("v_frexp_mant_f32"), "ff", [](U a, U, U) {
                 const double x = f(a);
                 return Result(
                     to_f(x == 0 || !std::isfinite(x) ? x : std::ldexp(x, -std::ilogb(x) - 1)));
               }});
  t.push_back({all("v_frexp_exp_i32_f32"), "uf", [](U a, U, U) {
                 const double x = f(a);
                 return Result(x == 0 || !std::isfinite(x) ? 0 : u32(std::ilogb(x) + 1));
               }});
  t.push_back({all("v_exp_f32"), "ff",
               [](U a, U, U) { return Result(to_f(flush(std::exp2(flush(f(a)))))); }, true});
  t.push_back({all("v_log_f32"), "ff",
               [](U a, U, U) { return Result(to_f(std::log2(flush(f(a))))); }, true});
  t.push_back({all("v_rcp_f32"), "ff", [](U a, U, U) { return Result(to_f(1 / f(a))); }, true});
  t.push_back(
      {all("v_rsq_f32"), "ff", [](U a, U, U) { return Result(to_f(1 / std::sqrt(f(a)))); }, true});
  t.push_back(
      {all("v_sqrt_f32"), "ff", [](U a, U, U) { return Result(to_f(std::sqrt(f(a)))); }, true});
}

// Sums in the order of the document, each rounded; subnormal numbers count as 0.
Result dot2(U a, U b, U c, Format format) {
  const auto product = [&](int half) {
    return number(a >> (16 * half) & 0xFFFFU, format) * number(b >> (16 * half) & 0xFFFFU, format);
  };
  const double first = f(to_f(odd_sum(flush(f(c)), f(to_f(product(0))))));
  return Result(to_f(flush(f(to_f(odd_sum(first, f(to_f(product(1)))))))));
}

void add_dot_products(std::vector<VectorRow>& t) {
  t.push_back({all("v_dot2_f32_f16"), "fppu", [](U a, U b, U c) { return dot2(a, b, c, kHalf); }});
  t.push_back({{nullptr, "v_dot2_f32_bf16", "v_dot2_f32_bf16"}, "fppu", [](U a, U b, U c) {
                 return dot2(a, b, c, kBf16);
               }});
}

void add_halves(std::vector<VectorRow>& t) {
  t.push_back({all("v_add_f16"), "hhh", [](U a, U b, U) { return Result(to_h(h(a) + h(b))); }});
  t.push_back({all("v_sub_f16"), "hhh", [](U a, U b, U) { return Result(to_h(h(a) - h(b))); }});
  t.push_back({all("v_mul_f16"), "hhh", [](U a, U b, U) { return Result(to_h(h(a) * h(b))); }});
  t.push_back({all("v_fma_f16"), "hhhh",
               [](U a, U b, U c) { return Result(to_h(odd_sum(h(a) * h(b), h(c)))); }});
  t.push_back({{"v_max_f16", "v_max_f16", "v_max_num_f16"}, "hhh", [](U a, U b, U) {
                 return Result(to_h(most(h(a), h(b))));
               }});
  t.push_back({{"v_min_f16", "v_min_f16", "v_min_num_f16"}, "hhh", [](U a, U b, U) {
                 return Result(to_h(least(h(a), h(b))));
               }});
  t.push_back({all("v_pack_b32_f16"), "uhh",
               [](U a, U b, U) { return Result(low(a, 16) | low(b, 16) << 16U); }});
  t.push_back({all("v_cvt_f16_f32"), "hf", [](U a, U, U) { return Result(to_h(f(a))); }});
  t.push_back({all("v_cvt_f32_f16"), "fh", [](U a, U, U) { return Result(to_f(h(a))); }});
  t.push_back({{"v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32", "v_cvt_pk_rtz_f16_f32"},
               "pff",
               [](U a, U b, U) {
                 return Result(bits(f(a), kHalf, true) | bits(f(b), kHalf, true) << 16U);
               }});
}

void add_conversions(std::vector<VectorRow>& t) {
  t.push_back({all("v_cvt_f32_u32"), "fu",
               [](U a, U, U) { return Result(to_f(static_cast<double>(low(a, 32)))); }});
  t.push_back({all("v_cvt_f32_i32"), "fu",
               [](U a, U, U) { return Result(to_f(static_cast<double>(s32(a)))); }});
  t.push_back({all("v_cvt_u32_f32"), "uf",
               [](U a, U, U) { return Result(clamped_integer(f(a), 0, 4294967295.0)); }});
  t.push_back({all("v_cvt_i32_f32"), "uf", [](U a, U, U) {
                 return Result(low(clamped_integer(f(a), -2147483648.0, 2147483647.0), 32));
               }});
  t.push_back({all("v_cvt_f32_ubyte0"), "fu",
               [](U a, U, U) { return Result(to_f(static_cast<double>(a & 255U))); }});
  t.push_back({all("v_cvt_f32_ubyte3"), "fu",
               [](U a, U, U) { return Result(to_f(static_cast<double>(a >> 24U & 255U))); }});
}

void add_bits(std::vector<VectorRow>& t) {
  t.push_back({all("v_mov_b32"), "uu", [](U a, U, U) { return Result(a); }});
  t.push_back({all("v_not_b32"), "uu", [](U a, U, U) { return Result(a ^ 0xFFFFFFFFU); }});
  t.push_back({all("v_and_b32"), "uuu", [](U a, U b, U) { return Result(a & b); }});
  t.push_back({all("v_or_b32"), "uuu", [](U a, U b, U) { return Result(a | b); }});
  t.push_back({all("v_xor_b32"), "uuu", [](U a, U b, U) { return Result(a ^ b); }});
  t.push_back({all("v_or3_b32"), "uuuu", [](U a, U b, U c) { return Result(a | b | c); }});
  t.push_back({all("v_and_or_b32"), "uuuu", [](U a, U b, U c) { return Result((a & b) | c); }});
  t.push_back({rdna("v_xor3_b32"), "uuuu", [](U a, U b, U c) { return Result(a ^ b ^ c); }});
  t.push_back({all("v_bfi_b32"), "uuuu", [](U a, U b, U c) { return Result(((b ^ c) & a) ^ c); }});
  t.push_back({all("v_bfm_b32"), "uuu", [](U a, U b, U) {
                 return Result(low(low(~U{0}, static_cast<int>(a & 31U)) << (b & 31U), 32));
               }});
  t.push_back({all("v_bfe_u32"), "uuuu", [](U a, U b, U c) {
                 return Result(low(a >> (b & 31U), static_cast<int>(c & 31U)));
               }});
  t.push_back({all("v_bfe_i32"), "uuuu", [](U a, U b, U c) {
                 const auto at = static_cast<int>(b & 31U), count = static_cast<int>(c & 31U);
                 if (count == 0) return Result(0);
                 // Bits above the register are its sign.
                 const int64_t field = s32(a) >> at;
                 const U kept = low(static_cast<U>(field), count);
                 return Result(u32((kept >> (count - 1) & 1U) != 0
                                       ? static_cast<int64_t>(kept) - (int64_t{1} << count)
                                       : static_cast<int64_t>(kept)));
               }});
  t.push_back({all("v_bfrev_b32"), "uu", [](U a, U, U) {
                 U r = 0;
                 for (U n = 0; n < 32; ++n) r = r << 1U | (a >> n & 1U);
                 return Result(r);
               }});
  t.push_back({all("v_bcnt_u32_b32"), "uuu", [](U a, U b, U) {
                 U count = b;
                 for (; a != 0; a >>= 1U) count += a & 1U;
                 return Result(low(count, 32));
               }});
  t.push_back({{"v_ffbh_u32", "v_clz_i32_u32", "v_clz_i32_u32"}, "uu", [](U a, U, U) {
                 for (U n = 0; n < 32; ++n) {
                   if ((a >> (31 - n) & 1U) != 0) return Result(n);
                 }
                 return Result(0xFFFFFFFFU);
               }});
  t.push_back({{"v_ffbl_b32", "v_ctz_i32_b32", "v_ctz_i32_b32"}, "uu", [](U a, U, U) {
                 for (U n = 0; n < 32; ++n) {
                   if ((a >> n & 1U) != 0) return Result(n);
                 }
                 return Result(0xFFFFFFFFU);
               }});
  t.push_back({{"v_ffbh_i32", "v_cls_i32", "v_cls_i32"}, "uu", [](U a, U, U) {
                 for (U n = 1; n < 32; ++n) {
                   if ((a >> (31 - n) & 1U) != (a >> 31U & 1U)) return Result(n);
                 }
                 return Result(0xFFFFFFFFU);
               }});
  t.push_back({all("v_perm_b32"), "uuuu", [](U a, U b, U c) {
                 U r = 0;
                 for (U n = 0; n < 4; ++n) r |= chosen_byte(a, b, c >> (8 * n) & 0xFFU) << (8 * n);
                 return Result(r);
               }});
  t.push_back({all("v_alignbit_b32"), "uuuu",
               [](U a, U b, U c) { return Result(low((a << 32U | b) >> (c & 31U), 32)); }});
  t.push_back({all("v_alignbyte_b32"), "uuuu",
               [](U a, U b, U c) { return Result(low((a << 32U | b) >> (8 * (c & 3U)), 32)); }});
}

void add_integers(std::vector<VectorRow>& t) {
  t.push_back(
      {all("v_lshlrev_b32"), "uuu", [](U a, U b, U) { return Result(low(b << (a & 31U), 32)); }});
  t.push_back({all("v_lshrrev_b32"), "uuu", [](U a, U b, U) { return Result(b >> (a & 31U)); }});
  t.push_back(
      {all("v_ashrrev_i32"), "uuu", [](U a, U b, U) { return Result(u32(s32(b) >> (a & 31U))); }});
  t.push_back({{"v_lshlrev_b64", "v_lshlrev_b64", "v_lshlrev_b64"}, "quq", [](U a, U b, U) {
                 return Result(b << (a & 63U));
               }});
  t.push_back({all("v_lshrrev_b64"), "quq", [](U a, U b, U) { return Result(b >> (a & 63U)); }});
  t.push_back({all("v_ashrrev_i64"), "quq", [](U a, U b, U) {
                 return Result(static_cast<U>(static_cast<int64_t>(b) >> (a & 63U)));
               }});
  t.push_back({all("v_lshl_add_u32"), "uuuu",
               [](U a, U b, U c) { return Result(low((a << (b & 31U)) + c, 32)); }});
  t.push_back({all("v_lshl_or_b32"), "uuuu",
               [](U a, U b, U c) { return Result(low(a << (b & 31U) | c, 32)); }});
  t.push_back({all("v_add_lshl_u32"), "uuuu",
               [](U a, U b, U c) { return Result(low(low(a + b, 32) << (c & 31U), 32)); }});
  t.push_back({{"v_lshl_add_u64", nullptr, nullptr}, "qquq", [](U a, U b, U c) {
                 return Result((a << (b & 7U)) + c);
               }});
  t.push_back(
      {all("v_xad_u32"), "uuuu", [](U a, U b, U c) { return Result(low((a ^ b) + c, 32)); }});
  t.push_back({{"v_add_u32", "v_add_nc_u32", "v_add_nc_u32"}, "uuu", [](U a, U b, U) {
                 return Result(low(a + b, 32));
               }});
  t.push_back({{"v_sub_u32", "v_sub_nc_u32", "v_sub_nc_u32"}, "uuu", [](U a, U b, U) {
                 return Result(low(a - b, 32));
               }});
  t.push_back({{"v_subrev_u32", "v_subrev_nc_u32", "v_subrev_nc_u32"}, "uuu", [](U a, U b, U) {
                 return Result(low(b - a, 32));
               }});
  t.push_back(
      {all("v_add3_u32"), "uuuu", [](U a, U b, U c) { return Result(low(a + b + c, 32)); }});
  t.push_back({{"v_add_u16", "v_add_nc_u16", "v_add_nc_u16"}, "www", [](U a, U b, U) {
                 return Result(low(a + b, 16));
               }});
  t.push_back({{"v_sub_u16", "v_sub_nc_u16", "v_sub_nc_u16"}, "www", [](U a, U b, U) {
                 return Result(low(a - b, 16));
               }});
  t.push_back({all("v_mul_lo_u16"), "www",
               [](U a, U b, U) { return Result(low(low(a, 16) * low(b, 16), 16)); }});
  t.push_back({all("v_mul_lo_u32"), "uuu", [](U a, U b, U) { return Result(low(a * b, 32)); }});
  t.push_back({all("v_mul_hi_u32"), "uuu", [](U a, U b, U) { return Result(a * b >> 32U); }});
  t.push_back({all("v_mul_hi_i32"), "uuu",
               [](U a, U b, U) { return Result(u32(s32(a) * s32(b) >> 32U)); }});
  t.push_back({all("v_mul_u32_u24"), "uuu",
               [](U a, U b, U) { return Result(low(low(a, 24) * low(b, 24), 32)); }});
  t.push_back(
      {all("v_mul_i32_i24"), "uuu", [](U a, U b, U) { return Result(u32(s24(a) * s24(b))); }});
  t.push_back({all("v_mad_u32_u24"), "uuuu",
               [](U a, U b, U c) { return Result(low(low(a, 24) * low(b, 24) + c, 32)); }});
  t.push_back({all("v_mad_i32_i24"), "uuuu",
               [](U a, U b, U c) { return Result(u32(s24(a) * s24(b) + s32(c))); }});
  t.push_back({all("v_max_u32"), "uuu", [](U a, U b, U) { return Result(a > b ? a : b); }});
  t.push_back({all("v_min_u32"), "uuu", [](U a, U b, U) { return Result(a < b ? a : b); }});
  t.push_back(
      {all("v_max_i32"), "uuu", [](U a, U b, U) { return Result(s32(a) > s32(b) ? a : b); }});
  t.push_back(
      {all("v_min_i32"), "uuu", [](U a, U b, U) { return Result(s32(a) < s32(b) ? a : b); }});
  t.push_back(
      {all("v_max3_u32"), "uuuu", [](U a, U b, U c) { return Result(std::max({a, b, c})); }});
  t.push_back(
      {all("v_min3_u32"), "uuuu", [](U a, U b, U c) { return Result(std::min({a, b, c})); }});
  t.push_back({all("v_max3_i32"), "uuuu",
               [](U a, U b, U c) { return Result(u32(std::max({s32(a), s32(b), s32(c)}))); }});
  t.push_back({all("v_min3_i32"), "uuuu",
               [](U a, U b, U c) { return Result(u32(std::min({s32(a), s32(b), s32(c)}))); }});
  t.push_back({rdna("v_maxmin_u32"), "uuuu", [](U a, U b, U c) {
                 const U most_of_two = a > b ? a : b;
                 return Result(most_of_two > c ? c : most_of_two);
               }});
  t.push_back({rdna("v_minmax_u32"), "uuuu", [](U a, U b, U c) {
                 const U least_of_two = a < b ? a : b;
                 return Result(least_of_two < c ? c : least_of_two);
               }});
  t.push_back({rdna("v_maxmin_i32"), "uuuu", [](U a, U b, U c) {
                 const int64_t most_of_two = s32(a) > s32(b) ? s32(a) : s32(b);
                 return Result(u32(most_of_two > s32(c) ? s32(c) : most_of_two));
               }});
  t.push_back({rdna("v_minmax_i32"), "uuuu", [](U a, U b, U c) {
                 const int64_t least_of_two = s32(a) < s32(b) ? s32(a) : s32(b);
                 return Result(u32(least_of_two < s32(c) ? s32(c) : least_of_two));
               }});
  t.push_back({all("v_med3_i32"), "uuuu", [](U a, U b, U c) {
                 std::array<int64_t, 3> x{s32(a), s32(b), s32(c)};
                 std::sort(x.begin(), x.end());
                 return Result(u32(x[1]));
               }});
  t.push_back({{"v_mad_u64_u32", "v_mad_u64_u32", "v_mad_co_u64_u32"}, "Cuuq", [](U a, U b, U c) {
                 const U sum = a * b + c;
                 return Result(sum, sum < c);
               }});
  t.push_back({{"v_mad_i64_i32", "v_mad_i64_i32", "v_mad_co_i64_i32"}, "Cuuq", [](U a, U b, U c) {
                 const __int128 sum = static_cast<__int128>(s32(a)) * s32(b) +
                                      static_cast<__int128>(static_cast<int64_t>(c));
                 return Result(static_cast<U>(sum), sum < 0);
               }});
  t.push_back({{"v_add_i32", "v_add_nc_i32", "v_add_nc_i32"}, "uuu", [](U a, U b, U) {
                 return Result(low(a + b, 32));
               }});
  t.push_back({{"v_sub_i32", "v_sub_nc_i32", "v_sub_nc_i32"}, "uuu", [](U a, U b, U) {
                 return Result(low(a - b, 32));
               }});
  t.push_back({all("v_add_co_u32"), "cuu",
               [](U a, U b, U) { return Result(low(a + b, 32), a + b > 0xFFFFFFFFU); }});
  t.push_back(
      {all("v_sub_co_u32"), "cuu", [](U a, U b, U) { return Result(low(a - b, 32), a < b); }});
  t.push_back({{"v_addc_co_u32", "v_add_co_ci_u32", "v_add_co_ci_u32"}, "cuum", [](U a, U b, U c) {
                 return Result(low(a + b + c, 32), a + b + c > 0xFFFFFFFFU);
               }});
  t.push_back({{"v_subb_co_u32", "v_sub_co_ci_u32", "v_sub_co_ci_u32"}, "cuum", [](U a, U b, U c) {
                 return Result(low(a - b - c, 32), a < b + c);
               }});
  t.push_back({all("v_cndmask_b32"), "uuum", [](U a, U b, U c) { return Result(c != 0 ? b : a); }});
}

// The class of a number of so many bits: signalling NaN, quiet NaN, -inf, -normal, -subnormal, -0,
// 0, subnormal, normal, inf. least: its smallest normal number's bits.
U class_of(U a, int size, U least) {
  const U magnitude = low(a, size - 1), infinity = low(~U{0}, size - 1) & ~(least - 1);
  if (magnitude > infinity) return (magnitude & least >> 1U) != 0 ? 1 : 0;
  const U kind = magnitude == infinity ? 3 : magnitude >= least ? 2 : magnitude != 0 ? 1 : 0;
  return a >> (size - 1) != 0 ? 5 - kind : 6 + kind;
}

void add_comparisons(std::vector<VectorRow>& t) {
  t.push_back({all("v_cmp_lt_f32"), "mff", [](U a, U b, U) { return Result(f(a) < f(b)); }});
  t.push_back({all("v_cmp_ge_f32"), "mff", [](U a, U b, U) { return Result(f(a) >= f(b)); }});
  t.push_back({all("v_cmp_nle_f32"), "mff", [](U a, U b, U) { return Result(!(f(a) <= f(b))); }});
  t.push_back({all("v_cmp_neq_f32"), "mff", [](U a, U b, U) { return Result(f(a) != f(b)); }});
  t.push_back({all("v_cmp_lg_f32"), "mff",
               [](U a, U b, U) { return Result(f(a) != f(b) && f(a) == f(a) && f(b) == f(b)); }});
  t.push_back({all("v_cmp_u_f32"), "mff",
               [](U a, U b, U) { return Result(f(a) != f(a) || f(b) != f(b)); }});
  t.push_back({all("v_cmp_gt_f16"), "mhh", [](U a, U b, U) { return Result(h(a) > h(b)); }});
  t.push_back({all("v_cmp_le_i32"), "muu", [](U a, U b, U) { return Result(s32(a) <= s32(b)); }});
  t.push_back({all("v_cmp_gt_u32"), "muu", [](U a, U b, U) { return Result(a > b); }});
  t.push_back({all("v_cmp_ne_u32"), "muu", [](U a, U b, U) { return Result(a != b); }});
  t.push_back({all("v_cmp_lt_i16"), "mww", [](U a, U b, U) { return Result(s16(a) < s16(b)); }});
  t.push_back(
      {all("v_cmp_eq_u16"), "mww", [](U a, U b, U) { return Result(low(a, 16) == low(b, 16)); }});
  t.push_back({all("v_cmp_lt_u64"), "mqq", [](U a, U b, U) { return Result(a < b); }});
  t.push_back({all("v_cmp_gt_i64"), "mqq", [](U a, U b, U) {
                 return Result(static_cast<int64_t>(a) > static_cast<int64_t>(b));
               }});
  t.push_back({all("v_cmp_class_f32"), "mfu",
               [](U a, U b, U) { return Result(b >> class_of(a, 32, 0x800000U) & 1U); }});
  t.push_back({all("v_cmp_class_f16"), "mhu",
               [](U a, U b, U) { return Result(b >> class_of(low(a, 16), 16, 0x400U) & 1U); }});
}

}  // namespace

const std::vector<VectorRow>& vector_rows() {
  static const auto* const kRows = [] {
    auto* rows = new std::vector<VectorRow>;
    for (const auto add : {add_floats, add_dot_products, add_halves, add_conversions, add_bits,
                           add_integers, add_comparisons})
      add(*rows);
    return rows;
  }();
  return *kRows;
}

}  // namespace fulmen::testing::manual
