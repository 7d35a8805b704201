// Storage types of tensor elements as the CPU kernels see them.
#pragma once

#include <cstdint>

namespace fulmen::cpu {

struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

}  // namespace fulmen::cpu
