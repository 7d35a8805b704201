#include "arguments/call.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace fulmen::python {

const PlaceRow kTensors[kPlaces] = {
    {"q", &fulmen_tensors::q, Form::queries, Use::input},
    {"k", &fulmen_tensors::k, Form::keys, Use::input},
    {"v", &fulmen_tensors::v, Form::keys, Use::input},
    {"out", &fulmen_tensors::out, Form::queries, Use::result},
    {"bias", &fulmen_tensors::bias, Form::scores, Use::input},
    {"keep_mask", &fulmen_tensors::keep_mask, Form::scores, Use::input},
    {"alibi_slopes", &fulmen_tensors::alibi_slopes, Form::slopes, Use::input},
    {"sinks", &fulmen_tensors::sinks, Form::heads, Use::input},
    {"lse", &fulmen_tensors::lse, Form::rows, Use::result},
    {"dout", &fulmen_tensors::dout, Form::queries, Use::input},
    {"dlse", &fulmen_tensors::dlse, Form::rows, Use::input},
    {"dq", &fulmen_tensors::dq, Form::queries, Use::gradient},
    {"dk", &fulmen_tensors::dk, Form::keys, Use::gradient},
    {"dv", &fulmen_tensors::dv, Form::keys, Use::gradient},
    {"dbias", &fulmen_tensors::dbias, Form::scores, Use::gradient},
    {"dsinks", &fulmen_tensors::dsinks, Form::heads, Use::gradient},
    {"cu_seqlens_q", &fulmen_tensors::cu_seqlens_q, Form::bounds, Use::input},
    {"cu_seqlens_k", &fulmen_tensors::cu_seqlens_k, Form::bounds, Use::input},
    {"seqlens_k", &fulmen_tensors::seqlens_k, Form::sequences, Use::input},
    {"leftpad_k", &fulmen_tensors::leftpad_k, Form::sequences, Use::input},
    {"block_table", &fulmen_tensors::block_table, Form::pages, Use::input},
    {"k_scale", &fulmen_tensors::k_scale, Form::scales, Use::input},
    {"v_scale", &fulmen_tensors::v_scale, Form::scales, Use::input},
    {"q_scale", &fulmen_tensors::q_scale, Form::scales, Use::input},
};
static_assert(sizeof(fulmen_tensors) == sizeof(fulmen_tensors::struct_size) +
                                            kPlaces * sizeof(fulmen_tensor) +
                                            4 * sizeof(fulmen_tensor) +  // a block mask
                                            sizeof(fulmen_tensors::function_tensors) +
                                            sizeof(fulmen_tensors::num_function_tensors) +
                                            2 * sizeof(fulmen_tensors::dropout_seed),
              "a tensor of fulmen_tensors has no Place");

namespace {

std::string numbers_text(const int64_t* numbers, int count) {
  std::string text = "[";
  for (int d = 0; d < count; ++d) text += (d > 0 ? ", " : "") + std::to_string(numbers[d]);
  return text + "]";
}

constexpr const char* kScaleDims =
    "[1], [kv_heads], [batch, kv_heads] or what broadcasts to k's shape";

bool is_key(Place place) { return kTensors[place].form == Form::keys; }
bool is_sequence(Place place) { return kTensors[place].form == Form::queries || is_key(place); }
// The results of fulmen_tensors_init and fulmen_options_init, which are always the same.
const fulmen_tensors& no_tensors() {
  static const fulmen_tensors kNone = [] {
    fulmen_tensors none;
    fulmen_tensors_init(&none);
    return none;
  }();
  return kNone;
}

const fulmen_options& default_options() {
  static const fulmen_options kDefault = [] {
    fulmen_options options;
    fulmen_options_init(&options);
    return options;
  }();
  return kDefault;
}

std::string place_text(const Array& array, const char* name) {
  const std::string device = device_of(array, name);
  return device.empty() ? "the CPU" : device;
}

}  // namespace

bool is_written(Place place, bool backward) {
  return kTensors[place].use == Use::gradient || (!backward && kTensors[place].use == Use::result);
}

