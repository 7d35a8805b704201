// Vector arithmetic on integers and bits.
#include <algorithm>
#include <bit>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

int32_t signed_bits(uint32_t x, unsigned count) {
  return count == 0 ? 0 : static_cast<int32_t>(x << (32 - count)) >> (32 - count);
}
int32_t signed24(uint32_t x) { return signed_bits(x, 24); }

// Returns bytes of {high, low}, chosen by the bytes of the selector.
uint32_t permuted(uint32_t high, uint32_t low, uint32_t selector) {
  const uint64_t all = low | uint64_t{high} << 32U;
  uint32_t result = 0;
  for (unsigned n = 0; n < 4; ++n) {
    const uint32_t pick = selector >> (8 * n) & 0xFFU;
    uint32_t byte = 0;
    if (pick < 8) [[likely]] {
      byte = static_cast<uint32_t>(all >> (8 * pick)) & 0xFFU;
    } else if (pick < 12) {  // the sign of a 16-bit part
      byte = (all >> (16 * (pick - 8) + 15) & 1U) != 0 ? 0xFFU : 0;
    } else {
      byte = pick == 12 ? 0 : 0xFFU;
    }
    result |= byte << (8 * n);
  }
  return result;
}

// The table (in i.offset) has the result for the bits of a, b and c: bit 4 a + 2 b + c.
template <int W>
void any_bit_operation(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> a(w, i, 1), b(w, i, 2), c(w, i, 3);
  alignas(64) uint32_t r[W] = {};
  for (int l = 0; l < W; ++l) {
    for (unsigned n = 0; n < 8; ++n) {
      if ((i.offset >> n & 1) == 0) continue;
      r[l] |= ((n & 4U) != 0 ? a[l] : ~a[l]) & ((n & 2U) != 0 ? b[l] : ~b[l]) &
              ((n & 1U) != 0 ? c[l] : ~c[l]);
    }
  }
  store_lanes<W>(row<W>(w, i.operand[0].index), r, w.exec());
}

void add_integer_bits(Table& t) {
  for (const char* name :
       {"v_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"}) {
    t.lanes(name, [](uint32_t x) { return x; });
  }
  t.lanes("v_mov_b64", [](uint64_t x) { return x; });
  t.lanes("v_not_b32", [](uint32_t x) { return ~x; });
  t.lanes("v_and_b32", [](uint32_t a, uint32_t b) { return a & b; });
  t.lanes("v_or_b32", [](uint32_t a, uint32_t b) { return a | b; });
  t.lanes("v_xor_b32", [](uint32_t a, uint32_t b) { return a ^ b; });
  t.lanes("v_xnor_b32", [](uint32_t a, uint32_t b) { return ~(a ^ b); });
  t.lanes("v_or3_b32", [](uint32_t a, uint32_t b, uint32_t c) { return a | b | c; });
  t.lanes("v_xor3_b32", [](uint32_t a, uint32_t b, uint32_t c) { return a ^ b ^ c; });
  t.lanes("v_and_or_b32", [](uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; });
  t.lanes("v_bfi_b32", [](uint32_t a, uint32_t b, uint32_t c) { return (a & b) | (~a & c); });
  t.lanes("v_bfm_b32", [](uint32_t a, uint32_t b) { return ((1U << (a & 31U)) - 1) << (b & 31U); });
  t.lanes("v_bfe_u32", [](uint32_t x, uint32_t at, uint32_t count) {
    return x >> (at & 31U) & ((1U << (count & 31U)) - 1);
  });
  t.lanes("v_bfe_i32", [](uint32_t x, uint32_t at, uint32_t count) {
    const unsigned bits = std::min(count & 31U, 32U - (at & 31U));
    return signed_bits(x >> (at & 31U), bits);
  });
  t.lanes("v_bfrev_b32", [](uint32_t x) {
    uint32_t r = 0;
    for (int n = 0; n < 32; ++n) r |= (x >> n & 1U) << (31 - n);
    return r;
  });
  t.lanes("v_bcnt_u32_b32",
          [](uint32_t x, uint32_t y) { return static_cast<uint32_t>(std::popcount(x)) + y; });
  for (const char* name : {"v_ffbh_u32", "v_clz_i32_u32"})
    t.lanes(name, [](uint32_t x) { return x == 0 ? -1 : std::countl_zero(x); });
  for (const char* name : {"v_ffbl_b32", "v_ctz_i32_b32"})
    t.lanes(name, [](uint32_t x) { return x == 0 ? -1 : std::countr_zero(x); });
  for (const char* name : {"v_ffbh_i32", "v_cls_i32"}) {
    t.lanes(name, [](uint32_t x) {  // how many bits from the top are as the sign is; -1: all
      const uint32_t other = x >> 31U != 0 ? ~x : x;
      return other == 0 ? -1 : std::countl_zero(other);
    });
  }
  t.add("v_bitop3_b32", {any_bit_operation<32>, any_bit_operation<64>, Kind::valu, false});
  t.lanes("v_perm_b32",
          [](uint32_t a, uint32_t b, uint32_t selector) { return permuted(a, b, selector); });
  t.lanes("v_alignbit_b32", [](uint32_t a, uint32_t b, uint32_t n) {
    return static_cast<uint32_t>((b | uint64_t{a} << 32U) >> (n & 31U));
  });
  t.lanes("v_alignbyte_b32", [](uint32_t a, uint32_t b, uint32_t n) {
    return static_cast<uint32_t>((b | uint64_t{a} << 32U) >> (8 * (n & 3U)));
  });
}

