// fulmen/backend.h: the configurations of the kernel that a plan would have.
#include <fmt/format.h>

#include <new>

#include "plan/choose.h"
#include "plan/function_options.h"
#include "plan/registry.h"
#include "runtime/made_problem.h"

namespace fulmen {

Result<KernelTuning> kernel_tuning(const Problem& asked, const std::string& asked_device,
                                   const AttentionOptions& options) {
  try {
    if (Status status = check_made(asked); !status.ok()) return status;
    const Problem problem = for_kernels(asked);
    const std::string device = asked_device.empty() ? default_device() : asked_device;
    const auto backend = usable_backend_of(device);
    if (!backend.ok()) return backend.status();
    const Result<const Kernel*> kernel =
        kernel_for(problem, device, *backend.value(), options.kernel);
    if (!kernel.ok()) return kernel.status();
    return kernel.value()->tuning(problem, device, options);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory for the kernel's configurations");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal,
                  fmt::format("the kernel failed to say its configurations: {}", error.what()));
  }
}

}  // namespace fulmen
