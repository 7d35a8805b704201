#include "arguments/array.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "arguments/call.h"
#include "torch/torch_memory.h"

namespace fulmen::python {
namespace {

// The struct behind numpy.ndarray.__array_struct__ (NumPy's array interface, version 3).
struct ArrayStruct {
  int two;
  int nd;
  char kind;
  int itemsize;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  // bytes
  void* data;
  PyObject* descr;
};
constexpr int kNumpyNotSwapped = 0x200, kNumpyWritable = 0x400;

enum class Access : int { numpy, exchange, torch_attributes, dlpack, none };

struct KnownType {
  nb::handle type;
  Access access;
  bool is_torch;
  const DlExchangeApi* api;
  Kind kind = Kind::other;
};

// An attribute of a module that is looked up once and lives as long as the process, as the module
// does. Not by a static with an initialiser: a second thread would wait for that with the GIL held,
// which the first one needs.
nb::handle attribute_of(nb::handle& kept, const char* module, const char* name) {
  if (!kept.is_valid()) kept = nb::object(nb::module_::import_(module).attr(name)).release();
  return kept;
}
// Null where nobody has imported NumPy: then there are no arrays of it.
nb::handle numpy_ndarray() {
  static nb::handle kept;
  if (kept.is_valid()) return kept;
  const nb::object numpy = nb::steal(PyImport_GetModule(nb::str("numpy").ptr()));
  if (numpy.is_valid() && nb::hasattr(numpy, "ndarray"))
    kept = nb::object(numpy.attr("ndarray")).release();
  return kept;
}
nb::handle numpy_empty() {
  static nb::handle kept;
  return attribute_of(kept, "numpy", "empty");
}

const DlExchangeApi* exchange_api(nb::handle type) {
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* api =
      static_cast<DlExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->major != 1) api = api->previous;
  return api != nullptr && api->view != nullptr ? api : nullptr;
}

std::string module_of(nb::handle type) {
  return text_of(nb::getattr(type, "__module__", nb::str("")));
}

// torch's own types, and user types derived from its tensors.
bool is_of_torch(nb::handle type) {
  for (const nb::handle base : nb::getattr(type, "__mro__", nb::make_tuple())) {
    const std::string module = module_of(base);
    if (module == "torch" || module.rfind("torch.", 0) == 0) return true;
  }
  return false;
}

KnownType examine(nb::handle type) {
  const std::string module = module_of(type);
  // Its mask would be forgotten.
  if (module.rfind("numpy.ma", 0) == 0) return {type, Access::none, false, nullptr};
  const bool is_torch = is_of_torch(type);
  if (const nb::handle array = numpy_ndarray();
      array.is_valid() && PyObject_IsSubclass(type.ptr(), array.ptr()) == 1)
    return {type, Access::numpy, false, nullptr, Kind::numpy};
  if (const DlExchangeApi* api = exchange_api(type)) return {type, Access::exchange, is_torch, api};
  if (is_torch && nb::hasattr(type, "data_ptr"))
    return {type, Access::torch_attributes, true, nullptr};
  return {type, nb::hasattr(type, "__dlpack__") ? Access::dlpack : Access::none, false, nullptr};
}

// A process sees few types; each is examined once.
std::vector<KnownType>& known_types() {
  // Lives as long as the process: no destructor after Python's end.
  static auto* known = new std::vector<KnownType>;
  return *known;
}

// By value: while one is asked another thread may add to the list.
KnownType known_type(nb::handle type) {
  std::vector<KnownType>& known = known_types();
  for (const KnownType& one : known) {
    if (one.type.is(type)) return one;
  }
  if (known.size() >= 64) {  // classes made on the fly, by somebody's loop
    std::vector<KnownType> forgotten;
    for (const KnownType& one : known) {
      if (one.kind != Kind::plain_torch) forgotten.push_back(one);
    }
    known.erase(std::remove_if(known.begin(), known.end(),
                               [](const KnownType& one) { return one.kind != Kind::plain_torch; }),
                known.end());
    // Last: the end of a class may run anything.
    for (const KnownType& one : forgotten) one.type.dec_ref();
  }
  const KnownType found = examine(type);
  type.inc_ref();
  known.push_back(found);
  return found;
}

bool is_keep_mask(std::string_view name) { return name == kTensors[kKeepMask].name; }

// Keys and values may be quantized, and their scales are of two dtypes.
bool may_be_quantized(std::string_view name) {
  return name == kTensors[kK].name || name == kTensors[kV].name || name == "k_cache" ||
         name == "v_cache" || name == "quantized";
}
// The format of k and v by its dtype's name in ml_dtypes, or in torch behind "torch.".
int32_t kv_format(std::string_view dtype) {
  struct Named {
    std::string_view name;
    fulmen_dtype dtype;
  };
  constexpr Named kFormats[] = {{"int8", FULMEN_INT8},
                                {"float8_e4m3fn", FULMEN_FP8_E4M3},
                                {"float8_e5m2", FULMEN_FP8_E5M2},
                                {"float8_e4m3fnuz", FULMEN_FP8_E4M3FNUZ},
                                {"float8_e5m2fnuz", FULMEN_FP8_E5M2FNUZ}};
  for (const Named& one : kFormats) {
    if (one.name == dtype) return one.dtype;
  }
  return -1;
}
// An array that a function of scores reads, or its gradient: functions.cpp names it.
bool is_of_function(std::string_view name) { return name.substr(0, 9) == "function_"; }

// The dtypes that the argument of that name takes.
const char* accepted_dtypes(std::string_view name) {
  if (is_of_function(name))
    return "float32, float16, bfloat16, int32, int64, int8, uint8 and bool are accepted";
  if (is_keep_mask(name)) return "bool or uint8, where not 0 attends, is accepted";
  if (may_be_quantized(name)) {
    return "float32, float16, bfloat16, int8 and float8_e4m3fn, float8_e5m2, float8_e4m3fnuz and "
           "float8_e5m2fnuz are accepted";
  }
  for (const PlaceRow& row : kTensors) {
    if (name != row.name) continue;
    if (has_lengths(row.form)) return "int32 is accepted, and other integers, which are converted";
    if (row.form == Form::scales) return "float32 and float16 are accepted";
    if (row.form == Form::heads) return "float32, float16, bfloat16 and float64 are accepted";
    if (of_heads(row.form) || row.form == Form::rows) return "float32 is accepted";
  }
  return "float32, float16 and bfloat16 are accepted";
}

[[noreturn]] void refuse_dtype(const char* name, const std::string& dtype) {
  throw nb::type_error(
      (std::string(name) + " has dtype " + dtype + ": " + accepted_dtypes(name)).c_str());
}

void check_ndim(const char* name, int64_t ndim) {
  if (ndim > 4)
    throw ArgumentError(std::string(name) + " has " + std::to_string(ndim) +
                        " dims: 4 at most are accepted");
}

fulmen_dtype dtype_of(DlDtype dtype, const char* name) {
  if (dtype.lanes == 1) {
    if (dtype.code == kDlFloat && dtype.bits == 32) return FULMEN_FP32;
    if (dtype.code == kDlFloat && dtype.bits == 16) return FULMEN_FP16;
    if (dtype.code == kDlBfloat && dtype.bits == 16) return FULMEN_BF16;
    if (dtype.code == kDlBool && dtype.bits == 8) return FULMEN_BOOLEAN;
    if (dtype.code == kDlUint && dtype.bits == 8 && is_keep_mask(name)) return FULMEN_BOOLEAN;
    if (dtype.code == kDlInt && dtype.bits == 32) return FULMEN_INT32;
    if (dtype.code == kDlInt && dtype.bits == 8 && may_be_quantized(name)) return FULMEN_INT8;
    if (is_of_function(name)) {
      if (dtype.code == kDlInt && dtype.bits == 64) return FULMEN_INT64;
      if (dtype.code == kDlInt && dtype.bits == 8) return FULMEN_INT8;
      if (dtype.code == kDlUint && dtype.bits == 8) return FULMEN_UINT8;
    }
  }
  constexpr const char* kNames[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  // By code, behind those. Their names say the bits.
  constexpr const char* kSmall[] = {"float8_e3m4",     "float8_e4m3",     "float8_e4m3b11fnuz",
                                    "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
                                    "float8_e5m2fnuz", "float8_e8m0fnu",  "float6_e2m3fn",
                                    "float6_e3m2fn",   "float4_e2m1fn"};
  const size_t small = dtype.code - std::size(kNames);
  if (dtype.code >= std::size(kNames) && small < std::size(kSmall)) {
    const int32_t format =
        may_be_quantized(name) && dtype.lanes == 1 ? kv_format(kSmall[small]) : -1;
    if (format >= 0) return static_cast<fulmen_dtype>(format);
    refuse_dtype(name, kSmall[small]);
  }
  const std::string kind = dtype.code < std::size(kNames)
                               ? kNames[dtype.code]
                               : "code" + std::to_string(dtype.code) + "_";
  refuse_dtype(name, kind + std::to_string(dtype.bits) +
                         (dtype.lanes != 1 ? "x" + std::to_string(dtype.lanes) : ""));
}

void read_dl_tensor(const DlTensor& tensor, const char* name, Array& array) {
  check_ndim(name, tensor.ndim);
  array.dtype = dtype_of(tensor.dtype, name);
  array.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  array.device = tensor.device;
  array.ndim = tensor.ndim;
  std::copy_n(tensor.shape, tensor.ndim, array.shape);
  int64_t row_major = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    array.strides[d] = tensor.strides != nullptr ? tensor.strides[d] : row_major;
    row_major *= array.shape[d];
  }
}

void read_numpy(nb::handle object, const char* name, Array& array) {
  array.owner = object.attr("__array_struct__");
  const auto* view =
      static_cast<const ArrayStruct*>(PyCapsule_GetPointer(array.owner.ptr(), nullptr));
  if (view == nullptr) throw nb::python_error();
  const auto dtype_name = [&] { return text_of(object.attr("dtype")); };
  const bool native = (view->flags & kNumpyNotSwapped) != 0;
  if (native && view->kind == 'f' && view->itemsize == 4) {
    array.dtype = FULMEN_FP32;
  } else if (native && view->kind == 'f' && view->itemsize == 2) {
    array.dtype = FULMEN_FP16;
  } else if (native && view->kind == 'i' && view->itemsize == 4) {
    array.dtype = FULMEN_INT32;
  } else if (view->kind == 'b' ||
             (view->kind == 'u' && view->itemsize == 1 && is_keep_mask(name))) {
    array.dtype = FULMEN_BOOLEAN;
  } else if (is_of_function(name) && native && view->kind == 'i' && view->itemsize == 8) {
    array.dtype = FULMEN_INT64;
  } else if (is_of_function(name) && view->kind == 'i' && view->itemsize == 1) {
    array.dtype = FULMEN_INT8;
  } else if (is_of_function(name) && view->kind == 'u' && view->itemsize == 1) {
    array.dtype = FULMEN_UINT8;
  } else if (native && view->itemsize == 2 && dtype_name() == "bfloat16") {
    // The dtype of ml_dtypes, whatever its kind.
    array.dtype = FULMEN_BF16;
  } else if (view->itemsize == 1 && may_be_quantized(name) && kv_format(dtype_name()) >= 0) {
    array.dtype = static_cast<fulmen_dtype>(kv_format(dtype_name()));
  } else if (!native && view->itemsize > 1) {
    throw nb::type_error(
        (std::string(name) + " has dtype " + dtype_name() +
         ": this machine's byte order is accepted, convert it by astype(dtype.newbyteorder(\"=\"))")
            .c_str());
  } else {
    refuse_dtype(name, dtype_name());
  }
  check_ndim(name, view->nd);
  array.data = view->data;
  array.device = {kDlCpu, 0};
  array.read_only = (view->flags & kNumpyWritable) == 0;
  array.ndim = view->nd;
  for (int d = 0; d < view->nd; ++d) {
    if (view->strides[d] % view->itemsize != 0) {
      throw ArgumentError(std::string(name) + " has a stride of " +
                          std::to_string(view->strides[d]) + " bytes in dim " + std::to_string(d) +
                          ": a multiple of its element's " + std::to_string(view->itemsize) +
                          " bytes is needed");
    }
    array.shape[d] = view->shape[d];
    array.strides[d] = view->strides[d] / view->itemsize;
  }
}

// For tensors that are known to have no memory to look at.
void refuse_torch(nb::handle object, const char* name) {
  const auto is = [&](const char* what) {
    return nb::getattr(object, what, nb::none()).ptr() == Py_True;
  };
  if (is("is_nested")) {
    throw ArgumentError(
        std::string(name) +
        " is a nested tensor: sequences of different lengths are accepted packed, with cu_seqlens");
  }
  if (is("is_quantized")) refuse_dtype(name, text_of(object.attr("dtype")));
  const std::string layout = text_of(object.attr("layout")),
                    device = text_of(object.attr("device").attr("type"));
  if (layout != "torch.strided") {
    throw ArgumentError(std::string(name) + " has layout " + layout + ": strided is accepted");
  }
  if (device != "cpu" && device != "cuda") {
    throw ArgumentError(std::string(name) + " is on device " + device +
                        ": cpu and cuda are accepted");
  }
}

// PyTorch before it had the exchange table.
void read_torch(nb::handle object, const char* name, Array& array) {
  const auto dtype = text_of(object.attr("dtype"));
  if (dtype == "torch.float32") {
    array.dtype = FULMEN_FP32;
  } else if (dtype == "torch.float16") {
    array.dtype = FULMEN_FP16;
  } else if (dtype == "torch.bfloat16") {
    array.dtype = FULMEN_BF16;
  } else if (dtype == "torch.bool" || (dtype == "torch.uint8" && is_keep_mask(name))) {
    array.dtype = FULMEN_BOOLEAN;
  } else if (dtype == "torch.int32") {
    array.dtype = FULMEN_INT32;
  } else if (is_of_function(name) && dtype == "torch.int64") {
    array.dtype = FULMEN_INT64;
  } else if (is_of_function(name) && dtype == "torch.int8") {
    array.dtype = FULMEN_INT8;
  } else if (is_of_function(name) && dtype == "torch.uint8") {
    array.dtype = FULMEN_UINT8;
  } else {
    const std::string plain = dtype.substr(dtype.find('.') + 1);
    if (!may_be_quantized(name) || kv_format(plain) < 0) refuse_dtype(name, plain);
    array.dtype = static_cast<fulmen_dtype>(kv_format(plain));
  }
  const nb::object device = object.attr("device");
  const auto kind = text_of(device.attr("type"));
  if (kind != "cpu" && kind != "cuda") refuse_torch(object, name);
  if (text_of(object.attr("layout")) != "torch.strided") refuse_torch(object, name);
  array.device = {kDlCpu, 0};
  if (kind == "cuda") {
    const bool rocm = !nb::module_::import_("torch").attr("version").attr("hip").is_none();
    array.device = {rocm ? kDlRocm : kDlCuda, nb::cast<int32_t>(device.attr("index"))};
  }
  const nb::object shape = object.attr("shape"), strides = object.attr("stride")();
  check_ndim(name, static_cast<int64_t>(nb::len(shape)));
  array.ndim = static_cast<int>(nb::len(shape));
  for (int d = 0; d < array.ndim; ++d) {
    array.shape[d] = nb::cast<int64_t>(shape[d]);
    array.strides[d] = nb::cast<int64_t>(strides[d]);
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  array.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(object.attr("data_ptr")()));
}

void read_dlpack(nb::handle object, const char* name, Array& array) {
  try {
    array.imported = std::make_unique<nb::ndarray<nb::ro>>(nb::cast<nb::ndarray<nb::ro>>(object));
  } catch (const nb::cast_error&) {  // no memory to see: one that is traced, for instance
    throw nb::type_error((std::string(name) + " is of type " + name_of_type(object) +
                          ", whose __dlpack__ gives none: " + kArrayNeeded)
                             .c_str());
  }
  const auto& view = *array.imported;
  check_ndim(name, static_cast<int64_t>(view.ndim()));
  const auto dtype = view.dtype();
  array.dtype = dtype_of({dtype.code, dtype.bits, dtype.lanes}, name);
  array.data = const_cast<void*>(view.data());
  array.device = {view.device_type(), view.device_id()};
  array.ndim = static_cast<int>(view.ndim());
  for (int d = 0; d < array.ndim; ++d) {
    array.shape[d] = static_cast<int64_t>(view.shape(d));
    array.strides[d] = view.stride(d);
  }
}

nb::object shape_tuple(int ndim, const int64_t* shape) {
  nb::object tuple = nb::steal(PyTuple_New(ndim));
  for (int d = 0; d < ndim; ++d) PyTuple_SetItem(tuple.ptr(), d, PyLong_FromLongLong(shape[d]));
  return tuple;
}

void row_major(int ndim, const int64_t* shape, bool swap_heads, int64_t* strides) {
  int64_t stride = 1;
  for (int at = ndim - 1; at >= 0; --at) {
    const int d = swap_heads && (at == 1 || at == 2) ? 3 - at : at;
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
}

}  // namespace

std::string text_of(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return nb::cast<std::string>(text);
}

std::string name_of_type(nb::handle object) { return text_of(object.type().attr("__qualname__")); }

Kind kind_of(nb::handle object) { return known_type(object.type()).kind; }

void set_plain_torch(nb::handle type) {
  known_type(type);
  for (KnownType& one : known_types()) {
    if (one.type.is(type)) one.kind = Kind::plain_torch;
  }
}

namespace {

// Turns torch's zeros without memory (its derivatives make them) into zeros with memory. Writes to
// them would have no effect elsewhere.
void give_zeros_memory(nb::handle object, const char* name, Array& array) {
  if (array.data != nullptr ||
      std::find(array.shape, array.shape + array.ndim, 0) != array.shape + array.ndim)
    return;
  if (!nb::cast<bool>(object.attr("_is_zerotensor")())) return;
  nb::object zeros = object.attr("clone")();
  array = read_array(zeros, name);
  array.owner = std::move(zeros);
  array.read_only = true;
}

// What can't be read may be a tensor that has another one inside.
bool read_inner_tensor(nb::handle object, const KnownType& known, const char* name, Array& array) {
  if (known.kind != Kind::plain_torch) return false;
  nb::object inner = torch_without_wrappers(object);
  if (inner.is(object)) return false;
  array = read_array(inner, name);
  array.owner = std::move(inner);
  return true;
}

}  // namespace

Array read_array(nb::handle object, const char* name) {
  const KnownType known = known_type(object.type());
  Array array;
  array.framework = known.is_torch                  ? Framework::torch
                    : known.access == Access::numpy ? Framework::numpy
                                                    : Framework::other;
  array.api = known.api;
  switch (known.access) {
    case Access::exchange: {
      DlTensor tensor;
      if (known.api->view(object.ptr(), &tensor) != 0) {
        nb::python_error theirs;
        if (read_inner_tensor(object, known, name, array)) break;
        if (known.is_torch) refuse_torch(object, name);
        throw theirs;
      }
      read_dl_tensor(tensor, name, array);
      if (known.is_torch) give_zeros_memory(object, name, array);
      break;
    }
    case Access::numpy:
      read_numpy(object, name, array);
      break;
    case Access::torch_attributes:
      try {
        read_torch(object, name, array);
        give_zeros_memory(object, name, array);
      } catch (const nb::python_error&) {
        if (read_inner_tensor(object, known, name, array)) break;
        refuse_torch(object, name);
        throw;
      }
      break;
    case Access::dlpack:
      read_dlpack(object, name, array);
      break;
    case Access::none:
      throw nb::type_error(
          (std::string(name) + " is of type " + name_of_type(object) + ": " + kArrayNeeded)
              .c_str());
  }
  return array;
}

namespace {

// Whether it is a torch tensor whose elements are those of its memory with the other sign.
bool is_negated(nb::handle object, const Array& array) {
  return array.framework == Framework::torch &&
         torch_is_negated(array.owner.is_valid() ? nb::handle(array.owner) : object);
}

bool has_negative_stride(const Array& array) {
  for (int d = 0; d < array.ndim; ++d) {
    if (array.shape[d] > 1 && array.strides[d] < 0) return true;
  }
  return false;
}

}  // namespace

Array read_input(nb::handle object, const char* name) {
  Array array = read_array(object, name);
  if (array.framework == Framework::numpy && has_negative_stride(array)) {
    Array copy = read_array(object.attr("copy")("C"), name);  // its owner keeps it
    copy.copied_as = "it has a negative stride";
    return copy;
  }
  if (is_negated(object, array)) {
    nb::object resolved =
        (array.owner.is_valid() ? nb::handle(array.owner) : object).attr("resolve_neg")();
    Array copy = read_array(resolved, name);
    copy.owner = std::move(resolved);
    copy.copied_as = "it has torch's negative bit";
    return copy;
  }
  return array;
}

Array read_output(nb::handle object, const char* name) {
  Array array = read_array(object, name);
  if (is_negated(object, array)) {
    throw ArgumentError(
        std::string(name) +
        " has torch's negative bit, its memory the other sign: it is written, a tensor without " +
        "is accepted, such as resolve_neg() gives");
  }
  return array;
}

Array read_keys(nb::handle object, const char* name, bool written) {
  if (PyTuple_Check(object.ptr()) == 0)
    return written ? read_output(object, name) : read_input(object, name);
  struct Format {
    std::string_view name;
    fulmen_dtype dtype;
  };
  constexpr Format kFormats[] = {{"q8_0", FULMEN_Q8_0},
                                 {"q4_0", FULMEN_Q4_0},
                                 {"q4_1", FULMEN_Q4_1},
                                 {"q5_0", FULMEN_Q5_0},
                                 {"q5_1", FULMEN_Q5_1}};
  const std::string format = text_of(PyTuple_GetItem(object.ptr(), 1));
  const Format* const found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                           [&](const Format& one) { return one.name == format; });
  if (found == std::end(kFormats))
    throw ArgumentError(std::string(name) + "'s format is " + format +
                        ": q8_0, q4_0, q4_1, q5_0 and q5_1 are accepted");
  Array array = read_keys(PyTuple_GetItem(object.ptr(), 0), name, written);
  if (array.dtype != FULMEN_INT8)
    throw nb::type_error((std::string(name) + " is no array of bytes: with a block format uint8 is "
                                              "accepted")
                             .c_str());
  constexpr int64_t kNumbers = 32;
  const int64_t bytes = fulmen_row_elements(found->dtype, kNumbers);
  int64_t& last = array.shape[array.ndim > 0 ? array.ndim - 1 : 0];
  if (array.ndim == 0 || last % bytes != 0)
    throw ArgumentError(std::string(name) + " has rows of " + std::to_string(last) +
                        " bytes: whole blocks of " + format + ", of " + std::to_string(bytes) +
                        " bytes, are accepted");
  last = last / bytes * kNumbers;
  array.dtype = found->dtype;
  return array;
}

