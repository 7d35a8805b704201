// Vector instructions with a mask of lanes: carries and choices.
#include <type_traits>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

// The carry of a 64-bit product or a sum is operand 1, one bit a lane.
// Signed numbers have the sign of the sum in 65 bits there.
template <int W, class T>
void multiply_add_64(Wave& w, const Instruction& i) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  const Source<W, T> a(w, i, 2), b(w, i, 3);
  const Source<W, Wide> c(w, i, 4);
  alignas(64) Wide r[W];
  uint64_t carry = 0;
  for (int l = 0; l < W; ++l) {
    const Wide product = Wide{a[l]} * b[l];
    const bool overflows = __builtin_add_overflow(product, c[l], &r[l]);
    carry |= uint64_t{std::is_signed_v<T> ? (r[l] < 0) != overflows : overflows} << l;
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
uint64_t choice_mask(const Wave& w, const Instruction& i) {
  const Operand vcc{.source = Operand::Source::scalar, .index = kVccLow, .count = W / 32};
  return lane_mask(w, i.operands > 3 ? i.operand[3] : vcc);
}

template <int W>
void choose(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> a(w, i, 1), b(w, i, 2);
  const uint64_t mask = choice_mask<W>(w, i);
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

template <int W>
void choose_half(Wave& w, const Instruction& i) {
  const Source<W, uint16_t> a(w, i, 1), b(w, i, 2);
  const uint64_t mask = choice_mask<W>(w, i);
  alignas(64) uint16_t r[W];
  for (int l = 0; l < W; ++l) r[l] = (mask >> l & 1U) != 0 ? b[l] : a[l];
  store_result<W>(w, i, r);
}

template <Sum kSum, bool kCarryIn>
constexpr Entry kAddCarry{add_carry<32, kSum, kCarryIn>, add_carry<64, kSum, kCarryIn>, Kind::valu,
                          false};

}  // namespace

void add_lane_masks(Table& t) {
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
    t.add(name, {multiply_add_64<32, uint32_t>, multiply_add_64<64, uint32_t>, Kind::valu, false});
  }
  for (const char* name : {"v_mad_i64_i32", "v_mad_co_i64_i32"}) {
    t.add(name, {multiply_add_64<32, int32_t>, multiply_add_64<64, int32_t>, Kind::valu, false});
  }
  t.add("v_cndmask_b32", {choose<32>, choose<64>, Kind::valu, false});
  t.add("v_cndmask_b16", {choose_half<32>, choose_half<64>, Kind::valu, true, 0b111});
}

}  // namespace fulmen::gpu::isa
