// Loads and stores of memory: scalar, global and through buffer descriptors. Every access is inside
// one allocation of the device; scalar loads read the launch's data, too.
#include <fmt/format.h>

#include <algorithm>

#include "emulator/machine_code/instructions/memory_parts.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {

namespace {

void check(Wave& w, uint64_t address, uint64_t bytes, std::string_view what, int lane) {
  if (w.group->memory.contains(address, bytes)) return;
  fail(fmt::format("{} {} bytes at {:#x} in lane {}: that is in no allocation", what, bytes,
                   address, lane));
}

template <class T>
T* at(uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): registers hold addresses as numbers
  return reinterpret_cast<T*>(address);
}

template <int kWords>
void scalar_load(Wave& w, const Instruction& i) {
  const Operand& offset = i.operand[2];
  const uint64_t varying =
      offset.source == Operand::Source::literal ? offset.value : scalar32(w, offset);
  const uint64_t address =
      (scalar64(w, i.operand[1]) + varying + static_cast<uint64_t>(i.offset)) & ~uint64_t{3};
  constexpr uint64_t kBytes = 4 * kWords;
  if (!w.group->launch.contains(address, kBytes) && !w.group->memory.contains(address, kBytes)) {
    fail(
        fmt::format("reads {} bytes at {:#x}: that is in no allocation, and not in the kernel's {} "
                    "bytes of arguments",
                    kBytes, address, w.group->launch.arguments.size()));
  }
  std::memcpy(&w.scalars[static_cast<std::size_t>(i.operand[0].index)], at<void>(address), kBytes);
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

template <int W, Part kPart, int kWords>
void global_load(Wave& w, const Instruction& i) {
  const GlobalAddress<W> address(w, i, 1, 2);
  constexpr int kBytes = bytes_of(kPart, kWords);
  uint64_t from[W];  // before registers change: the address may be among them
  for (int l = 0; l < W; ++l) from[l] = address[l];
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    check(w, from[l], kBytes, "reads", l);
    read_into<W, kPart, kWords>(w, i.operand[0].index, l, at<void>(from[l]));
  }
}

template <int W, Part kPart, int kWords>
void global_store(Wave& w, const Instruction& i) {
  const GlobalAddress<W> address(w, i, 0, 2);
  constexpr int kBytes = bytes_of(kPart, kWords);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    check(w, address[l], kBytes, "writes", l);
    write_from<W, kPart, kWords>(w, i.operand[1].index, l, at<void>(address[l]));
  }
}

// Atomics. Operands: the old value if it is returned, address, data, base. Lanes execute one after
// the other.
template <int W, class T, class Fn>
void global_atomic(Wave& w, const Instruction& i) {
  const int shift = i.returns ? 1 : 0;
  const GlobalAddress<W> address(w, i, shift, shift + 2);
  const uint32_t* const data = row<W>(w, i.operand[static_cast<std::size_t>(shift) + 1].index);
  uint32_t old[W] = {};
  const uint64_t exec = w.exec();
  for (uint64_t left = exec; left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    check(w, address[l], sizeof(T), "changes", l);
    std::memcpy(&old[l], at<void>(address[l]), sizeof(T));
    const T result = Fn{}(std::bit_cast<T>(old[l]), std::bit_cast<T>(data[l]));
    std::memcpy(at<void>(address[l]), &result, sizeof(T));
  }
  if (i.returns) store_lanes<W>(row<W>(w, i.operand[0].index), old, exec);
}