nb::handle numpy_int32() {
  static nb::handle kept;
  if (!kept.is_valid() && numpy_ndarray().is_valid())
    kept = nb::object(nb::module_::import_("numpy").attr("dtype")("int32")).release();
  return kept;
}

bool on_host(const Array& array) {
  return array.device.type == kDlCpu || array.device.type == kDlCudaHost ||
         array.device.type == kDlRocmHost;
}

bool is_addressable(const Array& array) {
  if (std::find(array.shape, array.shape + array.ndim, 0) != array.shape + array.ndim) return true;
  const bool is_half = array.dtype == FULMEN_FP16 || array.dtype == FULMEN_BF16;
  const bool is_word = array.dtype == FULMEN_FP32 || array.dtype == FULMEN_INT32;
  const std::uintptr_t bytes = array.dtype == FULMEN_INT64 ? 8 : is_word ? 4 : is_half ? 2 : 1;
  return array.data != nullptr && reinterpret_cast<std::uintptr_t>(array.data) % bytes == 0;
}

bool is_trusted(const Array& array) {
  const bool own_memory =
      array.device.type == kDlCpu || array.device.type == kDlCuda || array.device.type == kDlRocm;
  return array.framework == Framework::torch && own_memory && is_addressable(array);
}

std::string device_of(const Array& array, const char* name) {
  switch (array.device.type) {
    case kDlCpu:
    case kDlCudaHost:
    case kDlRocmHost:
      return {};
    case kDlCuda:
    case kDlCudaManaged:
      return "cuda:" + std::to_string(array.device.id);
    case kDlRocm:
      return "hip:" + std::to_string(array.device.id);
    default:
      throw ArgumentError(std::string(name) + " is on DLPack device type " +
                          std::to_string(array.device.type) +
                          ": the CPU (1), CUDA (2) and ROCm (10) are accepted");
  }
}

