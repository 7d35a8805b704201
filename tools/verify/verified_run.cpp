#include "tools/verify/verified_run.h"

#include <cstring>

namespace fulmen::tools {
namespace {

// Old bits that are no results: NaN in every format.
void poison(const Tensor& tensor) {
  if (tensor.data != nullptr)
    std::memset(tensor.data, 0xFF,
                stored_elements(tensor) * static_cast<std::size_t>(size_of(tensor.dtype)));
}

VerifiedRun failure(const Status& status) {
  VerifiedRun run{status, {}, {}};
  run.report.tensor = "none";
  run.report.message = status.message();
  return run;
}

}  // namespace

VerifiedRun run_and_verify(const Problem& problem, const GridData& data, const DeviceTensors& there,
                           const std::string& device, const std::string& kernel, int threads) {
  AttentionOptions options = data.options;
  options.kernel = kernel;
  options.num_threads = threads;
  options.check_first_use = false;  // a wrong kernel must be reported, not replaced by another
  const Result<Plan> planned = plan(problem, device, options);
  if (!planned.ok()) return failure(planned.status());
  for (Tensor AttentionTensors::* const output : outputs_of(problem.pass))
    poison(data.tensors.*output);
  if (Status status = there.upload_outputs(problem.pass); !status.ok()) return failure(status);
  const DeviceMemory workspace = there.workspace(planned->workspace_bytes());
  if (Status status = workspace.poison(); !status.ok()) return failure(status);
  Status status =
      planned->run(nullptr, there.tensors(), workspace.data(), planned->workspace_bytes());
  if (status.ok()) status = there.synchronize();
  if (status.ok()) status = there.download(problem.pass);
  if (!status.ok()) return failure(status);
  AttentionOptions checks;
  checks.num_threads = threads;
  return {{}, verify_result(problem, data.tensors, checks), planned->config()};
}

}  // namespace fulmen::tools
