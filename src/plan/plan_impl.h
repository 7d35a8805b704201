// What a Plan holds.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "fulmen/backend.h"
#include "fulmen/plan.h"

namespace fulmen {

// A tensor of a call, by where it is in each struct.
struct TensorField {
  const char* name;
  Tensor AttentionTensors::* tensor;
  TensorSpec Problem::* spec;
  bool read[2], written[2];  // by the forward pass, by the backward pass
};
constexpr int kTensorFields = 21;
extern const std::array<TensorField, kTensorFields> kTensorTable;

// From a tensor's first to one past its last element; 0 where it is absent or empty.
std::size_t bytes_of(const TensorSpec& spec, const Problem::Shape& shape) noexcept;

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
  std::array<std::size_t, kTensorFields> bytes{};
};

}  // namespace fulmen