void add_shifts(Table& t) {
  t.lanes("v_lshlrev_b32", [](uint32_t n, uint32_t x) { return x << (n & 31U); });
  t.lanes("v_lshrrev_b32", [](uint32_t n, uint32_t x) { return x >> (n & 31U); });
  t.lanes("v_ashrrev_i32", [](uint32_t n, int32_t x) { return x >> (n & 31U); });
  t.lanes("v_lshlrev_b64", [](uint32_t n, uint64_t x) { return x << (n & 63U); });
  t.lanes("v_lshrrev_b64", [](uint32_t n, uint64_t x) { return x >> (n & 63U); });
  t.lanes("v_ashrrev_i64", [](uint32_t n, int64_t x) { return x >> (n & 63U); });
  t.lanes("v_lshlrev_b16",
          [](uint16_t n, uint16_t x) { return static_cast<uint16_t>(x << (n & 15U)); });
  t.lanes("v_lshrrev_b16",
          [](uint16_t n, uint16_t x) { return static_cast<uint16_t>(x >> (n & 15U)); });
  t.lanes("v_ashrrev_i16",
          [](uint16_t n, int16_t x) { return static_cast<int16_t>(x >> (n & 15U)); });
  t.lanes("v_lshl_add_u32",
          [](uint32_t x, uint32_t n, uint32_t c) { return (x << (n & 31U)) + c; });
  t.lanes("v_lshl_or_b32", [](uint32_t x, uint32_t n, uint32_t c) { return x << (n & 31U) | c; });
  t.lanes("v_add_lshl_u32",
          [](uint32_t a, uint32_t b, uint32_t n) { return (a + b) << (n & 31U); });
  t.lanes("v_lshl_add_u64", [](uint64_t x, uint32_t n, uint64_t c) { return (x << (n & 7U)) + c; });
  t.lanes("v_xad_u32", [](uint32_t a, uint32_t b, uint32_t c) { return (a ^ b) + c; });
}

