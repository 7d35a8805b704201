// Running a plan: checks of tensors, pointers and workspace, the kernel, then the reference where
// verify asks for it.
#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/plan.h"
#include "fulmen/printable.h"
#include "fulmen/reference.h"
#include "plan/function_tensors.h"
#include "plan/own_workspace.h"
#include "plan/plan_checks.h"
#include "plan/plan_impl.h"
#include "plan/registry.h"
#include "reference/verify/verify.h"
#include "runtime/empty_tensors.h"
#include "runtime/environment.h"
#include "runtime/hooks.h"
#include "runtime/memory_range.h"

namespace fulmen {
namespace {

// Whether out is exactly q's memory, and has some.
bool is_in_place(const Plan::Impl& plan, const AttentionTensors& t) {
  const Problem& p = plan.problem;
  return t.out.data == t.q.data && bytes_of(p.out, p.out_shape()) > 0 &&
         p.head_dim_v == p.head_dim && p.out.strides == p.q.strides && p.pass == Pass::forward;
}

// out over q where the kernel does not allow it, or not exactly over it.
Status bad_out_over_q(const Plan::Impl& plan, const AttentionTensors& t) {
  if (!is_in_place(plan, t)) {
    return {StatusCode::invalid_argument,
            fmt::format("out at {} overlaps q at {}: out may be exactly q's memory, with its "
                        "address, shape and strides, else it needs "
                        "memory of its own",
                        t.out.data, t.q.data)};
  }
  std::string others;
  for (const Kernel* kernel : plan.backend->kernels()) {
    if (!kernel->out_over_q() || !support_of(*kernel, plan.kernel_problem, plan.device).yes)
      continue;
    others += fmt::format("{}{}", others.empty() ? "" : ", ", printable(kernel->name()));
  }
  return {
      StatusCode::invalid_argument,
      fmt::format("out and q are both at {}: kernel {} does not write over q; those that do for "
                  "this problem: {}",
                  t.out.data, printable(plan.kernel->name()), others.empty() ? "none" : others)};
}

Status check_pointers(const Plan::Impl& plan, const AttentionTensors& t, const void* workspace) {
  const auto pass = static_cast<std::size_t>(plan.problem.pass);
  constexpr const char* kWritten = "outputs and workspace";
  const MemoryRange work{"workspace", workspace,
                         workspace != nullptr ? plan.runner->workspace_bytes() : 0, DType::fp32};
  const auto range_of = [&](int i) {
    const TensorField& field = kTensorTable[i];
    return MemoryRange{field.name, (t->*field.tensor).data, plan.bytes[i],
                       (plan.problem.*field.spec).dtype};
  };
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    if (!field.read[pass] && !field.written[pass]) continue;
    const MemoryRange range = range_of(i);
    if (range.data != nullptr && !(plan.problem.*field.spec).present) {
      return {StatusCode::invalid_argument,
              fmt::format("{}.data is {}: the plan was made without {}, it must be null",
                          field.name, range.data, field.name)};
    }
    if (!addressable(range))
      return bad_address(range, fmt::format("the plan needs {} bytes there", range.bytes));
    if (overlap(work, range)) return bad_overlap(work, range, kWritten);
    if (Status status = check_apart(plan.problem, t, range, field.written[pass]); !status.ok())
      return status;
    if (!field.written[pass]) continue;
    for (int other = 0; other < i; ++other) {
      const bool used = kTensorTable[other].read[pass] || kTensorTable[other].written[pass];
      if (!used || !overlap(range, range_of(other))) continue;
      const bool out_and_q = field.tensor == &AttentionTensors::out &&
                             kTensorTable[other].tensor == &AttentionTensors::q;
      if (!out_and_q) return bad_overlap(range, range_of(other), kWritten);
      if (!is_in_place(plan, t) || !plan.kernel->out_over_q()) return bad_out_over_q(plan, t);
    }
  }
  if (Status status = check_apart(plan.problem, t, work, true); !status.ok()) return status;
  return check_function_memory(plan.problem, t);
}

// Host copies of tensors in a device's own memory: of all, or of the tables of sequences alone.
class HostCopies {
 public:
  Status make(const Plan::Impl& plan, const AttentionTensors& from, bool tables_alone) {
    tensors = from;
    for (int i = 0; i < kTensorFields; ++i) {
      const TensorField& field = kTensorTable[i];
      if (plan.bytes[i] == 0 || (tables_alone && (plan.problem.*field.spec).dtype != DType::int32))
        continue;
      std::vector<std::byte>& copy = copies_.emplace_back(plan.bytes[i]);
      Tensor& tensor = tensors->*field.tensor;
      if (Status status = plan.backend->copy(plan.device, copy.data(), tensor.data, plan.bytes[i]);
          !status.ok())
        return status;
      tensor.data = copy.data();
    }
    return {};
  }
  AttentionTensors tensors;

