// Scratch: each lane's own memory, to which compilers spill registers. Every access must be inside
// what the kernel asks for. Addresses are not swizzled here: a lane's bytes lie side by side.
#include <fmt/format.h>

#include "emulator/machine_code/instructions/memory_parts.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

// A lane's address is the sum of a vector register, a scalar one and a constant; the former two may
// be "off".
template <int W>
class ScratchAddress {
 public:
  ScratchAddress(const Wave& w, const Instruction& i, int vector, int scalar) {
    const Operand &v = i.operand[static_cast<std::size_t>(vector)],
                  &s = i.operand[static_cast<std::size_t>(scalar)];
    const uint32_t same = static_cast<uint32_t>(i.offset) + scalar32(w, s);
    const uint32_t* const varying =
        v.source == Operand::Source::vector ? row<W>(w, v.index) : nullptr;
    for (int l = 0; l < W; ++l) at_[l] = same + (varying != nullptr ? varying[l] : 0);
  }
  std::byte* bytes(const Wave& w, int l, std::size_t count, std::string_view what) const {
    const auto size = static_cast<std::size_t>(w.program->scratch_bytes);
    if (at_[l] + count > size) {
      fail(fmt::format("{} {} bytes of scratch at {} in lane {}: a lane has {}", what, count,
                       static_cast<int32_t>(at_[l]), l, size));
    }
    return w.scratch + static_cast<std::size_t>(l) * size + at_[l];
  }

 private:
  uint32_t at_[W];
};

template <int W, Part kPart, int kWords>
void load(Wave& w, const Instruction& i) {
  const ScratchAddress<W> address(w, i, 1, 2);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    read_into<W, kPart, kWords>(w, i.operand[0].index, l,
                                address.bytes(w, l, bytes_of(kPart, kWords), "reads"));
  }
}

template <int W, Part kPart, int kWords>
void store(Wave& w, const Instruction& i) {
  const ScratchAddress<W> address(w, i, 0, 2);
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    write_from<W, kPart, kWords>(w, i.operand[1].index, l,
                                 address.bytes(w, l, bytes_of(kPart, kWords), "writes"));
  }
}

}  // namespace

void add_scratch_instructions(Table& t) {
  each_part([&]<Part kPart, int kWords>(std::string_view loads, std::string_view stores) {
    if (!loads.empty()) {
      t.add("scratch_load_" + std::string(loads),
            {load<32, kPart, kWords>, load<64, kPart, kWords>, Kind::scratch, false});
    }
    if (!stores.empty()) {
      t.add("scratch_store_" + std::string(stores),
            {store<32, kPart, kWords>, store<64, kPart, kWords>, Kind::scratch, false});
    }
  });
}

}  // namespace fulmen::gpu::isa
