// The C ABI of both passes: structs in, C++ API, status out. Nothing throws across it.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "api/c/translation.h"
#include "plan/function_tensors.h"
#include "plan/plan_impl.h"
#include "reference/verify/verify.h"
#include "runtime/fork_safe.h"
#include "runtime/memory_range.h"

struct fulmen_plan {  // NOLINT(readability-identifier-naming): the C ABI's name
  explicit fulmen_plan(fulmen::Plan made) : plan(std::move(made)) {}
  fulmen::Plan plan;
  fulmen_plan(const fulmen_plan&) = delete;
  fulmen_plan& operator=(const fulmen_plan&) = delete;
  ~fulmen_plan() { explanation.destroy(); }
  mutable fulmen::MadeOnce<const std::string> explanation;  // planning formats nothing
};

namespace fulmen::c_api {
namespace {

bool has_elements(const Tensor& tensor) {
  return std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t n) { return n > 0; });
}

// Whether what the reference reads has an address that its elements may have, and the pass's
// outputs, too, where they are compared with it. The reference computes out and lse itself, also
// when they are inputs.
Status check_data(const Problem& problem, const AttentionTensors& tensors, bool outputs) {
  const auto index = static_cast<std::size_t>(problem.pass);
  for (const TensorField& field : kTensorTable) {
    const bool forward_result = field.written[static_cast<std::size_t>(Pass::forward)];
    const bool needed = (field.read[index] && !forward_result) || (field.written[index] && outputs);
    const Tensor& tensor = tensors->*field.tensor;
    if (!needed || !has_elements(tensor)) continue;
    if (tensor.data == nullptr) return null_argument(fmt::format("{}.data", field.name).c_str());
    const MemoryRange range{field.name, tensor.data, 1, tensor.dtype};
    if (!addressable(range)) return bad_address(range, "");
  }
  return check_function_memory(problem, tensors);
}

int create_plan(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options,
                const char* device, fulmen_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    *plan = nullptr;
    const auto call = to_cpp(pass, tensors, options, device);
    if (!call.ok()) return call.status();
    auto made = fulmen::plan(call.value().problem, call.value().device, call.value().options);
    if (!made.ok()) return made.status();
    *plan = new fulmen_plan(std::move(made).value());
    return {};
  });
}

int describe(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options,
             fulmen_problem_info* info) {
  return guarded([&]() -> Status {
    const auto call = to_cpp(pass, tensors, options, "");
    if (!call.ok()) return call.status();
    const Problem& problem = call.value().problem;
    given_text() = to_string(problem);
    const fulmen_problem_info full{sizeof full, hash_value(problem), problem.flops(),
                                   problem.bytes(), given_text().c_str()};
    return write_struct("info", full, info);
  });
}

using VisitCandidate = void (*)(void* context, const char* kernel, bool supported,
                                const char* reason, double rank);

int visit_candidates(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options,
                     const char* device, VisitCandidate visit, void* context) {
  return guarded([&]() -> Status {
    if (visit == nullptr) return null_argument("visit");
    const auto call = to_cpp(pass, tensors, options, device);
    if (!call.ok()) return call.status();
    const auto all = candidates(call.value().problem, call.value().device);
    if (!all.ok()) return all.status();
    for (const Candidate& c : all.value())
      visit(context, c.kernel.c_str(), c.support.yes, c.support.reason.c_str(), c.rank);
    return {};
  });
}

// The report of a call whose arguments are right.
Result<VerifyReport> verified(Pass pass, const fulmen_tensors* tensors,
                              const fulmen_options* options) {
  const auto call = to_cpp(pass, tensors, options, "");
  if (!call.ok()) return call.status();
  if (Status status = check_data(call.value().problem, call.value().tensors, true); !status.ok())
    return status;
  return reference::verify(call.value().problem, call.value().tensors, call.value().options);
}
Status verdict(const VerifyReport& r) {
  return r.ok ? Status() : Status(StatusCode::verification_failed, r.message);
}

int verify(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options,
           fulmen_verify_report* report) {
  return guarded([&]() -> Status {
    const Result<VerifyReport> made = verified(pass, tensors, options);
    if (!made.ok()) return made.status();
    const VerifyReport& r = made.value();
    if (report != nullptr) {
      given_text() = r.tensor;
      const fulmen_verify_report full{sizeof full,          r.ok,       r.worst_error,
                                      r.baseline_error,     r.bound,    r.lse_error,
                                      given_text().c_str(), r.elements, r.mean_error};
      if (Status status = write_struct("report", full, report); !status.ok()) return status;
    }
    return verdict(r);
  });
}

using VisitError = void (*)(void* context, const char* tensor, double worst_error,
                            double baseline_error, double bound);

int check_values(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options) {
  return guarded([&]() -> Status {
    const auto call = to_cpp(pass, tensors, options, "");
    return call.ok() ? check_sequences(call.value().problem, call.value().tensors) : call.status();
  });
}

