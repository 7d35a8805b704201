#include "compile_ahead.h"

#include <algorithm>
#include <new>
#include <utility>

#include "device_tensors.h"
#include "fulmen/fulmen.h"

namespace fulmen::tools {

CompileAhead::CompileAhead(const std::vector<GridCase>& cases, std::string device, std::string kernel)
    : cases_(cases), device_(std::move(device)), kernel_(std::move(kernel)) {
  if (uses_host_memory(device_)) return;
  const std::size_t count = std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), cases.size());
  for (std::size_t n = 0; n < count; ++n) threads_.emplace_back([this] { work(); });
}

CompileAhead::~CompileAhead() {
  next_ = cases_.size();
  for (std::thread& thread : threads_) thread.join();
}

void CompileAhead::work() {
  try {
    for (std::size_t n = next_++; n < cases_.size(); n = next_++) plan_all(cases_[n]);
  } catch (const std::bad_alloc&) {
    return;  // who runs the problems meets it, too
  }
}

void CompileAhead::plan_all(const GridCase& grid_case) const {
  NormalPool pool = NormalPool::without_values();
  const GridData data = make_grid_data(grid_case, pool);
  const Result<Problem> problem = problem_of(grid_case, data);
  if (!problem.ok()) return;
  const Result<std::vector<Candidate>> found = candidates(problem.value(), device_);
  if (!found.ok()) return;
  AttentionOptions options = data.options;
  options.check_first_use = false;
  for (const Candidate& candidate : found.value()) {
    if (!candidate.support.yes || (!kernel_.empty() && candidate.kernel != kernel_)) continue;
    options.kernel = candidate.kernel;
    static_cast<void>(plan(problem.value(), device_, options));
  }
}

}  // namespace fulmen::tools
