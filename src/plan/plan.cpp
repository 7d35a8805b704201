// Preparing the kernel of a choice (plan/choose.h), and the next one where that fails.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <vector>

#include "fulmen/printable.h"
#include "plan/choose.h"
#include "plan/explain.h"
#include "plan/function_options.h"
#include "plan/plan_impl.h"
#include "plan/registry.h"
#include "runtime/environment.h"
#include "runtime/log_once.h"
#include "runtime/made_problem.h"
#include "runtime/threading.h"
#include "tuning/sources.h"

namespace fulmen {

namespace {

// Whether a kernel that could not be prepared makes room for the next one: it is neither prebuilt
// nor can be compiled or loaded, its machine code or its first result is wrong. What the caller
// said, or memory, would be as bad for the others.
bool makes_room(const Status& refusal, const AttentionOptions& options) {
  if (!options.tuning.empty()) return false;  // its numbers are this kernel's
  return refusal.code() != StatusCode::invalid_argument &&
         refusal.code() != StatusCode::out_of_memory;
}

// Takes the kernel if it can be prepared.
Status prepare(Plan::Impl& impl, const Kernel& kernel, const AttentionOptions& options) {
  auto runner = kernel.prepare(impl.kernel_problem, impl.device, options);
  if (!runner.ok()) return runner.status();
  if (runner.value() == nullptr) {
    return {StatusCode::internal,
            fmt::format("kernel \"{}\" prepared nothing to run", kernel.name())};
  }
  impl.kernel = &kernel;
  impl.rank = kernel.rank(impl.kernel_problem);
  impl.runner = std::move(runner).value();
  log_refusals(impl);
  return {};
}

Status choose_and_prepare(Plan::Impl& impl, const AttentionOptions& options) {
  const Result<const Kernel*> best =
      kernel_for(impl.kernel_problem, impl.device, *impl.backend, options.kernel);
  if (!best.ok()) return best.status();
  Status first;                       // refusal
  const Kernel* unwilling = nullptr;  // the first one that runs only where it is asked for by name
  bool any_is_wrong = false;
  for (const Kernel* kernel = best.value(); kernel != nullptr;) {
    const Status refusal = prepare(impl, *kernel, options);
    if (refusal.ok()) return {};
    if (first.ok()) first = refusal;
    if (!makes_room(refusal, options)) return first;
    any_is_wrong = any_is_wrong || refusal.code() == StatusCode::verification_failed;
    if (unwilling == nullptr && refusal.code() == StatusCode::unsupported) unwilling = kernel;
    impl.refused.emplace_back(kernel, sentence_of(refusal.message()));
    kernel = impl.forced
                 ? nullptr
                 : best_kernel(*impl.backend, impl.kernel_problem, impl.device, impl.refused);
  }
  if (unwilling != nullptr && !impl.forced) {
    AttentionOptions asked = options;
    asked.kernel = unwilling->name();
    std::erase_if(impl.refused, [&](const auto& one) { return one.first == unwilling; });
    if (prepare(impl, *unwilling, asked).ok()) return {};
  }
  // Why one is not there is likely why the others are not: the first one's reason is said, whole.
  return any_is_wrong ? Status(StatusCode::verification_failed, refusals(impl)) : first;
}

Result<std::shared_ptr<Plan::Impl>> make_impl(const Problem& problem, const std::string& device,
                                              std::shared_ptr<const Backend> backend,
                                              const AttentionOptions& options, bool vary_batch,
                                              bool vary_seqlen_k) {
  auto impl = std::make_shared<Plan::Impl>(vary_batch, vary_seqlen_k);
  impl->problem = problem;
  impl->kernel_problem = for_kernels(problem);
  impl->device = device;
  // Nearly never: then none is looked up.
  const bool said = environment_has({"FLASH_ATTENTION_V", "FULMEN_TUNING"});
  const Result<std::string> everywhere = said ? tuning::tuning_of_environment() : std::string();
  if (!everywhere.ok()) return everywhere.status();
  impl->says_verified = said && environment_flag("FLASH_ATTENTION_VERIFY");
  impl->verify = options.verify || impl->says_verified;
  impl->validate = options.validate || (said && environment_flag("FLASH_ATTENTION_VALIDATE"));
  impl->trust_pointers = options.trust_pointers;
  impl->threads.num_threads = options.num_threads;
  impl->threads.parallel_for = options.parallel_for;
  impl->asked = options;
  impl->forced = !options.kernel.empty();
  impl->backend = std::move(backend);
  impl->shapes = shapes_of(problem);
  impl->used = used_tensors(problem, impl->shapes);
  for (int i = 0; i < kTensorFields; ++i)
    impl->bytes[i] = bytes_of(problem.*kTensorTable[i].spec, impl->shapes[i]);
  if (Status status = choose_and_prepare(*impl, options); !status.ok()) return status;
  const bool has_parameters = !impl->runner->config().parameters.empty();
  impl->tuning_is_lost =
      !everywhere->empty() && !has_parameters && impl->runner->config().notes.empty();
  if (!options.tuning.empty() && !has_parameters) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("options.tuning is \"{}\": kernel \"{}\" has no parameters for this problem",
                    printable(options.tuning), printable(impl->kernel->name())));
  }
  return impl;
}

Result<Plan> make_plan(const Problem& problem, const std::string& asked_device,
                       const AttentionOptions& options) {
  if (Status status = check_made(problem); !status.ok()) return status;
  if (Status status = cpu::check_num_threads(options.num_threads); !status.ok()) return status;
  const std::string device = asked_device.empty() ? default_device() : asked_device;
  auto backend = usable_backend_of(device);
  if (!backend.ok()) return backend.status();
  const CompileTime before = compile_time();
  auto made = make_impl(problem, device, std::move(backend).value(), options, options.vary_batch,
                        options.vary_seqlen_k);
  if (!made.ok()) return made.status();
  Plan::Impl& impl = *made.value();
  if (Status status = impl.variants.prepare(impl); !status.ok()) return status;
  impl.compiled.kernels = compile_time().kernels - before.kernels;
  impl.compiled.seconds = compile_time().seconds - before.seconds;
  log_choice(impl);
  return Plan(std::move(made).value());
}

}  // namespace

Result<std::shared_ptr<const Plan::Impl>> make_exact_plan(const Problem& problem,
                                                          const std::string& device,
                                                          std::shared_ptr<const Backend> backend,
                                                          const AttentionOptions& options) {
  auto made = make_impl(problem, device, backend, options, false, false);
  if (!made.ok() && !options.tuning.empty()) {
    // It was said for the sizes that the plan was made for, and may not be legal for these.
    AttentionOptions usual = options;
    usual.tuning.clear();
    made = make_impl(problem, device, std::move(backend), usual, false, false);
  }
  if (!made.ok()) return made.status();
  if (Status status = made.value()->variants.prepare(*made.value()); !status.ok()) return status;
  return std::shared_ptr<const Plan::Impl>(std::move(made).value());
}

Result<Plan> plan(const Problem& problem, const std::string& device,
                  const AttentionOptions& options) {
  try {
    return make_plan(problem, device, options);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory for the plan");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, fmt::format("planning failed: {}", error.what()));
  } catch (...) {
    return Status(StatusCode::internal, "planning failed: a kernel threw");
  }
}

Plan::Plan(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
const Problem& Plan::problem() const noexcept { return impl_->problem; }
const KernelConfig& Plan::config() const noexcept { return impl_->runner->config(); }
const std::string& Plan::device() const noexcept { return impl_->device; }
std::size_t Plan::workspace_bytes() const noexcept { return impl_->variants.workspace_bytes(); }

}  // namespace fulmen
