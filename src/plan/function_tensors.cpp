#include "plan/function_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>

#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

using Strides = std::array<int64_t, 4>;

struct Wanted {
  const ScoreFunctions::Tensor& spec;
  DType dtype;
  const Strides& strides;
};

bool same(const Wanted& wanted, const Tensor& given) {
  if (given.shape == Shape{} && given.strides == Strides{} &&
      (given.dtype == DType{} || given.dtype == wanted.dtype))
    return true;  // its data alone
  if (given.dtype != wanted.dtype) return false;
  for (int d = 0; d < wanted.spec.dims; ++d) {
    if (given.shape[d] != wanted.spec.shape[d]) return false;
    if (given.shape[d] > 1 && given.strides[d] != wanted.strides[d]) return false;
  }
  return true;
}

Status differs(const std::string& what, const Wanted& wanted, const Tensor& given) {
  return invalid(fmt::format("{} is {}; this plan was made for {} {} strides {}", what,
                             to_string(given), to_string(wanted.dtype), wanted.spec.shape,
                             wanted.strides));
}

// The memory between a tensor's lowest and highest element.
MemoryRange range_of(const char* name, const Wanted& wanted, const void* data) {
  int64_t low = 0, high = 0;
  for (int d = 0; d < wanted.spec.dims; ++d) {
    if (wanted.spec.shape[d] == 0) return {name, data, 0, wanted.dtype};
    const int64_t reach = (wanted.spec.shape[d] - 1) * wanted.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const char* first = static_cast<const char*>(data);
  if (first != nullptr) first += low * size_of(wanted.dtype);
  return {name, first, static_cast<std::size_t>((high - low + 1) * size_of(wanted.dtype)),
          wanted.dtype};
}

MemoryRange input_of(const ScoreFunctions::Tensor& spec, const FunctionTensor& given) {
  return range_of(spec.name.c_str(), {spec, spec.dtype, spec.strides}, given.tensor.data);
}
MemoryRange gradient_of(const ScoreFunctions::Tensor& spec, const FunctionTensor& given,
                        const std::string& name) {
  return range_of(name.c_str(), {spec, spec.gradient_dtype, spec.gradient_strides},
                  given.gradient.data);
}
std::string gradient_name(const ScoreFunctions::Tensor& spec) { return spec.name + "'s gradient"; }

constexpr const char* kWritten = "outputs and workspace";

}  // namespace

Status check_function_tensors(const Problem& p, const AttentionTensors& t) {
  const auto specs = p.functions.tensors();
  const auto given = t.function_tensors;
  if (given.size() != specs.size()) {
    return invalid(fmt::format("function_tensors has {} tensors; this plan was made for {}",
                               given.size(), specs.size()));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ScoreFunctions::Tensor& spec = specs[i];
    if (given[i].name != spec.name) {
      return invalid(
          fmt::format("function_tensors[{}] is not \"{}\", as in this plan: the same "
                      "names in the same order are needed",
                      i, spec.name));
    }
    const Wanted input{spec, spec.dtype, spec.strides},
        gradient{spec, spec.gradient_dtype, spec.gradient_strides};
    if (given[i].dims != spec.dims || !same(input, given[i].tensor))
      return differs(fmt::format("function tensor \"{}\"", spec.name), input, given[i].tensor);
    if (spec.has_gradient && !same(gradient, given[i].gradient))
      return differs(gradient_name(spec), gradient, given[i].gradient);
    if (!spec.has_gradient && given[i].gradient.data != nullptr) {
      return invalid(fmt::format("{}.data is {}: the plan was made without it, it must be null",
                                 gradient_name(spec), given[i].gradient.data));
    }
  }
  return {};
}

Status check_apart(const Problem& p, const AttentionTensors& t, const MemoryRange& range,
                   bool written) {
  const auto specs = p.functions.tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const MemoryRange input = input_of(specs[i], t.function_tensors[i]);
    if (written && overlap(range, input)) return bad_overlap(range, input, kWritten);
    if (!specs[i].has_gradient) continue;
    const std::string name = gradient_name(specs[i]);
    const MemoryRange gradient = gradient_of(specs[i], t.function_tensors[i], name);
    if (overlap(range, gradient)) return bad_overlap(gradient, range, kWritten);
  }
  return {};
}

Status check_function_memory(const Problem& p, const AttentionTensors& t) {
  const auto specs = p.functions.tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const MemoryRange input = input_of(specs[i], t.function_tensors[i]);
    if (!addressable(input))
      return bad_address(input, fmt::format("score functions read {} bytes there", input.bytes));
    if (!specs[i].has_gradient) continue;
    const std::string name = gradient_name(specs[i]);
    const MemoryRange gradient = gradient_of(specs[i], t.function_tensors[i], name);
    if (!addressable(gradient))
      return bad_address(gradient, fmt::format("the plan needs {} bytes there", gradient.bytes));
    for (std::size_t other = 0; other < specs.size(); ++other) {
      const MemoryRange read = input_of(specs[other], t.function_tensors[other]);
      if (overlap(gradient, read)) return bad_overlap(gradient, read, kWritten);
      if (other >= i || !specs[other].has_gradient) continue;
      const std::string other_name = gradient_name(specs[other]);
      const MemoryRange before = gradient_of(specs[other], t.function_tensors[other], other_name);
      if (overlap(gradient, before)) return bad_overlap(gradient, before, kWritten);
    }
  }
  return {};
}

}  // namespace fulmen