int zero_rows(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options,
              const char* device, void* stream) {
  return guarded([&]() -> Status {
    const auto call = to_cpp(pass, tensors, options, device);
    if (!call.ok()) return call.status();
    return fulmen::zero_unused_rows(call.value().problem, call.value().tensors, call.value().device,
                                    stream);
  });
}

// A gradient that is wanted from the reference without a shape for it.
Status shapeless_gradient(const char* name) {
  return {StatusCode::invalid_argument,
          fmt::format("{} is given, tensors.{} is missing: its shape is needed, its data is not",
                      name, name)};
}

}  // namespace
}  // namespace fulmen::c_api

using fulmen::Pass;
using fulmen::Status;
using fulmen::c_api::guarded;
using fulmen::c_api::null_argument;

extern "C" {

int fulmen_attention_in_stream(const fulmen_tensors* tensors, const fulmen_options* options,
                               const char* device, void* stream) {
  return guarded([&]() -> Status {
    const auto call = fulmen::c_api::to_cpp(Pass::forward, tensors, options, device);
    return call.ok() ? fulmen::attention(call->tensors, call->options, call->device, stream)
                     : call.status();
  });
}

int fulmen_attention_backward_in_stream(const fulmen_tensors* tensors,
                                        const fulmen_options* options, const char* device,
                                        void* stream) {
  return guarded([&]() -> Status {
    const auto call = fulmen::c_api::to_cpp(Pass::backward, tensors, options, device);
    return call.ok()
               ? fulmen::attention_backward(call->tensors, call->options, call->device, stream)
               : call.status();
  });
}

int fulmen_attention(const fulmen_tensors* tensors, const fulmen_options* options,
                     const char* device) {
  return fulmen_attention_in_stream(tensors, options, device, nullptr);
}

int fulmen_attention_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                              const char* device) {
  return fulmen_attention_backward_in_stream(tensors, options, device, nullptr);
}

int fulmen_plan_create(const fulmen_tensors* tensors, const fulmen_options* options,
                       const char* device, fulmen_plan** plan) {
  return fulmen::c_api::create_plan(Pass::forward, tensors, options, device, plan);
}

int fulmen_plan_create_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                                const char* device, fulmen_plan** plan) {
  return fulmen::c_api::create_plan(Pass::backward, tensors, options, device, plan);
}

void fulmen_plan_destroy(fulmen_plan* plan) { delete plan; }
size_t fulmen_plan_workspace_bytes(const fulmen_plan* plan) {
  return plan != nullptr ? plan->plan.workspace_bytes() : 0;
}
const char* fulmen_plan_explain(const fulmen_plan* plan) {
  const bool done = plan != nullptr && fulmen::c_api::done_quietly([plan] {
                      plan->explanation.get([plan] { return plan->plan.explain(); });
                    });
  return done ? plan->explanation.made()->c_str() : "";
}
const char* fulmen_plan_device(const fulmen_plan* plan) {
  return plan != nullptr ? plan->plan.device().c_str() : "";
}

int fulmen_plan_run(const fulmen_plan* plan, void* stream, const fulmen_tensors* tensors,
                    void* workspace, size_t workspace_bytes) {
  return fulmen_plan_run_with(plan, stream, tensors, nullptr, workspace, workspace_bytes);
}

int fulmen_plan_run_with(const fulmen_plan* plan, void* stream, const fulmen_tensors* tensors,
                         const fulmen_run_options* options, void* workspace,
                         size_t workspace_bytes) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    auto views = fulmen::c_api::to_cpp(tensors);
    if (!views.ok()) return views.status();
    const auto changed = fulmen::c_api::to_cpp(options);
    if (!changed.ok()) return changed.status();
    return plan->plan.run(stream, views.value(), workspace, workspace_bytes, changed.value());
  });
}

int fulmen_plan_at(const fulmen_plan* plan, const fulmen_tensors* tensors,
                   const fulmen_run_options* options, fulmen_plan** exact) {
  return guarded([&]() -> Status {
    if (exact == nullptr) return null_argument("exact");
    *exact = nullptr;
    if (plan == nullptr) return null_argument("plan");
    const auto views = fulmen::c_api::to_cpp(tensors);
    if (!views.ok()) return views.status();
    const auto changed = fulmen::c_api::to_cpp(options);
    if (!changed.ok()) return changed.status();
    auto made = plan->plan.at(views.value(), changed.value());
    if (!made.ok()) return made.status();
    *exact = new fulmen_plan(std::move(made).value());
    return {};
  });
}

int fulmen_plan_config(const fulmen_plan* plan, fulmen_kernel_config* config) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    const fulmen::KernelConfig& c = plan->plan.config();
    const fulmen_kernel_config full{sizeof full, c.kernel.c_str(), c.block_m,
                                    c.block_n,   c.num_splits,     c.num_threads};
    return fulmen::c_api::write_struct("config", full, config);
  });
}

int fulmen_describe(const fulmen_tensors* tensors, const fulmen_options* options,
                    fulmen_problem_info* info) {
  return fulmen::c_api::describe(Pass::forward, tensors, options, info);
}