void wrong_ndim(const char* name, const View& array, const char* accepted) {
  throw ArgumentError(std::string(name) + " has shape " + numbers_text(array.shape, array.ndim) +
                      ": " + accepted + " is accepted");
}

fulmen_tensor placed(Place place, const View& a, const Layout& layout) {
  const char* name = kTensors[place].name;
  const Form form = kTensors[place].form;
  fulmen_tensor t = fulmen_tensor_1d(a.data, a.dtype, 1);
  if (is_sequence(place) && (is_key(place) ? layout.packed_k : layout.packed_q)) {
    if (a.ndim != 3)
      wrong_ndim(name, a,
                 is_key(place) ? "beside cu_seqlens_k [total_k, kv_heads, head_dim]"
                               : "beside cu_seqlens_q [total_q, heads, head_dim]");
    std::copy_n(a.shape, 3, t.shape + 1);
    std::copy_n(a.strides, 3, t.strides + 1);
  } else if (is_sequence(place)) {
    const bool bhsd = layout.bhsd;
    if (a.ndim == 3 && (layout.packed_q || layout.packed_k)) {
      wrong_ndim(name, a,
                 is_key(place) ? "without cu_seqlens_k [batch, seqlen_k, kv_heads, head_dim]"
                               : "without cu_seqlens_q [batch, seqlen_q, heads, head_dim]");
    }
    if (a.ndim != 4)
      wrong_ndim(name, a,
                 bhsd ? "[batch, heads, seqlen, head_dim]" : "[batch, seqlen, heads, head_dim]");
    std::copy_n(a.shape, 4, t.shape);
    std::copy_n(a.strides, 4, t.strides);
    if (bhsd) std::swap(t.shape[1], t.shape[2]), std::swap(t.strides[1], t.strides[2]);
  } else if (form == Form::rows) {
    const int ndim = layout.packed_q ? 2 : 3;
    if (a.ndim != ndim)
      wrong_ndim(name, a, layout.packed_q ? "[heads, total_q]" : "[batch, heads, seqlen_q]");
    std::copy_n(a.shape, ndim, t.shape + 3 - ndim);
    std::copy_n(a.strides, ndim, t.strides + 3 - ndim);
  } else if (form == Form::pages) {
    if (a.ndim != 2) wrong_ndim(name, a, "[batch, max_pages]");
    std::copy_n(a.shape, 2, t.shape + 2);
    std::copy_n(a.strides, 2, t.strides + 2);
  } else if (form == Form::bounds || form == Form::sequences) {
    if (a.ndim != 1) wrong_ndim(name, a, form == Form::bounds ? "[batch + 1]" : "[batch]");
    t.shape[3] = a.shape[0];
    t.strides[3] = a.strides[0];
  } else if (form == Form::scores) {
    if (a.ndim == 0) wrong_ndim(name, a, "what broadcasts to [batch, heads, seqlen_q, seqlen_k]");
    std::copy_n(a.shape, a.ndim, t.shape + 4 - a.ndim);
    std::copy_n(a.strides, a.ndim, t.strides + 4 - a.ndim);
  } else if (form == Form::scales) {
    // [1], [kv_heads], [batch, kv_heads], or the dims of k.
    const int first = a.ndim == 3 ? 1 : 0;
    if (a.ndim == 0) wrong_ndim(name, a, kScaleDims);
    if (a.ndim <= 2) {
      if (a.ndim == 2) t.shape[0] = a.shape[0], t.strides[0] = a.strides[0];
      t.shape[2] = a.shape[a.ndim - 1];
      t.strides[2] = a.strides[a.ndim - 1];
    } else if (a.ndim == 4 || layout.packed_k) {
      std::copy_n(a.shape, a.ndim, t.shape + first);
      std::copy_n(a.strides, a.ndim, t.strides + first);
      if (layout.bhsd) std::swap(t.shape[1], t.shape[2]), std::swap(t.strides[1], t.strides[2]);
    } else {
      wrong_ndim(name, a, kScaleDims);
    }
  } else {
    const bool by_sequence = form != Form::heads && a.ndim == 2;
    if (a.ndim != 1 && !by_sequence) {
      wrong_ndim(name, a, form == Form::heads ? "[heads]" : "[heads] or [batch, heads]");
    }
    if (by_sequence) t.shape[0] = a.shape[0], t.strides[0] = a.strides[0];
    t.shape[3] = a.shape[a.ndim - 1];
    t.strides[3] = a.strides[a.ndim - 1];
  }
  // Frameworks write anything there.
  if (t.shape[3] == 1 || std::find(t.shape, t.shape + 4, 0) != t.shape + 4) t.strides[3] = 1;
  return t;
}

