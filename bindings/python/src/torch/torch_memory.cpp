#include "torch/torch_memory.h"

#include <algorithm>
#include <string>

namespace fulmen::python {
namespace {

// torch's name of a fulmen_dtype that results and workspaces have.
const char* name_of_dtype(int dtype) {
  switch (dtype) {
    case FULMEN_FP32:
      return "float32";
    case FULMEN_FP16:
      return "float16";
    case FULMEN_BF16:
      return "bfloat16";
    case FULMEN_BOOLEAN:
      return "bool";
    case FULMEN_INT32:
      return "int32";
    case FULMEN_UINT8:
      return "uint8";
    default:
      throw nb::type_error(
          ("no tensor of torch is made of dtype " + std::to_string(dtype)).c_str());
  }
}

struct Functions {
  nb::object empty_cpu, empty_gpu, current_gpu, written;  // null where torch has none
};

Functions& functions() {
  // Lives as long as the process: no destructor after Python's end.
  static auto* kept = new Functions;
  return *kept;
}

nb::handle dtype_object(int dtype) {
  static nb::handle known[FULMEN_UINT8 + 1];
  const char* name = name_of_dtype(dtype);
  if (!known[dtype].is_valid())
    known[dtype] = nb::object(nb::module_::import_("torch").attr(name)).release();
  return known[dtype];
}

nb::object tuple_of(int ndim, const int64_t* values) {
  nb::object tuple = nb::steal(PyTuple_New(ndim));
  for (int d = 0; d < ndim; ++d) PyTuple_SetItem(tuple.ptr(), d, PyLong_FromLongLong(values[d]));
  return tuple;
}

// A tensor's shape and dtype, also as torch's arguments.
struct Made {
  int ndim = 0, dtype = 0;
  int64_t shape[4] = {}, strides[4] = {};
  nb::object arguments;  // (shape, strides, dtype)

  bool equals(const Made& other) const {
    return ndim == other.ndim && dtype == other.dtype &&
           std::equal(shape, shape + 4, other.shape) &&
           std::equal(strides, strides + 4, other.strides);
  }
};

// A model allocates the same few shapes again and again.
nb::object arguments_of(Made made) {
  static auto* kept = new Made[64];
  uint64_t hash = static_cast<uint64_t>(made.dtype) * 8 + static_cast<uint64_t>(made.ndim);
  for (int d = 0; d < made.ndim; ++d) {
    hash = (hash ^ static_cast<uint64_t>(made.shape[d])) * 0x9E3779B97F4A7C15U +
           static_cast<uint64_t>(made.strides[d]);
  }
  Made& place = kept[(hash * 0x9E3779B97F4A7C15U) >> 58];
  if (!place.arguments.is_valid() || !place.equals(made)) {
    made.arguments = nb::make_tuple(tuple_of(made.ndim, made.shape),
                                    tuple_of(made.ndim, made.strides), dtype_object(made.dtype));
    place = std::move(made);
  }
  return place.arguments;
}

// Returns true if torch's current device has that index. Another device is not touched: it may be
// full, or in use by others.
bool is_current_gpu(int32_t id) {
  if (!functions().current_gpu.is_valid()) return false;
  const nb::object current = nb::steal(PyObject_CallNoArgs(functions().current_gpu.ptr()));
  if (!current.is_valid()) throw nb::python_error();
  return PyLong_AsLong(current.ptr()) == id;
}

nb::object allocate(nb::handle object, const Array& like, const Made& made) {
  const nb::object arguments = arguments_of(made);
  const bool on_gpu = like.device.type == kDlCuda || like.device.type == kDlRocm;
  const nb::object& allocator = on_gpu ? functions().empty_gpu : functions().empty_cpu;
  if (allocator.is_valid() &&
      (on_gpu ? is_current_gpu(like.device.id) : like.device.type == kDlCpu)) {
    nb::object result = nb::steal(PyObject_Call(allocator.ptr(), arguments.ptr(), nullptr));
    if (result.is_valid()) return result;
    PyErr_Clear();  // torch's own function says what is wrong, if it still is
  }
  const nb::object shape = nb::borrow(arguments)[0], strides = nb::borrow(arguments)[1];
  return object.attr("new_empty_strided")(shape, strides,
                                          nb::arg("dtype") = dtype_object(made.dtype));
}

}  // namespace

void set_torch_memory(nb::dict given) {
  const auto set = [&](nb::object& to, const char* name) {
    nb::object function = given[name];
    to = function.is_none() ? nb::object() : std::move(function);
  };
  Functions& f = functions();
  set(f.empty_cpu, "empty_cpu"), set(f.empty_gpu, "empty_gpu"), set(f.current_gpu, "current_gpu"),
      set(f.written, "written");
}

nb::object new_torch_tensor(nb::handle object, const Array& like, int ndim, const int64_t* shape,
                            const int64_t* strides, fulmen_dtype dtype) {
  Made made{ndim, dtype, {}, {}, {}};
  std::copy_n(shape, ndim, made.shape);
  std::copy_n(strides, ndim, made.strides);
  return allocate(object, like, made);
}

nb::object new_torch_bytes(nb::handle object, const Array& like, int64_t bytes) {
  return allocate(object, like, {1, FULMEN_UINT8, {bytes}, {1}, {}});
}

nb::object torch_workspace(nb::handle tensor, int64_t bytes) {
  return new_torch_bytes(tensor, read_input(tensor, "tensor"), bytes);
}

nb::handle torch_float32() { return dtype_object(FULMEN_FP32); }

bool torch_is_16_bit_float(nb::handle dtype) {
  return dtype.is(dtype_object(FULMEN_BF16)) || dtype.is(dtype_object(FULMEN_FP16));
}

nb::handle torch_int32() { return dtype_object(FULMEN_INT32); }

void torch_is_written(nb::handle tensor) {
  // fulmen.torch was not imported: a call with other arrays has written a tensor.
  if (!functions().written.is_valid()) nb::module_::import_("fulmen.torch");
  nb::borrow(functions().written)(nb::make_tuple(tensor));
}

bool torch_is_negated(nb::handle tensor) {
  // The function of the class: to bind a method would take longer than to call it.
  static nb::handle is_neg;
  if (!is_neg.is_valid())
    is_neg = nb::object(nb::module_::import_("torch").attr("Tensor").attr("is_neg")).release();
  const nb::object answer =
      nb::steal(PyObject_CallFunctionObjArgs(is_neg.ptr(), tensor.ptr(), nullptr));
  if (answer.is_valid()) return answer.ptr() == Py_True;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
  PyErr_Clear();  // a class of torch's, but no tensor: it has no such bit
  return false;
}

nb::object torch_without_wrappers(nb::handle tensor) {
  static nb::handle unwrap;
  if (!unwrap.is_valid()) {
    unwrap = nb::object(
                 nb::module_::import_("torch").attr("_C").attr("_functorch").attr("unwrap_if_dead"))
                 .release();
  }
  nb::object outer = nb::borrow(tensor);
  while (true) {
    nb::object inner = nb::steal(PyObject_CallFunctionObjArgs(unwrap.ptr(), outer.ptr(), nullptr));
    if (!inner.is_valid()) throw nb::python_error();
    if (inner.is(outer)) return outer;
    outer = std::move(inner);
  }
}

}  // namespace fulmen::python
