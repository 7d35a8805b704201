// One workgroup of an emulated launch, or one cluster of them. Lanes are fibers; each runs from one
// collective to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "fulmen/emulated_work.h"
#include "gpu/targets/target.h"
#include "kernels/platforms/emulator_api.h"

namespace fulmen::gpu::emulated {

// Returns true if [address, address + bytes) is inside one allocation of the device.
using MemoryCheck = std::function<bool(const void* address, std::size_t bytes)>;

class LdsBanks;

struct LaunchShape {
  int wave_size = 0;
  int workgroup_size = 0;
  int lds_bytes = 0;
  int lds_alignment = 16;            // the most that an access needs
  bool programmatic_launch = false;  // Launch::programmatic_launch
  LdsReads lds_reads = {};
  LdsBanks* banks = nullptr;     // where bank conflicts are counted; null: they are not, which
                                 // is quicker
  EmulatedWork* work = nullptr;  // where all but cycles of LDS is added; null: nowhere
  int cluster = 1;               // workgroups

  int lanes() const { return cluster * workgroup_size; }
  // Bytes from one workgroup's LDS to the next one's.
  int lds_stride() const {
    constexpr int kMostAlignment = 1024;
    return (lds_bytes + kMostAlignment - 1) / kMostAlignment * kMostAlignment;
  }
};

// What the kernel's shared object calls.
const kernels::EmulatorApi& api(int wave_size);

// Runs the nth workgroup, or cluster of them. Returns an empty string, or what the kernel did
// wrong, with its source positions.
std::string run_workgroup(const LaunchShape& shape, int64_t nth,
                          void (*kernel)(const void* arguments), const void* arguments,
                          const MemoryCheck& accessible);

}  // namespace fulmen::gpu::emulated
