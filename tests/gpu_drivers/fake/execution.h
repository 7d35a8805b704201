// What the fake HIP runtime does with a launch, in two libraries: record_only.cpp only records it,
// isa_execution.cpp also runs the code object, instruction by instruction.
#pragma once

#include <memory>
#include <string>

#include "gpu_drivers/fake/fake_gpu.h"

namespace fulmen::fake {

class Executable {
 public:
  Executable() = default;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  virtual ~Executable() = default;

  // Runs a launch over the memory of state() and advances state().clock_ms. Returns "", or the
  // kernel's error.
  virtual std::string run(const LaunchRecord& launch) = 0;
};

// Whether launches are executed. Whole programs use a library that executes them; it prints broken
// rules.
extern const bool kExecutes;

// A code object for `chip` ("gfx1100"), ready to run; or null, with the reason in `error`.
std::unique_ptr<Executable> make_executable(const void* image, std::size_t bytes,
                                            const std::string& chip, std::string& error);

}  // namespace fulmen::fake
