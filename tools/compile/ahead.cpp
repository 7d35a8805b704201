#include "tools/compile/ahead.h"

#include <algorithm>
#include <new>
#include <utility>

#include "fulmen/fulmen.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {

namespace {

void plan_all(const GridCase& grid_case, const std::string& device, const std::string& kernel) {
  NormalPool pool = NormalPool::without_values();
  const GridData data = make_grid_data(grid_case, pool);
  const Result<Problem> problem = problem_of(grid_case, data);
  if (!problem.ok()) return;
  const Result<std::vector<Candidate>> found = candidates(problem.value(), device);
  if (!found.ok()) return;
  AttentionOptions options = data.options;
  options.check_first_use = false;
  for (const Candidate& candidate : found.value()) {
    if (!candidate.support.yes || (!kernel.empty() && candidate.kernel != kernel)) continue;
    options.kernel = candidate.kernel;
    static_cast<void>(plan(problem.value(), device, options));
  }
}

}  // namespace

CompileAhead::CompileAhead(const std::vector<GridCase>& cases, const std::string& device,
                           const std::string& kernel)
    : CompileAhead(
          uses_host_memory(device) ? 0 : cases.size(),
          [&cases, device, kernel](std::size_t n) { plan_all(cases[n], device, kernel); }) {}

CompileAhead::CompileAhead(std::size_t count, std::function<void(std::size_t)> plan_one)
    : count_(count), plan_one_(std::move(plan_one)) {
  const std::size_t threads =
      std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), count);
  for (std::size_t n = 0; n < threads; ++n) threads_.emplace_back([this] { work(); });
}

CompileAhead::~CompileAhead() {
  next_ = count_;
  for (std::thread& thread : threads_) thread.join();
}

void CompileAhead::work() {
  try {
    for (std::size_t n = next_++; n < count_; n = next_++) plan_one_(n);
  } catch (const std::bad_alloc&) {
    return;  // the run of the problems meets the error, too
  }
}

}  // namespace fulmen::tools
