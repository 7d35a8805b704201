// Plan: the decision which kernel runs a Problem on a device, made once and run any number of times, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

// The chosen kernel and the numbers it was specialised with. Fields that a kernel does not use are 0.
struct KernelConfig {
  std::string kernel;   // "cpu.prefill.avx512"
  int block_m = 0;      // query rows of a tile
  int block_n = 0;      // key rows of a tile
  int num_splits = 0;   // parts a query's keys are divided into
  int num_threads = 0;  // most CPU threads that a run uses
};
FULMEN_API std::string to_string(const KernelConfig& config);

class FULMEN_API Plan {
 public:
  const Problem& problem() const noexcept;
  const KernelConfig& config() const noexcept;
  const std::string& device() const noexcept;
  // Bytes of scratch that run() needs, 64-byte aligned; O(threads x tile); decode adds the partial results of its splits.
  std::size_t workspace_bytes() const noexcept;
  // The chosen kernel and its configuration, then a line for each other registered candidate with the reason it was not chosen.
  std::string explain() const;
  // Computes into tensors.out (and lse). stream: a vendor's stream (null: the device's default one),
  // ignored on the CPU; a GPU may still be computing on return: wait for the stream, or by
  // Backend::synchronize. tensors: dtypes, shapes and strides are those of the Problem (make_problem's
  // tensors). A tensor that is not empty may have nothing but data set: the rest is then the Problem's.
  // Strides of dims of one element or none are ignored, and so are tensors of the other pass. workspace:
  // workspace_bytes() bytes, or null to let the backend allocate one for the call. Allocates nothing and
  // synchronises nothing (with a workspace, and verify off). Safe to call from many threads at once, each
  // with its own workspace. Errors: a tensor's dtype, shape or strides are not the plan's; a tensor is
  // given that the plan was made without; a required pointer is null or not aligned to its element; out,
  // lse or workspace overlap another tensor; workspace too small or misaligned. Nothing is then written.
  Status run(void* stream, const AttentionTensors& tensors, void* workspace, std::size_t workspace_bytes) const;

  struct Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) noexcept;

 private:
  std::shared_ptr<const Impl> impl_;
};

// Chooses the best kernel for the problem, as make_problem gives it, on the device ("cpu", "cuda:0", "emulated:gfx1100"; empty is
// default_device()). Of the options it reads kernel, num_threads, parallel_for and verify; the others are in the Problem. Errors:
// unknown device; the forced kernel (options.kernel) does not exist or cannot run this problem, with its reason.
FULMEN_API Result<Plan> plan(const Problem& problem, const std::string& device = {}, const AttentionOptions& options = {});

}  // namespace fulmen
