// Scalar instructions that read or write SCC or EXEC, constants of 16 bits, comparisons.
#include <string>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

uint32_t first(const Wave& w, const Instruction& i) { return scalar32(w, i.operand[1]); }
uint32_t second(const Wave& w, const Instruction& i) { return scalar32(w, i.operand[2]); }
int32_t constant16(const Operand& o) { return static_cast<int16_t>(o.value); }

template <bool kSubtracts, bool kCarryIn>
void sum_with_carry(Wave& w, const Instruction& i) {
  const uint64_t a = first(w, i), b = second(w, i), in = kCarryIn && w.scc ? 1 : 0;
  const uint64_t sum = kSubtracts ? a - b - in : a + b + in;
  set_scalar(w, i.operand[0], static_cast<uint32_t>(sum));
  w.scc = (sum >> 32U & 1U) != 0;
}

void set_signed_sum(Wave& w, const Operand& to, int64_t sum) {
  set_scalar(w, to, static_cast<uint32_t>(sum));
  w.scc = sum != static_cast<int32_t>(sum);
}
int64_t as_signed(uint32_t x) { return static_cast<int32_t>(x); }

void add_sums(Table& t) {
  for (const char* name : {"s_add_u32", "s_add_co_u32"})
    t.add(name, Kind::salu, sum_with_carry<false, false>);
  for (const char* name : {"s_sub_u32", "s_sub_co_u32"})
    t.add(name, Kind::salu, sum_with_carry<true, false>);
  for (const char* name : {"s_addc_u32", "s_add_co_ci_u32"})
    t.add(name, Kind::salu, sum_with_carry<false, true>);
  for (const char* name : {"s_subb_u32", "s_sub_co_ci_u32"})
    t.add(name, Kind::salu, sum_with_carry<true, true>);
  for (const char* name : {"s_add_i32", "s_add_co_i32"}) {
    t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
      set_signed_sum(w, i.operand[0], as_signed(first(w, i)) + as_signed(second(w, i)));
    });
  }
  for (const char* name : {"s_sub_i32", "s_sub_co_i32"}) {
    t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
      set_signed_sum(w, i.operand[0], as_signed(first(w, i)) - as_signed(second(w, i)));
    });
  }
  for (const char* name : {"s_addk_i32", "s_addk_co_i32"}) {
    t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
      set_signed_sum(w, i.operand[0],
                     as_signed(scalar32(w, i.operand[0])) + constant16(i.operand[1]));
    });
  }
  t.add("s_mulk_i32", Kind::salu, [](Wave& w, const Instruction& i) {
    set_scalar(w, i.operand[0],
               scalar32(w, i.operand[0]) * static_cast<uint32_t>(constant16(i.operand[1])));
  });
  t.add("s_movk_i32", Kind::salu, [](Wave& w, const Instruction& i) {
    set_scalar(w, i.operand[0], static_cast<uint32_t>(constant16(i.operand[1])));
  });
  for (const int shift : {1, 2, 3, 4}) {
    static constexpr auto kShifted = []<int kShift>(Wave& w, const Instruction& i) {
      const uint64_t sum = (uint64_t{first(w, i)} << kShift) + second(w, i);
      set_scalar(w, i.operand[0], static_cast<uint32_t>(sum));
      w.scc = sum >> 32U != 0;
    };
    const Handler handlers[] = {
        [](Wave& w, const Instruction& i) { kShifted.operator()<1>(w, i); },
        [](Wave& w, const Instruction& i) { kShifted.operator()<2>(w, i); },
        [](Wave& w, const Instruction& i) { kShifted.operator()<3>(w, i); },
        [](Wave& w, const Instruction& i) { kShifted.operator()<4>(w, i); }};
    t.add("s_lshl" + std::to_string(shift) + "_add_u32", Kind::salu, handlers[shift - 1]);
  }
}

template <class T>
void add_bit_comparison(Table& t, const std::string& type) {
  static constexpr auto kBit = [](const Wave& w, const Instruction& i) {
    return (static_cast<T>(scalar64(w, i.operand[0])) >>
                (scalar32(w, i.operand[1]) % (8 * sizeof(T))) &
            1U) != 0;
  };
  t.add("s_bitcmp0_" + type, Kind::salu,
        [](Wave& w, const Instruction& i) { w.scc = !kBit(w, i); });
  t.add("s_bitcmp1_" + type, Kind::salu, [](Wave& w, const Instruction& i) { w.scc = kBit(w, i); });
}

void add_choices(Table& t) {
  for (const char* name : {"s_cselect_b32", "s_cselect_b64"}) {
    t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
      set_scalar(w, i.operand[0], scalar64(w, i.operand[w.scc ? 1 : 2]));
    });
  }
  for (const char* name : {"s_cmov_b32", "s_cmov_b64"}) {
    t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
      if (w.scc) set_scalar(w, i.operand[0], scalar64(w, i.operand[1]));
    });
  }
  add_bit_comparison<uint32_t>(t, "b32");
  add_bit_comparison<uint64_t>(t, "b64");
  t.add("s_bitset0_b32", Kind::salu, [](Wave& w, const Instruction& i) {
    set_scalar(w, i.operand[0], scalar32(w, i.operand[0]) & ~(1U << (first(w, i) & 31U)));
  });
  t.add("s_bitset1_b32", Kind::salu, [](Wave& w, const Instruction& i) {
    set_scalar(w, i.operand[0], scalar32(w, i.operand[0]) | 1U << (first(w, i) & 31U));
  });
}