Call::Call(const Arguments& given, bool writes)
    : tensors(no_tensors()), options(default_options()) {
  read_options(given, *this);
  const auto present = [&](Place place) { return given.tensors[place].is_valid(); };
  layout = {given.bhsd, present(kCuSeqlensQ), present(kCuSeqlensK) && !present(kBlockTable)};
  if (given.bhsd && (layout.packed_q || layout.packed_k)) {
    throw ArgumentError(
        "layout is \"bhsd\": \"bshd\" is accepted with cu_seqlens_q or cu_seqlens_k");
  }
  const bool backward = present(kDout);
  for (int at = 0; at < kPlaces; ++at) {
    const auto place = static_cast<Place>(at);
    if (!present(place)) {
      if (place <= kV)
        throw nb::type_error(
            (std::string(kTensors[at].name) + " is None: " + kArrayNeeded).c_str());
      continue;
    }
    set(place, given.tensors[at], writes && is_written(place, backward));
    if (writes && arrays[at].read_only && is_written(place, backward)) {
      throw ArgumentError(std::string(kTensors[at].name) + " is read-only: it is written");
    }
  }
  if (given.same_heads && tensors.q.shape[2] != tensors.k.shape[2])
    throw ArgumentError("q and k have different numbers of heads");
  if (!given.device.is_valid()) device = device_of(arrays[kQ], "q");
  options.trust_pointers = is_torch_alone(backward);
}

bool Call::is_torch_alone(bool backward) const {
  for (int at = 0; at < kPlaces; ++at) {
    const auto place = static_cast<Place>(at);
    if (!has(place)) continue;
    if (is_written(place, backward) || !is_trusted(arrays[at])) return false;
  }
  return true;
}

void Call::set(Place place, nb::handle object, bool is_output) {
  const char* name = kTensors[place].name;
  objects[place] = object;
  arrays[place] = is_output       ? read_output(object, name)
                  : is_key(place) ? read_keys(object, name, false)
                                  : read_input(object, name);
  const DlDevice &here = arrays[place].device, &there = arrays[kQ].device;
  if (here.type != there.type || here.id != there.id) {
    const std::string ours = place_text(arrays[place], name),
                      that_of_q = place_text(arrays[kQ], "q");
    if (ours != that_of_q)
      throw ArgumentError(std::string(name) + " is on " + ours + ", q on " + that_of_q +
                          ": one device is needed");
  }
  tensors.*kTensors[place].member = placed(place, arrays[place], layout);
}

fulmen_tensor& Call::tensor(Place place) { return tensors.*kTensors[place].member; }

nb::object Call::make(Place place, Place like, fulmen_dtype dtype, int ndim, const int64_t* shape) {
  const bool swap = layout.bhsd && is_sequence(place);
  int64_t dims[4];
  std::copy_n(shape, ndim, dims);
  if (swap) std::swap(dims[1], dims[2]);
  nb::object result =
      new_array(objects[like], arrays[like], kTensors[like].name, ndim, dims, dtype, swap);
  set(place, result, true);
  return result;
}