void add_integer_arithmetic(Table& t) {
  for (const char* name : {"v_add_nc_u32", "v_add_u32"})
    t.lanes(name, [](uint32_t a, uint32_t b) { return a + b; });
  for (const char* name : {"v_sub_nc_u32", "v_sub_u32"})
    t.lanes(name, [](uint32_t a, uint32_t b) { return a - b; });
  for (const char* name : {"v_subrev_nc_u32", "v_subrev_u32"})
    t.lanes(name, [](uint32_t a, uint32_t b) { return b - a; });
  t.lanes("v_add3_u32", [](uint32_t a, uint32_t b, uint32_t c) { return a + b + c; });
  for (const char* name : {"v_add_nc_u16", "v_add_u16"}) {
    t.lanes(name, [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a + b); });
  }
  for (const char* name : {"v_sub_nc_u16", "v_sub_u16"}) {
    t.lanes(name, [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a - b); });
  }
  t.lanes("v_mul_lo_u16",
          [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(uint32_t{a} * b); });
  t.lanes("v_mad_u16", [](uint16_t a, uint16_t b, uint16_t c) {
    return static_cast<uint16_t>(uint32_t{a} * b + c);
  });
  t.lanes("v_mul_lo_u32", [](uint32_t a, uint32_t b) { return a * b; });
  t.lanes("v_mul_hi_u32",
          [](uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32U); });
  t.lanes("v_mul_hi_i32",
          [](int32_t a, int32_t b) { return static_cast<int32_t>(int64_t{a} * b >> 32U); });
  t.lanes("v_mul_u32_u24",
          [](uint32_t a, uint32_t b) { return (a & 0xFFFFFFU) * (b & 0xFFFFFFU); });
  t.lanes("v_mul_i32_i24", [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(int64_t{signed24(a)} * signed24(b));
  });
  t.lanes("v_mad_u32_u24",
          [](uint32_t a, uint32_t b, uint32_t c) { return (a & 0xFFFFFFU) * (b & 0xFFFFFFU) + c; });
  t.lanes("v_mad_i32_i24", [](uint32_t a, uint32_t b, uint32_t c) {
    return static_cast<uint32_t>(int64_t{signed24(a)} * signed24(b)) + c;
  });
  t.lanes("v_mad_u32_u16", [](uint16_t a, uint16_t b, uint32_t c) { return uint32_t{a} * b + c; });
  t.lanes("v_max_u32", [](uint32_t a, uint32_t b) { return std::max(a, b); });
  t.lanes("v_min_u32", [](uint32_t a, uint32_t b) { return std::min(a, b); });
  t.lanes("v_max_i32", [](int32_t a, int32_t b) { return std::max(a, b); });
  t.lanes("v_min_i32", [](int32_t a, int32_t b) { return std::min(a, b); });
  t.lanes("v_max3_i32",
          [](int32_t a, int32_t b, int32_t c) { return std::max(std::max(a, b), c); });
  t.lanes("v_min3_i32",
          [](int32_t a, int32_t b, int32_t c) { return std::min(std::min(a, b), c); });
  t.lanes("v_max3_u32",
          [](uint32_t a, uint32_t b, uint32_t c) { return std::max(std::max(a, b), c); });
  t.lanes("v_min3_u32",
          [](uint32_t a, uint32_t b, uint32_t c) { return std::min(std::min(a, b), c); });
  // RDNA: the larger or smaller of the first two, then the smaller or larger of that and the third.
  t.lanes("v_maxmin_i32",
          [](int32_t a, int32_t b, int32_t c) { return std::min(std::max(a, b), c); });
  t.lanes("v_minmax_i32",
          [](int32_t a, int32_t b, int32_t c) { return std::max(std::min(a, b), c); });
  t.lanes("v_maxmin_u32",
          [](uint32_t a, uint32_t b, uint32_t c) { return std::min(std::max(a, b), c); });
  t.lanes("v_minmax_u32",
          [](uint32_t a, uint32_t b, uint32_t c) { return std::max(std::min(a, b), c); });
  t.lanes("v_med3_i32", [](int32_t a, int32_t b, int32_t c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
  });
  t.lanes("v_med3_u32", [](uint32_t a, uint32_t b, uint32_t c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
  });
}

