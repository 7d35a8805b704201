#include "torch_observers.h"

#include <vector>

namespace fulmen::python {
namespace {

struct Torch {
  std::vector<nb::object> questions, plain_types;
  nb::object grad_enabled;
  nb::object requires_grad = nb::steal(PyUnicode_InternFromString("requires_grad"));
  nb::object is_meta = nb::steal(PyUnicode_InternFromString("is_meta"));
};

Torch& torch() {
  static auto* kept = new Torch;  // lives as long as the process: no destructor after Python's end
  return *kept;
}

bool is_nothing(nb::handle answer) {
  return answer.is_none() || answer.ptr() == Py_False || (PyLong_CheckExact(answer.ptr()) != 0 && PyLong_AsLong(answer.ptr()) == 0);
}

bool answers_nothing(nb::handle question) {
  const nb::object answer = nb::steal(PyObject_CallNoArgs(question.ptr()));
  if (!answer.is_valid()) throw nb::python_error();
  return is_nothing(answer);
}

bool has(nb::handle tensor, const nb::object& attribute) {
  const nb::object value = nb::steal(PyObject_GetAttr(tensor.ptr(), attribute.ptr()));
  if (!value.is_valid()) throw nb::python_error();
  return value.ptr() == Py_True;
}

bool is_plain(nb::handle tensor) {
  for (const nb::object& type : torch().plain_types) {
    if (tensor.type().is(type)) return true;
  }
  return false;
}

}  // namespace

void set_torch_questions(nb::tuple questions, nb::object grad_enabled, nb::tuple plain_types) {
  Torch& t = torch();
  t.questions.clear();
  t.plain_types.clear();
  for (const nb::handle one : questions) t.questions.push_back(nb::borrow(one));
  for (const nb::handle one : plain_types) t.plain_types.push_back(nb::borrow(one));
  t.grad_enabled = std::move(grad_enabled);
}

int torch_observers(nb::tuple tensors) {
  const Torch& t = torch();
  for (const nb::object& question : t.questions) {
    if (!answers_nothing(question)) return static_cast<int>(Observers::others);
  }
  const bool gradients = !answers_nothing(t.grad_enabled);
  const auto count = PyTuple_Size(tensors.ptr());
  bool differentiable = false, subclass = false;
  for (Py_ssize_t at = 0; at < count; ++at) {
    const nb::handle tensor = PyTuple_GetItem(tensors.ptr(), at);
    if (tensor.is_none()) continue;
    if (!is_plain(tensor)) {
      // What is no tensor is refused when it is read, with the argument's name.
      if (PyObject_IsInstance(tensor.ptr(), t.plain_types[0].ptr()) != 1) return static_cast<int>(Observers::nobody);
      subclass = true;
    }
    if (at == 0 && has(tensor, t.is_meta)) return static_cast<int>(Observers::others);
    differentiable = differentiable || (gradients && has(tensor, t.requires_grad));
  }
  if (subclass) return static_cast<int>(Observers::others);
  return static_cast<int>(differentiable ? Observers::autograd : Observers::nobody);
}

}  // namespace fulmen::python
