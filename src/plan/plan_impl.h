// What a Plan holds.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/backend.h"
#include "fulmen/plan.h"

namespace fulmen {

struct Plan::Impl {
  Problem problem;
  std::string device;
  bool verify = false;
  bool validate = false;
  AttentionOptions threads;  // num_threads and parallel_for as they were asked for; the rest is in the problem
  bool forced = false;
  std::shared_ptr<const Backend> backend;  // keeps a user's backend alive
  const Kernel* kernel = nullptr;
  double rank = 0;  // of the kernel for the problem
  std::unique_ptr<const Runner> runner;
  // Of each tensor of the table.
  std::array<Problem::Shape, kTensorFields> shapes{};  // with the dims that bias, keep_mask or alibi_slopes broadcast
  std::array<std::size_t, kTensorFields> bytes{};
  std::vector<UsedTensor> used;
};

}  // namespace fulmen