template <class T, class Fn>
void add_comparison(Table& t, const std::string& name, Fn /*function*/) {
  t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
    if constexpr (sizeof(T) == 8) {
      w.scc = Fn{}(static_cast<T>(scalar64(w, i.operand[0])),
                   static_cast<T>(scalar64(w, i.operand[1])));
    } else {
      w.scc = Fn{}(std::bit_cast<T>(scalar32(w, i.operand[0])),
                   std::bit_cast<T>(scalar32(w, i.operand[1])));
    }
  });
}

// A comparison with a 16-bit constant, which is sign-extended where the comparison is signed.
template <class T, class Fn>
void add_constant_comparison(Table& t, const std::string& name, Fn /*function*/) {
  t.add(name, Kind::salu, [](Wave& w, const Instruction& i) {
    const T constant = std::is_signed_v<T> ? static_cast<T>(constant16(i.operand[1]))
                                           : static_cast<T>(i.operand[1].value & 0xFFFFU);
    w.scc = Fn{}(static_cast<T>(scalar32(w, i.operand[0])), constant);
  });
}

template <class T>
void add_integer_comparisons(Table& t, const std::string& type) {
  const auto both = [&](const std::string& how, auto function) {
    add_comparison<T>(t, "s_cmp_" + how + "_" + type, function);
    add_constant_comparison<T>(t, "s_cmpk_" + how + "_" + type, function);
  };
  both("eq", [](T a, T b) { return a == b; });
  both("lg", [](T a, T b) { return a != b; });
  both("gt", [](T a, T b) { return a > b; });
  both("ge", [](T a, T b) { return a >= b; });
  both("lt", [](T a, T b) { return a < b; });
  both("le", [](T a, T b) { return a <= b; });
}

void add_comparisons_of_scalars(Table& t) {
  add_integer_comparisons<int32_t>(t, "i32");
  add_integer_comparisons<uint32_t>(t, "u32");
  add_comparison<uint64_t>(t, "s_cmp_eq_u64", [](uint64_t a, uint64_t b) { return a == b; });
  add_comparison<uint64_t>(t, "s_cmp_lg_u64", [](uint64_t a, uint64_t b) { return a != b; });
  add_comparison<float>(t, "s_cmp_eq_f32", [](float a, float b) { return a == b; });
  add_comparison<float>(t, "s_cmp_neq_f32", [](float a, float b) { return a != b; });
  add_comparison<float>(t, "s_cmp_lg_f32", [](float a, float b) { return a < b || a > b; });
  add_comparison<float>(t, "s_cmp_nlg_f32", [](float a, float b) { return !(a < b || a > b); });
  add_comparison<float>(t, "s_cmp_lt_f32", [](float a, float b) { return a < b; });
  add_comparison<float>(t, "s_cmp_le_f32", [](float a, float b) { return a <= b; });
  add_comparison<float>(t, "s_cmp_gt_f32", [](float a, float b) { return a > b; });
  add_comparison<float>(t, "s_cmp_ge_f32", [](float a, float b) { return a >= b; });
  add_comparison<float>(t, "s_cmp_nlt_f32", [](float a, float b) { return !(a < b); });
  add_comparison<float>(t, "s_cmp_nle_f32", [](float a, float b) { return !(a <= b); });
  add_comparison<float>(t, "s_cmp_ngt_f32", [](float a, float b) { return !(a > b); });
  add_comparison<float>(t, "s_cmp_nge_f32", [](float a, float b) { return !(a >= b); });
  add_comparison<float>(t, "s_cmp_u_f32", [](float a, float b) { return a != a || b != b; });
  add_comparison<float>(t, "s_cmp_o_f32", [](float a, float b) { return a == a && b == b; });
}

// EXEC gets the result, the destination the old EXEC (the new one for "wrexec"). Both have as many
// bits as the wave has lanes.
template <class Fn, bool kKeepsOld>
void change_exec(Wave& w, const Instruction& i) {
  const uint64_t old = w.exec(), result = Fn{}(lane_mask(w, i.operand[1]), old) & w.all_lanes;
  w.scalars[kExecLow] = static_cast<uint32_t>(result);
  if (w.program->wave_size == 64) w.scalars[kExecLow + 1] = static_cast<uint32_t>(result >> 32U);
  set_scalar(w, i.operand[0], kKeepsOld ? old : result);
  w.scc = result != 0;
}

template <class Fn>
void add_exec(Table& t, const std::string& name, const std::string& what, Fn /*function*/) {
  for (const char* bits : {"32", "64"}) {
    t.add(name + "_saveexec_b" + bits, Kind::salu, change_exec<Fn, true>);
    t.add(name + "_wrexec_b" + bits, Kind::salu, change_exec<Fn, false>);
    if (!what.empty()) {
      t.add(what + "_saveexec_b" + bits, Kind::salu, change_exec<Fn, true>);
      t.add(what + "_wrexec_b" + bits, Kind::salu, change_exec<Fn, false>);
    }
  }
}

}  // namespace

void add_scalar_instructions(Table& t) {
  add_sums(t);
  add_choices(t);
  add_comparisons_of_scalars(t);
  add_exec(t, "s_and", "", [](uint64_t x, uint64_t exec) { return x & exec; });
  add_exec(t, "s_or", "", [](uint64_t x, uint64_t exec) { return x | exec; });
  add_exec(t, "s_xor", "", [](uint64_t x, uint64_t exec) { return x ^ exec; });
  add_exec(t, "s_and_not1", "s_andn2", [](uint64_t x, uint64_t exec) { return x & ~exec; });
  add_exec(t, "s_or_not1", "s_orn2", [](uint64_t x, uint64_t exec) { return x | ~exec; });
  add_exec(t, "s_and_not0", "s_andn1", [](uint64_t x, uint64_t exec) { return ~x & exec; });
  add_exec(t, "s_or_not0", "s_orn1", [](uint64_t x, uint64_t exec) { return ~x | exec; });
}

}  // namespace fulmen::gpu::isa
