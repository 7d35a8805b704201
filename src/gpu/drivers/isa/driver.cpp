#include "gpu/drivers/isa/driver.h"

#include <fmt/format.h>

#include <charconv>
#include <deque>
#include <limits>
#include <mutex>

#include "emulator/host_memory_driver.h"
#include "emulator/machine_code/decoding/decode.h"
#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/toolchains/checked_compiler.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/hooks.h"

namespace fulmen::gpu {
namespace isa {
namespace {

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

Result<Schedule> parse_schedule(std::string_view order) {
  constexpr std::string_view kRandom = "random:";
  if (order.empty() || order == "in-order") return Schedule{};
  if (order == "reversed") return Schedule{.order = Order::reversed};
  uint64_t seed = 0;
  if (order.starts_with(kRandom)) {
    const auto [end, error] =
        std::from_chars(order.data() + kRandom.size(), order.data() + order.size(), seed);
    if (error == std::errc() && end == order.data() + order.size())
      return Schedule{.order = Order::random, .seed = seed};
  }
  return invalid(
      fmt::format("the order of waves is \"{}\": in-order, reversed and random:<seed>, from 0 to "
                  "{}, are accepted",
                  order, std::numeric_limits<uint64_t>::max()));
}

constexpr std::size_t kMostLaunches = 1000;  // counts of the last ones are kept

// State that all launches of the process share.
struct Shared {
  Mutex mutex;
  Result<Schedule> schedule = parse_schedule(environment("FULMEN_ISA_ORDER"));
  std::deque<LaunchCounts> launches;
  std::function<void(const TracedLaunch&)> observer;
};
Shared& shared() {
  constinit static MadeOnce<Shared> made;
  return made.get();
}

// AMD's chips, in the order of the table.
std::vector<Chip> isa_chips() {
  std::vector<Chip> known;
  for (const Chip& chip : chips()) {
    if (chip.vendor == Vendor::amd) known.push_back(chip);
  }
  return known;
}

std::string counts_text(const Counts& counts) {
  std::string text;
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto n = static_cast<std::size_t>(kind);
    if (counts[n] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", counts[n], kKindNames[n]);
  }
  return text;
}

class IsaDriver final : public HostMemoryDriver {
 public:
  IsaDriver() : HostMemoryDriver(isa_chips()) {}
  std::string_view name() const noexcept override { return "emulated-isa"; }
  Status available() const override {
    if (const auto found = find_objdump(); !found.ok()) return found.status();
    return compiler().status();
  }
  Result<const Compiler*> compiler() const override {
    return checked_compiler(amd_compiler(AmdCompilerUse::offline));
  }

  Result<Module> load(int device, std::span<const std::byte> code) const override {
    Result<Program> program = read_code_object(code, std::string(chip_of(device).arch));
    if (!program.ok()) return program.status();
    return Module{new Program(std::move(program).value())};
  }
  void unload(int /*device*/, Module module) const noexcept override {
    delete static_cast<Program*>(module.handle);
  }
  Result<Function> function(int /*device*/, Module module, const char* name,
                            int /*lds_bytes*/) const override {
    if (Status status = check_function(name); !status.ok()) return status;
    return Function{module.handle};
  }

  Status launch(int device, Function function, const Launch& l) const override {
    const auto& program = *static_cast<const Program*>(function.handle);
    if (Status status = check_shape(l, program.wave_size); !status.ok()) return status;
    if (l.argument_bytes > static_cast<std::size_t>(program.kernarg_bytes)) {
      return invalid(fmt::format("{} bytes of arguments: the kernel takes {}", l.argument_bytes,
                                 program.kernarg_bytes));
    }
    const Result<Schedule> schedule = [] {
      const std::scoped_lock lock(shared().mutex);
      return shared().schedule;
    }();
    if (!schedule.ok()) return schedule.status();
    const LaunchData data =
        launch_data(program, {static_cast<const std::byte*>(l.arguments), l.argument_bytes},
                    Grid{.workgroups = {static_cast<uint32_t>(l.workgroups), 1, 1},
                         .workgroup_size = {static_cast<uint32_t>(l.workgroup_size), 1, 1}});
    MemoryMap memory = this->memory().map();
    Counts counts{};
    Work work;
    std::vector<std::vector<TraceStep>> trace;
    const auto observer = [] {
      const std::scoped_lock lock(shared().mutex);
      return shared().observer;
    }();
    for (int64_t id = 0; id < l.workgroups; ++id) {
      work.trace = observer && id == l.workgroups / 2 ? &trace : nullptr;
      std::string error = run_workgroup(program, schedule.value(), id, data, memory, counts, &work);
      if (!error.empty()) return {StatusCode::internal, std::move(error)};
    }
    work.trace = nullptr;
    if (observer) observer({program, l.kernel, l.workgroups, trace});
    if (environment_flag("FULMEN_ISA_COUNTS")) {
      log_line(fmt::format("instructions of a launch of {} workgroups on {}: {}", l.workgroups,
                           chip_of(device).arch, counts_text(counts)));
    }
    const std::scoped_lock lock(shared().mutex);
    std::deque<LaunchCounts>& launches = shared().launches;
    launches.push_back({std::string(chip_of(device).arch), std::string(l.kernel), l.workgroups,
                        counts, work, program.used_registers});
    if (launches.size() > kMostLaunches) launches.pop_front();
    return {};
  }
};

}  // namespace

Status set_schedule(const std::string& order) {
  Result<Schedule> schedule = parse_schedule(order);
  if (!schedule.ok()) return schedule.status();
  const std::scoped_lock lock(shared().mutex);
  shared().schedule = std::move(schedule);
  return {};
}

void observe_traces(std::function<void(const TracedLaunch&)> observer) {
  const std::scoped_lock lock(shared().mutex);
  shared().observer = std::move(observer);
}

std::deque<LaunchCounts> take_counts() {
  const std::scoped_lock lock(shared().mutex);
  return std::exchange(shared().launches, {});
}

}  // namespace isa

const Driver& isa_driver() {
  constinit static MadeOnce<const isa::IsaDriver> made;
  return made.get();
}

}  // namespace fulmen::gpu
