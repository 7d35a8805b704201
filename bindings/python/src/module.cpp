// fulmen._core: the extension module under the Python sources. Tensors and options are passed as
// tuples, see call.h.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>
#include <utility>

#include "arguments/argument_error.h"
#include "arguments/call.h"
#include "attention.h"
#include "functions/functions.h"
#include "kv_cache.h"
#include "prebuilt.h"
#include "quantize.h"
#include "run/passes.h"
#include "torch/torch_calls.h"
#include "torch/torch_memory.h"
#include "xla/xla.h"

namespace fulmen::python {
namespace {

void need_host(const Call& call) {
  for (int at = 0; at < kPlaces; ++at) {
    if (call.has(static_cast<Place>(at)) && !on_host(call.arrays[at])) {
      const char* name = kTensors[at].name;
      throw ArgumentError(std::string(name) + " is on " + device_of(call.arrays[at], name) +
                          ": arrays in host memory are needed here");
    }
  }
}

nb::object forward_of(nb::tuple tensors, nb::tuple options, nb::handle device, bool bhsd,
                      bool want_lse, const nb::kwargs& of_functions) {
  ScoreFunctions functions(of_functions);
  return forward(Arguments(tensors, options, device, bhsd), want_lse, &functions);
}
// wanted: bit n asks for the n-th of dq, dk, dv, dbias, dsinks; the others are None. One that is
// given is written.
nb::object backward_of(nb::tuple tensors, nb::tuple options, nb::handle device, bool bhsd,
                       int wanted, const nb::kwargs& of_functions) {
  ScoreFunctions functions(of_functions);
  return backward(Arguments(tensors, options, device, bhsd), wanted, &functions);
}

double* doubles(const nb::object& array) {
  const nb::object interface = array.attr("__array_interface__");
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<double*>(nb::cast<uintptr_t>(interface["data"][0]));
}

// (out [batch, seqlen_q, heads, head_dim_v], lse [batch, heads, seqlen_q]) in double.
nb::object reference(nb::tuple tensors, nb::tuple options, bool bhsd) {
  Call call(Arguments(tensors, options, nb::none(), bhsd));
  need_host(call);
  if (!call.has(kOut)) call.describe(kOut, call.arrays[kQ].dtype, out_shape(call).dims);
  const Shape out_dims = out_shape(call), lse_dims = lse_shape(call);
  const nb::object out = new_double_array(out_dims.ndim, out_dims.array()),
                   lse = new_double_array(lse_dims.ndim, lse_dims.array());
  double *out_data = doubles(out), *lse_data = doubles(lse);
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_reference(&call.tensors, &call.options, out_data, lse_data);
  }
  check(status, call);
  return nb::make_tuple(out, lse);
}

nb::object reference_backward(nb::tuple tensors, nb::tuple options, bool bhsd, int wanted) {
  Call call(Arguments(tensors, options, nb::none(), bhsd));
  need_host(call);
  need(call, kDout);
  call.describe(kOut, call.arrays[kQ].dtype, out_shape(call).dims);
  call.describe(kLse, FULMEN_FP32, lse_shape(call).dims);
  nb::object results[5];
  double* data[5] = {};
  int n = 0;
  for (const auto& [gradient, of] : kGradients) {
    if ((wanted >> n & 1) == 0) {
      results[n++] = nb::none();
      continue;
    }
    need(call, of);
    const fulmen_tensor& like = call.tensor(of);
    const int64_t shape[4] = {like.shape[0], like.shape[1], like.shape[2], like.shape[3]};
    call.describe(gradient, of == kSinks ? FULMEN_FP32 : call.arrays[of].dtype, shape);
    results[n] = new_double_array(4, shape);
    data[n] = doubles(results[n]);
    ++n;
  }
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_reference_backward(&call.tensors, &call.options, data[0], data[1], data[2],
                                       data[3], data[4]);
  }
  check(status, call);
  return nb::make_tuple(results[0], results[1], results[2], results[3], results[4]);
}

