#include "api/cpp/function_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tensor_checks.h"
#include "score/elements.h"
#include "score/functions.h"
#include "score/parser.h"

namespace fulmen {
namespace {

bool is_function_dtype(DType dtype) {
  switch (dtype) {
    case DType::fp32:
    case DType::fp16:
    case DType::bf16:
    case DType::boolean:
    case DType::int32:
    case DType::int64:
    case DType::int8:
    case DType::uint8:
      return true;
    default:
      return false;
  }
}

// Sizes and strides of the first `dims` dims: strides may be negative.
Status check_extent(const std::string& name, const Tensor& t, int dims) {
  int64_t elements = 1, reach = 0;
  for (int d = 0; d < dims; ++d) {
    // Indices are ints.
    if (t.shape[d] < 0 || t.shape[d] > std::numeric_limits<int32_t>::max()) {
      return invalid(fmt::format("{}.shape is {}: each of the {} dims must be 0 to 2^31 - 1", name,
                                 t.shape, dims));
    }
    const int64_t most = int64_t{1} << kOffsetBits;
    const bool far = t.shape[d] > 1 && (t.strides[d] > most || t.strides[d] < -most ||
                                        std::abs(t.strides[d]) > most / (t.shape[d] - 1));
    const int64_t size = std::max<int64_t>(t.shape[d], 1);
    elements = elements > most / size ? most + 1 : elements * size;
    if (!far && t.shape[d] > 1) reach += (t.shape[d] - 1) * std::abs(t.strides[d]);
    if (far || reach > most || elements > most) {
      return invalid(
          fmt::format("{} with shape {} and strides {} is more memory than can be: up "
                      "to 2^{} elements, the farthest as far away, are accepted",
                      name, t.shape, t.strides, kOffsetBits));
    }
  }
  return {};
}

// Its tensor without the dims that do not count, whose strides are positive.
Tensor as_output(const Tensor& t, int dims) {
  Tensor view = t;
  for (int d = 0; d < 4; ++d) {
    if (d >= dims) view.shape[d] = 1;
    if (d >= dims || t.shape[d] <= 1) view.strides[d] = 0;
    view.strides[d] = std::abs(view.strides[d]);
  }
  return view;
}

Status check_gradient(const std::string& name, const FunctionTensor& of, const Problem& p,
                      ScoreFunctions::Tensor& to) {
  const Tensor& t = of.gradient;
  if (p.pass == Pass::forward)
    return invalid(fmt::format("{}'s gradient is given: it belongs to the backward pass", name));
  if (!is_float(of.tensor.dtype)) {
    return invalid(
        fmt::format("{}'s gradient is given, its dtype is {}: a tensor of floats has one", name,
                    to_string(of.tensor.dtype)));
  }
  if (t.dtype != DType::fp32 && t.dtype != of.tensor.dtype) {
    return invalid(fmt::format("{}'s gradient.dtype is {}: fp32 and {}, the tensor's, are accepted",
                               name, name_of(t.dtype), to_string(of.tensor.dtype)));
  }
  for (int d = 0; d < of.dims; ++d) {
    if (t.shape[d] == of.tensor.shape[d]) continue;
    return invalid(fmt::format("{}'s gradient.shape is {}: {}, the tensor's, is needed", name,
                               t.shape, of.tensor.shape));
  }
  if (Status status = check_extent(name + "'s gradient", t, of.dims); !status.ok()) return status;
  if (Status status = check_output((name + "'s gradient").c_str(), as_output(t, of.dims));
      !status.ok())
    return status;
  to.has_gradient = true;
  to.gradient_dtype = t.dtype;
  std::copy_n(t.strides.begin(), of.dims, to.gradient_strides.begin());
  return {};
}

Status check_tensor(const FunctionTensor& of, const Problem& p,
                    const std::vector<ScoreFunctions::Tensor>& before, ScoreFunctions::Tensor& to) {
  const std::string name = fmt::format("function tensor \"{}\"", of.name);
  if (const std::string bad = score::bad_name(of.name); !bad.empty())
    return invalid(
        fmt::format("function_tensors[{}].name is not accepted: {}", before.size(), bad));
  for (const ScoreFunctions::Tensor& other : before) {
    if (other.name == of.name) return invalid(fmt::format("{} is given twice", name));
  }
  if (of.dims < 0 || of.dims > score::kMaxArguments)
    return invalid(
        fmt::format("{}.dims is {}: 0 to {} are accepted", name, of.dims, score::kMaxArguments));
  if (!is_function_dtype(of.tensor.dtype)) {
    return invalid(
        fmt::format("{}.dtype is {}: fp32, fp16, bf16, int32, int64, int8, uint8 and "
                    "boolean are accepted",
                    name, name_of(of.tensor.dtype)));
  }
  if (Status status = check_extent(name, of.tensor, of.dims); !status.ok()) return status;
  to.name = of.name;
  to.dims = of.dims;
  to.dtype = of.tensor.dtype;
  std::copy_n(of.tensor.shape.begin(), of.dims, to.shape.begin());
  for (int d = 0; d < of.dims; ++d) to.strides[d] = to.shape[d] > 1 ? of.tensor.strides[d] : 0;
  const Tensor& gradient = of.gradient;
  const bool has_gradient = gradient.data != nullptr || gradient.shape != Shape{};
  return has_gradient ? check_gradient(name, of, p, to) : Status{};
}

}  // namespace

Status check_functions(const AttentionTensors& a, const AttentionOptions& o, Problem& p) {
  if (o.score_mod.empty() && o.mask_mod.empty()) {
    return a.function_tensors.empty()
               ? Status{}
               : invalid(
                     "function_tensors is given, score_mod and mask_mod are empty: nothing "
                     "reads them");
  }
  for (const auto& [name, length] : {std::pair{"seqlen_q", p.seqlen_q}, {"seqlen_k", p.seqlen_k}}) {
    if (length <= std::numeric_limits<int32_t>::max()) continue;
    return invalid(fmt::format("{} is {}: up to 2^31 - 1 is accepted with score_mod or mask_mod",
                               name, length));
  }
  if (a.function_tensors.size() > static_cast<std::size_t>(score::kMaxTensors)) {
    return invalid(fmt::format("function_tensors has {} tensors: up to {} are accepted",
                               a.function_tensors.size(), score::kMaxTensors));
  }
  std::vector<ScoreFunctions::Tensor> tensors;
  for (const FunctionTensor& given : a.function_tensors) {
    ScoreFunctions::Tensor tensor;
    if (Status status = check_tensor(given, p, tensors, tensor); !status.ok()) return status;
    tensors.push_back(std::move(tensor));
  }
  Result<ScoreFunctions> functions =
      score::make_functions(o.score_mod, o.mask_mod, std::move(tensors), p.pass == Pass::backward);
  if (!functions.ok()) return functions.status();
  p.functions = std::move(functions).value();
  return {};
}

Status check_block_sizes(const AttentionTensors& a, const AttentionOptions& o, Problem& p) {
  if (absent(a.kv_num_blocks) && absent(a.kv_indices) && absent(a.full_kv_num_blocks) &&
      absent(a.full_kv_indices))
    return {};
  for (const auto& [name, size] :
       {std::pair{"mask_block_q", o.mask_block_q}, {"mask_block_k", o.mask_block_k}}) {
    if (size < 16 || size > 256 || size % 16 != 0)
      return invalid(fmt::format("{} is {}: multiples of 16 up to 256 are accepted", name, size));
  }
  if (p.variable_lengths()) {
    return invalid(
        "kv_indices is given beside sequences of different lengths (cu_seqlens, seqlens_k, "
        "block_table, leftpad_k): a block mask is accepted without them");
  }
  p.mask_block_q = o.mask_block_q;
  p.mask_block_k = o.mask_block_k;
  return {};
}

Status check_block_mask(const Problem& p) {
  const auto pair = [](const char* one, bool has_one, const char* other, bool has_other) {
    if (has_one == has_other) return Status{};
    return invalid(fmt::format("{} is missing, {} is given: a block mask has both",
                               has_one ? other : one, has_one ? one : other));
  };
  Status status =
      pair("kv_num_blocks", p.kv_num_blocks.present, "kv_indices", p.kv_indices.present);
  if (status.ok()) {
    status = pair("full_kv_num_blocks", p.full_kv_num_blocks.present, "full_kv_indices",
                  p.full_kv_indices.present);
  }
  if (status.ok() && p.full_kv_indices.present && !p.kv_indices.present) {
    return invalid(
        "full_kv_indices is given, kv_indices is missing: a list of blocks in part, "
        "which may be empty, is needed beside it");
  }
  return status;
}

}  // namespace fulmen
