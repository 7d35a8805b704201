// The types that memory holds, and what platforms/ needs of the configuration. Freestanding.
#pragma once

#include "core/configuration.h"

// The host's prelude defines it: the configuration's fields. Without it they are the defaults.
#if !defined(FULMEN_CONFIGURATION)
#define FULMEN_CONFIGURATION
#endif
// The kernel's name, which profilers show: of its family (gpu/launch/specialisation.h).
#if !defined(FULMEN_ENTRY)
#define FULMEN_ENTRY fulmen_kernel
#endif

namespace fulmen::kernels {

constexpr Configuration kConfig{FULMEN_CONFIGURATION};
// Device code reads numbers, not the struct: NVRTC has no objects of the host there.
constexpr int kWorkgroup = kConfig.workgroup, kLdsBytes = kConfig.lds_bytes;
constexpr int kMinWaves = kConfig.min_waves, kMinWorkgroups = kConfig.min_workgroups;

using Int64 = long long;
using Size = decltype(sizeof(0));

// N words of 32 bits that move together; 16-byte ones are aligned as vector instructions want them.
template <int kCount>
struct alignas(4 * kCount) Words {
  unsigned word[kCount];
};

// Storage types: what tensors hold.
struct Half {
  unsigned short bits;
};
struct Bfloat16 {
  unsigned short bits;
};

// An 8-bit factor of a product: 4 bits of exponent, 3 of mantissa.
struct E4m3 {
  unsigned char bits;
};

constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000U);
constexpr float kNan = __builtin_bit_cast(float, 0x7FC00000U);

}  // namespace fulmen::kernels