// (ok, worst_error, baseline_error, bound, lse_error, tensor, message, elements, mean_error)
nb::object verify(nb::tuple tensors, nb::tuple options, bool bhsd) {
  Call call(Arguments(tensors, options, nb::none(), bhsd), false);
  need_host(call);
  need(call, kOut);
  fulmen_verify_report report{};
  report.struct_size = sizeof report;
  std::string tensor, message;
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    const auto verify_pass = call.has(kDout) ? fulmen_verify_backward : fulmen_verify;
    status = verify_pass(&call.tensors, &call.options, &report);
    if (status == FULMEN_OK || status == FULMEN_VERIFICATION_FAILED) tensor = report.tensor;
    if (status == FULMEN_VERIFICATION_FAILED) message = fulmen_last_error();
  }
  if (status != FULMEN_VERIFICATION_FAILED) check(status, call);
  return nb::make_tuple(report.ok, report.worst_error, report.baseline_error, report.bound,
                        report.lse_error, tensor, message, report.elements, report.mean_error);
}

// (text, kernel, workspace bytes) of the plan for such a call. No data is read.
nb::object explain(nb::tuple tensors, nb::tuple options, nb::handle device, bool bhsd,
                   bool want_lse, int wanted, const nb::kwargs& of_functions) {
  Call call(Arguments(tensors, options, device, bhsd), false);
  ScoreFunctions functions(of_functions);
  functions.add_to(call);
  const bool is_backward = wanted != 0;
  const fulmen_dtype dtype = call.arrays[kQ].dtype;
  if (!call.has(kOut)) call.describe(kOut, dtype, out_shape(call).dims);
  if (!call.has(kLse) && (want_lse || is_backward))
    call.describe(kLse, FULMEN_FP32, lse_shape(call).dims);
  if (is_backward) {
    call.describe(kDout, dtype, out_shape(call).dims);
    int n = 0;
    for (const auto& [gradient, of] : kGradients) {
      if ((wanted >> n++ & 1) == 0) continue;
      need(call, of);
      const fulmen_tensor& like = call.tensor(of);
      const int64_t shape[4] = {like.shape[0], like.shape[1], like.shape[2], like.shape[3]};
      call.describe(gradient, call.arrays[of].dtype, shape);
    }
  }
  fulmen_plan* plan = nullptr;
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    const auto create = is_backward ? fulmen_plan_create_backward : fulmen_plan_create;
    status = create(&call.tensors, &call.options, call.device_name(), &plan);
  }
  check(status, call);
  fulmen_kernel_config config{};
  config.struct_size = sizeof config;
  fulmen_plan_config(plan, &config);
  const nb::object result =
      nb::make_tuple(nb::str((fulmen_plan_explain(plan) + call.copies()).c_str()),
                     nb::str(config.kernel), fulmen_plan_workspace_bytes(plan));
  fulmen_plan_destroy(plan);
  return result;
}

nb::object dropout_mask(nb::tuple tensors, nb::tuple options, bool bhsd) {
  Call call(Arguments(tensors, options, nb::none(), bhsd));
  call.describe(kOut, call.arrays[kQ].dtype, out_shape(call).dims);
  const fulmen_tensor &q = call.tensors.q, &k = call.tensors.k;
  const int64_t shape[4] = {q.shape[0], q.shape[2], q.shape[1], k.shape[1]};
  const nb::object keep = new_boolean_array(4, shape);
  auto* data = reinterpret_cast<uint8_t*>(doubles(keep));
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_dropout_mask(&call.tensors, &call.options, data);
  }
  check(status, call);
  return keep;
}

// By place.
nb::tuple tensor_names() {
  nb::list names;
  for (const PlaceRow& row : kTensors) names.append(row.name);
  return nb::tuple(names);
}

nb::list devices() {
  nb::list result;
  check(fulmen_visit_devices(
      [](void* context, const fulmen_device_info* d) {
        static_cast<nb::list*>(context)->append(nb::make_tuple(nb::str(d->name), nb::str(d->chip),
                                                               nb::str(d->features), d->usable,
                                                               nb::str(d->reason), d->host_memory));
      },
      &result));
  return result;
}

