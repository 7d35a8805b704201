// What a Plan holds.
#pragma once

#include <memory>
#include <string>

#include "fulmen/backend.h"
#include "fulmen/plan.h"

namespace fulmen {

// Bytes from a tensor's first to one past its last element; 0 where it is absent or empty.
struct TensorBytes {
  std::size_t q = 0, k = 0, v = 0, out = 0, bias = 0, keep_mask = 0, alibi_slopes = 0, sinks = 0, lse = 0;
};

struct Plan::Impl {
  Problem problem;
  std::string device;
  bool verify = false;
  bool forced = false;
  std::shared_ptr<const Backend> backend;  // keeps a user's backend alive
  const Kernel* kernel = nullptr;
  std::unique_ptr<const Runner> runner;
  TensorBytes bytes;
};

}  // namespace fulmen
