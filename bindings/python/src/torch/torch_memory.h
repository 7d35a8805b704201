// Torch tensors as memory: new ones, by the functions of torch that take the least to call (an
// output is allocated in every call), those that were written, and what is inside of those that
// have none.
#pragma once

#include <nanobind/nanobind.h>

#include "arguments/array.h"

namespace fulmen::python {

// Functions of torch with these names are taken, or None where it lacks one: empty_cpu and
// empty_gpu, of (shape, strides, dtype), a tensor on the CPU, and one on the current device of CUDA
// or ROCm; current_gpu, the index of that; written, of a tuple of tensors: counts a change of each
// for autograd.
void set_torch_memory(nb::dict functions);

// A tensor on the device of like, which object is, a torch tensor.
nb::object new_torch_tensor(nb::handle object, const Array& like, int ndim, const int64_t* shape,
                            const int64_t* strides, fulmen_dtype dtype);
// The same of bytes: how a workspace is asked for.
nb::object new_torch_bytes(nb::handle object, const Array& like, int64_t bytes);
// The workspace of a GPU's call with such a tensor, for tests: those on the CPU have their own.
nb::object torch_workspace(nb::handle tensor, int64_t bytes);

// torch's dtypes of sinks and of lengths.
nb::handle torch_float32();
nb::handle torch_int32();
bool torch_is_16_bit_float(nb::handle dtype);

// Tells autograd that the tensor is written: a backward pass for which it was saved must not use
// the new contents.
void torch_is_written(nb::handle tensor);

// Whether its elements are those of its memory with the other sign: torch._neg_view, the imaginary
// part of a conjugate.
bool torch_is_negated(nb::handle tensor);

// Unwraps a tensor that transforms of torch.func have left behind: returns the inner one, which has
// memory; other tensors are returned as they are.
nb::object torch_without_wrappers(nb::handle tensor);

}  // namespace fulmen::python