// A raw buffer: bytes past the end are 0, each word by itself. RDNA: outside where offset + size is
// above num_records - soffset, which stops at 0. CDNA: soffset counts as a part of the offset
// (docs/internals/amd_facts.md).
template <int W, Part kPart, int kWords>
void buffer_load(Wave& w, const Instruction& i) {
  if (w.exec() == 0) return;  // without lanes the descriptor may be anything
  const auto* const descriptor = &w.scalars[static_cast<std::size_t>(i.operand[2].index)];
  const uint64_t base = descriptor[0] | uint64_t{descriptor[1] & 0xFFFFU} << 32U,
                 records = descriptor[2];
  if ((descriptor[1] >> 16U & 0x3FFFU) != 0)
    fail("reads a buffer with a stride: the emulator knows raw buffers");
  const uint64_t soffset = scalar32(w, i.operand[3]);
  const bool rdna = !w.program->is("gfx9");
  const uint64_t room = rdna ? records - std::min(records, soffset) : records;
  uint32_t varying[W] = {};
  if (i.offen) std::memcpy(varying, row<W>(w, i.operand[1].index), sizeof varying);
  constexpr int kBytes = bytes_of(kPart, kWords), kPiece = std::min(kBytes, 4);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    // Vector offset and constant wrap at 32 bits on CDNA, not on RDNA.
    const uint64_t sum = uint64_t{varying[l]} + static_cast<uint64_t>(i.offset);
    const auto offset_of = [&](int byte) {
      return rdna ? sum + byte : ((sum + byte) & 0xFFFFFFFFU) + soffset;
    };
    unsigned char bytes[kBytes] = {};
    const auto copy = [&](int byte, int count) {
      const uint64_t address = base + offset_of(byte) + (rdna ? soffset : 0);
      check(w, address, static_cast<uint64_t>(count), "reads", l);
      std::memcpy(bytes + byte, at<void>(address), static_cast<std::size_t>(count));
    };
    const auto is_inside = [&](int byte) { return offset_of(byte) + kPiece <= room; };
    // An access that is inside as a whole, without a wrap between its words, needs one check.
    constexpr int kLast = kBytes - kPiece;
    if (offset_of(kLast) == offset_of(0) + kLast && is_inside(kLast)) {
      copy(0, kBytes);
    } else {
      for (int n = 0; n < kBytes; n += kPiece) {
        if (is_inside(n)) copy(n, kPiece);
      }
    }
    read_into<W, kPart, kWords>(w, i.operand[0].index, l, bytes);
  }
}

template <Part kPart, int kWords>
void add_load(Table& t, const std::string& name) {
  t.add("global_load_" + name,
        {global_load<32, kPart, kWords>, global_load<64, kPart, kWords>, Kind::global, false});
  t.add("buffer_load_" + name,
        {buffer_load<32, kPart, kWords>, buffer_load<64, kPart, kWords>, Kind::global, false});
}
template <Part kPart, int kWords>
void add_store(Table& t, const std::string& name) {
  t.add("global_store_" + name,
        {global_store<32, kPart, kWords>, global_store<64, kPart, kWords>, Kind::global, false});
}

template <class T, class Fn>
void add_atomic(Table& t, const std::string& name, Fn /*function*/) {
  t.add("global_atomic_" + name,
        {global_atomic<32, T, Fn>, global_atomic<64, T, Fn>, Kind::global, false});
}

}  // namespace

void add_memory_instructions(Table& t) {
  const auto scalar = [&](std::string_view words, std::string_view bits, Handler handler) {
    t.add("s_load_dword" + std::string(words), Kind::scalar_load, handler);
    t.add("s_load_b" + std::string(bits), Kind::scalar_load, handler);
  };
  scalar("", "32", scalar_load<1>);
  scalar("x2", "64", scalar_load<2>);
  scalar("x3", "96", scalar_load<3>);
  scalar("x4", "128", scalar_load<4>);
  scalar("x8", "256", scalar_load<8>);
  scalar("x16", "512", scalar_load<16>);
  each_part([&]<Part kPart, int kWords>(std::string_view load, std::string_view store) {
    if (!load.empty()) add_load<kPart, kWords>(t, std::string(load));
    if (!store.empty()) add_store<kPart, kWords>(t, std::string(store));
  });
  add_atomic<float>(t, "add_f32", [](float a, float b) { return a + b; });
  for (const char* name : {"add_u32", "add"})
    add_atomic<uint32_t>(t, name, [](uint32_t a, uint32_t b) { return a + b; });
}

}  // namespace fulmen::gpu::isa
