// The two passes, from arguments to new arrays.
#pragma once

#include <nanobind/nanobind.h>

#include "arguments/call.h"
#include "functions/functions.h"

namespace fulmen::python {

// Shapes of an absent tensor: in the C ABI, and as an array, which has no dims of size 1 where rows
// are packed.
struct Shape {
  int64_t dims[4];
  int first, ndim;

  const int64_t* array() const { return dims + first; }
};
Shape out_shape(const Call& call);
Shape lse_shape(const Call& call);

constexpr struct {
  Place gradient, of;
} kGradients[] = {{kDq, kQ}, {kDk, kK}, {kDv, kV}, {kDbias, kBias}, {kDsinks, kSinks}};

// Throws TypeError where the tensor is absent.
void need(const Call& call, Place place);

// out, or with want_lse (out, lse): those that are given, else new ones.
nb::object forward(const Arguments& arguments, bool want_lse, ScoreFunctions* functions = nullptr);

// The five gradients, as a tuple. wanted: bit n asks for the n-th of kGradients; the others are
// None. One that is given is written.
nb::object backward(const Arguments& arguments, int wanted, ScoreFunctions* functions = nullptr);

}  // namespace fulmen::python
