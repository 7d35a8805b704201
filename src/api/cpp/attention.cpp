// The one-line call: problem, plan, run.
#include "fulmen/attention.h"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "fulmen/backend.h"
#include "fulmen/plan.h"
#include "plan/registry.h"

namespace fulmen {
namespace {

// Whether a call in the stream is captured: nothing may then wait for it.
bool is_being_captured(const std::string& device, void* stream) {
  if (stream == nullptr) return false;
  const std::string& name = device.empty() ? default_device() : device;
  const auto backend = backend_of(name);
  return backend != nullptr && backend->is_capturing(name, stream);
}

Status run_once(const Result<Problem>& problem, const AttentionTensors& tensors,
                const AttentionOptions& options, const std::string& device, void* stream) {
  if (!problem.ok()) return problem.status();
  AttentionOptions one_size = options;
  one_size.vary_batch = one_size.vary_seqlen_k = false;
  one_size.check_first_use = options.check_first_use && !is_being_captured(device, stream);
  auto chosen = plan(problem.value(), device, one_size);
  if (!chosen.ok()) return chosen.status();
  const auto backend = backend_of(chosen->device());
  if (Status status = chosen->run(stream, tensors, nullptr, 0); !status.ok()) return status;
  if (stream != nullptr || backend == nullptr) return {};  // null: it was unregistered meanwhile
  try {
    return backend->synchronize(chosen->device(), nullptr);
  } catch (const std::exception& error) {
    return {StatusCode::internal,
            fmt::format("waiting for device {} failed: {}", chosen->device(), error.what())};
  } catch (...) {
    return {StatusCode::internal,
            fmt::format("waiting for device {} failed: its backend threw", chosen->device())};
  }
}

}  // namespace

Status attention(const AttentionTensors& tensors, const AttentionOptions& options,
                 const std::string& device, void* stream) {
  return run_once(make_problem(tensors, options), tensors, options, device, stream);
}

Status attention_backward(const AttentionTensors& tensors, const AttentionOptions& options,
                          const std::string& device, void* stream) {
  return run_once(make_backward_problem(tensors, options), tensors, options, device, stream);
}

}  // namespace fulmen
