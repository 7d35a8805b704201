// Loads and stores of memory by address, scalar and global. Every access is inside one allocation
// of the device; scalar loads read the launch's data, too.
#include <fmt/format.h>

#include "emulator/machine_code/instructions/lds_load.h"
#include "emulator/machine_code/instructions/memory_parts.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {

namespace {

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
  std::memcpy(&w.scalars[static_cast<std::size_t>(i.operand[0].index)], memory_at<void>(address),
              kBytes);
}

template <int W, Part kPart, int kWords>
void global_load(Wave& w, const Instruction& i) {
  const GlobalAddress<W> address(w, i, 1, 2);
  constexpr int kBytes = bytes_of(kPart, kWords);
  uint64_t from[W];  // before registers change: the address may be among them
  for (int l = 0; l < W; ++l) from[l] = address[l];
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    check_memory(w, from[l], kBytes, "reads", l);
    read_into<W, kPart, kWords>(w, i.operand[0].index, l, memory_at<void>(from[l]));
  }
}

template <int W, Part kPart, int kWords>
void global_store(Wave& w, const Instruction& i) {
  const GlobalAddress<W> address(w, i, 0, 2);
  constexpr int kBytes = bytes_of(kPart, kWords);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    check_memory(w, address[l], kBytes, "writes", l);
    write_from<W, kPart, kWords>(w, i.operand[1].index, l, memory_at<void>(address[l]));
  }
}

// Operands: address, base.
template <int kWords>
void global_load_to_lds(Wave& w, const Instruction& i) {
  const GlobalAddress<64> address(w, i, 0, 1);
  constexpr int kBytes = 4 * kWords;
  LdsLoad lds(w, i, kBytes);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    check_memory(w, address[l], kBytes, "reads", l);
    lds.put(l, memory_at<void>(address[l]));
  }
}

template <Part kPart, int kWords>
void add_load(Table& t, const std::string& name) {
  t.add("global_load_" + name,
        {global_load<32, kPart, kWords>, global_load<64, kPart, kWords>, Kind::global, false});
}
template <Part kPart, int kWords>
void add_store(Table& t, const std::string& name) {
  t.add("global_store_" + name,
        {global_store<32, kPart, kWords>, global_store<64, kPart, kWords>, Kind::global, false});
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
  t.add("global_load_lds_dword", {nullptr, global_load_to_lds<1>, Kind::global, false});
  t.add("global_load_lds_dwordx3", {nullptr, global_load_to_lds<3>, Kind::global, false});
  t.add("global_load_lds_dwordx4", {nullptr, global_load_to_lds<4>, Kind::global, false});
}

}  // namespace fulmen::gpu::isa
