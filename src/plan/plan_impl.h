// What a Plan holds.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/backend.h"
#include "fulmen/plan.h"
#include "plan/plan_variants.h"
#include "runtime/compile_time.h"
#include "runtime/tensor_table.h"

namespace fulmen {

struct Plan::Impl {
  Problem problem;
  Problem kernel_problem;  // the same for kernels: plan/function_options.h
  std::string device;
  bool verify = false;
  bool says_verified = false;  // FLASH_ATTENTION_VERIFY: a line for each result
  bool validate = false;
  bool trust_pointers = false;
  AttentionOptions threads;  // num_threads and parallel_for as they were asked for; the rest is in
                             // the problem
  AttentionOptions asked;    // plan()'s, for the plans of other sizes; they vary nothing
  bool forced = false;
  bool tuning_is_lost = false;             // FULMEN_TUNING is set and the kernel has no parameters
  std::shared_ptr<const Backend> backend;  // keeps a user's backend alive
  const Kernel* kernel = nullptr;
  double rank = 0;  // of the kernel for the problem
  // Better ones that prepare() refused, and why.
  std::vector<std::pair<const Kernel*, std::string>> refused;
  std::unique_ptr<const Runner> runner;
  CompileTime compiled;  // what making the plan waited for
  // Shape and size of each tensor of the table.
  // Shapes with the dims that bias, keep_mask or alibi_slopes broadcast.
  std::array<Problem::Shape, kTensorFields> shapes{};
  std::array<std::size_t, kTensorFields> bytes{};
  std::vector<UsedTensor> used;
  PlanVariants variants;

  Impl(bool vary_batch, bool vary_seqlen_k) noexcept : variants(vary_batch, vary_seqlen_k) {}
};

// A plan of exactly this problem, on a device of the backend. Of the options it reads what plan()
// does, but for vary_batch and vary_seqlen_k: its sizes are the problem's alone.
Result<std::shared_ptr<const Plan::Impl>> make_exact_plan(const Problem& problem,
                                                          const std::string& device,
                                                          std::shared_ptr<const Backend> backend,
                                                          const AttentionOptions& options);

}  // namespace fulmen