 private:
  std::vector<std::vector<std::byte>> copies_;
};

// Lengths and pages, where they can be read or the caller wants to wait for them.
Status check_sequences_on(const Plan::Impl& plan, const AttentionTensors& tensors) {
  if (!plan.problem.variable_lengths()) return {};
  if (plan.backend->uses_host_memory()) return check_sequences(plan.problem, tensors);
  if (!plan.validate) return {};
  HostCopies host;
  if (Status status = host.make(plan, tensors, true); !status.ok()) return status;
  return check_sequences(plan.problem, host.tensors);
}

// The check beside the reference, on copies in host memory where the device has memory of its own.
Result<VerifyReport> verify_on(const Plan::Impl& plan, void* stream,
                               const AttentionTensors& tensors) {
  const Backend& backend = *plan.backend;
  if (backend.uses_host_memory()) return reference::verify(plan.problem, tensors, plan.threads);
  if (Status status = backend.synchronize(plan.device, stream); !status.ok()) return status;
  HostCopies host;
  if (Status status = host.make(plan, tensors, false); !status.ok()) return status;
  return reference::verify(plan.problem, host.tensors, plan.threads);
}

// Whether the stream can be waited for, where this run has to.
Status check_waits(const Plan::Impl& plan, void* stream) {
  const bool reads_tables = plan.validate && plan.problem.variable_lengths();
  if (plan.backend->uses_host_memory() || !(plan.verify || reads_tables)) return {};
  if (!plan.backend->is_capturing(plan.device, stream)) return {};
  return {StatusCode::invalid_argument,
          fmt::format("stream {} of device {} is being captured, and {} waits for it, which a "
                      "capture does not allow: make the plan "
                      "without, or run it once outside of the capture",
                      stream, plan.device,
                      plan.verify ? "verify (FLASH_ATTENTION_VERIFY)"
                                  : "validate (FLASH_ATTENTION_VALIDATE)")};
}

// Logs a line for each result: "PASSED out of cpu.short.avx512 on cpu, fp32 ...: 22528 elements".
void log_verified(const Plan::Impl& plan, const VerifyReport& report) {
  if (!plan.says_verified && !environment_flag("FLASH_ATTENTION_DEBUG")) return;
  std::string tensors;
  for (const TensorError& one : report.gradients)
    tensors += (tensors.empty() ? "" : ", ") + one.tensor;
  const std::string what =
      fmt::format("{} of {} on {}, {}", tensors.empty() ? report.tensor : tensors,
                  plan.runner->config().kernel, plan.device, to_string(plan.problem));
  if (!report.ok) return log_line(fmt::format("FAILED {}: {}", what, report.message));
  log_line(fmt::format(
      "PASSED {}: {} elements, worst error {:.3g} ({}, {:.3g} is allowed there), mean error {:.3g}",
      what, report.elements, report.worst_error, report.tensor, report.bound, report.mean_error));
}

// A plan of one size.
Status run_exact(const Plan::Impl& impl, void* stream, const AttentionTensors& given,
                 void* workspace, std::size_t workspace_bytes) {
  if (Status status = check_tensors(impl, given); !status.ok()) return status;
  const std::size_t needed = impl.runner->workspace_bytes();
  if (Status status = check_workspace(needed, workspace, workspace_bytes); !status.ok())
    return status;
  if (!impl.trust_pointers) {
    if (Status status = check_pointers(impl, given, workspace); !status.ok()) return status;
  }
  std::optional<AttentionTensors> placed;
  if (impl.backend->uses_host_memory() && any_at_null(impl.problem, given))
    placed = without_null(impl.problem, given);
  const AttentionTensors& tensors = placed ? *placed : given;
  if (Status status = check_waits(impl, stream); !status.ok()) return status;
  if (Status status = check_sequences_on(impl, tensors); !status.ok()) return status;
  std::optional<OwnWorkspace> own;
  if (workspace == nullptr && needed > 0) {
    own.emplace(impl, stream, needed);
    if (Status status = own->check(); !status.ok()) return status;
    workspace = own->memory();
  }
  if (impl.verify && is_in_place(impl, tensors)) {
    return {StatusCode::invalid_argument,
            fmt::format("out and q are both at {}: verify (FLASH_ATTENTION_VERIFY) compares with "
                        "what q was, so that out needs memory "
                        "of its own",
                        tensors.q.data)};
  }
  if (Status status = impl.runner->run(stream, tensors, workspace); !status.ok()) return status;
  if (!impl.verify) return {};
  const Result<VerifyReport> verified = verify_on(impl, stream, tensors);
  if (!verified.ok()) return verified.status();
  const VerifyReport& report = verified.value();
  log_verified(impl, report);
  if (report.ok) return {};
  return {StatusCode::verification_failed,
          fmt::format("kernel {}: {}", impl.runner->config().kernel, report.message)};
}

}  // namespace

