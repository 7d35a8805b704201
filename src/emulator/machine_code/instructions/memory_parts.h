// The loads and stores of one lane, between memory and registers.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "emulator/machine_code/instructions/lanes.h"

namespace fulmen::gpu::isa {

// How one lane's bytes become registers: words, a smaller number extended by its sign or zeros, or
// half a register.
enum class Part : uint8_t { words, u8, i8, u16, i16, low16, high16 };

constexpr int bytes_of(Part part, int words) {
  return part == Part::words ? 4 * words : part == Part::u8 || part == Part::i8 ? 1 : 2;
}

template <int W, Part kPart, int kWords>
void read_into(const Wave& w, int first, int l, const void* from) {
  if constexpr (kPart == Part::words) {
    uint32_t words[kWords];
    std::memcpy(words, from, sizeof words);
    for (int n = 0; n < kWords; ++n) row<W>(w, first + n)[l] = words[n];
  } else {
    uint16_t value = 0;
    std::memcpy(&value, from, bytes_of(kPart, 1));
    uint32_t& to = row<W>(w, first)[l];
    if (kPart == Part::i8)
      to = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(value)));
    if (kPart == Part::i16)
      to = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(value)));
    if (kPart == Part::u8 || kPart == Part::u16) to = value;
    if (kPart == Part::low16) to = (to & 0xFFFF0000U) | value;
    if (kPart == Part::high16) to = (to & 0xFFFFU) | uint32_t{value} << 16U;
  }
}

template <int W, Part kPart, int kWords>
void write_from(const Wave& w, int first, int l, void* to) {
  uint32_t words[kWords];
  for (int n = 0; n < kWords; ++n) words[n] = row<W>(w, first + n)[l];
  if (kPart == Part::high16) words[0] >>= 16U;
  std::memcpy(to, words, bytes_of(kPart, kWords));
}

// Memory that an instruction accesses is inside one allocation of the device.
inline void check_memory(Wave& w, uint64_t address, uint64_t bytes, std::string_view what,
                         int lane) {
  if (w.group->memory.contains(address, bytes)) return;
  fail(fmt::format("{} {} bytes at {:#x} in lane {}: that is in no allocation", what, bytes,
                   address, lane));
}

template <class T>
T* memory_at(uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): registers hold addresses as numbers
  return reinterpret_cast<T*>(address);
}

// The address of each lane: a pair of vector registers, or an offset of 32 bits from a scalar base.
template <int W>
class GlobalAddress {
 public:
  GlobalAddress(const Wave& w, const Instruction& i, int vector, int base) {
    const Operand& b = i.operand[static_cast<std::size_t>(base)];
    based_ = b.source == Operand::Source::scalar;
    base_ = (based_ ? scalar64(w, b) : 0) + static_cast<uint64_t>(i.offset);
    const int r = i.operand[static_cast<std::size_t>(vector)].index;
    low_ = row<W>(w, r);
    high_ = based_ ? low_ : row<W>(w, r + 1);
  }
  uint64_t operator[](int l) const {
    return base_ + (low_[l] | (based_ ? 0 : uint64_t{high_[l]} << 32U));
  }

 private:
  bool based_ = false;
  uint64_t base_ = 0;
  const uint32_t *low_ = nullptr, *high_ = nullptr;
};

// Calls add.operator()<part, words>(load, store) for every kind of access, with the ends of its
// names: gfx9's, then those of later chips. Empty: there is no such load, or store.
template <class Add>
void each_part(const Add& add) {
  for (const char* name : {"dword", "b32"}) add.template operator()<Part::words, 1>(name, name);
  for (const char* name : {"dwordx2", "b64"}) add.template operator()<Part::words, 2>(name, name);
  for (const char* name : {"dwordx3", "b96"}) add.template operator()<Part::words, 3>(name, name);
  for (const char* name : {"dwordx4", "b128"}) add.template operator()<Part::words, 4>(name, name);
  for (const char* name : {"ubyte", "u8"}) add.template operator()<Part::u8, 1>(name, "");
  for (const char* name : {"sbyte", "i8"}) add.template operator()<Part::i8, 1>(name, "");
  for (const char* name : {"ushort", "u16"}) add.template operator()<Part::u16, 1>(name, "");
  for (const char* name : {"sshort", "i16"}) add.template operator()<Part::i16, 1>(name, "");
  for (const char* name : {"short_d16", "d16_b16"})
    add.template operator()<Part::low16, 1>(name, "");
  for (const char* name : {"short_d16_hi", "d16_hi_b16"})
    add.template operator()<Part::high16, 1>(name, name);
  for (const char* name : {"byte", "b8"}) add.template operator()<Part::u8, 1>("", name);
  for (const char* name : {"short", "b16"}) add.template operator()<Part::u16, 1>("", name);
}

}  // namespace fulmen::gpu::isa