void Call::describe(Place place, fulmen_dtype dtype, const int64_t (&shape)[4]) {
  fulmen_tensor& t = tensor(place);
  t.dtype = dtype;
  int64_t row_major = 1;
  for (int d = 3; d >= 0; --d) {
    t.shape[d] = shape[d];
    t.strides[d] = row_major;
    row_major *= std::max<int64_t>(shape[d], 1);
  }
}

bool is_without_queries(const fulmen_tensors& tensors) {
  return tensors.q.shape[0] == 0 || tensors.q.shape[1] == 0;
}

std::string Call::copies() const {
  std::string text;
  for (int at = 0; at < kPlaces; ++at) {
    if (arrays[at].copied_as == nullptr) continue;
    text += std::string("\n  ") + kTensors[at].name + " is copied before: " + arrays[at].copied_as;
  }
  return text;
}

namespace {

// Which of the C ABI's four dims are the array's, in its order: the inverse of placed().
std::vector<int> own_dims(Place place, int ndim, const Layout& layout) {
  if (is_sequence(place) && ndim == 4 && layout.bhsd) return {0, 2, 1, 3};
  if (kTensors[place].form == Form::rows)
    return ndim == 2 ? std::vector{1, 2} : std::vector{0, 1, 2};
  if (kTensors[place].form == Form::scales && ndim <= 2)
    return ndim == 1 ? std::vector{2} : std::vector{0, 2};
  if (kTensors[place].form == Form::scales && ndim == 4 && layout.bhsd) return {0, 2, 1, 3};
  if (of_heads(kTensors[place].form) && ndim == 2) return {0, 3};
  std::vector<int> last;
  for (int d = 4 - ndim; d < 4; ++d) last.push_back(d);
  return last;
}

}  // namespace

std::string in_dims(std::string message, const std::vector<int>& dims, bool all) {
  size_t first = 0;
  while ((first = message.find('[', first)) != std::string::npos) {
    const size_t end = message.find(']', first);
    if (end == std::string::npos) break;
    std::vector<std::string> items{""};
    for (size_t at = first + 1; at < end; ++at) {
      if (message.compare(at, 2, ", ") == 0) {
        items.emplace_back();
        ++at;
      } else {
        items.back() += message[at];
      }
    }
    if (items.size() == 4) {
      std::string text;
      for (const int d : dims) text += (text.empty() ? "" : ", ") + items[static_cast<size_t>(d)];
      message.replace(first + 1, end - first - 1, text);
      if (!all) break;
    }
    ++first;
  }
  return message;
}

bool is_about(std::string_view message, std::string_view name) {
  return message.size() > name.size() && message.substr(0, name.size()) == name &&
         (message[name.size()] == '.' || message[name.size()] == ' ');
}

void check(int status, const Call& call) {
  if (status == FULMEN_OK) return;
  std::string message = fulmen_last_error();
  for (int at = 0; at < kPlaces; ++at) {
    const auto place = static_cast<Place>(at);
    if (!call.has(place) || !is_about(message, kTensors[at].name)) continue;
    const bool broadcasts = kTensors[at].form == Form::scores;
    message = in_dims(std::move(message), own_dims(place, call.arrays[at].ndim, call.layout),
                      !broadcasts);
    break;
  }
  raise(status, message.c_str());
}

void check(int status) {
  if (status != FULMEN_OK) raise(status, fulmen_last_error());
}

void raise(int status, const char* message) {
  switch (status) {
    case FULMEN_INVALID_ARGUMENT:
      throw ArgumentError(message);
    case FULMEN_UNSUPPORTED:
      PyErr_SetString(PyExc_NotImplementedError, message);
      break;
    case FULMEN_OUT_OF_MEMORY:
      PyErr_SetString(PyExc_MemoryError, message);
      break;
    case FULMEN_VERIFICATION_FAILED: {
      const nb::object type = nb::module_::import_("fulmen").attr("VerificationError");
      PyErr_SetString(type.ptr(), message);
      break;
    }
    default:
      PyErr_SetString(PyExc_RuntimeError, message);
      break;  // unavailable, internal
  }
  throw nb::python_error();
}

}  // namespace fulmen::python
