// Kernels compiled and loaded on a device, kept as long as the process: planning the same specialisation again finds them here.
#pragma once

#include <string>

#include "gpu/device_list.h"
#include "gpu/driver.h"
#include "gpu/launch/specialisation.h"

namespace fulmen::gpu {

struct KernelOnDevice {
  Function function;
  std::string code;  // SHA-256 of the machine code, in hexadecimal
  std::string name;  // "prefill gfx11 bf16 d64 128x32"
};

// Compiles (or takes from the cache) and loads. Errors: no compiler and no cached code; the compiler's or the driver's words.
Result<KernelOnDevice> load_kernel(const Driver& driver, const Device& device, const Specialisation& specialisation);

}  // namespace fulmen::gpu