nb::object new_array(nb::handle object, const Array& like, const char* name, int ndim,
                     const int64_t* shape, fulmen_dtype dtype, bool swap_heads) {
  if (like.framework == Framework::torch) {
    int64_t strides[4];
    row_major(ndim, shape, swap_heads, strides);
    return new_torch_tensor(object, like, ndim, shape, strides, dtype);
  }
  if (like.framework != Framework::numpy) {
    throw nb::type_error((std::string(name) + " is of type " + name_of_type(object) +
                          ": results of this kind can't be made here, pass out")
                             .c_str());
  }
  if (dtype == like.dtype)
    return nb::borrow(numpy_empty())(shape_tuple(ndim, shape), object.attr("dtype"));
  if (dtype != FULMEN_FP32) throw nb::type_error("a result of this dtype can't be made here");
  return nb::borrow(numpy_empty())(shape_tuple(ndim, shape), nb::str("f4"));
}

nb::object new_double_array(int ndim, const int64_t* shape) {
  return nb::module_::import_("numpy").attr("zeros")(shape_tuple(ndim, shape), nb::str("f8"));
}
nb::object new_boolean_array(int ndim, const int64_t* shape) {
  return nb::borrow(numpy_empty())(shape_tuple(ndim, shape), nb::str("?"));
}

void* stream_of(const Array& array) {
  if (on_host(array)) return nullptr;
  void* stream = nullptr;
  if (array.api != nullptr) {
    if (array.api->current_stream(array.device.type, array.device.id, &stream) != 0)
      throw nb::python_error();
  } else if (array.framework == Framework::torch) {
    const nb::object current =
        nb::module_::import_("torch").attr("cuda").attr("current_stream")(array.device.id);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    stream = reinterpret_cast<void*>(nb::cast<uintptr_t>(current.attr("cuda_stream")));
  }
  return stream;
}

Workspace new_workspace(nb::handle object, const Array& like, size_t bytes) {
  if (like.framework != Framework::torch || bytes == 0) return {};
  nb::object memory = new_torch_bytes(object, like, static_cast<int64_t>(bytes));
  if (like.api != nullptr) {
    DlTensor view{};
    if (like.api->view(memory.ptr(), &view) != 0) throw nb::python_error();
    return {std::move(memory), static_cast<char*>(view.data) + view.byte_offset};
  }
  const auto address = nb::cast<uintptr_t>(memory.attr("data_ptr")());
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {std::move(memory), reinterpret_cast<void*>(address)};
}

}  // namespace fulmen::python
