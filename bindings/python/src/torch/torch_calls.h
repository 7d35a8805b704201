// The path of torch tensors: straight to the kernels if nothing observes the call, else through
// autograd or torch's dispatcher. It is chosen here because every line of Python adds to the cost
// of a call.
#pragma once

#include <nanobind/nanobind.h>

#include "arguments/call.h"

namespace fulmen::python {

enum class Observers : int {
  nobody,
  autograd,  // an input requires grad, and gradients are enabled
  others     // a mode, a transform, a tracer, autocast, a subclass of Tensor, fake or meta tensors
};

// By name, what torch and fulmen.torch do: see the struct Torch of the source file.
void set_torch(nb::dict functions);

int torch_observers_of(nb::tuple tensors);

// forward() of tensors, the first of which is one of torch's.
nb::object torch_forward(const Arguments& arguments, bool want_lse);
nb::object torch_forward_of(nb::tuple tensors, nb::tuple options, nb::handle device, bool bhsd,
                            bool want_lse);

// The backward pass of the autograd.Function: a gradient or None for each input of the forward
// pass.
nb::object autograd_backward(nb::handle ctx, nb::handle dout, nb::handle dlse);

// torch_sdpa, and the autograd.Function's forward pass.
PyMethodDef* torch_methods();

}  // namespace fulmen::python
