// Loads and stores by flat addresses: each lane's is of memory, of LDS or of scratch.
#include "emulator/machine_code/apertures.h"
#include "emulator/machine_code/instructions/lds_place.h"
#include "emulator/machine_code/instructions/memory_parts.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

std::byte* flat_at(Wave& w, uint64_t address, std::size_t bytes, std::string_view what, int lane) {
  const auto low = static_cast<uint32_t>(address);
  if (is_in_aperture(address, kSharedBase)) return lds_at(w, low, 0, bytes, what, lane);
  if (is_in_aperture(address, kPrivateBase)) {
    const auto size = static_cast<std::size_t>(w.program->scratch_bytes);
    if (low + bytes > size) {
      fail(fmt::format("{} {} bytes of scratch at {} in lane {}: a lane has {}", what, bytes, low,
                       lane, size));
    }
    return w.scratch + static_cast<std::size_t>(lane) * size + low;
  }
  check_memory(w, address, bytes, what, lane);
  return memory_at<std::byte>(address);
}

template <int W>
uint64_t flat_address(const Wave& w, const Instruction& i, const Operand& pair, int l) {
  return (row<W>(w, pair.index)[l] | uint64_t{row<W>(w, pair.index + 1)[l]} << 32U) +
         static_cast<uint64_t>(i.offset);
}

template <int W, Part kPart, int kWords>
void load(Wave& w, const Instruction& i) {
  uint64_t from[W];  // before registers change: the address may be among them
  for (int l = 0; l < W; ++l) from[l] = flat_address<W>(w, i, i.operand[1], l);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    read_into<W, kPart, kWords>(w, i.operand[0].index, l,
                                flat_at(w, from[l], bytes_of(kPart, kWords), "reads", l));
  }
}

template <int W, Part kPart, int kWords>
void store(Wave& w, const Instruction& i) {
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    const uint64_t to = flat_address<W>(w, i, i.operand[0], l);
    write_from<W, kPart, kWords>(w, i.operand[1].index, l,
                                 flat_at(w, to, bytes_of(kPart, kWords), "writes", l));
  }
}

}  // namespace

void add_flat_instructions(Table& t) {
  each_part([&]<Part kPart, int kWords>(std::string_view loads, std::string_view stores) {
    if (!loads.empty()) {
      t.add("flat_load_" + std::string(loads),
            {load<32, kPart, kWords>, load<64, kPart, kWords>, Kind::global, false});
    }
    if (!stores.empty()) {
      t.add("flat_store_" + std::string(stores),
            {store<32, kPart, kWords>, store<64, kPart, kWords>, Kind::global, false});
    }
  });
}

}  // namespace fulmen::gpu::isa
