// Loads and stores through buffer descriptors: bytes outside of the buffer are read as 0, and not
// written.
#include "emulator/machine_code/instructions/buffer_address.h"
#include "emulator/machine_code/instructions/lds_load.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

template <int W, int kBytes>
void read_inside(Wave& w, const BufferAddress<W>& buffer, int l, unsigned char (&bytes)[kBytes]) {
  buffer.template each_inside<kBytes>(l, [&](int byte, int count) {
    const uint64_t address = buffer.address(l, byte);
    check_memory(w, address, static_cast<uint64_t>(count), "reads", l);
    std::memcpy(bytes + byte, memory_at<void>(address), static_cast<std::size_t>(count));
  });
}

template <int W, Part kPart, int kWords>
void buffer_load(Wave& w, const Instruction& i) {
  if (w.exec() == 0) return;  // without lanes the descriptor may be anything
  const BufferAddress<W> buffer(w, i, 1);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    unsigned char bytes[bytes_of(kPart, kWords)] = {};
    read_inside<W>(w, buffer, l, bytes);
    read_into<W, kPart, kWords>(w, i.operand[0].index, l, bytes);
  }
}

template <int W, Part kPart, int kWords>
void buffer_store(Wave& w, const Instruction& i) {
  if (w.exec() == 0) return;
  const BufferAddress<W> buffer(w, i, 1);
  constexpr int kBytes = bytes_of(kPart, kWords);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    unsigned char bytes[kBytes];
    write_from<W, kPart, kWords>(w, i.operand[0].index, l, bytes);
    buffer.template each_inside<kBytes>(l, [&](int byte, int count) {
      const uint64_t address = buffer.address(l, byte);
      check_memory(w, address, static_cast<uint64_t>(count), "writes", l);
      std::memcpy(memory_at<void>(address), bytes + byte, static_cast<std::size_t>(count));
    });
  }
}

// Without a register for the result, the lanes' registers are the first operand.
template <int kWords>
void buffer_load_to_lds(Wave& w, const Instruction& i) {
  if (w.exec() == 0) return;
  constexpr int kBytes = 4 * kWords;
  const BufferAddress<64> buffer(w, i, 0);
  LdsLoad lds(w, i, kBytes);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    unsigned char bytes[kBytes] = {};
    read_inside<64>(w, buffer, l, bytes);
    lds.put(l, bytes);
  }
}

}  // namespace

void add_buffer_instructions(Table& t) {
  each_part([&]<Part kPart, int kWords>(std::string_view loads, std::string_view stores) {
    if (!loads.empty()) {
      t.add("buffer_load_" + std::string(loads),
            {buffer_load<32, kPart, kWords>, buffer_load<64, kPart, kWords>, Kind::global, false});
    }
    if (!stores.empty()) {
      t.add(
          "buffer_store_" + std::string(stores),
          {buffer_store<32, kPart, kWords>, buffer_store<64, kPart, kWords>, Kind::global, false});
    }
  });
  // The decoder adds the end of the name where the modifier "lds" stands.
  t.add("buffer_load_dword_lds", {nullptr, buffer_load_to_lds<1>, Kind::global, false});
  t.add("buffer_load_dwordx3_lds", {nullptr, buffer_load_to_lds<3>, Kind::global, false});
  t.add("buffer_load_dwordx4_lds", {nullptr, buffer_load_to_lds<4>, Kind::global, false});
}

}  // namespace fulmen::gpu::isa
