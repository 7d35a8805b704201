#include "gpu/compile/report.h"

#include <algorithm>
#include <charconv>

#include "gpu/compile/run_program.h"

namespace fulmen::gpu {
namespace {

// The number after a label in the compiler's text, or -1.
int number_after(std::string_view text, std::string_view label) {
  std::size_t at = text.find(label);
  if (at == std::string_view::npos) return -1;
  at = text.find_first_not_of(' ', at + label.size());
  int value = -1;
  if (at != std::string_view::npos) std::from_chars(text.data() + at, text.data() + text.size(), value);
  return value;
}

// The number before a label: "188 registers".
int number_before(std::string_view text, std::string_view label) {
  const std::size_t end = text.find(label);
  if (end == std::string_view::npos) return -1;
  std::size_t begin = end;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  int value = -1;
  std::from_chars(text.data() + begin, text.data() + end, value);
  return value;
}

// clang's remarks of -Rpass-analysis=kernel-resource-usage.
void read_amd_log(std::string_view log, KernelReport& r) {
  r.registers = number_after(log, " VGPRs:");
  r.accumulators = number_after(log, " AGPRs:");
  r.scratch_bytes = number_after(log, "ScratchSize [bytes/lane]:");
  r.occupancy = number_after(log, "Occupancy [waves/SIMD]:");
  const int vector = number_after(log, "VGPRs Spill:"), scalar = number_after(log, "SGPRs Spill:");
  r.spills = vector < 0 || scalar < 0 ? -1 : vector + scalar;
}

// ptxas -v.
void read_nvidia_log(std::string_view log, const Chip& chip, KernelReport& r) {
  r.registers = number_before(log, " registers");
  const int stores = number_before(log, " bytes spill stores"), loads = number_before(log, " bytes spill loads");
  r.spills = stores < 0 ? -1 : stores + loads;
  r.scratch_bytes = number_before(log, " bytes stack frame");
  if (r.registers <= 0) return;
  // Registers are given out 8 a lane at a time; a workgroup takes 1 KiB of shared memory more than it asks for.
  constexpr int kMostWaves = 64, kReserved = 1024;
  const int waves = r.workgroup_size / chip.wave_size;
  const int by_registers = chip.register_file / ((r.registers + 7) / 8 * 8 * chip.wave_size) / waves;
  const int by_lds = (chip.lds_bytes + kReserved) / (r.lds_bytes + kReserved);
  r.occupancy = std::min(kMostWaves, waves * std::min(by_registers, by_lds));
}

}  // namespace

KernelReport report_on(const Chip& chip, const CompileRequest& request, const CompiledCode& code, int lds_bytes) {
  KernelReport r;
  r.arch = request.arch;
  r.kernel = request.name;
  r.workgroup_size = request.workgroup_size;
  r.lds_bytes = lds_bytes;
  r.code_bytes = code.code.size();
  if (chip.vendor == Vendor::nvidia) {
    read_nvidia_log(code.log, chip, r);
    r.loop_missing = "inner loops are counted for AMD chips only";
    return r;
  }
  read_amd_log(code.log, r);
  std::string program;
  for (const char* name : {"llvm-objdump-19", "llvm-objdump", "/opt/rocm/llvm/bin/llvm-objdump"}) {
    if (program.empty()) program = find_program(name);
  }
  const TemporaryDirectory folder;
  const std::string file = folder.path() + "/kernel.co";
  if (program.empty() || !write_file(file, std::string(reinterpret_cast<const char*>(code.code.data()), code.code.size())).ok()) {
    r.loop_missing = "llvm-objdump is not installed (apt-get install llvm-19)";
    return r;
  }
  const Result<std::string> text = run_program({program, "-d", "--no-show-raw-insn", file});
  if (text.ok()) {
    r.loop = count_amd_loop(text.value());
  } else {
    r.loop_missing = text.status().message();
  }
  return r;
}

}  // namespace fulmen::gpu
