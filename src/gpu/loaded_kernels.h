// Kernels compiled and loaded on a device, kept as long as the process: planning the same
// specialisation again finds them here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/device_list.h"
#include "gpu/driver.h"
#include "gpu/launch/specialisation.h"

namespace fulmen::gpu {

struct KernelOnDevice {
  Function function;
  std::string code;           // SHA-256 of the machine code, in hexadecimal
  std::string name;           // "prefill gfx11 bf16 d64 128x32"
  int64_t scratch_bytes = 0;  // of a lane, on AMD
  std::string note;           // what is to be said of its compilation
};

// Compiles (or takes from the cache) and loads; several kernels are compiled at once. Errors: no
// compiler and no cached code (unavailable); the words of the compiler, of all where there are two,
// or the driver; verification_failed, the machine code breaks a rule.
Result<std::vector<KernelOnDevice>> load_kernels(const Driver& driver, const Device& device,
                                                 const std::vector<Specialisation>& kernels);
// One alone.
Result<KernelOnDevice> load_kernel(const Driver& driver, const Device& device,
                                   const Specialisation& specialisation);

}  // namespace fulmen::gpu
