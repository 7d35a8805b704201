#include "bench/amd/run_kernel/report.h"

#include <nlohmann/json.hpp>

#include "tools/bench/model/rates.h"

namespace fulmen::run_kernel {
namespace {

using nlohmann::ordered_json;

ordered_json scaled(uint64_t count, double times) {
  if (times == 1) return count;
  return static_cast<double>(count) * times;
}

ordered_json to_json(const RanLaunch& launch) {
  ordered_json instructions = ordered_json::object(), matrix = ordered_json::object();
  for (std::size_t kind = 0; kind < gpu::isa::kKinds; ++kind)
    instructions[std::string(gpu::isa::kKindNames[kind])] =
        scaled(launch.counts[kind], launch.times);
  for (const auto& [name, count] : launch.work.matrix) matrix[name] = scaled(count, launch.times);
  ordered_json timeline;
  if (launch.time) {
    timeline = {{"resident", launch.time->resident},
                {"cycles", launch.time->cycles},
                {"seconds", launch.time->seconds}};
  }
  return {{"kernel", launch.kernel.name},
          {"timeline", timeline},
          {"workgroups", launch.workgroups},
          {"waves", launch.waves},
          {"registers", launch.kernel.vector_registers},
          {"accumulators", launch.kernel.accumulators},
          {"scalar_registers", launch.kernel.scalar_registers},
          {"spills", launch.kernel.vector_spills},
          {"scratch_bytes", launch.kernel.scratch_bytes},
          {"lds_bytes", launch.lds_bytes},
          {"instructions", instructions},
          {"matrix", matrix},
          {"matrix_flops", scaled(launch.work.matrix_flops, launch.times)},
          {"exponentials", scaled(launch.work.exponentials, launch.times)},
          {"lds_cycles", scaled(launch.work.lds_cycles, launch.times)},
          {"lds_conflicts", scaled(launch.work.lds_conflicts, launch.times)},
          {"global_bytes", scaled(launch.work.global_bytes, launch.times)}};
}

ordered_json modelled(const Whole& whole, const std::vector<RanLaunch>& launches,
                      const tools::ChipRates& chip) {
  tools::UnitWork sum{.memory_bytes = whole.memory_bytes};
  for (const RanLaunch& launch : launches) {
    const auto scaled_sum = [&](uint64_t count) {
      return static_cast<double>(count) * launch.times;
    };
    sum.matrix_flops += scaled_sum(launch.work.matrix_flops);
    sum.exponentials += scaled_sum(launch.work.exponentials);
    sum.vector += scaled_sum(launch.counts[static_cast<std::size_t>(gpu::isa::Kind::valu)]);
    sum.lds_cycles += scaled_sum(launch.work.lds_cycles);
    sum.global_bytes += scaled_sum(launch.work.global_bytes);
    sum.launches += 1;
  }
  const tools::UnitTimes times = tools::unit_times(sum, chip, whole.dtype);
  return {{"product", chip.product},
          {"seconds", times.seconds},
          {"tflops", whole.flops / times.seconds / 1e12},
          {"limit", times.limit},
          {"matrix_s", times.matrix_s},
          {"exponential_s", times.exponential_s},
          {"vector_s", times.vector_s},
          {"lds_s", times.lds_s},
          {"cache_s", times.cache_s},
          {"memory_s", times.memory_s},
          {"launch_s", times.launch_s}};
}

}  // namespace

std::string report(const Description& description, const std::vector<RanLaunch>& launches) {
  ordered_json all = {{"arch", description.arch}, {"launches", ordered_json::array()}};
  for (const RanLaunch& launch : launches) all["launches"].push_back(to_json(launch));
  const tools::ChipRates* const chip = tools::chip_rates(description.arch);
  if (description.whole && chip != nullptr)
    all["modelled"] = modelled(*description.whole, launches, *chip);
  return all.dump(1) + "\n";
}

}  // namespace fulmen::run_kernel
