#include "plan/choose.h"

#include <fmt/format.h>

#include <algorithm>

#include "fulmen/names.h"
#include "fulmen/printable.h"
#include "plan/explain.h"
#include "plan/kernel_aliases.h"
#include "plan/registry.h"

namespace fulmen {
namespace {

bool contains(const RefusedKernels& refused, const Kernel* kernel) {
  return std::any_of(refused.begin(), refused.end(),
                     [&](const auto& one) { return one.first == kernel; });
}

Result<const Kernel*> find_forced(const Backend& backend, const Problem& problem,
                                  const std::string& device, const std::string& asked) {
  const std::vector<const Kernel*>& kernels = backend.kernels();
  const auto has = [&](const std::string& name) {
    return std::any_of(kernels.begin(), kernels.end(),
                       [&](const Kernel* kernel) { return kernel->name() == name; });
  };
  const std::string present = present_kernel_name(asked);
  const std::string& name = !has(asked) && has(present) ? present : asked;
  std::vector<std::string> names;
  for (const Kernel* kernel : kernels) {
    if (kernel->name() == name) {
      const Support support = support_of(*kernel, problem, device);
      if (support.yes) return kernel;
      return Status(StatusCode::unsupported,
                    fmt::format("kernel \"{}\" cannot run this problem: {}", printable(name),
                                support.reason));
    }
    names.emplace_back(kernel->name());
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("kernel is \"{}\": device \"{}\" has no kernel of that name; {}",
                            printable(name), printable(device), names_like(name, names)));
}

}  // namespace

const Kernel* best_kernel(const Backend& backend, const Problem& problem, const std::string& device,
                          const RefusedKernels& refused) {
  const Kernel* best = nullptr;
  double best_rank = 0;
  for (const Kernel* kernel : backend.kernels()) {
    if (contains(refused, kernel)) continue;
    const double rank = kernel->rank(problem);
    if (rank > best_rank && support_of(*kernel, problem, device).yes) {
      best = kernel;
      best_rank = rank;
    }
  }
  return best;
}

Result<const Kernel*> kernel_for(const Problem& problem, const std::string& device,
                                 const Backend& backend, const std::string& name) {
  if (!name.empty()) return find_forced(backend, problem, device, name);
  const Kernel* best = best_kernel(backend, problem, device, {});
  if (best == nullptr)
    return Status(StatusCode::unsupported, no_kernel_message(backend, problem, device));
  return best;
}

}  // namespace fulmen
