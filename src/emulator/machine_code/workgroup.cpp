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
  Runner(const Program& program, const Schedule& schedule, int64_t id, const LaunchData& launch,
         MemoryMap& memory, Counts& counts, Work* work)
      : program_(program),
        schedule_(schedule),
        counts_(counts),
        work_(work),
        random_(schedule.seed * 1000003 + static_cast<uint64_t>(id)),
        id_(id),
        lds_(static_cast<std::size_t>(program.lds_bytes + launch.dynamic_lds_bytes),
             std::byte{0xFF}),
        scratch_(
            static_cast<std::size_t>(program.scratch_bytes) *
                static_cast<std::size_t>(program.wave_size * launch.grid.waves(program.wave_size)),
            std::byte{0xFF}),
        group_{memory, lds_, launch},
        waves_(static_cast<std::size_t>(launch.grid.waves(program.wave_size))) {
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
    w.number = number;
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
    // The last wave may have fewer lanes.
    const int64_t lanes = group_.launch.grid.lanes() - int64_t{number} * size;
    const uint64_t exec = lanes >= 64 ? ~uint64_t{0} : (uint64_t{1} << lanes) - 1;
    w.scalars[kExecLow] = static_cast<uint32_t>(exec & w.all_lanes);
    w.scalars[kExecLow + 1] = static_cast<uint32_t>((exec & w.all_lanes) >> 32U);
    const auto point = [&](int first, const void* at) {
      const auto address = reinterpret_cast<uint64_t>(at);
      if (first >= 0)
        std::memcpy(&w.scalars[static_cast<std::size_t>(first)], &address, sizeof address);
    };
    point(program_.kernarg_at, group_.launch.arguments.data());
    point(program_.packet_at, group_.launch.packet.data());
    preload_arguments(w);
    set_workgroup_number(w, number);
    set_work_items(number, vectors);
  }

  void preload_arguments(Wave& w) const {
    if (program_.preloaded_words == 0) return;
    const std::vector<std::byte>& arguments = group_.launch.arguments;
    const auto words = static_cast<std::size_t>(program_.preloaded_words),
               from = static_cast<std::size_t>(program_.preloaded_from) * sizeof(uint32_t);
    const std::size_t end = std::min(arguments.size(), from + words * sizeof(uint32_t));
    if (from < end)
      std::memcpy(&w.scalars[static_cast<std::size_t>(program_.preloaded_at)],
                  arguments.data() + from, end - from);
  }

  void set_workgroup_number(Wave& w, int wave) const {
    const std::array<uint32_t, 3>& counts = group_.launch.grid.workgroups;
    const std::array<uint32_t, 3> number{
        static_cast<uint32_t>(id_ % counts[0]), static_cast<uint32_t>(id_ / counts[0] % counts[1]),
        static_cast<uint32_t>(id_ / (int64_t{counts[0]} * counts[1]))};
    for (std::size_t n = 0; n < 3; ++n) {
      if (const int at = program_.workgroup_at[n]; at >= 0)
        w.scalars[static_cast<std::size_t>(at)] = number[n];
    }
    if (program_.workgroup_in_trap_registers) {
      w.scalars[kFirstTrap + 9] = number[0];
      w.scalars[kFirstTrap + 7] = number[1] | number[2] << 16U;
      w.scalars[kFirstTrap + 8] = static_cast<uint32_t>(wave) << 25U;
    }
  }

  // A lane's number in each dimension, in v0 to v2 or ten bits each in v0.
  void set_work_items(int wave, uint32_t* vectors) const {
    const int size = program_.wave_size;
    const std::array<uint32_t, 3>& sizes = group_.launch.grid.workgroup_size;
    for (int l = 0; l < size; ++l) {
      const auto flat = static_cast<uint32_t>(wave * size + l);
      const uint32_t x = flat % sizes[0], y = flat / sizes[0] % sizes[1],
                     z = flat / sizes[0] / sizes[1];
      vectors[l] = program_.packed_work_items ? x | y << 10U | z << 20U : x;
      if (program_.work_item_registers > 1) vectors[size + l] = y;
      if (program_.work_item_registers > 2) vectors[2 * size + l] = z;
    }
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
      if (work_ != nullptr) add_work(w, i, *work_);
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
    if (line.memory.flat) return start_flat_access(w, line);
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

  // Memory's and LDS's counters both count it.
  void start_flat_access(Wave& w, const Line& line) const {
    const bool in_any_order = program_.is("gfx9");
    if (!line.is_load) {
      w.lds_loads.add_flat({.first = 0, .count = 0}, in_any_order);
      if (program_.is("gfx9")) w.memory_loads.add_flat({.first = 0, .count = 0}, in_any_order);
      return;
    }
    const RegisterRange range = line.access.writes.front();
    for (Outstanding* loads : {&w.memory_loads, &w.lds_loads}) loads->add_flat(range, in_any_order);
    for (int r = range.first; r < range.first + range.count; ++r)
      w.pending[static_cast<std::size_t>(r)] = Wave::memory | Wave::lds;
    w.loads += 2;
  }

  const Program& program_;
  const Schedule& schedule_;
  Counts& counts_;
  Work* work_;
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
                       const Grid& grid, int dynamic_lds_bytes) {
  LaunchData data{
      .grid = grid, .dynamic_lds_bytes = dynamic_lds_bytes, .arguments = {}, .packet = {}};
  // Hand-written kernels may say nothing of their arguments' size.
  data.arguments.resize(std::max(static_cast<std::size_t>(program.kernarg_bytes), arguments.size()),
                        std::byte{0xFF});
  std::copy(arguments.begin(), arguments.end(), data.arguments.begin());
  // A dispatch packet: 16 bits each for three sizes of the workgroup, 32 for those of the grid.
  const std::array<uint32_t, 3>&size = grid.workgroup_size, &count = grid.workgroups;
  data.packet = {grid.dimensions() << 16U, size[0] | size[1] << 16U, size[2],
                 count[0] * size[0],       count[1] * size[1],       count[2] * size[2]};
  return data;
}

std::string run_workgroup(const Program& program, const Schedule& schedule, int64_t workgroup,
                          const LaunchData& launch, MemoryMap& memory, Counts& counts, Work* work) {
  return Runner(program, schedule, workgroup, launch, memory, counts, work).run();
}

}  // namespace fulmen::gpu::isa
