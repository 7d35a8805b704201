// Every check of a call's tensors, each once. Those of options are in plan/problem_options.cpp.
#include "fulmen/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <utility>

#include "api/cpp/function_checks.h"
#include "api/cpp/scale_checks.h"
#include "api/cpp/sequence_checks.h"
#include "fulmen/tensor_fields.h"
#include "plan/problem_options.h"
#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

const TensorField& field_of(TensorMember<AttentionTensors> tensor) {
  return *std::find_if(kTensorTable.begin(), kTensorTable.end(),
                       [&](const TensorField& field) { return field.tensor == tensor; });
}

Status check_dtype(const TensorField& field, const Tensor& t, const Problem& p) {
  const auto refused = [&](const std::string& wanted) {
    return invalid(fmt::format("{}.dtype is {}{}", field.name, name_of(t.dtype), wanted));
  };
  switch (field.dtype) {
    case DTypeRule::of_q:
      return t.dtype == p.dtype
                 ? Status{}
                 : refused(fmt::format(", q.dtype is {}: they must agree", name_of(p.dtype)));
    case DTypeRule::of_k:
      return t.dtype == p.k_dtype
                 ? Status{}
                 : refused(fmt::format(", k.dtype is {}: they must agree", name_of(p.k_dtype)));
    case DTypeRule::of_v:
      return t.dtype == p.v_dtype
                 ? Status{}
                 : refused(fmt::format(", v.dtype is {}: they must agree", name_of(p.v_dtype)));
    case DTypeRule::any_float:
      return is_float(t.dtype) ? Status{} : refused(": fp32, fp16 and bf16 are accepted");
    case DTypeRule::fp32:
      return t.dtype == DType::fp32 ? Status{} : refused(": fp32 is needed");
    case DTypeRule::scale:
      return t.dtype == DType::fp32 || t.dtype == DType::fp16
                 ? Status{}
                 : refused(": fp32 and fp16 are accepted");
    case DTypeRule::boolean:
      return t.dtype == DType::boolean ? Status{}
                                       : refused(": boolean (one byte, true = attend) is needed");
    case DTypeRule::int32:
      break;
  }
  return t.dtype == DType::int32 ? Status{} : refused(": int32 is needed");
}

Status check_main(const AttentionTensors& a, const AttentionOptions& o, Problem& p) {
  constexpr TensorMember<AttentionTensors> kMain[] = {&AttentionTensors::q, &AttentionTensors::k,
                                                      &AttentionTensors::v, &AttentionTensors::out};
  p.dtype = a.q.dtype;
  p.k_dtype = a.k.dtype;
  p.v_dtype = a.v.dtype;
  for (const TensorMember<AttentionTensors> member : kMain) {
    const TensorField& field = field_of(member);
    const Tensor& tensor = a->*member;
    if (absent(tensor))
      return invalid(fmt::format("{} is missing: q, k, v and out are always needed", field.name));
    const bool kv = field.dtype == DTypeRule::of_k || field.dtype == DTypeRule::of_v;
    if (!is_float(tensor.dtype) && !(kv && is_kv_format(tensor.dtype))) {
      return invalid(fmt::format("{}.dtype is {}: fp32, fp16{} are accepted", field.name,
                                 name_of(tensor.dtype),
                                 kv ? ", bf16, int8, fp8 and the block formats" : " and bf16"));
    }
    if (Status status = check_dtype(field, tensor, p); !status.ok()) return status;
    if (Status status = check_view(field.name, tensor); !status.ok()) return status;
  }
  p.num_heads = a.q.shape[2];
  p.head_dim = a.q.shape[3];
  p.num_kv_heads = a.k.shape[2];
  p.head_dim_v = a.v.shape[3];
  if (p.head_dim < 1 || p.head_dim > kMaxHeadDim) {
    return invalid(fmt::format("q.shape is {}: head_dim is {}, 1 to {} are accepted", a.q.shape,
                               p.head_dim, kMaxHeadDim));
  }
  if (p.head_dim_v < 1 || p.head_dim_v > kMaxHeadDimV) {
    return invalid(fmt::format("v.shape is {}: head_dim_v is {}, 1 to {} are accepted", a.v.shape,
                               p.head_dim_v, kMaxHeadDimV));
  }
  if (p.num_heads < 1)
    return invalid(fmt::format("q.shape is {}: num_heads must be at least 1", a.q.shape));
  if (p.num_kv_heads < 1 || p.num_heads % p.num_kv_heads != 0) {
    return invalid(fmt::format("k.shape is {}: num_kv_heads is {}, it must divide num_heads = {}",
                               a.k.shape, p.num_kv_heads, p.num_heads));
  }
  if (Status status = check_sequence_tensors(a, o, p); !status.ok()) return status;
  for (const TensorField* field : {&field_of(&AttentionTensors::k), &field_of(&AttentionTensors::v),
                                   &field_of(&AttentionTensors::out)}) {
    if (Status status =
            check_shape(field->name, a->*field->tensor, field->shape(p), field->dims(p));
        !status.ok())
      return status;
  }
  for (const TensorMember<AttentionTensors> tensor : kMain)
    p.*field_of(tensor).spec = spec_of(a->*tensor);
  return {};
}

