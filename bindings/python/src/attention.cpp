#include "attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "arguments/call.h"
#include "method.h"
#include "run/passes.h"
#include "torch/torch_calls.h"
#include "torch/torch_memory.h"

namespace fulmen::python {
namespace {

// Where the arguments are kept until they are read: tensors, scalars, and three more.
constexpr int kFirst = kPlaces;  // the first of the scalars
enum { kDevice = kFirst + kScalars, kLayout, kReturnLse, kSlots };

// All but those of tensors, whose names kTensors has.
constexpr struct {
  const char* name;
  int slot;
} kKeywords[] = {
    {"max_seqlen_q", kFirst + kMaxSeqlenQ},
    {"max_seqlen_k", kFirst + kMaxSeqlenK},
    {"return_lse", kReturnLse},
    {"softmax_scale", kFirst + kScale},
    {"softcap", kFirst + kSoftcap},
    {"causal", kFirst + kCausal},
    {"window_left", kFirst + kWindowLeft},
    {"window_right", kFirst + kWindowRight},
    {"dropout", kFirst + kDropout},
    {"dropout_seed", kFirst + kSeed},
    {"dropout_offset", kFirst + kOffset},
    {"deterministic", kFirst + kDeterministic},
    {"kernel", kFirst + kKernel},
    {"tuning", kFirst + kTuning},
    {"num_threads", kFirst + kNumThreads},
    {"verify", kFirst + kVerify},
    {"validate", kFirst + kValidate},
    {"device", kDevice},
    {"layout", kLayout},
};
// Whether a keyword of the forward pass gives the tensor.
bool is_keyword(int place) {
  return place == kOut ||
         (place > kOut && kTensors[place].use == Use::input && place != kDout && place != kDlse);
}

// A keyword as Python keeps the names of a program: nearly always the same object, and found by its
// address.
struct Keyword {
  const char* name;
  int slot;
  nb::handle interned;
};
const std::vector<Keyword>& keywords() {
  static const auto* const kAll = [] {
    auto* all = new std::vector<Keyword>;
    for (int at = 0; at < kPlaces; ++at) {
      if (is_keyword(at))
        all->push_back({kTensors[at].name, at, PyUnicode_InternFromString(kTensors[at].name)});
    }
    for (const auto& [name, slot] : kKeywords)
      all->push_back({name, slot, PyUnicode_InternFromString(name)});
    return all;
  }();
  return *kAll;
}

// Rarely needed, so looked up each time.
nb::object python_function(const char* module, const char* name) {
  return nb::module_::import_(module).attr(name);
}

int slot_of(nb::handle keyword) {
  for (const Keyword& known : keywords()) {
    if (known.interned.is(keyword)) return known.slot;
  }
  for (const Keyword& known : keywords()) {
    if (PyUnicode_CompareWithASCIIString(keyword.ptr(), known.name) == 0) return known.slot;
  }
  throw nb::type_error(nb::cast<std::string>(
                           python_function("fulmen._arguments", "unexpected")("attention", keyword))
                           .c_str());
}

// A number, or an array without dims.
bool is_scalar(nb::handle value) {
  if (PyFloat_Check(value.ptr()) != 0 || PyLong_Check(value.ptr()) != 0) return true;
  return nb::getattr(value, "ndim", nb::none()).equal(nb::int_(0));
}

// Lists, integers that are not int32, scales without dims, and sinks that are not float32 become
// tensors by Python functions; this object then owns the tensors.
nb::object as_numbers(int place, nb::handle value, nb::handle q) {
  if (has_lengths(kTensors[place].form)) {
    const nb::object dtype = nb::getattr(value, "dtype", nb::none());
    if (kind_of(value) == Kind::plain_torch ? dtype.is(torch_int32()) : dtype.is(numpy_int32()))
      return nb::borrow(value);
  } else if (place == kSinks) {
    // A model's parameter in 16 bits comes in every call.
    if (kind_of(value) == Kind::plain_torch) {
      const nb::object dtype = nb::getattr(value, "dtype");
      if (dtype.is(torch_float32())) return nb::borrow(value);
      if (torch_is_16_bit_float(dtype)) return value.attr("float")();
    }
  } else if (kTensors[place].form == Form::scales && is_scalar(value)) {
    // Of the whole tensor.
  } else if (PyList_Check(value.ptr()) == 0 && PyTuple_Check(value.ptr()) == 0) {
    return nb::borrow(value);
  }
  return python_function("fulmen._functions", "as_numbers")(kTensors[place].name, value, q);
}

bool is_bhsd(nb::handle layout) {
  if (PyUnicode_Check(layout.ptr()) != 0) {
    if (PyUnicode_CompareWithASCIIString(layout.ptr(), "bshd") == 0) return false;
    if (PyUnicode_CompareWithASCIIString(layout.ptr(), "bhsd") == 0) return true;
  }
  const nb::object given = nb::steal(PyObject_Repr(layout.ptr()));
  if (!given.is_valid()) throw nb::python_error();
  throw ArgumentError("layout is " + text_of(given) +
                      ": \"bshd\" ([batch, seqlen, heads, head_dim]) or \"bhsd\" (dims 1 and 2 "
                      "exchanged) is accepted");
}

// Calls the Python path for q: other frameworks, and torch before fulmen.torch was imported.
nb::object by_framework(const Arguments& arguments, bool want_lse) {
  static nb::handle function;
  if (!function.is_valid())
    function = nb::object(nb::module_::import_("fulmen._functions").attr("by_framework")).release();
  const nb::handle device = arguments.device.is_valid() ? arguments.device : nb::handle(Py_None);
  return nb::borrow(function)(arguments.tensor_tuple(), arguments.scalar_tuple(), device,
                              arguments.bhsd, want_lse);
}

// (q, k, v, the dict of the other arguments)
PyObject* attention(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) {
  return for_python([&] {
    if (count != 4 || PyDict_Check(given[3]) == 0)
      throw nb::type_error("attention: q, k, v and a dict are needed");
    nb::handle slots[kSlots];
    nb::object numbers[kPlaces];
    PyObject *keyword = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(given[3], &at, &keyword, &value) != 0;)
      slots[slot_of(keyword)] = value;
    Arguments arguments;
    std::copy_n(given, 3, arguments.tensors);
    for (int at = kOut; at < kPlaces; ++at) {
      if (!slots[at].is_valid() || slots[at].is_none()) continue;
      if (takes_lists(kTensors[at].form)) {
        numbers[at] = as_numbers(at, slots[at], given[0]);
        slots[at] = numbers[at];
      }
      arguments.tensors[at] = slots[at];
    }
    std::copy_n(slots + kFirst, static_cast<int>(kScalars), arguments.scalars);
    if (slots[kDevice].is_valid() && !slots[kDevice].is_none()) arguments.device = slots[kDevice];
    if (slots[kLayout].is_valid()) arguments.bhsd = is_bhsd(slots[kLayout]);
    const bool want_lse = slots[kReturnLse].is_valid() && flag("return_lse", slots[kReturnLse]);
    switch (kind_of(given[0])) {
      case Kind::numpy:
        return forward(arguments, want_lse);
      case Kind::plain_torch:
        return torch_forward(arguments, want_lse);
      default:
        return by_framework(arguments, want_lse);
    }
  });
}

}  // namespace

PyMethodDef* attention_methods() {
  static PyMethodDef kMethods[] = {
      {"attention", as_method(attention), METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  return kMethods;
}

}  // namespace fulmen::python
