#include "bench/amd/run_kernel/report.h"

#include <nlohmann/json.hpp>

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
  return {{"kernel", launch.kernel.name},
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

}  // namespace

std::string report(const std::vector<RanLaunch>& launches) {
  ordered_json all = ordered_json::array();
  for (const RanLaunch& launch : launches) all.push_back(to_json(launch));
  return all.dump(1) + "\n";
}

}  // namespace fulmen::run_kernel
