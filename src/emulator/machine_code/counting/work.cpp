#include "emulator/machine_code/counting/work.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "emulator/lds_cost.h"
#include "emulator/machine_code/apertures.h"

namespace fulmen::gpu::isa {
namespace {

constexpr int kCycleBytes = 128;

void add_lds(const Wave& w, const Instruction& i, const MemoryAccess& access, Work& work) {
  const int lanes = w.program->wave_size;
  if (access.without_conflicts) {
    work.lds_cycles += static_cast<uint64_t>(lanes * access.bytes / kCycleBytes);
    return;
  }
  const Operand& o = i.operand[static_cast<std::size_t>(access.address_operand)];
  const uint32_t* const at = w.vectors + static_cast<std::ptrdiff_t>(o.index) * lanes;
  const uint64_t exec = w.exec();
  for (int n = 0; n < access.addresses; ++n) {
    const int64_t offset =
        (n == 0 ? i.offset : i.offset1) * (access.stride > 0 ? access.stride : 1);
    std::array<int, 64> offsets;
    for (int l = 0; l < lanes; ++l) {
      // A place outside of LDS costs nothing: the access itself fails.
      const uint32_t place = at[l] + static_cast<uint32_t>(offset);
      const bool inside =
          uint64_t{place} + static_cast<uint64_t>(access.bytes) <= w.group->lds.size();
      offsets[static_cast<std::size_t>(l)] =
          (exec >> l & 1U) != 0 && inside ? static_cast<int>(place) : kNoAccess;
    }
    const LdsCost cost = cost_of(std::span(offsets).first(static_cast<std::size_t>(lanes)),
                                 access.bytes, access.reads ? w.program->lds_reads : LdsReads{});
    work.lds_cycles += static_cast<uint64_t>(cost.cycles);
    work.lds_conflicts += static_cast<uint64_t>(cost.conflicts);
  }
}

void add_memory(const Wave& w, const MemoryAccess& access, Work& work) {
  work.global_bytes += static_cast<uint64_t>(access.bytes * std::popcount(w.exec()));
  // It is written to LDS in the lanes' order.
  if (access.to_lds)
    work.lds_cycles += static_cast<uint64_t>(w.program->wave_size * access.bytes / kCycleBytes);
}

// Lanes whose addresses are of LDS cost its cycles, those of memory its bytes.
void add_flat(const Wave& w, const Instruction& i, const MemoryAccess& access, Work& work) {
  const int lanes = w.program->wave_size;
  const Operand& o = i.operand[static_cast<std::size_t>(access.address_operand)];
  const uint32_t* const low = w.vectors + static_cast<std::ptrdiff_t>(o.index) * lanes;
  std::array<int, 64> offsets;
  offsets.fill(kNoAccess);
  bool in_lds = false;
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) {
    const auto l = static_cast<std::size_t>(std::countr_zero(left));
    const uint64_t address = (low[l] | uint64_t{low[l + static_cast<std::size_t>(lanes)]} << 32U) +
                             static_cast<uint64_t>(i.offset);
    if (is_in_aperture(address, kPrivateBase)) continue;
    if (!is_in_aperture(address, kSharedBase)) {
      work.global_bytes += static_cast<uint64_t>(access.bytes);
      continue;
    }
    const auto place = static_cast<uint32_t>(address);
    if (uint64_t{place} + static_cast<uint64_t>(access.bytes) > w.group->lds.size()) continue;
    offsets[l] = static_cast<int>(place);
    in_lds = true;
  }
  if (!in_lds) return;
  const LdsCost cost = cost_of(std::span(offsets).first(static_cast<std::size_t>(lanes)),
                               access.bytes, access.reads ? w.program->lds_reads : LdsReads{});
  work.lds_cycles += static_cast<uint64_t>(cost.cycles);
  work.lds_conflicts += static_cast<uint64_t>(cost.conflicts);
}

void add_matrix(const Line& line, Work& work) {
  work.matrix_flops += line.matrix_flops;
  const auto found = work.matrix.find(line.text.name);
  if (found == work.matrix.end()) {
    work.matrix.emplace(line.text.name, 1);
  } else {
    ++found->second;
  }
}

void add_units(const Wave& w, const Instruction& i, Work& work) {
  const Line& line = w.program->lines[i.line];
  switch (i.kind) {
    case Kind::matrix:
      return add_matrix(line, work);
    case Kind::transcendental:
      work.exponentials += static_cast<uint64_t>(w.program->wave_size);
      return;
    case Kind::lds:
      return add_lds(w, i, line.memory, work);
    case Kind::global:
      return line.memory.flat ? add_flat(w, i, line.memory, work)
                              : add_memory(w, line.memory, work);
    default:
      return;
  }
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  matrix_flops += other.matrix_flops;
  exponentials += other.exponentials;
  lds_cycles += other.lds_cycles;
  lds_conflicts += other.lds_conflicts;
  global_bytes += other.global_bytes;
  for (const auto& [name, count] : other.matrix) matrix[name] += count;
  return *this;
}

void add_work(const Wave& w, const Instruction& i, Work& work) {
  if (work.trace == nullptr) return add_units(w, i, work);
  const uint64_t lds = work.lds_cycles, bytes = work.global_bytes;
  add_units(w, i, work);
  work.trace->resize(std::max(work.trace->size(), static_cast<std::size_t>(w.number) + 1));
  const bool by_lds = work.global_bytes == bytes && w.program->lines[i.line].memory.flat;
  (*work.trace)[static_cast<std::size_t>(w.number)].push_back(
      {w.at - 1,
       static_cast<uint32_t>(i.kind == Kind::global && !by_lds ? (work.global_bytes - bytes) / 64
                                                               : work.lds_cycles - lds),
       by_lds});
}

}  // namespace fulmen::gpu::isa