int fulmen_describe_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                             fulmen_problem_info* info) {
  return fulmen::c_api::describe(Pass::backward, tensors, options, info);
}

int fulmen_visit_candidates(const fulmen_tensors* tensors, const fulmen_options* options,
                            const char* device,
                            void (*visit)(void* context, const char* kernel, bool supported,
                                          const char* reason, double rank),
                            void* context) {
  return fulmen::c_api::visit_candidates(Pass::forward, tensors, options, device, visit, context);
}

int fulmen_visit_candidates_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                                     const char* device,
                                     void (*visit)(void* context, const char* kernel,
                                                   bool supported, const char* reason, double rank),
                                     void* context) {
  return fulmen::c_api::visit_candidates(Pass::backward, tensors, options, device, visit, context);
}

int fulmen_reference(const fulmen_tensors* tensors, const fulmen_options* options, double* out,
                     double* lse) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    const auto call = fulmen::c_api::to_cpp(Pass::forward, tensors, options, "");
    if (!call.ok()) return call.status();
    if (Status status =
            fulmen::c_api::check_data(call.value().problem, call.value().tensors, false);
        !status.ok())
      return status;
    return fulmen::attention_reference(call.value().problem, call.value().tensors, out, lse,
                                       call.value().options);
  });
}

int fulmen_reference_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                              double* dq, double* dk, double* dv, double* dbias, double* dsinks) {
  return guarded([&]() -> Status {
    const auto call = fulmen::c_api::to_cpp(Pass::backward, tensors, options, "");
    if (!call.ok()) return call.status();
    const fulmen::Problem& p = call.value().problem;
    const struct {
      const char* name;
      const double* wanted;
      const fulmen::TensorSpec& spec;
    } all[] = {{"dq", dq, p.dq},
               {"dk", dk, p.dk},
               {"dv", dv, p.dv},
               {"dbias", dbias, p.dbias},
               {"dsinks", dsinks, p.dsinks}};
    for (const auto& one : all) {
      if (one.wanted != nullptr && !one.spec.present)
        return fulmen::c_api::shapeless_gradient(one.name);
    }
    if (Status status =
            fulmen::c_api::check_data(call.value().problem, call.value().tensors, false);
        !status.ok())
      return status;
    return fulmen::attention_backward_reference(p, call.value().tensors,
                                                {dq, dk, dv, dbias, dsinks}, call.value().options);
  });
}

int fulmen_dropout_mask(const fulmen_tensors* tensors, const fulmen_options* options,
                        uint8_t* keep) {
  return guarded([&]() -> Status {
    if (keep == nullptr) return null_argument("keep");
    const auto call = fulmen::c_api::to_cpp(Pass::forward, tensors, options, "");
    if (!call.ok()) return call.status();
    fulmen::Problem problem = call.value().problem;
    // The problem may have cut their lengths to the rows that there are.
    const fulmen::AttentionOptions& o = call.value().options;
    if (o.max_seqlen_q >= 0) problem.seqlen_q = o.max_seqlen_q;
    if (o.max_seqlen_k >= 0) problem.seqlen_k = o.max_seqlen_k;
    return fulmen::dropout_mask(problem, call.value().tensors, keep);
  });
}

int fulmen_verify(const fulmen_tensors* tensors, const fulmen_options* options,
                  fulmen_verify_report* report) {
  return fulmen::c_api::verify(Pass::forward, tensors, options, report);
}

int fulmen_verify_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                           fulmen_verify_report* report) {
  return fulmen::c_api::verify(Pass::backward, tensors, options, report);
}

int fulmen_visit_gradient_errors(const fulmen_tensors* tensors, const fulmen_options* options,
                                 fulmen::c_api::VisitError visit, void* context) {
  return guarded([&]() -> Status {
    if (visit == nullptr) return null_argument("visit");
    const auto report = fulmen::c_api::verified(Pass::backward, tensors, options);
    if (!report.ok()) return report.status();
    for (const fulmen::TensorError& e : report->gradients) {
      visit(context, e.tensor.c_str(), e.worst_error, e.baseline_error, e.bound);
    }
    return fulmen::c_api::verdict(report.value());
  });
}

int fulmen_check_sequences(const fulmen_tensors* tensors, const fulmen_options* options) {
  return fulmen::c_api::check_values(Pass::forward, tensors, options);
}

int fulmen_check_sequences_backward(const fulmen_tensors* tensors, const fulmen_options* options) {
  return fulmen::c_api::check_values(Pass::backward, tensors, options);
}

int fulmen_zero_unused_rows(const fulmen_tensors* tensors, const fulmen_options* options,
                            const char* device, void* stream) {
  return fulmen::c_api::zero_rows(Pass::forward, tensors, options, device, stream);
}

int fulmen_zero_unused_rows_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                                     const char* device, void* stream) {
  return fulmen::c_api::zero_rows(Pass::backward, tensors, options, device, stream);
}

}  // extern "C"
