#include "emulator/machine_code/workgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace fulmen::gpu::isa {
namespace {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t operator()() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15U;
    x = (x ^ x >> 30U) * 0xBF58476D1CE4E5B9U;
    x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
    return x ^ x >> 31U;
  }

 private:
  uint64_t state_;
};

struct AlignedDelete {
  void operator()(uint32_t* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using Registers = std::unique_ptr<uint32_t[], AlignedDelete>;

// A kernel that runs longer than this does not end.
constexpr uint64_t kMostInstructions = uint64_t{1} << 33U;

class Runner {
 public:
  Runner(const Program& program, const Schedule& schedule, int waves, int64_t id,
         const LaunchData& launch, MemoryMap& memory, Counts& counts)
      : program_(program),
        schedule_(schedule),
        counts_(counts),
        random_(schedule.seed * 1000003 + static_cast<uint64_t>(id)),
        id_(id),
        lds_(static_cast<std::size_t>(program.lds_bytes), std::byte{0xFF}),
        scratch_(static_cast<std::size_t>(program.scratch_bytes) *
                     static_cast<std::size_t>(program.wave_size * waves),
                 std::byte{0xFF}),
        group_{memory, lds_, launch},
        waves_(static_cast<std::size_t>(waves)) {
    const auto words = std::size_t{512} * static_cast<std::size_t>(program.wave_size);
    for (std::size_t n = 0; n < waves_.size(); ++n) {
      registers_.emplace_back(
          static_cast<uint32_t*>(::operator new[](words * sizeof(uint32_t), std::align_val_t(64))));
      start(waves_[n], static_cast<int>(n), registers_.back().get());
    }
  }

  std::string run() {
    try {
      while (std::any_of(waves_.begin(), waves_.end(), [](const Wave& w) { return !w.ended; }))
        round();
    } catch (const Fault& fault) {
      const Instruction& i = program_.code[current_->at - 1];
      const AmdInstruction& at = program_.lines[i.line].text;
      return fmt::format("{} {} at address {:#x} {} (workgroup {}, wave {})", at.name, at.operands,
                         at.address, fault.what, id_, current_ - waves_.data());
    }
    return {};
  }

 private:
  void start(Wave& w, int number, uint32_t* vectors) {
    const int size = program_.wave_size;
    w.group = &group_;
    w.program = &program_;
    w.vectors = vectors;
    w.scratch =
        scratch_.data() + static_cast<std::ptrdiff_t>(program_.scratch_bytes) * size * number;
    w.all_lanes = size == 64 ? ~uint64_t{0} : 0xFFFFFFFFU;
    w.at = program_.entry;
    // Registers begin random.
    for (uint32_t& s : w.scalars) s = static_cast<uint32_t>(random_());
    w.scc = (random_() & 1U) != 0;
    fill(vectors, program_.vector_registers * size);
    fill(vectors + static_cast<std::ptrdiff_t>(256) * size, program_.accumulators * size);
    w.scalars[kExecLow] = 0xFFFFFFFFU;
    w.scalars[kExecLow + 1] = size == 64 ? 0xFFFFFFFFU : 0;
    const auto point = [&](int first, const void* at) {
      const auto address = reinterpret_cast<uint64_t>(at);
      if (first >= 0)
        std::memcpy(&w.scalars[static_cast<std::size_t>(first)], &address, sizeof address);
    };
    point(program_.kernarg_at, group_.launch.arguments.data());
    point(program_.packet_at, group_.launch.packet.data());
    const auto id = static_cast<uint32_t>(id_);
    if (program_.workgroup_at >= 0) w.scalars[static_cast<std::size_t>(program_.workgroup_at)] = id;
    if (program_.workgroup_in_trap_registers) {
      w.scalars[kFirstTrap + 9] = id;
      w.scalars[kFirstTrap + 7] = 0;
    }
    // Three work-item numbers of ten bits in one register; the grid has one dimension.
    for (int l = 0; l < size; ++l) vectors[l] = static_cast<uint32_t>(number * size + l);
  }

  void fill(uint32_t* words, int count) {
    for (int n = 0; n + 1 < count; n += 2) {
      const uint64_t bits = random_();
      std::memcpy(words + n, &bits, sizeof bits);
    }
  }

  // Runs every wave that can run, once.
  void round() {
    const std::size_t count = waves_.size();
    bool ran = false;
    for (std::size_t n = 0; n < count; ++n) {
      const std::size_t picked = schedule_.order == Order::in_order   ? n
                                 : schedule_.order == Order::reversed ? count - 1 - n
                                                                      : random_() % count;
      Wave& w = waves_[picked];
      current_ = &w;
      if (w.ended || !passes_barrier(w)) continue;
      ran = true;
      run_wave(w, schedule_.order == Order::random ? 1 + random_() % 200 : kMostInstructions);
    }
    if (ran || schedule_.order == Order::random) {
      if (++rounds_ > kMostInstructions)
        fail("is where the kernel is after too many instructions: it does not end");
      return;
    }
    fail("waits for a barrier to which another wave does not come");
  }

  // A wave at a barrier continues when all have come to it.
  bool passes_barrier(Wave& w) {
    if (!w.at_barrier) return true;
    for (const Wave& other : waves_) {
      if (other.signals > w.waits) continue;
      if (other.ended) fail("waits for a barrier, and another wave has ended without it");
      return false;
    }
    w.at_barrier = false;
    ++w.waits;
    return true;
  }

  void run_wave(Wave& w, uint64_t most) {
    for (uint64_t n = 0; n < most; ++n) {
      if (w.ended || w.at_barrier) return;
      if (w.at >= program_.code.size()) {
        fail("is the last one, and does not end the kernel");
      }
      const Instruction& i = program_.code[w.at++];
      ++counts_[static_cast<std::size_t>(i.kind)];
      if (w.loads > 0 && i.accesses_are_checked) check_accesses(w, i);
      i.run(w, i);
      if (i.kind >= Kind::scalar_load && i.kind <= Kind::scratch) start_access(w, i);
    }
    if (most == kMostInstructions)
      fail("is where the kernel is after too many instructions: it does not end");
  }

  static Wave::Counter counter_of(Kind kind) {
    return kind == Kind::global || kind == Kind::scratch ? Wave::memory
           : kind == Kind::lds                           ? Wave::lds
                                                         : Wave::scalar;
  }

  // Refuses registers whose loads are outstanding. Memory and LDS each answer in order, so their
  // later loads may overwrite such a register.
  void check_accesses(const Wave& w, const Instruction& i) const {
    const AmdAccess& access = program_.lines[i.line].access;
    for (const RegisterRange& range : access.reads) {
      if (range.any([&](std::size_t r) { return w.pending[r] != 0; }))
        fail("reads a register whose load was not waited for");
    }
    const bool in_order = i.kind >= Kind::lds && i.kind <= Kind::scratch;
    for (const RegisterRange& range : access.writes) {
      if (range.any([&](std::size_t r) {
            return w.pending[r] != 0 && !(in_order && w.pending[r] == counter_of(i.kind));
          })) {
        fail("overwrites a register whose load was not waited for");
      }
    }
  }

  void start_access(Wave& w, const Instruction& i) const {
    const Line& line = program_.lines[i.line];
    const Wave::Counter counter = counter_of(i.kind);
    Outstanding& outstanding = counter == Wave::memory ? w.memory_loads
                               : counter == Wave::lds  ? w.lds_loads
                                                       : w.scalar_loads;
    if (counter == Wave::scalar || line.is_load) {
      const RegisterRange range =
          line.access.writes.empty() ? RegisterRange{} : line.access.writes.front();
      if (range.count == 0) return;
      outstanding.add(range);
      for (int r = range.first; r < range.first + range.count; ++r)
        w.pending[static_cast<std::size_t>(r)] = counter;
      ++w.loads;
    } else if (counter == Wave::lds || program_.is("gfx9")) {
      // A store that the counter counts, or a load to LDS.
      outstanding.add({.first = 0, .count = 0}, w.arrival);
      w.arrival = {};
    }
  }

  const Program& program_;
  const Schedule& schedule_;
  Counts& counts_;
  Random random_;
  int64_t id_;
  uint64_t rounds_ = 0;
  std::vector<std::byte> lds_, scratch_;  // NaN
  Workgroup group_;
  std::vector<Wave> waves_;
  std::vector<Registers> registers_;
  const Wave* current_ = nullptr;
};

}  // namespace

LaunchData launch_data(const Program& program, std::span<const std::byte> arguments,
                       uint32_t workgroups, uint32_t workgroup_size) {
  LaunchData data;
  data.arguments.resize(static_cast<std::size_t>(program.kernarg_bytes), std::byte{0xFF});
  std::copy(arguments.begin(), arguments.end(), data.arguments.begin());
  // A dispatch packet of one dimension: 16 bits each for three sizes of the workgroup, 32 for those
  // of the grid.
  data.packet = {0x10000, workgroup_size | 0x10000U, 1, workgroups * workgroup_size, 1, 1};
  return data;
}

std::string run_workgroup(const Program& program, const Schedule& schedule, int waves,
                          int64_t workgroup, const LaunchData& launch, MemoryMap& memory,
                          Counts& counts) {
  return Runner(program, schedule, waves, workgroup, launch, memory, counts).run();
}

}  // namespace fulmen::gpu::isa
