// Every check of a call's tensors and options, each once.
#include "fulmen/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "api/cpp/sequence_checks.h"
#include "plan/problem_options.h"
#include "runtime/tensor_checks.h"
#include "runtime/threading.h"

namespace fulmen {
namespace {

Status check_main(const AttentionTensors& a, const AttentionOptions& o, Problem& p) {
  struct Named {
    const char* name;
    const Tensor& tensor;
  };
  for (const auto& [name, tensor] : {Named{"q", a.q}, Named{"k", a.k}, Named{"v", a.v}, Named{"out", a.out}}) {
    if (absent(tensor)) return invalid(fmt::format("{} is missing: q, k, v and out are always needed", name));
    if (!is_float(tensor.dtype)) {
      return invalid(fmt::format("{}.dtype is {}: fp32, fp16 and bf16 are accepted", name, name_of(tensor.dtype)));
    }
    if (tensor.dtype != a.q.dtype) {
      return invalid(fmt::format("{}.dtype is {}, q.dtype is {}: q, k, v and out must agree", name, name_of(tensor.dtype),
                                 name_of(a.q.dtype)));
    }
    if (Status status = check_view(name, tensor); !status.ok()) return status;
  }
  p.dtype = a.q.dtype;
  p.num_heads = a.q.shape[2];
  p.head_dim = a.q.shape[3];
  p.num_kv_heads = a.k.shape[2];
  p.head_dim_v = a.v.shape[3];
  if (p.head_dim < 1 || p.head_dim > kMaxHeadDim) {
    return invalid(fmt::format("q.shape is {}: head_dim is {}, 1 to {} are accepted", a.q.shape, p.head_dim, kMaxHeadDim));
  }
  if (p.head_dim_v < 1 || p.head_dim_v > kMaxHeadDim) {
    return invalid(fmt::format("v.shape is {}: head_dim_v is {}, 1 to {} are accepted", a.v.shape, p.head_dim_v, kMaxHeadDim));
  }
  if (p.num_heads < 1) return invalid(fmt::format("q.shape is {}: num_heads must be at least 1", a.q.shape));
  if (p.num_kv_heads < 1 || p.num_heads % p.num_kv_heads != 0) {
    return invalid(
        fmt::format("k.shape is {}: num_kv_heads is {}, it must divide num_heads = {}", a.k.shape, p.num_kv_heads, p.num_heads));
  }
  Status status = check_sequence_tensors(a, o, p);
  if (status.ok()) status = check_shape("k", a.k, p.k_shape(), k_meaning(p));
  if (status.ok()) status = check_shape("v", a.v, p.v_shape(), v_meaning(p));
  if (status.ok()) status = check_shape("out", a.out, p.out_shape(), out_meaning(p));
  if (!status.ok()) return status;
  p.q = spec_of(a.q);
  p.k = spec_of(a.k);
  p.v = spec_of(a.v);
  p.out = spec_of(a.out);
  return {};
}

// bias and keep_mask: [batch, num_heads, seqlen_q, seqlen_k], each dim but the last may be 1.
Status check_score_tensor(const char* name, const Tensor& t, const Problem& p, TensorSpec& spec) {
  if (Status status = check_view(name, t, kScoreBits); !status.ok()) return status;
  const Shape want = p.score_shape();
  for (int d = 0; d < 4; ++d) {
    if (t.shape[d] != want[d] && (d == 3 || t.shape[d] != 1)) {
      return invalid(
          fmt::format("{}.shape is {}: [batch, num_heads, seqlen_q, seqlen_k] = {} is needed, where each dim but the last may be 1",
                      name, t.shape, want));
    }
  }
  spec = spec_of(t);
  return {};
}

// lse and dlse: [batch, num_heads, seqlen_q, 1].
Status check_row_numbers(const char* name, const Tensor& t, const Problem& p) {
  if (t.dtype != DType::fp32) return invalid(fmt::format("{}.dtype is {}: fp32 is needed", name, name_of(t.dtype)));
  if (Status status = check_view(name, t); !status.ok()) return status;
  return check_shape(name, t, p.lse_shape(), p.packed_q() ? "[1, num_heads, total_q, 1]" : "[batch, num_heads, seqlen_q, 1]");
}

Status check_optional(const AttentionTensors& a, Problem& p) {
  if (!absent(a.bias)) {
    if (!is_float(a.bias.dtype)) {
      return invalid(fmt::format("bias.dtype is {}: fp32, fp16 and bf16 are accepted", name_of(a.bias.dtype)));
    }
    if (Status status = check_score_tensor("bias", a.bias, p, p.bias); !status.ok()) return status;
  }
  if (!absent(a.keep_mask)) {
    if (a.keep_mask.dtype != DType::boolean) {
      return invalid(fmt::format("keep_mask.dtype is {}: boolean (one byte, true = attend) is needed", name_of(a.keep_mask.dtype)));
    }
    if (Status status = check_score_tensor("keep_mask", a.keep_mask, p, p.keep_mask); !status.ok()) return status;
  }
  struct Vector {
    const char* name;
    const Tensor& tensor;
    TensorSpec& spec;
    bool per_batch;
  };
  for (const Vector& v : {Vector{"alibi_slopes", a.alibi_slopes, p.alibi_slopes, true}, Vector{"sinks", a.sinks, p.sinks, false}}) {
    if (absent(v.tensor)) continue;
    if (v.tensor.dtype != DType::fp32)
      return invalid(fmt::format("{}.dtype is {}: fp32 is needed", v.name, name_of(v.tensor.dtype)));
    if (Status status = check_view(v.name, v.tensor); !status.ok()) return status;
    const bool batched = v.per_batch && v.tensor.shape == Shape{p.batch, 1, 1, p.num_heads};
    if (!batched && v.tensor.shape != Shape{1, 1, 1, p.num_heads}) {
      return invalid(fmt::format("{}.shape is {}: [{}, 1, 1, num_heads] with num_heads = {} is needed", v.name, v.tensor.shape,
                                 v.per_batch ? "1 or batch" : "1", p.num_heads));
    }
    v.spec = spec_of(v.tensor);
  }
  if (!absent(a.lse)) {
    if (Status status = check_row_numbers("lse", a.lse, p); !status.ok()) return status;
    if (Status status = check_output("lse", a.lse); !status.ok()) return status;
    p.lse = spec_of(a.lse);
  }
  return {};
}

// A gradient of q, k, v: as the tensor itself.
Status check_gradient(const char* name, const Tensor& t, DType dtype, const Shape& want, const char* meaning, TensorSpec& spec) {
  if (absent(t)) return {};
  if (t.dtype != dtype) {
    return invalid(fmt::format("{}.dtype is {}, q.dtype is {}: they must agree", name, name_of(t.dtype), name_of(dtype)));
  }
  if (Status status = check_view(name, t); !status.ok()) return status;
  if (Status status = check_shape(name, t, want, meaning); !status.ok()) return status;
  if (Status status = check_output(name, t); !status.ok()) return status;
  spec = spec_of(t);
  return {};
}

Status check_bias_gradient(const AttentionTensors& a, Problem& p) {
  if (absent(a.dbias)) return {};
  if (!p.bias.present) return invalid("dbias is given, bias is missing: without a bias it has no gradient");
  if (!is_float(a.dbias.dtype)) {
    return invalid(fmt::format("dbias.dtype is {}: fp32, fp16 and bf16 are accepted", name_of(a.dbias.dtype)));
  }
  if (Status status = check_score_tensor("dbias", a.dbias, p, p.dbias); !status.ok()) return status;
  return check_output("dbias", a.dbias);
}

Status check_backward(const AttentionTensors& a, Problem& p) {
  p.pass = Pass::backward;
  if (absent(a.lse)) return invalid("lse is missing: the backward pass needs the one that the forward pass gave");
  if (absent(a.dout)) return invalid("dout is missing: the backward pass needs the gradient of out");
  if (Status status = check_sequence_gradients(a, p); !status.ok()) return status;
  if (a.dout.dtype != p.dtype) {
    return invalid(fmt::format("dout.dtype is {}, q.dtype is {}: they must agree", name_of(a.dout.dtype), name_of(p.dtype)));
  }
  if (Status status = check_view("dout", a.dout); !status.ok()) return status;
  if (Status status = check_shape("dout", a.dout, p.out_shape(), out_meaning(p)); !status.ok()) return status;
  p.dout = spec_of(a.dout);
  if (!absent(a.dlse)) {
    if (Status status = check_row_numbers("dlse", a.dlse, p); !status.ok()) return status;
    p.dlse = spec_of(a.dlse);
  }
  Status status = check_gradient("dq", a.dq, p.dtype, p.q_shape(), q_meaning(p), p.dq);
  if (status.ok()) status = check_gradient("dk", a.dk, p.dtype, p.k_shape(), k_meaning(p), p.dk);
  if (status.ok()) status = check_gradient("dv", a.dv, p.dtype, p.v_shape(), v_meaning(p), p.dv);
  if (status.ok()) status = check_bias_gradient(a, p);
  if (!status.ok()) return status;
  if (!absent(a.dsinks)) {
    if (!p.sinks.present) return invalid("dsinks is given, sinks is missing: without sinks they have no gradient");
    if (a.dsinks.dtype != DType::fp32) return invalid(fmt::format("dsinks.dtype is {}: fp32 is needed", name_of(a.dsinks.dtype)));
    if (Status bad = check_view("dsinks", a.dsinks); !bad.ok()) return bad;
    if (Status bad = check_shape("dsinks", a.dsinks, {1, 1, 1, p.num_heads}, "[1, 1, 1, num_heads]"); !bad.ok()) return bad;
    p.dsinks = spec_of(a.dsinks);
  }
  if (!p.dq.present && !p.dk.present && !p.dv.present && !p.dbias.present && !p.dsinks.present) {
    return invalid("dq, dk, dv, dbias and dsinks are all missing: there is nothing to compute");
  }
  return {};
}

// Kernels fold log2(e) into the scale, and divide it by the softcap, in fp32: with this bound nothing of it overflows.
constexpr float kMostScale = 1e18F;
// Kernels compute tanh by exponentials, with an absolute error of up to 1e-6 that the softcap multiplies: above, that is more than
// a result may be off. Models have 15 to 50.
constexpr float kMostSoftcap = 1000;

Status check_scale(float scale, Problem& p) {
  if (!(std::abs(scale) <= kMostScale)) {
    return invalid(fmt::format("softmax_scale is {}: a finite number from {:g} to {:g} is needed", scale, -kMostScale, kMostScale));
  }
  p.softmax_scale = scale;
  return {};
}

Status check_softcap(float softcap, Problem& p) {
  if (!(softcap == 0 || (softcap >= 1 / kMostScale && softcap <= kMostSoftcap))) {
    return invalid(fmt::format("softcap is {}: a finite number, 0 (off) or above, is needed: 0, or {:g} to {:g}", softcap,
                               1 / kMostScale, kMostSoftcap));
  }
  p.softcap = softcap;
  return {};
}

// Wider than any sequence is unlimited; clipping keeps sums of indices exact.
Status check_window(const char* name, int64_t window, int64_t& clipped) {
  if (window < -1) return invalid(fmt::format("{} is {}: -1 (unlimited) or above is accepted", name, window));
  clipped = window > kMaxLength ? -1 : window;
  return {};
}

Status check_options(const AttentionOptions& o, Problem& p) {
  Status status = check_scale(o.softmax_scale.value_or(1.0F / std::sqrt(static_cast<float>(p.head_dim))), p);
  if (status.ok()) status = check_softcap(o.softcap, p);
  if (!status.ok()) return status;
  if (o.causal != Causal::none && o.causal != Causal::bottom_right && o.causal != Causal::top_left) {
    return invalid(
        fmt::format("causal is {}: none (0), bottom_right (1) and top_left (2) are accepted", static_cast<int>(o.causal)));
  }
  status = check_window("window_left", o.window_left, p.window_left);
  if (status.ok()) status = check_window("window_right", o.window_right, p.window_right);
  if (!status.ok()) return status;
  if (!(o.dropout >= 0 && o.dropout < 1)) {
    return invalid(fmt::format("dropout is {}: a probability, 0 (off) or above and below 1, is needed", o.dropout));
  }
  constexpr float kDropoutSteps = 65536;
  p.dropout = std::min(static_cast<int>(std::lround(o.dropout * kDropoutSteps)), static_cast<int>(kDropoutSteps) - 1);
  p.deterministic = o.deterministic;
  status = cpu::check_num_threads(o.num_threads);
  if (!status.ok()) return status;
  if (o.causal != Causal::none) p.window_right = 0;
  p.top_left = o.causal == Causal::top_left;
  p.diagonal = p.variable_lengths() || p.top_left ? 0 : p.seqlen_k - p.seqlen_q;
  return {};
}

// No sequence is longer than the tensor that has its rows, so kernels take memory and workgroups for no more, whatever max_seqlen
// is. The shapes of bias and keep_mask, which go by max_seqlen, are checked before.
void limit_to_rows(Problem& p) {
  if (p.packed_q()) p.seqlen_q = std::min(p.seqlen_q, p.total_q);
  if (p.packed_k()) p.seqlen_k = std::min(p.seqlen_k, p.total_k);
  if (p.paged() && p.num_pages == 0) p.seqlen_k = 0;
}

}  // namespace

Status apply(const RunOptions& options, Problem& problem) {
  Problem changed = problem;
  Status status;
  if (options.softmax_scale) status = check_scale(*options.softmax_scale, changed);
  if (status.ok() && options.softcap) status = check_softcap(*options.softcap, changed);
  if (status.ok() && options.window_left) status = check_window("window_left", *options.window_left, changed.window_left);
  if (status.ok() && options.window_right) status = check_window("window_right", *options.window_right, changed.window_right);
  if (status.ok()) problem = changed;
  return status;
}

AttentionOptions options_of(const Problem& p) {
  constexpr float kDropoutSteps = 65536;
  AttentionOptions options;
  options.softmax_scale = p.softmax_scale;
  options.softcap = p.softcap;
  // bottom_right is a window_right of 0.
  options.causal = p.top_left ? Causal::top_left : Causal::none;
  options.window_left = p.window_left;
  options.window_right = p.window_right;
  options.dropout = static_cast<float>(p.dropout) / kDropoutSteps;
  options.deterministic = p.deterministic;
  if (p.packed_q()) options.max_seqlen_q = p.seqlen_q;
  if (p.packed_k()) options.max_seqlen_k = p.seqlen_k;
  return options;
}

Result<Problem> make_problem(const AttentionTensors& tensors, const AttentionOptions& options) {
  try {
    Problem p;
    if (Status status = check_main(tensors, options, p); !status.ok()) return status;
    if (Status status = check_optional(tensors, p); !status.ok()) return status;
    if (Status status = check_output("out", tensors.out); !status.ok()) return status;
    if (Status status = check_options(options, p); !status.ok()) return status;
    limit_to_rows(p);
    return p;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to describe the problem");
  }
}

Result<Problem> make_backward_problem(const AttentionTensors& tensors, const AttentionOptions& options) {
  try {
    Problem p;
    if (Status status = check_main(tensors, options, p); !status.ok()) return status;
    if (Status status = check_optional(tensors, p); !status.ok()) return status;
    if (Status status = check_backward(tensors, p); !status.ok()) return status;
    if (Status status = check_options(options, p); !status.ok()) return status;
    limit_to_rows(p);
    return p;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to describe the problem");
  }
}

}  // namespace fulmen
