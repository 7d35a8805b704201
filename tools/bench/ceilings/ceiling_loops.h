// The loops whose speed is a ceiling. Each runs on one thread; ceilings.cpp runs one per thread at
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fulmen::tools {

// Arithmetic on registers only: enough independent accumulators to cover the latency, no memory
// operand.
struct ComputeLoop {
  const char* name;                  // "AVX-512"
  double flops_per_iteration;        // a multiply-add is two
  float (*run)(int64_t iterations);  // the result keeps the work alive
};

// Reads every byte of [data, data + bytes) once; bytes is a multiple of 4096, data 64-byte aligned.
struct ReadLoop {
  const char* name;
  uint64_t (*run)(const std::byte* data, std::size_t bytes);
};

// The loops that this machine can run; empty when it lacks the instructions.
std::vector<ComputeLoop> fma_loops();
std::vector<ComputeLoop> bf16_dot_loops();
std::vector<ComputeLoop> amx_bf16_loops();
std::vector<ReadLoop> read_loops();

}  // namespace fulmen::tools
