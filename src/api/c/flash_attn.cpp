// The C entries that users of Rust attention kernels know.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "api/c/translation.h"
#include "plan/registry.h"

namespace fulmen::c_api {
namespace {

Status check_params(const FlashAttnParams* params) {
  if (params == nullptr) return null_argument("params");
  std::size_t elements = 1;
  for (const std::size_t n :
       {params->batch_size, params->seq_len, params->num_heads, params->head_dim}) {
    if (__builtin_mul_overflow(elements, std::max<std::size_t>(n, 1), &elements) ||
        elements > (std::size_t{1} << 60U)) {
      return {
          StatusCode::invalid_argument,
          fmt::format("params is batch_size {} seq_len {} num_heads {} head_dim {}: more elements "
                      "than an address can reach",
                      params->batch_size, params->seq_len, params->num_heads, params->head_dim)};
    }
  }
  return {};
}

// fp16 [batch_size, seq_len, num_heads, head_dim]. Fulmen never writes its inputs: the view's
// pointer is not const because outputs share the type.
Tensor view(const FlashAttnParams& params, const void* data) {
  return Tensor::bshd(const_cast<void*>(data), DType::fp16, static_cast<int64_t>(params.batch_size),
                      static_cast<int64_t>(params.seq_len), static_cast<int64_t>(params.num_heads),
                      static_cast<int64_t>(params.head_dim));
}

AttentionTensors forward_tensors(const FlashAttnParams& params, const void* q, const void* k,
                                 const void* v, const void* out) {
  AttentionTensors tensors;
  tensors.q = view(params, q);
  tensors.k = view(params, k);
  tensors.v = view(params, v);
  tensors.out = view(params, out);
  return tensors;
}

AttentionOptions options_of(const FlashAttnParams& params) {
  AttentionOptions options;
  if (params.softmax_scale != 0.0F) options.softmax_scale = params.softmax_scale;
  if (params.is_causal) options.causal = Causal::top_left;
  return options;
}

// Memory of a device for the length of a call. Freeing it waits for the work that uses it.
class DeviceScratch {
 public:
  DeviceScratch(std::shared_ptr<const Backend> backend, std::string device, std::size_t bytes)
      : backend_(std::move(backend)),
        device_(std::move(device)),
        memory_(backend_->allocate(device_, std::max<std::size_t>(bytes, 1))) {}
  ~DeviceScratch() {
    if (memory_ != nullptr) backend_->free(device_, memory_);
  }
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  void* memory() const noexcept { return memory_; }

 private:
  std::shared_ptr<const Backend> backend_;
  std::string device_;
  void* memory_;
};

// The gradients, after a forward pass for the lse alone: its out goes to memory of its own, since
// the caller's is an input.
Status backward(AttentionTensors tensors, const AttentionOptions& options) {
  const auto [batch, seqlen, heads, dim] = tensors.q.shape;
  tensors.lse = Tensor::bhqk(nullptr, DType::fp32, batch, heads, seqlen, 1);
  // What is wrong is said before anything is allocated.
  const auto problem = make_backward_problem(tensors, options);
  if (!problem.ok()) return problem.status();
  const std::string device = default_device();
  auto backward_plan = plan(problem.value(), device, options);
  if (!backward_plan.ok()) return backward_plan.status();

  const std::shared_ptr<const Backend> backend = backend_of(device);
  const auto rows = static_cast<std::size_t>(batch * seqlen * heads);
  const std::size_t out_bytes = rows * static_cast<std::size_t>(dim * size_of(DType::fp16));
  const DeviceScratch out(backend, device, out_bytes), lse(backend, device, rows * sizeof(float));
  if (out.memory() == nullptr || lse.memory() == nullptr) {
    return {StatusCode::out_of_memory,
            fmt::format("no memory for {} bytes of the forward pass on device {}",
                        out_bytes + rows * sizeof(float), device)};
  }
  AttentionTensors again = tensors;
  again.out.data = out.memory();
  again.lse.data = tensors.lse.data = lse.memory();
  if (Status status = attention(again, options, device); !status.ok()) return status;
  if (Status status = backward_plan->run(nullptr, tensors, nullptr, 0); !status.ok()) return status;
  return backend->synchronize(device, nullptr);
}

}  // namespace
}  // namespace fulmen::c_api

using fulmen::Status;
using fulmen::c_api::check_params;
using fulmen::c_api::guarded;

extern "C" {

int flash_attn_forward(const void* q, const void* k, const void* v, void* out,
                       const FlashAttnParams* params) {
  return guarded([&]() -> Status {
    if (Status status = check_params(params); !status.ok()) return status;
    return fulmen::attention(fulmen::c_api::forward_tensors(*params, q, k, v, out),
                             fulmen::c_api::options_of(*params));
  });
}

int flash_attn_backward(const void* dout, const void* q, const void* k, const void* v,
                        const void* out, void* dq, void* dk, void* dv,
                        const FlashAttnParams* params) {
  return guarded([&]() -> Status {
    if (Status status = check_params(params); !status.ok()) return status;
    fulmen::AttentionTensors tensors = fulmen::c_api::forward_tensors(*params, q, k, v, out);
    tensors.dout = fulmen::c_api::view(*params, dout);
    if (dq != nullptr) tensors.dq = fulmen::c_api::view(*params, dq);
    if (dk != nullptr) tensors.dk = fulmen::c_api::view(*params, dk);
    if (dv != nullptr) tensors.dv = fulmen::c_api::view(*params, dv);
    return fulmen::c_api::backward(tensors, fulmen::c_api::options_of(*params));
  });
}

}  // extern "C"