// The carry of a 64-bit product or a sum is operand 1, one bit a lane.
template <int W>
void multiply_add_u64(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> a(w, i, 2), b(w, i, 3);
  const Source<W, uint64_t> c(w, i, 4);
  alignas(64) uint64_t r[W];
  uint64_t carry = 0;
  for (int l = 0; l < W; ++l) {
    const uint64_t product = uint64_t{a[l]} * b[l];
    r[l] = product + c[l];
    carry |= uint64_t{r[l] < product} << l;
  }
  set_scalar(w, i.operand[1], carry & w.exec());
  store_result<W>(w, i, r);
}

enum class Sum : uint8_t { add, sub, subrev };

template <int W, Sum kSum, bool kCarryIn>
void add_carry(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> a(w, i, 2), b(w, i, 3);
  const uint64_t in = kCarryIn ? lane_mask(w, i.operand[4]) : 0;
  alignas(64) uint32_t r[W];
  uint64_t carry = 0;
  for (int l = 0; l < W; ++l) {
    const uint64_t x = kSum == Sum::subrev ? b[l] : a[l], y = kSum == Sum::subrev ? a[l] : b[l],
                   c = in >> l & 1U;
    const uint64_t sum = kSum == Sum::add ? x + y + c : x - y - c;
    r[l] = static_cast<uint32_t>(sum);
    carry |= (sum >> 32U & 1U) << l;
  }
  set_scalar(w, i.operand[1], carry & w.exec());
  store_result<W>(w, i, r);
}

// With three operands the mask is VCC, as in dual instructions.
template <int W>
void choose(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> a(w, i, 1), b(w, i, 2);
  Operand vcc{.source = Operand::Source::scalar, .index = kVccLow, .count = W / 32};
  const uint64_t mask = lane_mask(w, i.operands > 3 ? i.operand[3] : vcc);
  alignas(64) uint32_t r[W];
  for (int half = 0; half < W; half += 32) {
    const auto bits = static_cast<uint32_t>(mask >> half);
    for (int l = 0; l < 32; ++l) {
      const uint32_t on = 0U - (bits >> l & 1U);
      r[half + l] = (a[half + l] & ~on) | (b[half + l] & on);
    }
  }
  store_result<W>(w, i, r);
}

template <Sum kSum, bool kCarryIn>
constexpr Entry kAddCarry{add_carry<32, kSum, kCarryIn>, add_carry<64, kSum, kCarryIn>, Kind::valu,
                          false};

}  // namespace

void add_integer_instructions(Table& t) {
  add_integer_bits(t);
  add_shifts(t);
  add_integer_arithmetic(t);
  t.add("v_add_co_u32", kAddCarry<Sum::add, false>);
  t.add("v_sub_co_u32", kAddCarry<Sum::sub, false>);
  t.add("v_subrev_co_u32", kAddCarry<Sum::subrev, false>);
  for (const char* name : {"v_add_co_ci_u32", "v_addc_co_u32"})
    t.add(name, kAddCarry<Sum::add, true>);
  for (const char* name : {"v_sub_co_ci_u32", "v_subb_co_u32"})
    t.add(name, kAddCarry<Sum::sub, true>);
  for (const char* name : {"v_subrev_co_ci_u32", "v_subbrev_co_u32"})
    t.add(name, kAddCarry<Sum::subrev, true>);
  for (const char* name : {"v_mad_u64_u32", "v_mad_co_u64_u32"}) {
    t.add(name, {multiply_add_u64<32>, multiply_add_u64<64>, Kind::valu, false});
  }
  t.add("v_cndmask_b32", {choose<32>, choose<64>, Kind::valu, false});
  t.add("v_nop", Kind::none, [](Wave& /*wave*/, const Instruction& /*instruction*/) {});
}

}  // namespace fulmen::gpu::isa
