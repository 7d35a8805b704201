// Vector comparisons. They write one bit a lane to a scalar register, or to EXEC (v_cmpx).
#include <cmath>
#include <string>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

// gfx9's v_cmpx has three operands and writes the register that it names, too.
template <int W, class Fn>
void compare_to_exec(Wave& w, const Instruction& i) {
  if (i.operands > 2) {
    lane_handler<W, 1, false, Fn>(w, i);
    const uint64_t mask = lane_mask(w, i.operand[0]);
    w.scalars[kExecLow] = static_cast<uint32_t>(mask);
    w.scalars[kExecLow + 1] = static_cast<uint32_t>(mask >> 32U);
    return;
  }
  Instruction shifted = i;
  shifted.operand = {Operand{.source = Operand::Source::scalar, .index = kExecLow, .count = 2},
                     i.operand[0], i.operand[1]};
  if (i.dpp.mode != Dpp::Mode::none)
    fail("is a v_cmpx with DPP, which is not known to the emulator");
  lane_handler<W, 1, false, Fn>(w, shifted);
}

template <class Fn>
void add_both(Table& t, const std::string& rest, Fn function) {
  t.lanes("v_cmp_" + rest, function);
  t.add("v_cmpx_" + rest, {compare_to_exec<32, Fn>, compare_to_exec<64, Fn>, Kind::valu,
                           Arity<decltype(&Fn::operator())>::kHalves});
}

template <class T>
void add_integer(Table& t, const std::string& type) {
  add_both(t, "lt_" + type, [](T a, T b) { return a < b; });
  add_both(t, "le_" + type, [](T a, T b) { return a <= b; });
  add_both(t, "gt_" + type, [](T a, T b) { return a > b; });
  add_both(t, "ge_" + type, [](T a, T b) { return a >= b; });
  add_both(t, "eq_" + type, [](T a, T b) { return a == b; });
  add_both(t, "ne_" + type, [](T a, T b) { return a != b; });
}

float number(float x) { return x; }
float number(Half x) { return to_float(x); }

template <class T>
void add_float(Table& t, const std::string& type) {
  add_both(t, "lt_" + type, [](T a, T b) { return number(a) < number(b); });
  add_both(t, "le_" + type, [](T a, T b) { return number(a) <= number(b); });
  add_both(t, "gt_" + type, [](T a, T b) { return number(a) > number(b); });
  add_both(t, "ge_" + type, [](T a, T b) { return number(a) >= number(b); });
  add_both(t, "eq_" + type, [](T a, T b) { return number(a) == number(b); });
  add_both(t, "neq_" + type, [](T a, T b) { return number(a) != number(b); });
  add_both(t, "lg_" + type,
           [](T a, T b) { return number(a) < number(b) || number(a) > number(b); });
  add_both(t, "nlt_" + type, [](T a, T b) { return !(number(a) < number(b)); });
  add_both(t, "nle_" + type, [](T a, T b) { return !(number(a) <= number(b)); });
  add_both(t, "ngt_" + type, [](T a, T b) { return !(number(a) > number(b)); });
  add_both(t, "nge_" + type, [](T a, T b) { return !(number(a) >= number(b)); });
  add_both(t, "nlg_" + type,
           [](T a, T b) { return !(number(a) < number(b) || number(a) > number(b)); });
  add_both(t, "o_" + type,
           [](T a, T b) { return !std::isnan(number(a)) && !std::isnan(number(b)); });
  add_both(t, "u_" + type, [](T a, T b) { return std::isnan(number(a)) || std::isnan(number(b)); });
}

bool is_subnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }
bool is_subnormal(Half x) { return (x.bits & 0x7C00U) == 0 && (x.bits & 0x3FFU) != 0; }
bool is_quiet(float x) { return (std::bit_cast<uint32_t>(x) & 0x400000U) != 0; }
bool is_quiet(Half x) { return (x.bits & 0x200U) != 0; }

// Returns true if the mask has the number's class: bits 0 to 9 from signalling NaN to +inf.
template <class T>
bool is_of_class(T x, uint32_t mask) {
  const bool negative = std::signbit(number(x));
  int bit = 0;
  switch (is_subnormal(x) ? FP_SUBNORMAL : std::fpclassify(number(x))) {
    case FP_NAN:
      bit = is_quiet(x) ? 1 : 0;
      break;
    case FP_INFINITE:
      bit = negative ? 2 : 9;
      break;
    case FP_NORMAL:
      bit = negative ? 3 : 8;
      break;
    case FP_SUBNORMAL:
      bit = negative ? 4 : 7;
      break;
    default:
      bit = negative ? 5 : 6;
  }
  return (mask >> bit & 1U) != 0;
}

}  // namespace

void add_comparisons(Table& t) {
  add_integer<int32_t>(t, "i32");
  add_integer<uint32_t>(t, "u32");
  add_integer<int64_t>(t, "i64");
  add_integer<uint64_t>(t, "u64");
  add_integer<int16_t>(t, "i16");
  add_integer<uint16_t>(t, "u16");
  add_float<float>(t, "f32");
  add_float<Half>(t, "f16");
  add_both(t, "class_f32", [](float x, uint32_t mask) { return is_of_class(x, mask); });
  add_both(t, "class_f16", [](Half x, uint32_t mask) { return is_of_class(x, mask); });
}

}  // namespace fulmen::gpu::isa
