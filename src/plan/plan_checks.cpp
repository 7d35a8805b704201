#include "plan/plan_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "plan/function_tensors.h"
#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

// What the plan was made for, and what came.
struct Compared {
  const Shape& want;
  const TensorSpec& spec;
  const Tensor& given;
  bool broadcasts;     // dims of stride 0 may be stored as 1
  bool by_max_seqlen;  // a plan knows max_seqlen only up to the rows that packed tensors have
};

// Only data is set: the rest is the plan's. An empty tensor is no such case: its pointer may be
// null.
bool is_pointer_alone(const Tensor& given, DType dtype, std::size_t bytes) {
  int64_t any = 0;
  for (int d = 0; d < 4; ++d) any |= given.shape[d] | given.strides[d];
  return any == 0 && bytes > 0 && (given.dtype == DType{} || given.dtype == dtype);
}

bool same_shape(const Compared& c) {
  for (int d = 0; d < 4; ++d) {
    const int64_t size = c.given.shape[d];
    if (size == c.want[d]) continue;
    if (c.broadcasts && size == 1 && c.spec.strides[d] == 0) continue;
    if (c.by_max_seqlen && d >= 2 && size > c.want[d]) continue;
    return false;
  }
  return true;
}

// A dim of one element or none takes no steps.
bool same_strides(const Compared& c) {
  for (int d = 0; d < 4; ++d) {
    const bool steps = c.want[d] > 1 && c.given.shape[d] > 1;
    if (steps && c.given.strides[d] != c.spec.strides[d]) return false;
  }
  return true;
}

Status check_tensor(const char* name, const Compared& c, bool empty) {
  if (c.given.dtype != c.spec.dtype) {
    return invalid(fmt::format("{}.dtype is {}; this plan was made for {}", name,
                               name_of(c.given.dtype), name_of(c.spec.dtype)));
  }
  if (!same_shape(c)) {
    return invalid(fmt::format("{}.shape is {}; this plan was made for {}{}", name, c.given.shape,
                               c.broadcasts ? without_broadcast(c.spec, c.want) : c.want,
                               c.by_max_seqlen ? " or more queries and keys" : ""));
  }
  if (empty || same_strides(c)) return {};
  return invalid(fmt::format("{}.strides is {}; this plan was made for {}", name, c.given.strides,
                             c.spec.strides));
}

// Nearly always: the tensors that the plan was made of, or others like them.
bool same(const UsedTensor& want, const Tensor& given) {
  int64_t differing = static_cast<int64_t>(want.dtype) ^ static_cast<int64_t>(given.dtype);
  for (int d = 0; d < 4; ++d) {
    differing |= want.shape[d] ^ given.shape[d];
    differing |= (want.strides[d] ^ given.strides[d]) & want.steps[d];
  }
  return differing == 0;
}

}  // namespace

Status check_tensors(const Plan::Impl& plan, const AttentionTensors& tensors) {
  for (const UsedTensor& used : plan.used) {
    const TensorField& field = kTensorTable[used.field];
    const Tensor& given = tensors->*field.tensor;
    const std::size_t bytes = plan.bytes[used.field];
    if (same(used, given) || is_pointer_alone(given, used.dtype, bytes)) continue;
    const TensorSpec& spec = plan.problem.*field.spec;
    const bool scores = field.spec == &Problem::bias || field.spec == &Problem::keep_mask;
    // An empty tensor's strides are 0 where it is not summed over, too: both shapes will do.
    const Shape& want = bytes == 0 && field.spec == &Problem::dbias ? plan.problem.score_shape()
                                                                    : plan.shapes[used.field];
    const Compared compared{want, spec, given, field.broadcast != Broadcast::none,
                            scores && plan.problem.variable_lengths()};
    if (Status status = check_tensor(field.name, compared, bytes == 0); !status.ok()) return status;
  }
  return check_function_tensors(plan.problem, tensors);
}

bool same_tensors(const Plan::Impl& plan, const AttentionTensors& tensors) {
  if (plan.problem.functions.any() && !check_function_tensors(plan.problem, tensors).ok())
    return false;
  return std::all_of(plan.used.begin(), plan.used.end(), [&](const UsedTensor& used) {
    const Tensor& given = tensors->*kTensorTable[used.field].tensor;
    return same(used, given) || is_pointer_alone(given, used.dtype, plan.bytes[used.field]);
  });
}

}  // namespace fulmen
