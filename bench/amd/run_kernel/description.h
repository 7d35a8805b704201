// What to run: code objects, their kernels, and the memory that they share, as a JSON file says it
// (bench/amd/README.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulator/machine_code/wave.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen::run_kernel {

// Memory of the device. It begins as a .npy file has it, or as bytes of one value.
struct Buffer {
  std::string name, npy;  // npy: the file, or ""
  std::size_t bytes = 0;  // where there is no file
  uint8_t fill = 0xFF;
  std::string save;  // a .npy file for what it holds at the end, or ""
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
};

struct Argument {
  std::string buffer;  // its address, `plus` bytes further; or "":
  int64_t plus = 0;
  std::vector<std::byte> value;   // a number
  std::optional<int64_t> offset;  // in the arguments; else where the kernel has its next one
};

struct KernelLaunch {
  std::string code, kernel;  // a code object; a kernel's name, "" for the first one
  gpu::isa::Grid grid;
  int dynamic_lds_bytes = 0;
  std::vector<int64_t> workgroups;  // the ones that run; empty: all of them
  double times = 1;                 // counts are multiplied by this
  std::vector<Argument> arguments;
};

// What the launches compute together, for the modelled time.
struct Whole {
  DType dtype = DType::bf16;
  double memory_bytes = 0;  // of inputs and outputs, once
  double flops = 0;
};

struct Description {
  std::string arch;
  std::optional<Whole> whole;
  std::vector<Buffer> buffers;
  std::vector<KernelLaunch> launches;
};

// path: of the JSON file. Files that it names are relative to its folder. Errors name the member.
Result<Description> read_description(const std::string& path);

}  // namespace fulmen::run_kernel
