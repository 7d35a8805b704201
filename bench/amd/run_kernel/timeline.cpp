#include "bench/amd/run_kernel/timeline.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <string>

#include "gpu/compile/report/disassembly_line.h"
#include "gpu/targets/chip.h"

namespace fulmen::run_kernel {
namespace {

using namespace gpu::isa;
using Steps = std::vector<TraceStep>;

struct TimedWave {
  const Steps* steps = nullptr;
  std::size_t next = 0;
  int simd = 0, group = 0;
  double free = 0;  // when it may issue its next instruction
  std::array<double, gpu::kRegisters> ready{};
  std::deque<double> memory, lds, scalar;  // when outstanding accesses are there
  bool at_barrier = false;
};

struct Simd {
  double valu = 0, matrix = 0, salu = 0;
};

class Timeline {
 public:
  Timeline(const Program& program, std::span<const Steps> trace, int resident,
           const UnitCycles& units)
      : program_(program), units_(units), simds_(static_cast<std::size_t>(units.simds)) {
    for (int group = 0; group < resident; ++group) {
      for (const Steps& steps : trace) {
        TimedWave& w = waves_.emplace_back();
        w.steps = &steps;
        w.group = group;
        w.simd = static_cast<int>(waves_.size() - 1) % units.simds;
      }
    }
    in_group_ = trace.size();
  }

  double run() {
    for (TimedWave* w = next(); w != nullptr; w = next()) issue(*w);
    return end_;
  }

 private:
  const Instruction& instruction(const TimedWave& w) const {
    return program_.code[(*w.steps)[w.next].instruction];
  }

  // The wave whose next instruction issues first.
  TimedWave* next() {
    TimedWave* first = nullptr;
    double at = std::numeric_limits<double>::infinity();
    for (TimedWave& w : waves_) {
      if (w.next == w.steps->size() || w.at_barrier) continue;
      if (const double t = earliest(w); t < at) {
        at = t;
        first = &w;
      }
    }
    return first;
  }

  double earliest(const TimedWave& w) const {
    const Instruction& i = instruction(w);
    double at = w.free;
    for (const gpu::RegisterRange& range : program_.lines[i.line].access.reads) {
      range.any([&](std::size_t r) {
        at = std::max(at, w.ready[r]);
        return false;
      });
    }
    const Simd& simd = simds_[static_cast<std::size_t>(w.simd)];
    switch (i.kind) {
      case Kind::matrix:
        return std::max({at, simd.valu, simd.matrix});
      case Kind::valu:
      case Kind::transcendental:
        return std::max(at, simd.valu);
      case Kind::salu:
      case Kind::branch:
        return std::max(at, simd.salu);
      case Kind::wait:
        return std::max(at, waited(w, i));
      default:
        return at;
    }
  }

  static double arrival(const std::deque<double>& queue, int64_t left) {
    if (left < 0 || queue.size() <= static_cast<std::size_t>(left)) return 0;
    return queue[queue.size() - static_cast<std::size_t>(left) - 1];
  }
  static double waited(const TimedWave& w, const Instruction& i) {
    const double memory = arrival(w.memory, i.offset);
    double other = arrival(w.lds, i.offset1);
    if (i.offset1 == 0) other = std::max(other, arrival(w.scalar, 0));
    return std::max(memory, other);
  }
  static void forget(std::deque<double>& queue, int64_t left) {
    while (left >= 0 && queue.size() > static_cast<std::size_t>(left)) queue.pop_front();
  }

  // When an access has its result, of a unit that is busy until `unit` and takes one at a time.
  static double served(double& unit, double at, const TraceStep& step, double latency,
                       std::deque<double>& outstanding) {
    unit = std::max(unit, at) + step.cycles;
    return outstanding.emplace_back(unit + latency);
  }