// A tensor that is there, by its row of the table; sets its spec.
Status check_field(const TensorField& field, const AttentionTensors& a, Problem& p) {
  const Tensor& t = a->*field.tensor;
  if (Status status = check_dtype(field, t, p); !status.ok()) return status;
  // Says to the scales' rows of the table which dims they have.
  if (field.dtype == DTypeRule::scale) (p.*field.spec).strides[1] = t.shape[1] == 1 ? 0 : 1;
  const Shape want = field.shape(p);
  const bool scores = field.shape == field_of(&AttentionTensors::bias).shape;
  if (Status status = check_view(field.name, t, scores ? kScoreBits : kOffsetBits); !status.ok())
    return status;
  if (field.broadcast == Broadcast::none) {
    if (Status status = check_shape(field.name, t, want, field.dims(p)); !status.ok())
      return status;
  }
  const bool last = field.broadcast == Broadcast::all;
  for (int d = 0; field.broadcast != Broadcast::none && d < 4; ++d) {
    if (t.shape[d] != want[d] && (t.shape[d] != 1 || (d == 3 && !last))) {
      return invalid(fmt::format("{}.shape is {}: {} = {} is needed, where each dim{} may be 1",
                                 field.name, t.shape, field.dims(p), want,
                                 last ? "" : " but the last"));
    }
  }
  if (field.written[static_cast<std::size_t>(p.pass)]) {
    if (Status status = check_output(field.name, t); !status.ok()) return status;
  }
  p.*field.spec = spec_of(t);
  const bool scale = field.dtype == DTypeRule::scale;
  if (scale && t.shape[1] == 0) (p.*field.spec).strides[1] = 1;
  if (t.shape[3] != want[3] || (scale && t.shape[3] == 1)) (p.*field.spec).strides[3] = 0;
  return {};
}

// The forward pass's tensors that check_main() has not checked.
Status check_optional(const AttentionTensors& a, const AttentionOptions& o, Problem& p) {
  if (Status status = check_block_sizes(a, o, p); !status.ok()) return status;
  for (const TensorField& field : kTensorTable) {
    const bool forward = field.read[0] || field.written[0];
    if (!forward || (p.*field.spec).present || absent(a->*field.tensor)) continue;
    if (Status status = check_field(field, a, p); !status.ok()) return status;
  }
  return check_block_mask(p);
}

Status check_backward(const AttentionTensors& a, Problem& p) {
  p.pass = Pass::backward;
  if (absent(a.lse))
    return invalid("lse is missing: the backward pass needs the one that the forward pass gave");
  if (absent(a.dout))
    return invalid("dout is missing: the backward pass needs the gradient of out");
  if (Status status = check_sequence_gradients(a, p); !status.ok()) return status;
  bool any = false;
  for (const TensorField& field : kTensorTable) {
    const bool forward = field.read[0] || field.written[0];
    if (forward || absent(a->*field.tensor)) continue;
    if (field.tensor == &AttentionTensors::dbias && !p.bias.present) {
      return invalid("dbias is given, bias is missing: without a bias it has no gradient");
    }
    if (field.tensor == &AttentionTensors::dsinks && !p.sinks.present) {
      return invalid("dsinks is given, sinks is missing: without sinks they have no gradient");
    }
    if (Status status = check_field(field, a, p); !status.ok()) return status;
    any = any || field.written[static_cast<std::size_t>(p.pass)];
  }
  for (const FunctionTensor& tensor : a.function_tensors) any |= tensor.gradient.data != nullptr;
  return any ? Status{}
             : invalid("dq, dk, dv, dbias and dsinks are all missing: there is nothing to compute");
}

// Latent attention: the same memory by the same strides.
bool values_lie_in_keys(const AttentionTensors& a, const Problem& p) {
  constexpr int64_t kUsualHeadDim = 256;
  return a.k.data != nullptr && a.k.data == a.v.data && p.head_dim > kUsualHeadDim &&
         p.head_dim_v <= p.head_dim && !p.quantized_kv() && rows_of_k_and_v_agree(p);
}

// No sequence is longer than the tensor that has its rows, so kernels take memory and workgroups
// for no more, whatever max_seqlen is. The shapes of bias and keep_mask, which go by max_seqlen,
// are checked before.
void limit_to_rows(Problem& p) {
  if (p.packed_q()) p.seqlen_q = std::min(p.seqlen_q, p.total_q);
  if (p.packed_k()) p.seqlen_k = std::min(p.seqlen_k, p.total_k);
  if (p.paged() && p.num_pages == 0) p.seqlen_k = 0;
}

}  // namespace

Result<Problem> make_problem(const AttentionTensors& tensors, const AttentionOptions& options) {
  try {
    Problem p;
    if (Status status = check_main(tensors, options, p); !status.ok()) return status;
    if (Status status = check_optional(tensors, options, p); !status.ok()) return status;
    if (Status status = check_output("out", tensors.out); !status.ok()) return status;
    if (Status status = check_options(options, p); !status.ok()) return status;
    if (Status status = check_scales(tensors, p); !status.ok()) return status;
    if (Status status = check_functions(tensors, options, p); !status.ok()) return status;
    limit_to_rows(p);
    p.values_in_keys = values_lie_in_keys(tensors, p);
    return p;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to describe the problem");
  }
}

Result<Problem> make_backward_problem(const AttentionTensors& tensors,
                                      const AttentionOptions& options) {
  try {
    Problem p;
    if (Status status = check_main(tensors, options, p); !status.ok()) return status;
    if (Status status = check_optional(tensors, options, p); !status.ok()) return status;
    if (Status status = check_backward(tensors, p); !status.ok()) return status;
    if (Status status = check_options(options, p); !status.ok()) return status;
    if (Status status = check_unquantized(p); !status.ok()) return status;
    if (Status status = check_functions(tensors, options, p); !status.ok()) return status;
    limit_to_rows(p);
    return p;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to describe the problem");
  }
}

}  // namespace fulmen
