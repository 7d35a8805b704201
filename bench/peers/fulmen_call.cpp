// Fulmen's planned call behind four C functions, for ctypes: compiled by fulmen_library.py against
// the public C++ headers.
#include <cstdio>
#include <memory>
#include <new>
#include <string>

#include "fulmen/fulmen.h"

namespace {

struct Call {
  fulmen::AttentionTensors tensors;
  fulmen::Plan plan;
  void* workspace = nullptr;
  ~Call() { ::operator delete(workspace, std::align_val_t{64}); }
};

thread_local std::string last_error;

}  // namespace

extern "C" {

const char* call_error() { return last_error.c_str(); }
const char* call_version() { return fulmen::version(); }
const char* call_kernel(const Call* call) { return call->plan.config().kernel.c_str(); }

// q, k, v, out: [batch, heads, seqlen, head_dim]; bias: [1, heads, seqlen, seqlen] or null; keep:
// bool [1, 1, keep_rows, seqlen] or null; all contiguous. Null on error.
Call* call_create(void* q, void* k, void* v, void* bias, void* keep, void* out, int dtype,
                  int64_t batch, int64_t heads, int64_t seqlen, int64_t head_dim, int64_t keep_rows,
                  int causal, int threads) {
  using fulmen::Tensor;
  const auto type = static_cast<fulmen::DType>(dtype);
  const auto view = [&](void* data) {
    return Tensor::bhsd(data, type, batch, seqlen, heads, head_dim);
  };
  fulmen::AttentionTensors tensors{.q = view(q), .k = view(k), .v = view(v), .out = view(out)};
  if (bias != nullptr) tensors.bias = Tensor::bhqk(bias, type, 1, heads, seqlen, seqlen);
  if (keep != nullptr)
    tensors.keep_mask = Tensor::bhqk(keep, fulmen::DType::boolean, 1, 1, keep_rows, seqlen);
  fulmen::AttentionOptions options;
  options.causal = causal != 0 ? fulmen::Causal::bottom_right : fulmen::Causal::none;
  options.num_threads = threads;
  const auto problem = fulmen::make_problem(tensors, options);
  if (!problem.ok()) return last_error = problem.status().message(), nullptr;
  const auto plan = fulmen::plan(problem.value(), "cpu", options);
  if (!plan.ok()) return last_error = plan.status().message(), nullptr;
  auto call = std::make_unique<Call>(Call{tensors, plan.value()});
  call->workspace = ::operator new(call->plan.workspace_bytes(), std::align_val_t{64});
  return call.release();
}

int call_run(const Call* call) {
  const fulmen::Status status =
      call->plan.run(nullptr, call->tensors, call->workspace, call->plan.workspace_bytes());
  if (!status.ok()) last_error = status.message();
  return static_cast<int>(status.code());
}

void call_destroy(Call* call) { delete call; }

}  // extern "C"
