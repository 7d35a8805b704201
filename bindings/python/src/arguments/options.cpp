// The arguments of a call that are no tensors, from Python objects to the struct of the C ABI.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "arguments/call.h"

namespace fulmen::python {
namespace {

[[noreturn]] void wrong_type(const char* name, nb::handle value, const char* accepted) {
  constexpr size_t kMostShown = 60;  // no array's contents
  const std::string shown = text_of(nb::repr(value));
  throw nb::type_error((std::string(name) + " is " +
                        (shown.size() > kMostShown ? "" : shown + ", ") + "of type " +
                        name_of_type(value) + ": " + accepted + " is accepted")
                           .c_str());
}

// Random numbers are told apart by 64 bits: negative numbers are as good as large ones. NumPy's
// integers are among them.
uint64_t any_64_bits(const char* name, nb::handle value) {
  const nb::object integer = nb::steal(PyNumber_Index(value.ptr()));
  if (!integer.is_valid()) {
    PyErr_Clear();
    wrong_type(name, value, "an integer");
  }
  return PyLong_AsUnsignedLongLongMask(integer.ptr());
}

// A tensor of one element converts to a number, and what is learned would silently not be learned.
void refuse_gradient(const char* name, nb::handle value) {
  if (PyFloat_Check(value.ptr()) != 0 || PyLong_Check(value.ptr()) != 0) return;
  if (nb::getattr(value, "requires_grad", nb::none()).ptr() != Py_True) return;
  throw ArgumentError(std::string(name) + " requires grad: it has no gradient here, pass " + name +
                      ".item()" + ", or scale q by what is learned");
}

// True or False, 0 or 1, or a boolean scalar of NumPy, PyTorch or JAX, which comparing elements of
// arrays gives.
std::optional<bool> truth(nb::handle value) {
  if (PyBool_Check(value.ptr()) != 0) return value.ptr() == Py_True;
  if (PyUnicode_Check(value.ptr()) != 0) return std::nullopt;
  const nb::object shape = nb::getattr(value, "shape", nb::none());
  const bool is_scalar_array = PyTuple_Check(shape.ptr()) != 0 && PyTuple_Size(shape.ptr()) == 0;
  if (is_scalar_array &&
      text_of(nb::getattr(value, "dtype", nb::none())).find("bool") != std::string::npos) {
    const int is_true = PyObject_IsTrue(value.ptr());
    if (is_true < 0) throw nb::python_error();  // one that is traced says so itself
    return is_true == 1;
  }
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    return std::nullopt;
  }
  for (const long one : {0L, 1L}) {
    const nb::object expected = nb::steal(PyLong_FromLong(one));
    if (PyObject_RichCompareBool(number.ptr(), expected.ptr(), Py_EQ) == 1) return one == 1;
  }
  return std::nullopt;
}

int32_t causal(nb::handle value) {
  constexpr const char* kAccepted =
      "False, True, \"none\", \"bottom_right\" (the same as True) or \"top_left\"";
  if (const auto known = truth(value))
    return *known ? FULMEN_CAUSAL_BOTTOM_RIGHT : FULMEN_CAUSAL_NONE;
  if (PyUnicode_Check(value.ptr()) == 0) wrong_type("causal", value, kAccepted);
  const std::string name = text("causal", value);
  if (name == "none") return FULMEN_CAUSAL_NONE;
  if (name == "bottom_right") return FULMEN_CAUSAL_BOTTOM_RIGHT;
  if (name == "top_left") return FULMEN_CAUSAL_TOP_LEFT;
  throw ArgumentError("causal is \"" + name + "\": " + kAccepted + " is accepted");
}

// What is there, and not None.
nb::handle said(nb::handle value) {
  return value.is_valid() && !value.is_none() ? value : nb::handle();
}

nb::handle item(nb::handle tuple, Py_ssize_t at) { return PyTuple_GetItem(tuple.ptr(), at); }

nb::object tuple_of(const nb::handle* items, int count, nb::handle defaults) {
  nb::object tuple = nb::steal(PyTuple_New(count));
  for (int at = 0; at < count; ++at) {
    nb::object one = nb::borrow(items[at].is_valid()  ? items[at]
                                : defaults.is_valid() ? item(defaults, at)
                                                      : nb::handle(Py_None));
    PyTuple_SetItem(tuple.ptr(), at, one.release().ptr());
  }
  return tuple;
}

}  // namespace

double number(const char* name, nb::handle value) {
  refuse_gradient(name, value);
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    wrong_type(name, value, "a number");
  }
  return result;
}

int64_t integer(const char* name, nb::handle value, int64_t low, int64_t high) {
  int overflow = 0;
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    wrong_type(name, value, "an integer");
  }
  const int64_t result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || result < low || result > high) {
    throw ArgumentError(std::string(name) + " is " + text_of(value) + ": " + std::to_string(low) +
                        " to " + std::to_string(high) + " is accepted");
  }
  return result;
}

int32_t thread_count(nb::handle value) {
  return static_cast<int32_t>(
      integer("num_threads", value, 0, std::numeric_limits<int32_t>::max()));
}

const char* text(const char* name, nb::handle value) {
  const char* result =
      PyUnicode_Check(value.ptr()) != 0 ? PyUnicode_AsUTF8AndSize(value.ptr(), nullptr) : nullptr;
  if (result == nullptr) {
    PyErr_Clear();
    wrong_type(name, value, "a str, or None,");
  }
  return result;
}

