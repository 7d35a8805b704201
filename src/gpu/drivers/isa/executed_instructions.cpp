// Counts of the machine-code emulator as fulmen/compile.h gives them.
#include <cstdint>
#include <vector>

#include "fulmen/compile.h"
#include "gpu/drivers/isa/driver.h"

namespace fulmen {

std::vector<ExecutedInstructions> take_executed_instructions() {
  using gpu::isa::Kind;
  std::vector<ExecutedInstructions> list;
  for (const gpu::isa::LaunchCounts& launch : gpu::isa::take_counts()) {
    const auto of = [&](Kind kind) {
      return static_cast<int64_t>(launch.counts[static_cast<std::size_t>(kind)]);
    };
    list.push_back({.arch = launch.arch,
                    .kernel = launch.kernel,
                    .workgroups = launch.workgroups,
                    .registers = launch.registers,
                    .matrix = of(Kind::matrix),
                    .vector = of(Kind::valu),
                    .transcendental = of(Kind::transcendental),
                    .scalar = of(Kind::salu) + of(Kind::branch),
                    .scalar_loads = of(Kind::scalar_load),
                    .lds = of(Kind::lds),
                    .global = of(Kind::global),
                    .scratch = of(Kind::scratch),
                    .waits = of(Kind::wait) + of(Kind::barrier),
                    .matrix_flops = static_cast<double>(launch.work.matrix_flops),
                    .exponentials = static_cast<double>(launch.work.exponentials),
                    .lds_cycles = static_cast<double>(launch.work.lds_cycles),
                    .lds_conflicts = static_cast<double>(launch.work.lds_conflicts),
                    .global_bytes = static_cast<double>(launch.work.global_bytes)});
  }
  return list;
}

}  // namespace fulmen
