#include "functions/functions.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace fulmen::python {
namespace {

constexpr const char* kOthers[] = {"score_mod",          "mask_mod",     "function_tensors",
                                   "function_gradients", "mask_block_q", "mask_block_k",
                                   "precision"};

nb::handle value_of(const nb::kwargs& given, const char* name) {
  const nb::handle value = PyDict_GetItemString(given.ptr(), name);
  return value.is_valid() && !value.is_none() ? value : nb::handle();
}

int32_t precision_of(nb::handle value) {
  constexpr std::pair<std::string_view, int32_t> kNames[] = {{"exact", FULMEN_PRECISION_EXACT},
                                                             {"int8", FULMEN_PRECISION_INT8},
                                                             {"fp8", FULMEN_PRECISION_FP8}};
  const std::string_view given = text("precision", value);
  for (const auto& [name, precision] : kNames) {
    if (given == name) return precision;
  }
  throw ArgumentError("precision is " + text_of(value) +
                      ": \"exact\", \"int8\" or \"fp8\" is accepted");
}

void refuse_others(const nb::kwargs& given) {
  for (const auto& [name, value] : given) {
    const std::string text = text_of(name);
    const auto same = [&](const char* known) { return text == known; };
    if (std::none_of(std::begin(kOthers), std::end(kOthers), same) &&
        std::none_of(std::begin(kBlockLists), std::end(kBlockLists),
                     [&](const auto& row) { return same(row.name); }))
      throw nb::type_error((text + " is no keyword of functions").c_str());
  }
}

fulmen_tensor as_tensor(const View& view) {
  fulmen_tensor tensor = fulmen_tensor_1d(view.data, view.dtype, 1);
  std::copy_n(view.shape, view.ndim, tensor.shape);
  std::copy_n(view.strides, view.ndim, tensor.strides);
  return tensor;
}

void refuse_elsewhere(const std::string& name, const Array& array, const Array& q) {
  if (array.device.type == q.device.type && array.device.id == q.device.id) return;
  const auto place = [](const Array& one, const char* called) {
    const std::string device = device_of(one, called);
    return device.empty() ? std::string("the CPU") : device;
  };
  const std::string here = place(array, name.c_str()), there = place(q, "q");
  if (here != there)
    throw ArgumentError(name + " is on " + here + ", q on " + there + ": one device is needed");
}

}  // namespace

fulmen_tensor as_block_list(int list, const View& view) {
  fulmen_tensor tensor = as_tensor(view);
  if (is_of_counts(list)) {
    tensor.shape[3] = std::exchange(tensor.shape[2], 1);
    tensor.strides[3] = std::exchange(tensor.strides[2], 0);
  }
  return tensor;
}

fulmen_function_tensor as_function_tensor(const char* name, const View& tensor,
                                          const View* gradient) {
  fulmen_function_tensor row{};
  row.struct_size = sizeof row;
  row.name = name;
  row.dims = tensor.ndim;
  row.tensor = as_tensor(tensor);
  if (gradient != nullptr) row.gradient = as_tensor(*gradient);
  return row;
}

ScoreFunctions::ScoreFunctions(const nb::kwargs& given) {
  refuse_others(given);
  const auto read_text = [&](const char* name, std::string& into) {
    if (const nb::handle value = value_of(given, name); value.is_valid()) into = text(name, value);
  };
  read_text("score_mod", score_mod_);
  read_text("mask_mod", mask_mod_);
  const auto read_size = [&](const char* name, int64_t& into) {
    if (const nb::handle value = value_of(given, name); value.is_valid())
      into = integer(name, value, 1, 1 << 30);
  };
  read_size("mask_block_q", block_q_);
  read_size("mask_block_k", block_k_);
  if (const nb::handle value = value_of(given, "precision"); value.is_valid())
    precision_ = precision_of(value);
  read_tensors(value_of(given, "function_tensors"), value_of(given, "function_gradients"));
  bool has_lists = false;
  for (int at = 0; at < kNumBlockLists; ++at) {
    const char* name = kBlockLists[at].name;
    const nb::handle value = value_of(given, name);
    if (!value.is_valid()) continue;
    has_lists = true;
    lists_[at] = read_input(value, name);
    if (lists_[at].ndim != (is_of_counts(at) ? 3 : 4)) {
      wrong_ndim(name, lists_[at],
                 is_of_counts(at) ? "[batch, heads, rows]" : "[batch, heads, rows, blocks]");
    }
  }
  empty_ = score_mod_.empty() && mask_mod_.empty() && tensors_.empty() && !has_lists;
}

void ScoreFunctions::read_tensors(nb::handle tensors, nb::handle gradients) {
  if (!tensors.is_valid()) return;
  if (PyDict_Check(tensors.ptr()) == 0)
    throw nb::type_error("function_tensors is no dict: {name: array} is accepted");
  const auto arrays = nb::borrow<nb::dict>(tensors);
  for (const auto& [key, value] : arrays) {
    names_.push_back(text("function_tensors", key));
    const std::string called = "function_tensors[\"" + names_.back() + "\"]";
    tensors_.push_back(read_input(value, called.c_str()));
    gradients_.emplace_back();
    const nb::handle gradient = gradients.is_valid()
                                    ? nb::handle(PyDict_GetItem(gradients.ptr(), key.ptr()))
                                    : nb::handle();
    if (!gradient.is_valid() || gradient.is_none()) continue;
    const std::string written = "function_gradients[\"" + names_.back() + "\"]";
    gradients_.back() = read_output(gradient, written.c_str());
    if (gradients_.back().read_only) throw ArgumentError(written + " is read-only: it is written");
  }
}

bool ScoreFunctions::are_of_torch() const {
  const auto is_unused = [](const Array& one) { return one.data == nullptr; };
  return std::all_of(tensors_.begin(), tensors_.end(), is_trusted) &&
         std::all_of(gradients_.begin(), gradients_.end(), is_unused) &&
         std::all_of(std::begin(lists_), std::end(lists_),
                     [&](const Array& one) { return is_unused(one) || is_trusted(one); });
}

void ScoreFunctions::add_to(Call& call) {
  call.options.precision = precision_;
  if (empty_) return;
  const Array& q = call.arrays[kQ];
  rows_.clear();
  for (size_t at = 0; at < names_.size(); ++at) {
    refuse_elsewhere("function_tensors[\"" + names_[at] + "\"]", tensors_[at], q);
    const bool has_gradient = gradients_[at].data != nullptr;
    if (has_gradient)
      refuse_elsewhere("function_gradients[\"" + names_[at] + "\"]", gradients_[at], q);
    rows_.push_back(as_function_tensor(names_[at].c_str(), tensors_[at],
                                       has_gradient ? &gradients_[at] : nullptr));
  }
  call.tensors.function_tensors = rows_.empty() ? nullptr : rows_.data();
  call.tensors.num_function_tensors = static_cast<int64_t>(rows_.size());
  for (int at = 0; at < kNumBlockLists; ++at) {
    if (lists_[at].ndim == 0) continue;
    refuse_elsewhere(kBlockLists[at].name, lists_[at], q);
    call.tensors.*kBlockLists[at].member = as_block_list(at, lists_[at]);
  }
  if (!score_mod_.empty()) call.options.score_mod = score_mod_.c_str();
  if (!mask_mod_.empty()) call.options.mask_mod = mask_mod_.c_str();
  if (block_q_ > 0) call.options.mask_block_q = block_q_;
  if (block_k_ > 0) call.options.mask_block_k = block_k_;
  call.options.trust_pointers = call.options.trust_pointers && are_of_torch();
}

}  // namespace fulmen::python
