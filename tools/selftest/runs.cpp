#include "tools/selftest/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tools/selftest/append_check.h"
#include "tools/selftest/problems.h"
#include "tools/verify/verified_run.h"

namespace fulmen::tools {
namespace {

constexpr int kQuickStep = 5;  // shares no factor with the turns of the list's dtypes

std::string backend_name(const std::string& name, char separator) {
  return name.substr(0, name.find(separator));
}

// The bytes of what a pass writes, tensor by tensor.
using Bits = std::vector<std::vector<std::byte>>;
Bits bits_of(const Problem& problem, const GridData& data) {
  Bits bits;
  for (Tensor AttentionTensors::* const one : outputs_of(problem.pass)) {
    const Tensor& tensor = data.tensors.*one;
    const auto* bytes = static_cast<const std::byte*>(tensor.data);
    if (bytes != nullptr)
      bits.emplace_back(
          bytes, bytes + stored_elements(tensor) * static_cast<std::size_t>(size_of(tensor.dtype)));
  }
  return bits;
}

void count_differences(const Problem& problem, const GridData& data, const Bits& ours,
                       SelftestRun& run) {
  const Bits theirs = bits_of(problem, data);
  std::size_t at = 0;
  for (Tensor AttentionTensors::* const one : outputs_of(problem.pass)) {
    const Tensor& tensor = data.tensors.*one;
    if (tensor.data == nullptr) continue;
    const auto bytes = static_cast<std::size_t>(size_of(tensor.dtype));
    const std::size_t elements = stored_elements(tensor);
    for (std::size_t e = 0; e < elements; ++e) {
      run.differing +=
          std::memcmp(ours[at].data() + e * bytes, theirs[at].data() + e * bytes, bytes) != 0 ? 1
                                                                                              : 0;
    }
    run.emulated_elements += static_cast<int64_t>(elements);
    ++at;
  }
}

// The same family's kernel of an emulated chip: "hip.decode.gfx11" is "emulated.decode.gfx11"
// there.
std::string emulated_kernel(const std::string& kernel) {
  return "emulated" + kernel.substr(backend_name(kernel, '.').size());
}

}  // namespace

std::string emulated_twin(const std::string& device) {
  std::string arch;
  const std::vector<DeviceInfo> all = devices();
  for (const DeviceInfo& info : all) {
    const bool named =
        info.name == device || (backend_name(info.name, ':') == device && info.usable);
    if (!named || device == "cpu" || !arch.empty()) continue;
    // "AMD Radeon RX 7900 XTX (gfx1100)", or "gfx1100".
    const std::size_t open = info.chip.rfind('('), close = info.chip.rfind(')');
    arch = open == std::string::npos || close < open ? info.chip
                                                     : info.chip.substr(open + 1, close - open - 1);
  }
  const std::string twin = "emulated:" + arch;
  const bool there = std::any_of(all.begin(), all.end(), [&](const DeviceInfo& info) {
    return info.name == twin && info.usable;
  });
  return !arch.empty() && there && twin != device && device != "emulated" ? twin : "";
}

SelftestRuns::SelftestRuns(SelftestArguments arguments)
    : arguments_(std::move(arguments)), problems_(selftest_problems()) {}

int SelftestRuns::count() const noexcept {
  return static_cast<int>(problems_.size()) + kAppendProblems;
}

std::vector<int> SelftestRuns::numbers() const {
  std::vector<int> list;
  const bool forced = !arguments_.kernel.empty();
  for (int number = 1; number <= count(); ++number) {
    if (arguments_.only > 0 ? number != arguments_.only
                            : arguments_.quick && number % kQuickStep != 1)
      continue;
    if (forced && number > static_cast<int>(problems_.size())) continue;
    list.push_back(number);
  }
  return list;
}

void SelftestRuns::compile(int number) const {
  if (number > static_cast<int>(problems_.size())) return;
  const GridCase& grid_case = problems_[static_cast<std::size_t>(number - 1)];
  NormalPool none = NormalPool::without_values();
  const GridData shapes = make_grid_data(grid_case, none);
  const Result<Problem> problem = problem_of(grid_case, shapes);
  if (!problem.ok()) return;
  AttentionOptions options = shapes.options;
  options.deterministic = arguments_.kernel.empty();
  options.check_first_use = false;
  options.kernel = arguments_.kernel;
  const Result<Plan> planned = plan(problem.value(), arguments_.device, options);
  if (!planned.ok() || arguments_.twin.empty()) return;
  options.kernel = emulated_kernel(planned->config().kernel);
  static_cast<void>(plan(problem.value(), arguments_.twin, options));
}

Result<SelftestRun> SelftestRuns::run(int number) {
  if (number > static_cast<int>(problems_.size())) return run_append(number);
  const GridCase& grid_case = problems_[static_cast<std::size_t>(number - 1)];
  NormalPool none = NormalPool::without_values();
  GridData shapes = make_grid_data(grid_case, none);
  const Result<Problem> problem = problem_of(grid_case, shapes);
  if (!problem.ok()) return problem.status();
  const Result<std::vector<Candidate>> found = candidates(problem.value(), arguments_.device);
  if (!found.ok()) return found.status();
  for (const Candidate& candidate : found.value()) {
    if (candidate.support.yes) supported_.emplace(candidate.kernel, number);
  }
  SelftestRun run = run_attention(number, arguments_.kernel);
  ran_.push_back(run.kernel);
  return run;
}

std::vector<std::pair<std::string, int>> SelftestRuns::left_over() const {
  std::vector<std::pair<std::string, int>> list;
  if (!arguments_.kernel.empty() || arguments_.only > 0) return list;
  for (const auto& [kernel, number] : supported_) {
    if (std::find(ran_.begin(), ran_.end(), kernel) == ran_.end())
      list.emplace_back(kernel, number);
  }
  return list;
}

SelftestRun SelftestRuns::run_forced(int number, const std::string& kernel) const {
  return run_attention(number, kernel);
}

SelftestRun SelftestRuns::run_attention(int number, const std::string& kernel) const {
  const GridCase& grid_case = problems_[static_cast<std::size_t>(number - 1)];
  SelftestRun run;
  run.number = number;
  run.problem = to_string(grid_case);
  run.kernel = kernel;
  run.repeat = fmt::format("fulmen selftest --device {} --only {}{}", arguments_.device, number,
                           kernel.empty() ? "" : " --kernel " + kernel);
  NormalPool pool(static_cast<uint64_t>(number));
  GridData data = make_grid_data(grid_case, pool);
  // One that adds by atomics has other bits every time.
  data.options.deterministic = kernel.empty();
  const Result<Problem> problem = problem_of(grid_case, data);
  const Result<std::unique_ptr<DeviceTensors>> there =
      DeviceTensors::make(arguments_.device, data.tensors);
  if (!problem.ok() || !there.ok()) {
    run.message = problem.ok() ? there.status().message() : problem.status().message();
    return run;
  }
  const VerifiedRun ours =
      run_and_verify(problem.value(), data, *there.value(), arguments_.device, kernel, 0);
  const VerifyReport& report = ours.report;
  run.ok = report.ok;
  run.tensor = report.tensor;
  run.worst_error = report.worst_error;
  run.bound = report.bound;
  run.message = report.message;
  if (!ours.config.kernel.empty()) run.kernel = ours.config.kernel;
  if (arguments_.twin.empty() || ours.config.kernel.empty()) return run;
  const Bits bits = bits_of(problem.value(), data);
  const Result<std::unique_ptr<DeviceTensors>> twin =
      DeviceTensors::make(arguments_.twin, data.tensors);
  if (!twin.ok()) return run;
  const VerifiedRun theirs = run_and_verify(problem.value(), data, *twin.value(), arguments_.twin,
                                            emulated_kernel(ours.config.kernel), 0);
  run.emulated_ok = theirs.report.ok;
  if (!theirs.config.kernel.empty()) count_differences(problem.value(), data, bits, run);
  return run;
}

SelftestRun SelftestRuns::run_append(int number) const {
  const AppendResult result =
      check_append(arguments_.device, number - static_cast<int>(problems_.size()) - 1);
  SelftestRun run;
  run.number = number;
  run.problem = result.problem;
  run.kernel = "append_kv";
  run.ok = result.ok;
  run.tensor = "cache";
  run.worst_error = result.worst_error;
  run.bound = 1;
  run.message = result.message;
  run.repeat = fmt::format("fulmen selftest --device {} --only {}", arguments_.device, number);
  return run;
}

}  // namespace fulmen::tools