template <xla::Platform platform>
nb::dict handlers_of() {
  nb::dict handlers;
  const auto add = [&](const char* name, xla::Handler* handler) {
    handlers[name] = nb::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
  };
  add("fulmen_attention", xla::forward<platform>);
  add("fulmen_attention_backward", xla::backward<platform>);
  add("fulmen_append_kv", xla::append_kv<platform>);
  return handlers;
}

// By XLA's name of the platform, then by the call's, in the capsules that
// jax.ffi.register_ffi_target takes.
nb::dict xla_handlers() {
  nb::dict platforms;
  platforms["cpu"] = handlers_of<xla::Platform::host>();
  platforms["CUDA"] = handlers_of<xla::Platform::cuda>();
  platforms["ROCM"] = handlers_of<xla::Platform::rocm>();
  return platforms;
}

}  // namespace
}  // namespace fulmen::python

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  using namespace nb::literals;
  namespace py = fulmen::python;
  py::add_argument_error(m);
  m.attr("tensor_names") = py::tensor_names();
  m.def("forward", &py::forward_of, "tensors"_a, "options"_a, "device"_a.none(), "bhsd"_a,
        "want_lse"_a, "functions"_a);
  m.def("backward", &py::backward_of, "tensors"_a, "options"_a, "device"_a.none(), "bhsd"_a,
        "wanted"_a, "functions"_a);
  m.def("reference", &py::reference, "tensors"_a, "options"_a, "bhsd"_a);
  m.def("reference_backward", &py::reference_backward, "tensors"_a, "options"_a, "bhsd"_a,
        "wanted"_a);
  m.def("verify", &py::verify, "tensors"_a, "options"_a, "bhsd"_a);
  m.def("explain", &py::explain, "tensors"_a, "options"_a, "device"_a.none(), "bhsd"_a,
        "want_lse"_a, "wanted"_a, "functions"_a);
  m.def("dropout_mask", &py::dropout_mask, "tensors"_a, "options"_a, "bhsd"_a);
  const auto cache = [&m](const char* name, auto function) {
    m.def(name, function, "tensors"_a, "device"_a.none(), "rotary_interleaved"_a.none(),
          "queries_advance"_a.none(), "num_threads"_a.none(), "validate"_a.none());
  };
  cache("append_kv", &py::append_kv);
  cache("check_append_kv", &py::check_append_kv);
  m.def("quantize_kv", &py::quantize_kv, "numbers"_a, "quantized"_a, "scale"_a.none(),
        "given_scales"_a);
  m.def("dequantize_kv", &py::dequantize_kv, "quantized"_a, "scale"_a.none(), "numbers"_a);
  m.def("set_torch", &py::set_torch, "functions"_a);
  m.def("torch_workspace", &py::torch_workspace, "tensor"_a, "bytes"_a);
  m.def("torch_observers", &py::torch_observers_of, "tensors"_a);
  m.def("torch_forward", &py::torch_forward_of, "tensors"_a, "options"_a, "device"_a.none(),
        "bhsd"_a, "want_lse"_a);
  if (PyModule_AddFunctions(m.ptr(), py::attention_methods()) != 0 ||
      PyModule_AddFunctions(m.ptr(), py::torch_methods()) != 0) {
    throw nb::python_error();
  }
  m.def("autograd_backward", &py::autograd_backward, "ctx"_a, "dout"_a.none(), "dlse"_a.none());
  m.def("devices", &py::devices);
  m.def("add_prebuilt_path", &py::add_prebuilt_path, "path"_a);
  m.def("add_prebuilt_pack", &py::add_prebuilt_pack, "pack"_a);
  m.def("set_prebuilt_source", &py::set_prebuilt_source, "function"_a.none());
  m.def("xla_handlers", &py::xla_handlers);
  m.attr("__version__") = fulmen_version();
  m.attr("max_head_dim") = FULMEN_MAX_HEAD_DIM;
  m.attr("max_head_dim_v") = FULMEN_MAX_HEAD_DIM_V;
}
