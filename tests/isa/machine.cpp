#include "isa/machine.h"

#include "emulator/machine_code/decoding/decode.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/drivers/isa/driver.h"

namespace fulmen::testing {

std::string why_not_executed() {
  const Status status = gpu::isa_driver().available();
  return status.ok() ? gpu::offline_clang_compiler().status().message() : status.message();
}

// The lines stand between two marks, instructions that no compiler writes.
Result<Assembled> assemble(const std::vector<std::string>& lines, const std::string& arch) {
  constexpr const char* kMark = "s_nop 15\n";
  std::string source =
      "extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(64, 64))) void "
      "fulmen_kernel() { asm volatile(R\"(";
  source += kMark;
  for (const std::string& line : lines) source += line + "\n";
  source += std::string(kMark) + ")\" : : : \"v31\", \"s31\", \"vcc\"";
  if (arch == "gfx908") source += ", \"a31\"";
  source += "); }\n";
  const auto clang = gpu::offline_clang_compiler();
  if (!clang.ok()) return clang.status();
  const auto code = clang.value()->compile({"lines", source, arch, 64});
  if (!code.ok()) return code.status();
  auto program = gpu::isa::read_code_object(code->code, arch);
  if (!program.ok()) return program.status();
  Assembled assembled{std::move(program).value(), {}};
  bool inside = false;
  for (const gpu::isa::Instruction& i : assembled.program.code) {
    const auto& text = assembled.program.lines[i.line].text;
    if (text.name == "s_nop" && text.operands.starts_with("15")) {
      inside = !inside;
    } else if (inside) {
      assembled.code.push_back(i);
    }
  }
  if (assembled.code.size() == lines.size()) return assembled;
  return Status(StatusCode::internal, std::to_string(lines.size()) + " lines became " +
                                          std::to_string(assembled.code.size()));
}

Machine::Machine(const gpu::isa::Program& program)
    : size_(program.wave_size), vectors_(static_cast<std::size_t>(512 * program.wave_size)) {
  wave_.group = &group_;
  wave_.program = &program;
  wave_.vectors = vectors_.data();
  wave_.all_lanes = size_ == 64 ? ~uint64_t{0} : 0xFFFFFFFFU;
}

void Machine::give_memory(std::span<std::byte> memory) {
  const auto begin = reinterpret_cast<uint64_t>(memory.data());
  memory_ = gpu::isa::MemoryMap({{begin, begin + memory.size()}});
}

std::string Machine::run(const gpu::isa::Instruction& instruction) {
  try {
    instruction.run(wave_, instruction);
  } catch (const gpu::isa::Fault& fault) {
    return fault.what;
  }
  return {};
}

}  // namespace fulmen::testing
