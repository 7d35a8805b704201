#include "plan/explain.h"

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "fulmen/printable.h"
#include "plan/choose.h"
#include "plan/function_options.h"
#include "plan/plan_impl.h"
#include "plan/plan_variants.h"
#include "plan/registry.h"
#include "runtime/environment.h"
#include "runtime/hooks.h"
#include "runtime/log_once.h"

namespace fulmen {
namespace {

// Why it was not chosen. A kernel of the user's may throw now, though it did not when the plan was
// made.
std::string reason_against(const Kernel& kernel, const Plan::Impl& impl) {
  for (const auto& [refused, why] : impl.refused) {
    if (refused == &kernel) return printable(why);
  }
  try {
    const Support support = support_of(kernel, impl.kernel_problem, impl.device);
    if (!support.yes) return support.reason;
    if (impl.forced) return "another was forced by name";
    const double rank = kernel.rank(impl.kernel_problem);
    if (!(rank > 0)) return "runs only when forced by name";
    return fmt::format("rank {:g}{}", rank,
                       rank < impl.rank ? " is lower" : ", but the chosen one is registered first");
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    return "it threw when it was asked";
  }
}

// "block_m=64 (option), block_n=32 (default)"
std::string parameters_of(const KernelConfig& config) {
  std::string text;
  for (const KernelParameter& p : config.parameters) {
    text +=
        fmt::format("{}{}={} ({})", text.empty() ? "" : ", ", p.name, p.value, printable(p.source));
  }
  return text;
}

std::string explanation(const Plan::Impl& impl) {
  std::string text = fmt::format(
      "{} on {} for {}: {}", to_string(impl.runner->config()), impl.device, to_string(impl.problem),
      impl.forced            ? "forced by name"
      : impl.refused.empty() ? fmt::format("the highest rank, {:g}", impl.rank)
                             : fmt::format("the highest rank of those left, {:g}", impl.rank));
  if (!impl.kernel->deterministic())
    text += "; it adds with atomics: gradients may differ in bits from run to run";
  text += impl.variants.explain(impl);
  if (const std::string band = options_of_functions(impl.problem, impl.kernel_problem);
      !band.empty())
    text += "\n  " + band;
  if (const std::string parameters = parameters_of(impl.runner->config()); !parameters.empty())
    text += "\n  with " + parameters;
  if (const std::string& first_use = impl.runner->config().first_use; !first_use.empty())
    text += "\n  " + printable(first_use);
  if (const CompileTime& spent = impl.compiled; spent.kernels > 0) {
    text += fmt::format(
        "\n  {} compiled in {:.2f} s for this plan, kept for later ones",
        spent.kernels == 1 ? "1 kernel was" : fmt::format("{} kernels were", spent.kernels),
        spent.seconds);
  }
  for (const std::string& note : impl.runner->config().notes) text += "\n  " + printable(note);
  if (impl.tuning_is_lost)
    text += "\n  FULMEN_TUNING changes nothing: the kernel has no parameters for this problem";
  for (const Kernel* kernel : impl.backend->kernels()) {
    if (kernel == impl.kernel) continue;
    text += fmt::format("\n  not {}: {}", printable(kernel->name()), reason_against(*kernel, impl));
  }
  return text;
}

// Where the kernel changes between first and last, each range with its kernel.
class KernelRanges {
 public:
  explicit KernelRanges(std::function<std::string(int64_t size)> kernel_of)
      : kernel_of_(std::move(kernel_of)) {}

  std::string text(const std::vector<int64_t>& sizes) {
    std::string text;
    int64_t first = sizes.front();
    std::string kernel = kernel_of_(first);
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      std::string next = kernel_of_(sizes[i]);
      if (next == kernel) continue;
      const int64_t begin = first_of_next(sizes[i - 1], sizes[i], kernel);
      append(text, first, begin - 1, kernel);
      first = begin;
      kernel = std::move(next);
    }
    append(text, first, sizes.back(), kernel);
    return text;
  }

 private:
  int64_t first_of_next(int64_t low, int64_t high, const std::string& kernel) const {
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (kernel_of_(middle) == kernel ? low : high) = middle;
    }
    return high;
  }
  static void append(std::string& text, int64_t first, int64_t last, const std::string& kernel) {
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : ", ",
                    first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last),
                    printable(kernel));
  }

  std::function<std::string(int64_t)> kernel_of_;
};

}  // namespace

std::string to_string(const KernelConfig& config) {
  std::string text = config.kernel;
  if (config.block_m > 0) text += fmt::format(" block_m={}", config.block_m);
  if (config.block_n > 0) text += fmt::format(" block_n={}", config.block_n);
  if (config.num_splits > 0) text += fmt::format(" num_splits={}", config.num_splits);
  if (config.num_threads > 0) text += fmt::format(" num_threads={}", config.num_threads);
  return text;
}

std::string no_kernel_message(const Backend& backend, const Problem& problem,
                              const std::string& device) {
  std::string reasons;
  for (const Kernel* kernel : backend.kernels()) {
    const Support support = support_of(*kernel, problem, device);
    reasons += fmt::format("; {}: {}", printable(kernel->name()),
                           support.yes ? "runs only when forced by name" : support.reason);
  }
  return fmt::format("no kernel of device \"{}\" runs {}{}", device, to_string(problem), reasons);
}

std::string refusals(const Plan::Impl& impl) {
  std::string text =
      fmt::format("no kernel is left that may run {} on {}", to_string(impl.problem), impl.device);
  for (const auto& [kernel, why] : impl.refused)
    text += fmt::format("; {}: {}", printable(kernel->name()), printable(why));
  return text;
}

void log_refusals(const Plan::Impl& impl) {
  for (const auto& [kernel, why] : impl.refused) {
    log_line_once(fmt::format("kernel {} is passed over on {}, {} serves: {}", kernel->name(),
                              impl.device, impl.kernel->name(), why));
  }
}

void log_choice(const Plan::Impl& impl) {
  if (!environment_flag("FLASH_ATTENTION_DEBUG")) return;
  std::string line = explanation(impl);
  for (std::size_t at = 0; (at = line.find("\n  ", at)) != std::string::npos;)
    line.replace(at, 3, "; ");
  log_line(line);
}

std::string PlanVariants::explain(const Plan::Impl& plan) const {
  if (!ranged()) return {};
  const Problem& p = plan.problem;
  const auto kernel_of = [&plan](const Problem& problem) {
    const auto kernel =
        kernel_for(for_kernels(problem), plan.device, *plan.backend, plan.asked.kernel);
    return kernel.ok() ? std::string(kernel.value()->name()) : std::string("none");
  };
  std::string text;
  if (vary_batch_) {
    KernelRanges ranges([&](int64_t batch) { return kernel_of(resized(p, batch, p.seqlen_k)); });
    text += fmt::format("; batch {}", ranges.text(sampled_sizes(true, p.batch)));
  }
  if (vary_seqlen_k_) {
    KernelRanges ranges([&](int64_t keys) { return kernel_of(resized(p, p.batch, keys)); });
    text += fmt::format("; seqlen_k {}", ranges.text(sampled_sizes(true, p.seqlen_k)));
  }
  return text;
}

std::string Plan::explain() const { return explanation(*impl_); }

}  // namespace fulmen