  void issue(TimedWave& w) {
    const Instruction& i = instruction(w);
    const TraceStep& step = (*w.steps)[w.next];
    const double at = earliest(w);
    Simd& simd = simds_[static_cast<std::size_t>(w.simd)];
    double result = at + units_.issue;
    w.free = at + units_.issue;
    switch (i.kind) {
      case Kind::matrix: {
        const double cycles =
            2.0 * static_cast<double>(gpu::shape_product(program_.lines[i.line].text.name)) /
            units_.matrix_flops;
        simd.valu = at + units_.issue;
        simd.matrix = at + cycles;
        result = at + cycles + units_.matrix_latency;
        break;
      }
      case Kind::valu:
        simd.valu = at + units_.issue;
        break;
      case Kind::transcendental:
        simd.valu = w.free = at + units_.transcendental;
        result = at + units_.transcendental;
        break;
      case Kind::salu:
        simd.salu = at + units_.issue;
        break;
      case Kind::branch:
        simd.salu = at + units_.issue;
        w.free = at + units_.branch;
        break;
      case Kind::lds:
        result = served(lds_, at, step, units_.lds_latency, w.lds);
        break;
      case Kind::global:
      case Kind::scratch:
        if (program_.lines[i.line].memory.flat) {
          result = step.by_lds ? served(lds_, at, step, units_.lds_latency, w.lds)
                               : served(memory_, at, step, units_.memory_latency, w.lds);
          w.memory.push_back(result);
          break;
        }
        result = served(memory_, at, step, units_.memory_latency, w.memory);
        break;
      case Kind::scalar_load:
        w.scalar.push_back(at + units_.memory_latency / 2);
        break;
      case Kind::wait:
        forget(w.memory, i.offset);
        forget(w.lds, i.offset1);
        if (i.offset1 == 0) w.scalar.clear();
        w.free = at + units_.issue;
        break;
      case Kind::barrier:
        w.at_barrier = true;
        break;
      default:
        break;
    }
    if (i.kind != Kind::scalar_load) {
      for (const gpu::RegisterRange& range : program_.lines[i.line].access.writes) {
        range.any([&](std::size_t r) {
          w.ready[r] = result;
          return false;
        });
      }
    }
    end_ = std::max(end_, w.free);
    ++w.next;
    if (w.at_barrier) meet(w.group);
  }

  void meet(int group) {
    const auto first = waves_.begin() + static_cast<std::ptrdiff_t>(in_group_) * group,
               last = first + static_cast<std::ptrdiff_t>(in_group_);
    if (!std::all_of(first, last,
                     [](const TimedWave& w) { return w.at_barrier || w.next == w.steps->size(); }))
      return;
    double at = 0;
    std::for_each(first, last, [&](const TimedWave& w) { at = std::max(at, w.free); });
    std::for_each(first, last, [&](TimedWave& w) {
      if (w.at_barrier) w.free = at + units_.barrier;
      w.at_barrier = false;
    });
  }

  const Program& program_;
  const UnitCycles& units_;
  std::vector<TimedWave> waves_;
  std::vector<Simd> simds_;
  std::size_t in_group_ = 0;
  double lds_ = 0, memory_ = 0, end_ = 0;
};

// At most 8 waves of a SIMD; accumulators are among a lane's 512 registers, given in eights.
int resident_workgroups(const Program& program, int waves, int lds_bytes, int simds, int lds_room) {
  const int registers = std::max((program.used_registers + 7) / 8 * 8, 1);
  const int of_simd = std::min(512 / registers, 8);
  const int by_registers = of_simd * simds / waves;
  const int by_lds = lds_bytes > 0 ? lds_room / lds_bytes : by_registers;
  return std::max(std::min(by_registers, by_lds), 1);
}

}  // namespace

double timeline(const Program& program, std::span<const Steps> trace, int resident,
                const UnitCycles& units) {
  return Timeline(program, trace, resident, units).run();
}

std::optional<LaunchTime> time_launch(const Program& program, std::span<const Steps> trace,
                                      int lds_bytes, double workgroups) {
  const tools::ChipRates* const chip = tools::chip_rates(program.arch);
  std::string storage;
  gpu::Chip facts;
  const bool timed = program.is("gfx90a") || program.is("gfx942") || program.is("gfx950");
  if (!timed || chip == nullptr || !gpu::find_chip(program.arch, storage, facts) || trace.empty())
    return {};
  UnitCycles units;
  const double cycles_s = chip->ghz * 1e9;
  units.matrix_flops = chip->matrix_tflops * 1e12 / (chip->compute_units * units.simds * cycles_s);
  LaunchTime time;
  time.resident = resident_workgroups(program, static_cast<int>(trace.size()), lds_bytes,
                                      units.simds, facts.lds_bytes);
  time.cycles = timeline(program, trace, time.resident, units);
  time.seconds = time.cycles / time.resident * workgroups / chip->compute_units / cycles_s;
  return time;
}

}  // namespace fulmen::run_kernel
