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
template <int W, class T>
void any_bit_operation(Wave& w, const Instruction& i) {
  const Source<W, T> a(w, i, 1), b(w, i, 2), c(w, i, 3);
  alignas(64) T r[W] = {};
  for (int l = 0; l < W; ++l) {
    for (unsigned n = 0; n < 8; ++n) {
      if ((i.offset >> n & 1) == 0) continue;
      r[l] =
          static_cast<T>(r[l] | (((n & 4U) != 0 ? a[l] : ~a[l]) & ((n & 2U) != 0 ? b[l] : ~b[l]) &
                                 ((n & 1U) != 0 ? c[l] : ~c[l])));
    }
  }
  store_result<W>(w, i, r);
}

template <int W>
void swap(Wave& w, const Instruction& i) {
  uint32_t *const a = row<W>(w, i.operand[0].index), *const b = row<W>(w, i.operand[1].index);
  uint32_t before[W];
  std::memcpy(before, a, sizeof before);
  store_lanes<W>(a, b, w.exec());
  store_lanes<W>(b, before, w.exec());
}

void add_integer_bits(Table& t) {
  for (const char* name :
       {"v_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"}) {
    t.lanes(name, [](uint32_t x) { return x; });
  }
  t.lanes("v_mov_b64", [](uint64_t x) { return x; });
  t.lanes("v_mov_b16", [](uint16_t x) { return x; });
  t.lanes("v_not_b16", [](uint16_t x) { return static_cast<uint16_t>(~x); });
  t.lanes("v_and_b16", [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a & b); });
  t.lanes("v_or_b16", [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a | b); });
  t.lanes("v_xor_b16", [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a ^ b); });
  t.add("v_swap_b32", {swap<32>, swap<64>, Kind::valu, false});
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
  t.add("v_bitop3_b32",
        {any_bit_operation<32, uint32_t>, any_bit_operation<64, uint32_t>, Kind::valu, false});
  t.add("v_bitop3_b16",
        {any_bit_operation<32, uint16_t>, any_bit_operation<64, uint16_t>, Kind::valu, false});
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

int32_t saturated(int64_t x) {
  return static_cast<int32_t>(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX));
}

// They saturate where the instruction says "clamp".
template <int W, int kSign>
void signed_sum(Wave& w, const Instruction& i) {
  const Source<W, int32_t> a(w, i, 1), b(w, i, 2);
  alignas(64) int32_t r[W];
  for (int l = 0; l < W; ++l) {
    const int64_t sum = int64_t{a[l]} + kSign * int64_t{b[l]};
    r[l] = i.clamp ? saturated(sum) : static_cast<int32_t>(sum);
  }
  store_result<W>(w, i, r);
}

void add_signed_sums(Table& t) {
  for (const char* name : {"v_add_i32", "v_add_nc_i32"})
    t.add(name, {signed_sum<32, 1>, signed_sum<64, 1>, Kind::valu, false});
  for (const char* name : {"v_sub_i32", "v_sub_nc_i32"})
    t.add(name, {signed_sum<32, -1>, signed_sum<64, -1>, Kind::valu, false});
}

void add_integer_arithmetic(Table& t) {
  for (const char* name : {"v_add_nc_u32", "v_add_u32"})
    t.lanes(name, [](uint32_t a, uint32_t b) { return a + b; });
  for (const char* name : {"v_sub_nc_u32", "v_sub_u32"})
    t.lanes(name, [](uint32_t a, uint32_t b) { return a - b; });
  for (const char* name : {"v_subrev_nc_u32", "v_subrev_u32"})
    t.lanes(name, [](uint32_t a, uint32_t b) { return b - a; });
  add_signed_sums(t);
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

}  // namespace

void add_integer_instructions(Table& t) {
  add_integer_bits(t);
  add_shifts(t);
  add_integer_arithmetic(t);
  t.add("v_nop", Kind::none, [](Wave& /*wave*/, const Instruction& /*instruction*/) {});
}

}  // namespace fulmen::gpu::isa
