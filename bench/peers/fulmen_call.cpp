// Fulmen's planned call behind a few C functions, for ctypes: compiled by fulmen_library.py against
// the public C++ headers.
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "fulmen/fulmen.h"
#include "fulmen/tensor_member.h"

namespace {

using fulmen::AttentionTensors;
using Member = fulmen::TensorMember<AttentionTensors>;
using T = AttentionTensors;

struct Call {
  AttentionTensors tensors;
  fulmen::Plan plan;
  void* workspace = nullptr;
  ~Call() { ::operator delete(workspace, std::align_val_t{64}); }
};

struct Name {
  std::string_view name;
  Member member;
};
const Name kNames[] = {
    {"q", &T::q},
    {"k", &T::k},
    {"v", &T::v},
    {"out", &T::out},
    {"lse", &T::lse},
    {"bias", &T::bias},
    {"keep_mask", &T::keep_mask},
    {"sinks", &T::sinks},
    {"cu_seqlens_q", &T::cu_seqlens_q},
    {"cu_seqlens_k", &T::cu_seqlens_k},
    {"seqlens_k", &T::seqlens_k},
    {"block_table", &T::block_table},
    {"dout", &T::dout},
    {"dq", &T::dq},
    {"dk", &T::dk},
    {"dv", &T::dv},
    {"dbias", &T::dbias},
};

thread_local std::string last_error;

}  // namespace

extern "C" {

// As fulmen_library.py lays them out.
struct CallTensor {
  const char* name;
  void* data;
  int64_t dtype;
  int64_t shape[4];
  int64_t strides[4];
};
struct CallOptions {
  double softcap;
  double dropout;
  int64_t causal;
  int64_t window_left;
  int64_t window_right;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  int64_t threads;
  int64_t backward;
};

const char* call_error() { return last_error.c_str(); }
const char* call_version() { return fulmen::version(); }
const char* call_kernel(const Call* call) { return call->plan.config().kernel.c_str(); }

// Null on error.
Call* call_create(const CallTensor* views, int64_t count, const CallOptions* asked) {
  AttentionTensors tensors;
  for (const CallTensor* view = views; view != views + count; ++view) {
    const Name* found = nullptr;
    for (const Name& name : kNames) found = name.name == view->name ? &name : found;
    if (found == nullptr)
      return last_error = std::string("there is no tensor ") + view->name, nullptr;
    fulmen::Tensor& tensor = tensors->*found->member;
    tensor.data = view->data;
    tensor.dtype = static_cast<fulmen::DType>(view->dtype);
    for (std::size_t d = 0; d < 4; ++d) {
      tensor.shape[d] = view->shape[d];
      tensor.strides[d] = view->strides[d];
    }
  }
  tensors.dropout_seed = 1;
  fulmen::AttentionOptions options;
  options.softcap = static_cast<float>(asked->softcap);
  options.dropout = static_cast<float>(asked->dropout);
  options.causal = static_cast<fulmen::Causal>(asked->causal);
  options.window_left = asked->window_left;
  options.window_right = asked->window_right;
  options.max_seqlen_q = asked->max_seqlen_q;
  options.max_seqlen_k = asked->max_seqlen_k;
  options.num_threads = static_cast<int>(asked->threads);
  const auto problem = asked->backward != 0 ? fulmen::make_backward_problem(tensors, options)
                                            : fulmen::make_problem(tensors, options);
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
