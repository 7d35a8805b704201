// Instructions of the emulator one by one: assembled by clang, executed on registers that a test
// fills.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "emulator/machine_code/instruction.h"
#include "emulator/machine_code/wave.h"
#include "fulmen/status.h"

namespace fulmen::testing {

// "" where this machine compiles and executes AMD kernels, else what is missing.
std::string why_not_executed();

// Lines of assembly as instructions of the emulator, in their order. Kernels have v0 to v31, s0 to
// s31 and VCC.
struct Assembled {
  gpu::isa::Program program;
  std::vector<gpu::isa::Instruction> code;
};
Result<Assembled> assemble(const std::vector<std::string>& lines, const std::string& arch);

// One wave, without LDS, and without memory but what it is given.
class Machine {
 public:
  explicit Machine(const gpu::isa::Program& program);
  uint32_t& vector(int r, int lane) { return vectors_[static_cast<std::size_t>(r * size_ + lane)]; }
  gpu::isa::Wave& wave() { return wave_; }
  int size() const { return size_; }
  void give_memory(std::span<std::byte> memory);
  // The instruction's error, or "".
  std::string run(const gpu::isa::Instruction& instruction);

 private:
  int size_;
  std::vector<uint32_t> vectors_;
  gpu::isa::MemoryMap memory_{{}};
  gpu::isa::LaunchData launch_;
  gpu::isa::Workgroup group_{memory_, {}, launch_};
  gpu::isa::Wave wave_;
};

}  // namespace fulmen::testing
