#include "run/passes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "run/run.h"
#include "torch/torch_memory.h"

namespace fulmen::python {

Shape out_shape(const Call& call) {
  const auto &q = call.tensors.q, &v = call.tensors.v;
  const int first = call.layout.packed_q ? 1 : 0;
  return {{q.shape[0], q.shape[1], q.shape[2], v.shape[3]}, first, 4 - first};
}
Shape lse_shape(const Call& call) {
  const auto& q = call.tensors.q;
  const int first = call.layout.packed_q ? 1 : 0;
  return {{q.shape[0], q.shape[2], q.shape[1], 1}, first, 3 - first};
}

void need(const Call& call, Place place) {
  if (!call.has(place))
    throw nb::type_error(
        (std::string(kTensors[place].name) + " is None: an array is needed").c_str());
}

nb::object forward(const Arguments& arguments, bool want_lse, ScoreFunctions* functions) {
  Call call(arguments);
  if (functions != nullptr) functions->add_to(call);
  const auto result = [&](Place place, fulmen_dtype dtype, const Shape& shape) {
    return call.has(place) ? nb::borrow(call.objects[place])
                           : call.make(place, kQ, dtype, shape.ndim, shape.array());
  };
  nb::object out = result(kOut, call.arrays[kQ].dtype, out_shape(call)), lse;
  if (want_lse) lse = result(kLse, FULMEN_FP32, lse_shape(call));
  if (arguments.tensors[kOut].is_valid() && call.arrays[kOut].framework == Framework::torch) {
    const nb::object& inner = call.arrays[kOut].owner;
    torch_is_written(inner.is_valid() ? inner : out);
  }
  run(Pass::forward, call);
  zero_unused_rows(Pass::forward, call);
  if (!want_lse) return out;
  return nb::make_tuple(std::move(out), std::move(lse));
}

nb::object backward(const Arguments& arguments, int wanted, ScoreFunctions* functions) {
  Call call(arguments);
  if (functions != nullptr) functions->add_to(call);
  for (const Place place : {kOut, kLse, kDout}) need(call, place);
  nb::object results[5];
  int n = 0;
  for (const auto& [gradient, of] : kGradients) {
    nb::object& result = results[n++];
    result = nb::none();
    if (call.has(gradient)) {
      result = nb::borrow(call.objects[gradient]);
    } else if ((wanted >> (n - 1) & 1) != 0) {
      need(call, of);
      const Array& like = call.arrays[of];
      int64_t shape[4];
      std::copy_n(like.shape, like.ndim, shape);
      if (arguments.bhsd && of <= kV) std::swap(shape[1], shape[2]);
      result = call.make(gradient, of, like.dtype, like.ndim, shape);
    }
  }
  run(Pass::backward, call);
  zero_unused_rows(Pass::backward, call);
  // The library writes nothing without queries. A bias that they share still has a gradient, the
  // empty sum.
  if (nb::object& dbias = results[3]; !dbias.is_none() && is_without_queries(call.tensors)) {
    if (call.arrays[kQ].framework == Framework::torch) {
      dbias.attr("zero_")();
    } else {
      dbias.attr("fill")(0);
    }
  }
  return nb::make_tuple(results[0], results[1], results[2], results[3], results[4]);
}

}  // namespace fulmen::python