bool flag(const char* name, nb::handle value) {
  const auto known = truth(value);
  if (!known) wrong_type(name, value, "True or False");
  return *known;
}

Arguments::Arguments(nb::handle tensor_tuple, nb::handle scalar_tuple, nb::handle device_name,
                     bool heads_first)
    : device(said(device_name)), bhsd(heads_first) {
  if (PyTuple_Check(tensor_tuple.ptr()) == 0 || PyTuple_Check(scalar_tuple.ptr()) == 0)
    throw nb::type_error("tensors and options: tuples are needed");
  const auto given = PyTuple_Size(tensor_tuple.ptr()), told = PyTuple_Size(scalar_tuple.ptr());
  if (given > kPlaces)
    throw nb::type_error(
        ("tensors: a tuple of " + std::to_string(kPlaces) + " at most is needed").c_str());
  if (told != 0 && told != kMaxSeqlenQ && told != kScalars)
    throw nb::type_error("options: a tuple of 13 or 16, or none, is needed");
  for (Py_ssize_t at = 0; at < given; ++at) tensors[at] = said(item(tensor_tuple, at));
  for (Py_ssize_t at = 0; at < told; ++at) scalars[at] = item(scalar_tuple, at);
}

bool Arguments::have_lengths() const {
  const auto any = [](const nb::handle* first, const nb::handle* last) {
    return std::any_of(first, last, [](nb::handle one) { return said(one).is_valid(); });
  };
  return any(tensors + kCuSeqlensQ, tensors + kPlaces) ||
         any(scalars + kMaxSeqlenQ, scalars + kValidate);
}

nb::object Arguments::tensor_tuple() const {
  return tuple_of(tensors, have_lengths() ? kPlaces : kSinks + 1, {});
}

nb::object Arguments::scalar_tuple() const {
  // Not by an initialiser: making objects may run the garbage collector, and with it other threads,
  // see array.cpp.
  static nb::handle defaults;
  if (!defaults.is_valid()) {
    defaults = nb::make_tuple(nb::none(), 0.0, false, -1, -1, 0.0, nb::none(), 0, nb::none(),
                              nb::none(), nb::none(), 0, false, nb::none(), nb::none(), false)
                   .release();
  }
  return tuple_of(scalars, have_lengths() ? kScalars : kMaxSeqlenQ, defaults);
}

void read_options(const Arguments& given, Call& call) {
  const nb::handle* value = given.scalars;
  fulmen_options& o = call.options;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (said(value[kScale]).is_valid()) {
    o.softmax_scale = static_cast<float>(number("softmax_scale", value[kScale]));
    // NaN says "the default" to the C ABI.
    if (std::isnan(o.softmax_scale))
      throw ArgumentError("softmax_scale is nan: a finite number, or None, is accepted");
  }
  if (value[kSoftcap].is_valid())
    o.softcap = static_cast<float>(number("softcap", value[kSoftcap]));
  if (value[kCausal].is_valid()) o.causal = causal(value[kCausal]);
  if (value[kWindowLeft].is_valid())
    o.window_left = integer("window_left", value[kWindowLeft], -1, kMost);
  if (value[kWindowRight].is_valid())
    o.window_right = integer("window_right", value[kWindowRight], -1, kMost);
  if (value[kDropout].is_valid())
    o.dropout = static_cast<float>(number("dropout", value[kDropout]));
  if (said(value[kSeed]).is_valid()) {
    call.tensors.dropout_seed = any_64_bits("dropout_seed", value[kSeed]);
  } else if (o.dropout != 0.0F) {
    throw ArgumentError(
        "dropout_seed is None and dropout is not 0: which elements are dropped must be said by a "
        "seed, an integer");
  }
  if (value[kOffset].is_valid())
    call.tensors.dropout_offset = any_64_bits("dropout_offset", value[kOffset]);
  if (said(value[kDeterministic]).is_valid())
    o.deterministic = flag("deterministic", value[kDeterministic]);
  if (said(value[kKernel]).is_valid()) call.kernel = text("kernel", value[kKernel]);
  o.kernel = call.kernel.c_str();
  if (said(value[kTuning]).is_valid()) call.tuning = text("tuning", value[kTuning]);
  o.tuning = call.tuning.c_str();
  if (value[kNumThreads].is_valid()) o.num_threads = thread_count(value[kNumThreads]);
  if (value[kVerify].is_valid()) o.verify = flag("verify", value[kVerify]);
  if (value[kValidate].is_valid()) o.validate = flag("validate", value[kValidate]);
  for (const auto& [packed, name, most] :
       {std::tuple(kCuSeqlensQ, "q", kMaxSeqlenQ), std::tuple(kCuSeqlensK, "k", kMaxSeqlenK)}) {
    const bool is_packed = given.tensors[packed].is_valid() &&
                           (packed != kCuSeqlensK || !given.tensors[kBlockTable].is_valid());
    if (!is_packed || said(value[most]).is_valid()) continue;
    throw ArgumentError(std::string("max_seqlen_") + name + " is None: beside cu_seqlens_" + name +
                        " the length of the longest sequence, or more, is needed");
  }
  if (said(value[kMaxSeqlenQ]).is_valid())
    o.max_seqlen_q = integer("max_seqlen_q", value[kMaxSeqlenQ], 0, kMost);
  if (said(value[kMaxSeqlenK]).is_valid())
    o.max_seqlen_k = integer("max_seqlen_k", value[kMaxSeqlenK], 0, kMost);
  if (given.device.is_valid()) call.device = text("device", given.device);
}

}  // namespace fulmen::python
