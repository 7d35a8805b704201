// Reads what a code object says of its kernel: LLVM's "User Guide for AMDGPU Backend", Kernel
// Descriptor.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "emulator/machine_code/decoding/decode.h"
#include "fulmen/printable.h"
#include "gpu/compile/report/amd_descriptor.h"
#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/report/amd_metadata.h"
#include "gpu/targets/chip.h"

namespace fulmen::gpu::isa {
namespace {

Status unsupported(std::string_view what) {
  return {StatusCode::unsupported,
          fmt::format("the emulator of the instruction set does not know kernels that {}", what)};
}

// Registers that a wave begins with, in the order of the descriptor's bits.
Status read_user_scalars(const AmdKernelDescriptor& d, Program& program) {
  constexpr int kPacket = 1, kKernarg = 3;
  constexpr int kSizes[] = {4, 2, 2, 2, 2, 2, 1};
  int next = 0;
  for (int n = 0; n < 7; ++n) {
    if ((d.properties >> n & 1U) == 0) continue;
    if (n == kPacket) program.packet_at = next;
    if (n == kKernarg) program.kernarg_at = next;
    next += kSizes[n];
  }
  program.scratch_by_buffer = (d.properties & 1U) != 0 && d.scratch_bytes > 0;
  program.user_scalars = static_cast<int>(d.resources2 >> 1U & 31U);
  if (next > program.user_scalars)
    return unsupported("have fewer user registers than they ask for");
  if (const int words = d.preloaded_arguments & 127; words != 0) {
    program.preloaded_at = next;
    program.preloaded_from = d.preloaded_arguments >> 7;
    program.preloaded_words = words;
    if (next + words > program.user_scalars)
      return unsupported("have more arguments in registers than registers");
  }
  program.workgroup_in_trap_registers = program.is("gfx12");
  next = program.user_scalars;
  for (unsigned n = 0; n < 3 && !program.workgroup_in_trap_registers; ++n) {
    if ((d.resources2 >> (7 + n) & 1U) != 0) program.workgroup_at[n] = next++;
  }
  return {};
}

// Returns true if an operand's registers begin in [first, last).
bool uses_registers(const Program& program, int first, int last) {
  return std::any_of(program.code.begin(), program.code.end(), [&](const Instruction& i) {
    return std::any_of(i.operand.begin(), i.operand.begin() + i.operands, [&](const Operand& o) {
      return o.source == Operand::Source::vector && o.index >= first && o.index < last;
    });
  });
}

// RDNA and gfx90a on ask for 8 registers at a time, chips before for 4. From gfx90a on the
// accumulators are those behind the vector registers, on gfx908 as many registers of their own.
void read_registers(const AmdKernelDescriptor& d, Program& program) {
  const int asked = static_cast<int>(d.resources1 & 63U) + 1,
            others = (static_cast<int>(d.resources3 & 63U) + 1) * 4;
  const bool apart = program.is("gfx908"), before = apart || program.is("gfx906");
  const int granted = asked * (before ? 4 : 8);
  program.vector_registers = std::min(granted, 256);
  if (apart) {
    program.accumulators = program.vector_registers;
  } else if (program.is("gfx9") && !before) {
    program.vector_registers = std::min(granted, others);
    // What is granted is rounded up: 212 vector registers and 256 accumulators are 472 together.
    program.accumulators = std::min(granted - program.vector_registers, 256);
  }
}

// A kernel ends where the next one begins.
AddressRange range_of(const AmdKernelDescriptor& d, std::span<const AmdKernelMetadata> kernels,
                      std::span<const std::byte> code_object) {
  AddressRange range{.begin = d.entry};
  for (const AmdKernelMetadata& other : kernels) {
    const auto descriptor = read_amd_kernel_descriptor(code_object, other.name);
    if (descriptor && descriptor->entry > d.entry)
      range.end = std::min(range.end, descriptor->entry);
  }
  return range;
}

Status read_modes(const AmdKernelDescriptor& d, bool hand_written) {
  const uint32_t round = d.resources1 >> 12U & 15U, denormals = d.resources1 >> 16U & 15U;
  if (round != 0) return unsupported("round other than to nearest");
  if (denormals != 15 && !hand_written) return unsupported("flush subnormal numbers");
  return {};
}

}  // namespace

Result<Program> read_code_object(std::span<const std::byte> code_object, const std::string& arch,
                                 const CodeObjectOptions& options) {
  const std::string& kernel = options.kernel;
  const std::optional<AmdKernelDescriptor> found = read_amd_kernel_descriptor(code_object, kernel);
  if (!found) {
    return Status(StatusCode::internal,
                  fmt::format("the code object has no kernel descriptor{}{}",
                              kernel.empty() ? "" : " of ", printable(kernel)));
  }
  const AmdKernelDescriptor& d = *found;
  Program program;
  program.arch = arch;
  std::string storage;
  if (Chip chip; find_chip(arch, storage, chip)) program.lds_reads = chip.lds_reads;
  program.wave_size = (d.properties >> 10U & 1U) != 0 ? 32 : 64;
  program.lds_bytes = static_cast<int>(d.lds_bytes);
  program.kernarg_bytes = static_cast<int>(d.kernarg_bytes);
  program.scratch_bytes = static_cast<int>(d.scratch_bytes);
  program.hand_written = options.hand_written;
  program.packed_work_items = has_packed_work_items(arch);
  program.work_item_registers =
      program.packed_work_items ? 1 : 1 + static_cast<int>(d.resources2 >> 11U & 3U);
  read_registers(d, program);
  AddressRange range;
  if (const auto kernels = read_amd_metadata(code_object); kernels.ok()) {
    for (const AmdKernelMetadata& one : kernels.value()) {
      if (!kernel.empty() && one.name != kernel) continue;
      program.used_registers = static_cast<int>(one.vector_registers);
      break;
    }
    if (kernels->size() > 1) range = range_of(d, kernels.value(), code_object);
  }
  if (Status status = read_modes(d, options.hand_written); !status.ok()) return status;
  if (Status status = read_user_scalars(d, program); !status.ok()) return status;
  // amd_disassembler() prefers ROCm's comgr, but an old one does not know every chip.
  const Result<std::unique_ptr<const AmdDisassembler>> disassembler = find_objdump();
  if (!disassembler.ok()) return disassembler.status();
  Result<std::string> text = disassembler.value()->text_of(code_object, arch);
  if (!text.ok()) return text.status();
  program.disassembly = std::move(text).value();
  const int apart = program.vector_registers;  // vector registers that are no accumulators
  if (options.hand_written && !program.is("gfx908"))
    program.vector_registers = std::min(256, apart + program.accumulators);
  if (Status status = decode(program, range); !status.ok()) return status;
  if (apart < program.vector_registers && uses_registers(program, apart, 256) &&
      uses_registers(program, 256, 512))
    return unsupported("name accumulators as vector registers");
  // Before it are the loads of the arguments for firmware that does not preload them.
  const uint64_t entry = d.entry + (program.preloaded_words > 0 ? 256 : 0);
  for (std::size_t n = 0; n < program.code.size(); ++n) {
    if (program.lines[program.code[n].line].text.address != entry) continue;
    program.entry = static_cast<uint32_t>(n);
    return program;
  }
  return Status(StatusCode::internal,
                fmt::format("the kernel begins at {:#x}, where there is no instruction", entry));
}

}  // namespace fulmen::gpu::isa
