// What this machine can do at best, measured with all threads at once: the yardsticks beside every
// benchmark row.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fulmen::tools {

enum class CeilingKind : int { fma, bf16_dot, amx_bf16, read };

class Ceilings {
 public:
  // Finds the best variant of each kind that the machine has; takes about a second.
  explicit Ceilings(int num_threads);
  ~Ceilings();
  Ceilings(const Ceilings&) = delete;
  Ceilings& operator=(const Ceilings&) = delete;

  bool has(CeilingKind kind) const noexcept;
  // One slice: TFLOP/s summed over the threads, or GB/s. 0 where the machine does not have the
  // kind. Arithmetic runs for about the given time, within 2 to 20 ms: a clock that rises for a
  // moment, or a neighbour, should do the same to a slice as to what is compared with it. A slice
  // of reading takes a few milliseconds.
  double measure(CeilingKind kind, double seconds = 0);
  // GB/s of reading these buffers once, after emptying the caches: memory is not equally fast
  // everywhere, so the yardstick of what streams them is to read the very same pages. 0 where
  // nothing reads.
  double measure_read_of(std::span<const std::span<const std::byte>> buffers);
  // The best slice seen so far.
  double best(CeilingKind kind) const noexcept;
  // "fp32 FMA, AVX-512", or why it is not there.
  std::string description(CeilingKind kind) const;
  int num_threads() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulmen::tools
