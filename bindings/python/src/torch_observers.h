// Whether something besides the kernel has to see a call of torch tensors. Asked in every call: in Python it costs microseconds.
#pragma once

#include <nanobind/nanobind.h>

namespace fulmen::python {

namespace nb = nanobind;

enum class Observers : int {
  nobody,
  autograd,  // an input requires grad, and gradients are enabled
  others     // a mode, a transform, a tracer, autocast, a subclass of Tensor, fake or meta tensors
};

// questions: callables without arguments; one that answers anything but None, False or 0 has found an observer. plain_types: those
// of tensors that have no behaviour of their own.
void set_torch_questions(nb::tuple questions, nb::object grad_enabled, nb::tuple plain_types);
// Of tensors or None, the first of which is a tensor.
int torch_observers(nb::tuple tensors);

}  // namespace fulmen::python