Status Plan::run(void* stream, const AttentionTensors& tensors, void* workspace,
                 std::size_t workspace_bytes) const {
  return run(stream, tensors, workspace, workspace_bytes, {});
}

Status Plan::run(void* stream, const AttentionTensors& tensors, void* workspace,
                 std::size_t workspace_bytes, const RunOptions& options) const {
  try {
    const Impl& impl = *impl_;
    const Result<PlanVariants::Variant> variant =
        impl.variants.find(impl, tensors, options, stream);
    if (!variant.ok()) return variant.status();
    if (variant.value() == nullptr)
      return run_exact(impl, stream, tensors, workspace, workspace_bytes);
    if (Status status =
            check_workspace(impl.variants.workspace_bytes(), workspace, workspace_bytes);
        !status.ok())
      return status;
    // A length or an option that plan() did not foresee may need more.
    const bool enough = workspace_bytes >= variant.value()->runner->workspace_bytes();
    return run_exact(*variant.value(), stream, tensors, enough ? workspace : nullptr,
                     workspace_bytes);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to run the plan"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, fmt::format("running the plan failed: {}", error.what())};
  } catch (...) {
    return {StatusCode::internal, "running the plan failed: a kernel threw"};
  }
}

Result<Plan> Plan::at(const AttentionTensors& tensors, const RunOptions& options) const {
  try {
    const Result<PlanVariants::Variant> variant =
        impl_->variants.find(*impl_, tensors, options, nullptr);
    if (!variant.ok()) return variant.status();
    const Impl& chosen = variant.value() != nullptr ? *variant.value() : *impl_;
    if (Status status = check_tensors(chosen, tensors); !status.ok()) return status;
    return variant.value() != nullptr ? Plan(variant.value()) : *this;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory for the plan");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, fmt::format("planning failed: {}", error.what()));
  } catch (...) {
    return Status(StatusCode::internal, "planning failed: a kernel threw");
  }
}

}  // namespace fulmen
