// The table of scalar instructions.
#include <bit>
#include <cmath>

#include "isa/manual.h"

namespace fulmen::testing::manual {
namespace {

Names renamed(const char* gfx9, const char* later) { return {gfx9, later, later}; }
Names gfx12_renamed(const char* before, const char* gfx12) { return {before, before, gfx12}; }

U low(U x) { return x & 0xFFFFFFFFU; }
U set(bool& scc, bool to, U value) {
  scc = to;
  return value;
}
// SCC says whether the result is 0 or not.
U not_zero(bool& scc, U value) { return set(scc, value != 0, value); }
bool fits(int64_t x) { return x >= -2147483648LL && x <= 2147483647LL; }

void add_sums(std::vector<ScalarRow>& t) {
  t.push_back({gfx12_renamed("s_add_u32", "s_add_co_u32"), "uuu",
               [](U a, U b, bool& c) { return set(c, a + b > 0xFFFFFFFFU, low(a + b)); }});
  t.push_back({gfx12_renamed("s_sub_u32", "s_sub_co_u32"), "uuu",
               [](U a, U b, bool& c) { return set(c, b > a, low(a - b)); }});
  t.push_back({gfx12_renamed("s_addc_u32", "s_add_co_ci_u32"), "uuu", [](U a, U b, bool& c) {
                 const U sum = a + b + (c ? 1 : 0);
                 return set(c, sum > 0xFFFFFFFFU, low(sum));
               }});
  t.push_back({gfx12_renamed("s_subb_u32", "s_sub_co_ci_u32"), "uuu", [](U a, U b, bool& c) {
                 const U taken = b + (c ? 1 : 0);
                 return set(c, taken > a, low(a - taken));
               }});
  t.push_back({gfx12_renamed("s_add_i32", "s_add_co_i32"), "uuu",
               [](U a, U b, bool& c) { return set(c, !fits(s32(a) + s32(b)), low(a + b)); }});
  t.push_back({gfx12_renamed("s_sub_i32", "s_sub_co_i32"), "uuu",
               [](U a, U b, bool& c) { return set(c, !fits(s32(a) - s32(b)), low(a - b)); }});
  t.push_back({all("s_lshl2_add_u32"), "uuu", [](U a, U b, bool& c) {
                 return set(c, (a << 2U) + b > 0xFFFFFFFFU, low((a << 2U) + b));
               }});
  t.push_back({all("s_mul_i32"), "uuu", [](U a, U b, bool&) { return low(a * b); }});
  t.push_back({all("s_mul_hi_u32"), "uuu", [](U a, U b, bool&) { return a * b >> 32U; }});
  t.push_back({all("s_mul_hi_i32"), "uuu",
               [](U a, U b, bool&) { return low(static_cast<U>(s32(a) * s32(b) >> 32U)); }});
  t.push_back({all("s_abs_i32"), "uu", [](U a, U, bool& c) {
                 return not_zero(c, low(static_cast<U>(s32(a) < 0 ? -s32(a) : s32(a))));
               }});
  t.push_back({all("s_min_i32"), "uuu",
               [](U a, U b, bool& c) { return set(c, s32(a) < s32(b), s32(a) < s32(b) ? a : b); }});
  t.push_back(
      {all("s_min_u32"), "uuu", [](U a, U b, bool& c) { return set(c, a < b, a < b ? a : b); }});
  t.push_back({all("s_max_i32"), "uuu", [](U a, U b, bool& c) {
                 return set(c, s32(a) >= s32(b), s32(a) >= s32(b) ? a : b);
               }});
  t.push_back(
      {all("s_max_u32"), "uuu", [](U a, U b, bool& c) { return set(c, a >= b, a >= b ? a : b); }});
  t.push_back({{nullptr, nullptr, "s_add_nc_u64"}, "qqq", [](U a, U b, bool&) { return a + b; }});
  t.push_back({{nullptr, nullptr, "s_mul_u64"}, "qqq", [](U a, U b, bool&) { return a * b; }});
}

void add_bits(std::vector<ScalarRow>& t) {
  t.push_back({all("s_mov_b32"), "uu", [](U a, U, bool&) { return a; }});
  t.push_back({all("s_mov_b64"), "qq", [](U a, U, bool&) { return a; }});
  t.push_back({all("s_not_b32"), "uu", [](U a, U, bool& c) { return not_zero(c, low(~a)); }});
  t.push_back({all("s_not_b64"), "qq", [](U a, U, bool& c) { return not_zero(c, ~a); }});
  t.push_back({all("s_and_b32"), "uuu", [](U a, U b, bool& c) { return not_zero(c, a & b); }});
  t.push_back({all("s_and_b64"), "qqq", [](U a, U b, bool& c) { return not_zero(c, a & b); }});
  t.push_back({all("s_or_b64"), "qqq", [](U a, U b, bool& c) { return not_zero(c, a | b); }});
  t.push_back({all("s_xor_b32"), "uuu", [](U a, U b, bool& c) { return not_zero(c, a ^ b); }});
  t.push_back(
      {all("s_nand_b32"), "uuu", [](U a, U b, bool& c) { return not_zero(c, low(~(a & b))); }});
  t.push_back({all("s_xnor_b64"), "qqq", [](U a, U b, bool& c) { return not_zero(c, ~(a ^ b)); }});
  t.push_back({renamed("s_andn2_b32", "s_and_not1_b32"), "uuu",
               [](U a, U b, bool& c) { return not_zero(c, a & ~b); }});
  t.push_back({renamed("s_andn2_b64", "s_and_not1_b64"), "qqq",
               [](U a, U b, bool& c) { return not_zero(c, a & ~b); }});
  t.push_back({renamed("s_orn2_b32", "s_or_not1_b32"), "uuu",
               [](U a, U b, bool& c) { return not_zero(c, low(a | ~b)); }});
  t.push_back({all("s_lshl_b32"), "uuu",
               [](U a, U b, bool& c) { return not_zero(c, low(a << (b & 31U))); }});
  t.push_back(
      {all("s_lshr_b32"), "uuu", [](U a, U b, bool& c) { return not_zero(c, a >> (b & 31U)); }});
  t.push_back({all("s_ashr_i32"), "uuu", [](U a, U b, bool& c) {
                 return not_zero(c, low(static_cast<U>(s32(a) >> (b & 31U))));
               }});
  t.push_back(
      {all("s_lshl_b64"), "qqu", [](U a, U b, bool& c) { return not_zero(c, a << (b & 63U)); }});
  t.push_back(
      {all("s_lshr_b64"), "qqu", [](U a, U b, bool& c) { return not_zero(c, a >> (b & 63U)); }});
  t.push_back({all("s_ashr_i64"), "qqu", [](U a, U b, bool& c) {
                 return not_zero(c, static_cast<U>(static_cast<int64_t>(a) >> (b & 63U)));
               }});
  // The field of 7 bits above bit 16 says how many.
  t.push_back({all("s_bfe_u32"), "uuu", [](U a, U b, bool& c) {
                 const U count = b >> 16U & 127U, field = a >> (b & 31U);
                 return not_zero(c, count >= 32 ? field : field & ((U{1} << count) - 1));
               }});
  t.push_back({all("s_bfe_i32"), "uuu", [](U a, U b, bool& c) {
                 const U count = b >> 16U & 127U;
                 if (count == 0) return not_zero(c, 0);
                 const int64_t field = s32(a) >> (b & 31U);
                 if (count >= 32) return not_zero(c, low(static_cast<U>(field)));
                 const U up = 64 - count;
                 return not_zero(
                     c,
                     low(static_cast<U>(static_cast<int64_t>(static_cast<U>(field) << up) >> up)));
               }});
  t.push_back({all("s_bfm_b32"), "uuu",
               [](U a, U b, bool&) { return low(((U{1} << (a & 31U)) - 1) << (b & 31U)); }});
  t.push_back({all("s_brev_b32"), "uu", [](U a, U, bool&) {
                 U r = 0;
                 for (U n = 0; n < 32; ++n) r = r << 1U | (a >> n & 1U);
                 return r;
               }});
  t.push_back({all("s_bcnt1_i32_b32"), "uu", [](U a, U, bool& c) {
                 U count = 0;
                 for (; a != 0; a &= a - 1) ++count;
                 return not_zero(c, count);
               }});
  t.push_back({renamed("s_ff1_i32_b32", "s_ctz_i32_b32"), "uu", [](U a, U, bool&) {
                 for (U n = 0; n < 32; ++n) {
                   if ((a >> n & 1U) != 0) return n;
                 }
                 return U{0xFFFFFFFF};
               }});
  t.push_back({renamed("s_flbit_i32_b32", "s_clz_i32_u32"), "uu", [](U a, U, bool&) {
                 for (U n = 0; n < 32; ++n) {
                   if ((a << n & 0x80000000U) != 0) return n;
                 }
                 return U{0xFFFFFFFF};
               }});
  t.push_back({all("s_sext_i32_i8"), "uu",
               [](U a, U, bool&) { return (a & 0x80U) != 0 ? a | 0xFFFFFF00U : a & 0xFFU; }});
  t.push_back({all("s_sext_i32_i16"), "uu",
               [](U a, U, bool&) { return (a & 0x8000U) != 0 ? a | 0xFFFF0000U : a & 0xFFFFU; }});
  t.push_back({all("s_pack_ll_b32_b16"), "uuu",
               [](U a, U b, bool&) { return (a & 0xFFFFU) | low(b << 16U); }});
}

void add_choices(std::vector<ScalarRow>& t) {
  t.push_back({all("s_cselect_b32"), "uuu", [](U a, U b, bool& c) { return c ? a : b; }});
  t.push_back({all("s_cselect_b64"), "qqq", [](U a, U b, bool& c) { return c ? a : b; }});
  t.push_back({all("s_cmp_eq_u32"), "-uu", [](U a, U b, bool& c) { return set(c, a == b, 0); }});
  t.push_back(
      {all("s_cmp_lt_i32"), "-uu", [](U a, U b, bool& c) { return set(c, s32(a) < s32(b), 0); }});
  t.push_back({all("s_cmp_ge_u32"), "-uu", [](U a, U b, bool& c) { return set(c, a >= b, 0); }});
  t.push_back({all("s_cmp_lg_u64"), "-qq", [](U a, U b, bool& c) { return set(c, a != b, 0); }});
  // fp32 numbers: false where one is NaN, true where one is.
  t.push_back({{nullptr, nullptr, "s_cmp_lg_f32"}, "-uu", [](U a, U b, bool& c) {
                 const double x = number(a, kSingle), y = number(b, kSingle);
                 return set(c, x < y || x > y, 0);
               }});
  t.push_back({{nullptr, nullptr, "s_cmp_nlg_f32"}, "-uu", [](U a, U b, bool& c) {
                 const double x = number(a, kSingle), y = number(b, kSingle);
                 return set(c, std::isnan(x) || std::isnan(y) || x == y, 0);
               }});
  t.push_back({all("s_bitcmp1_b32"), "-uu",
               [](U a, U b, bool& c) { return set(c, (a >> (b & 31U) & 1U) != 0, 0); }});
  t.push_back({all("s_bitcmp0_b64"), "-qu",
               [](U a, U b, bool& c) { return set(c, (a >> (b & 63U) & 1U) == 0, 0); }});
}

}  // namespace

const std::vector<ScalarRow>& scalar_rows() {
  static const auto* const kRows = [] {
    auto* rows = new std::vector<ScalarRow>;
    for (const auto add : {add_sums, add_bits, add_choices}) add(*rows);
    return rows;
  }();
  return *kRows;
}

}  // namespace fulmen::testing::manual
