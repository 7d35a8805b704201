// Atomics of memory, by address and through buffer descriptors. Lanes execute one after the other.
#include <string>

#include "emulator/machine_code/instructions/buffer_address.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

template <class T>
constexpr int kWordsOf = sizeof(T) / 4;

template <int W, class T>
T lane_value(const Wave& w, int first, int l) {
  uint32_t words[kWordsOf<T>];
  for (int n = 0; n < kWordsOf<T>; ++n) words[n] = row<W>(w, first + n)[l];
  return std::bit_cast<T>(words);
}

// Changes a lane's number in memory. data: the first register of what it is changed by; of a
// comparison, the new value and then what the old one is compared with. old: the first register
// that gets the old value, or -1.
template <int W, class T, class Fn>
void change_in_memory(Wave& w, uint64_t address, int data, int old, int l) {
  check_memory(w, address, sizeof(T), "changes", l);
  T before;
  std::memcpy(&before, memory_at<void>(address), sizeof before);
  T after;
  if constexpr (std::is_invocable_v<Fn, T, T, T>) {
    after = Fn{}(before, lane_value<W, T>(w, data, l), lane_value<W, T>(w, data + kWordsOf<T>, l));
  } else {
    after = Fn{}(before, lane_value<W, T>(w, data, l));
  }
  std::memcpy(memory_at<void>(address), &after, sizeof after);
  if (old < 0) return;
  uint32_t words[kWordsOf<T>];
  std::memcpy(words, &before, sizeof before);
  for (int n = 0; n < kWordsOf<T>; ++n) row<W>(w, old + n)[l] = words[n];
}

// Operands: the old value if it is returned, address, data, base.
template <int W, class T, class Fn>
void global_atomic(Wave& w, const Instruction& i) {
  const int shift = i.returns ? 1 : 0;
  const GlobalAddress<W> address(w, i, shift, shift + 2);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    change_in_memory<W, T, Fn>(w, address[l], i.operand[static_cast<std::size_t>(shift) + 1].index,
                               i.returns ? i.operand[0].index : -1, l);
  }
}

// The old value takes the place of the data. An access is inside as a whole or not at all; outside
// nothing is changed, and 0 is returned.
template <int W, class T, class Fn>
void buffer_atomic(Wave& w, const Instruction& i) {
  if (w.exec() == 0) return;
  const BufferAddress<W> buffer(w, i, 1);
  const int data = i.operand[0].index;
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    if (buffer.is_inside(l, sizeof(T))) {
      change_in_memory<W, T, Fn>(w, buffer.address(l, 0), data, i.returns ? data : -1, l);
    } else if (i.returns) {
      for (int n = 0; n < kWordsOf<T>; ++n) row<W>(w, data + n)[l] = 0;
    }
  }
}

template <class T, class Fn>
void add_both_atomics(Table& t, const std::string& name, Fn /*function*/) {
  t.add("global_atomic_" + name,
        {global_atomic<32, T, Fn>, global_atomic<64, T, Fn>, Kind::global, false});
  t.add("buffer_atomic_" + name,
        {buffer_atomic<32, T, Fn>, buffer_atomic<64, T, Fn>, Kind::global, false});
}

// gfx9's names and those of later chips.
template <class U>
void add_integer_atomics(Table& t, const std::string& gfx9_end, const std::string& bits) {
  using S = std::make_signed_t<U>;
  const auto both = [&](const std::string& gfx9, const std::string& later, auto function) {
    add_both_atomics<U>(t, gfx9 + gfx9_end, function);
    add_both_atomics<U>(t, later + bits, function);
  };
  both("add", "add_u", [](U a, U b) { return a + b; });
  both("sub", "sub_u", [](U a, U b) { return a - b; });
  both("smin", "min_i", [](U a, U b) { return static_cast<S>(a) < static_cast<S>(b) ? a : b; });
  both("umin", "min_u", [](U a, U b) { return a < b ? a : b; });
  both("smax", "max_i", [](U a, U b) { return static_cast<S>(a) > static_cast<S>(b) ? a : b; });
  both("umax", "max_u", [](U a, U b) { return a > b ? a : b; });
  both("and", "and_b", [](U a, U b) { return a & b; });
  both("or", "or_b", [](U a, U b) { return a | b; });
  both("xor", "xor_b", [](U a, U b) { return a ^ b; });
  both("inc", "inc_u", [](U a, U b) { return a >= b ? U{0} : a + 1; });
  both("dec", "dec_u", [](U a, U b) { return a == 0 || a > b ? b : a - 1; });
  both("swap", "swap_b", [](U /*a*/, U b) { return b; });
  both("cmpswap", "cmpswap_b",
       [](U a, U replacement, U expected) { return a == expected ? replacement : a; });
}

// Two numbers of 16 bits, each rounded to nearest.
template <class Sum>
uint32_t packed_sum(uint32_t a, uint32_t b, Sum sum) {
  const auto half = [](uint32_t x, int n) { return static_cast<uint16_t>(x >> (16 * n)); };
  return sum(half(a, 0), half(b, 0)) | uint32_t{sum(half(a, 1), half(b, 1))} << 16U;
}

void add_float_atomics(Table& t) {
  add_both_atomics<float>(t, "add_f32", [](float a, float b) { return a + b; });
  add_both_atomics<double>(t, "add_f64", [](double a, double b) { return a + b; });
  add_both_atomics<uint32_t>(t, "pk_add_f16", [](uint32_t a, uint32_t b) {
    return packed_sum(a, b, [](uint16_t x, uint16_t y) {
      return reference::to_fp16(reference::from_fp16(x) + reference::from_fp16(y));
    });
  });
  add_both_atomics<uint32_t>(t, "pk_add_bf16", [](uint32_t a, uint32_t b) {
    return packed_sum(a, b, [](uint16_t x, uint16_t y) {
      return reference::to_bf16(reference::from_bf16(x) + reference::from_bf16(y));
    });
  });
}

}  // namespace

void add_atomics(Table& t) {
  add_integer_atomics<uint32_t>(t, "", "32");
  add_integer_atomics<uint64_t>(t, "_x2", "64");
  add_float_atomics(t);
}

}  // namespace fulmen::gpu::isa
