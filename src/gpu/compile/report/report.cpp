#include "gpu/compile/report/report.h"

#include <algorithm>
#include <charconv>

#include "gpu/compile/report/amd_check.h"
#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/report/amd_metadata.h"
#include "gpu/compile/report/inner_loop.h"
#include "gpu/libraries/library_search.h"
#include "runtime/environment.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {
namespace {

// The number after a label in the compiler's text, or -1.
int number_after(std::string_view text, std::string_view label) {
  std::size_t at = text.find(label);
  if (at == std::string_view::npos) return -1;
  at = text.find_first_not_of(' ', at + label.size());
  int value = -1;
  if (at != std::string_view::npos)
    std::from_chars(text.data() + at, text.data() + text.size(), value);
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

// Registers and spills are in the code object. Occupancy is clang's
// (-Rpass-analysis=kernel-resource-usage): it knows how each chip gives out registers and LDS.
void read_amd_code(const CompiledCode& compiled, KernelReport& r) {
  r.occupancy = number_after(compiled.log, "Occupancy [waves/SIMD]:");
  const Result<std::vector<AmdKernelMetadata>> kernels = read_amd_metadata(compiled.code);
  if (!kernels.ok() || kernels.value().empty()) return;
  const AmdKernelMetadata& k = kernels.value().front();
  r.registers = static_cast<int>(k.vector_registers);
  r.accumulators = static_cast<int>(k.accumulators);
  r.spills = static_cast<int>(k.vector_spills + k.scalar_spills);
  r.scratch_bytes = static_cast<int>(k.scratch_bytes);
}

// Waves that a multiprocessor holds, by its compute capability.
int most_waves(std::string_view arch) {
  if (arch == "sm_75") return 32;
  return arch.starts_with("sm_86") || arch.starts_with("sm_87") || arch.starts_with("sm_89") ||
                 arch.starts_with("sm_12")
             ? 48
             : 64;
}

// ptxas -v.
void read_nvidia_log(std::string_view log, const Chip& chip, KernelReport& r) {
  r.registers = number_after(log, "Used ");  // "registers" are in warnings, too
  const int stores = number_before(log, " bytes spill stores"),
            loads = number_before(log, " bytes spill loads");
  r.spills = stores < 0 ? -1 : stores + loads;
  r.scratch_bytes = number_before(log, " bytes stack frame");
  constexpr std::string_view kSerialised = "wgmma.mma_async instructions are serialized due to ";
  if (const std::size_t at = log.find(kSerialised); at != std::string_view::npos) {
    const std::string_view reason = log.substr(at + kSerialised.size());
    r.serialised = reason.substr(0, std::min(reason.find(" in the function"), reason.find('\n')));
  }
  if (r.registers <= 0) return;
  // Registers are given out 8 a lane at a time; a workgroup takes 1 KiB of shared memory more than
  // it asks for.
  constexpr int kReserved = 1024;
  const int waves = r.workgroup_size / chip.wave_size;
  const int by_registers =
      chip.register_file / ((r.registers + 7) / 8 * 8 * chip.wave_size) / waves;
  const int by_lds = (chip.lds_bytes + kReserved) / (r.lds_bytes + kReserved);
  r.occupancy = std::min(most_waves(chip.arch), waves * std::min(by_registers, by_lds));
}

// What a disassembler says of the code, or why it is not there.
Result<std::string> disassemble(const Chip& chip, const CompiledCode& compiled) {
  if (chip.vendor == Vendor::amd) {
    const auto objdump = find_objdump();
    return objdump.ok() ? objdump.value()->text_of(compiled.code, std::string(chip.arch))
                        : objdump.status();
  }
  std::vector<std::string> names{"nvdisasm", "/usr/local/cuda/bin/nvdisasm"};
  if (const std::string home = environment("CUDA_HOME"); !home.empty())
    names.push_back(home + "/bin/nvdisasm");
  for (std::string& path : find_in_python_packages({"nvidia/*/bin/nvdisasm"}))
    names.push_back(std::move(path));
  std::string program;
  for (const std::string& name : names) {
    if (program.empty()) program = find_program(name);
  }
  if (program.empty()) {
    return Status(
        StatusCode::unavailable,
        "nvdisasm is neither in PATH nor in a CUDA toolkit (pip install nvidia-cuda-nvdisasm)");
  }
  const TemporaryDirectory folder;
  if (!folder.status().ok()) return folder.status();
  const std::string file = folder.path() + "/kernel";
  const std::string code(reinterpret_cast<const char*>(compiled.code.data()), compiled.code.size());
  if (Status status = write_file(file, code); !status.ok()) return status;
  return run_program({program, "-c", file}, folder.path());
}

}  // namespace

KernelReport report_on(const Chip& chip, const CompileRequest& request, const CompiledCode& code,
                       int lds_bytes) {
  KernelReport r;
  r.arch = request.arch;
  r.kernel = request.name;
  r.workgroup_size = request.workgroup_size;
  r.lds_bytes = lds_bytes;
  r.code_bytes = code.code.size();
  const bool amd = chip.vendor == Vendor::amd;
  if (amd) {
    read_amd_code(code, r);
  } else {
    read_nvidia_log(code.log, chip, r);
  }
  const Result<std::string> text = disassemble(chip, code);
  if (!text.ok()) {
    r.loop_missing = text.status().message();
    return r;
  }
  if (amd) r.findings = amd_findings(text.value(), amd_kernel_facts(code.code, request.arch));
  r.loop = amd ? count_amd_loop(text.value()) : count_nvidia_loop(text.value());
  return r;
}

}  // namespace fulmen::gpu
