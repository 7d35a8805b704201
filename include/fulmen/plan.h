// Plan: the decision which kernel runs a Problem on a device, made once and run any number of
// times, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

// One number that a kernel was specialised with, and who said so: "default", "shipped", "own",
// "environment", "option", or "fitted" to those that others said.
struct KernelParameter {
  std::string name;
  int value = 0;
  std::string source;
};

// The chosen kernel and the numbers it was specialised with. Fields that a kernel does not use
// are 0.
struct KernelConfig {
  std::string kernel;   // "cpu.prefill.avx512"
  int block_m = 0;      // query rows of a tile
  int block_n = 0;      // key rows of a tile
  int num_splits = 0;   // parts a query's keys are divided into, or only the last
                        // queries'
  int num_threads = 0;  // most CPU threads that a run uses
  // Those that options.tuning takes; empty where the kernel has none.
  std::vector<KernelParameter> parameters{};
  std::vector<std::string> notes{};  // what was said for these and is not used, and why
  std::string first_use{};           // AMD: how the kernels were checked at their first use, or why
                                     // they were not
};
FULMEN_API std::string to_string(const KernelConfig& config);

// What one run may change of a plan's options; what is not set is the plan's. Accepted are the
// values that AttentionOptions takes.
struct RunOptions {
  std::optional<float> softmax_scale{};
  std::optional<float> softcap{};
  std::optional<int64_t> window_left{};   // -1 is unlimited
  std::optional<int64_t> window_right{};  // the same; a causal plan's is 0, and another value takes
                                          // its mask away
  bool operator==(const RunOptions&) const = default;
};

class FULMEN_API Plan {
 public:
  const Problem& problem() const noexcept;
  const KernelConfig& config() const noexcept;
  const std::string& device() const noexcept;
  // Bytes of scratch that run() needs, 64-byte aligned; O(threads x tile); decode adds the partial
  // results of its splits. Of a plan for a range: the most of its sizes.
  std::size_t workspace_bytes() const noexcept;
  // The chosen kernel and its configuration, for a range the kernel of each size, then a line for
  // each other registered candidate with the reason it was not chosen.
  std::string explain() const;

  // Computes into tensors.out (and lse).
  //
  // stream: a vendor's stream (null: the device's default one), ignored on the CPU. A GPU may still
  // be computing on return: wait for the stream, or by Backend::synchronize.
  // tensors: dtypes, shapes and strides are those of the Problem (make_problem's tensors). A tensor
  // that is not empty may have nothing but data set: the rest is then the Problem's. Strides of
  // dims of one element or none are ignored, and so are tensors of the other pass. A plan for a
  // range takes the sizes that vary from the tensors, with any strides that make_problem() takes.
  // workspace: workspace_bytes() bytes, or null to let the backend allocate one for the call.
  // options: what this run has in place of the plan's. A value that the plan did not meet lately
  // costs what a plan costs, on a GPU also a compilation where the kernel is another one (softcap
  // or windows on and off; the scale never).
  //
  // Allocates nothing and synchronises nothing, with a workspace, verify off and no options, but
  // where seqlen_k varies: there a length that was not met lately is planned first. Safe to call
  // from many threads at once, each with its own workspace. Errors: a tensor's dtype, shape or
  // strides are not the plan's, or its size is over the range; a tensor is given that the plan was
  // made without; a required pointer is null or not aligned to its element; out, lse or workspace
  // overlap another tensor; workspace too small or misaligned; an option that plan() refuses, too;
  // a stream that is being captured where the run has to wait (verify, validate). Nothing is then
  // written.
  Status run(void* stream, const AttentionTensors& tensors, void* workspace,
             std::size_t workspace_bytes) const;
  Status run(void* stream, const AttentionTensors& tensors, void* workspace,
             std::size_t workspace_bytes, const RunOptions& options) const;

  // The plan that runs these tensors with these options, of their sizes alone: to look at (explain,
  // config), or to have it made and its kernels loaded before a graph is captured. Reads no memory
  // of the tensors. Errors: those of run() about sizes and options.
  Result<Plan> at(const AttentionTensors& tensors, const RunOptions& options = {}) const;

  struct Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) noexcept;

 private:
  friend class Workspace;
  std::shared_ptr<const Impl> impl_;
};

// The scratch memory of a plan's runs: workspace_bytes() of it on the plan's device, 64-byte
// aligned. Host memory comes from set_allocator()'s functions where a program has set some. One run
// at a time may use it.
class FULMEN_API Workspace {
 public:
  // Errors: out_of_memory.
  static Result<Workspace> make(const Plan& plan);
  Workspace(Workspace&& from) noexcept;
  Workspace& operator=(Workspace&& from) noexcept;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  // Gives the memory back; on a GPU waits for work that may use it.
  ~Workspace();

  // Null where the plan needs none: Plan::run() takes that.
  void* data() const noexcept;
  std::size_t bytes() const noexcept;

 private:
  struct Memory;
  explicit Workspace(std::unique_ptr<Memory> memory) noexcept;
  std::unique_ptr<Memory> memory_;
};

// Chooses the best kernel for the problem, as make_problem gives it, on the device ("cpu",
// "cuda:0", "emulated:gfx1100"; empty is default_device()). Of the options it reads kernel,
// num_threads, parallel_for, verify, validate, vary_batch, vary_seqlen_k, trust_pointers, tuning
// and check_first_use; the others are in the Problem. Errors: unknown device; the forced kernel
// (options.kernel) does not exist or cannot run this problem, with its reason. A kernel whose first
// use on the device gave a wrong result is passed over (AttentionOptions::check_first_use).
FULMEN_API Result<Plan> plan(const Problem& problem, const std::string& device = {},
                             const AttentionOptions& options = {});

}  // namespace fulmen
