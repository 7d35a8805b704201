#include "kv_cache.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments/array.h"
#include "arguments/call.h"
#include "fulmen/fulmen_c.h"
#include "run/device_copies.h"
#include "torch/torch_memory.h"

namespace fulmen::python {
const CacheTensor kCacheTensors[kCachePlaces] = {
    {"k_cache", &fulmen_kv_cache::k_cache, 4, "[batch, rows, kv_heads, head_dim], or pages,"},
    {"v_cache", &fulmen_kv_cache::v_cache, 4, "[batch, rows, kv_heads, head_dim_v], or pages,"},
    {"seqlens_k", &fulmen_kv_cache::seqlens_k, 1, "[batch]"},
    {"block_table", &fulmen_kv_cache::block_table, 2, "[batch, max_pages]"},
    {"k", &fulmen_kv_cache::k_new, 4, "[batch, seqlen_new, kv_heads, head_dim]"},
    {"v", &fulmen_kv_cache::v_new, 4, "[batch, seqlen_new, kv_heads, head_dim_v]"},
    {"rotary_cos", &fulmen_kv_cache::rotary_cos, 2, "[positions, rotary_dim / 2]"},
    {"rotary_sin", &fulmen_kv_cache::rotary_sin, 2, "[positions, rotary_dim / 2]"},
    {"q", &fulmen_kv_cache::q, 4, "[batch, seqlen_q, heads, head_dim]"},
    {"k_scale", &fulmen_kv_cache::k_scale, 4, "the cache's dims, each of which may be 1,"},
    {"v_scale", &fulmen_kv_cache::v_scale, 4, "the cache's dims, each of which may be 1,"},
};
namespace {
bool is_scale(int at) { return at == kCacheKScale || at == kCacheVScale; }
// Whether it is written: scales of tokens are computed, others read.
bool is_written(int at, const fulmen_kv_cache& call) {
  return at <= kCacheV || (is_scale(at) && (call.*kCacheTensors[at].member).shape[1] > 1);
}
}  // namespace

fulmen_tensor in_four_dims(const View& a) {
  fulmen_tensor t = fulmen_tensor_1d(a.data, a.dtype, 1);
  std::copy_n(a.shape, a.ndim, t.shape + 4 - a.ndim);
  std::copy_n(a.strides, a.ndim, t.strides + 4 - a.ndim);
  if (t.shape[3] == 1 || std::find(t.shape, t.shape + 4, 0) != t.shape + 4) t.strides[3] = 1;
  return t;
}

int append_on_host(const fulmen_kv_cache& call, const char* device) {
  if (!is_emulated(device)) return fulmen_append_kv(&call, device, nullptr);
  fulmen_kv_cache there = call;
  there.validate = true;
  DeviceCopies copies(device != nullptr && *device != '\0' ? device : fulmen_default_device());
  for (int at = 0; at < kCachePlaces; ++at) {
    const int status = copies.add(there.*kCacheTensors[at].member, is_written(at, call));
    if (status != FULMEN_OK) return status;
  }
  for (fulmen_tensor fulmen_kv_cache::* const result :
       {&fulmen_kv_cache::seqlens_k_out, &fulmen_kv_cache::q_out}) {
    if (const int status = copies.add(there.*result, true); status != FULMEN_OK) return status;
  }
  const int status = fulmen_append_kv(&there, device, nullptr);
  return status == FULMEN_OK ? copies.give_back() : status;
}

namespace {

struct CacheCall {
  fulmen_kv_cache call;  // without what comes out
  Array arrays[kCachePlaces];
  std::string device;  // empty: the default one
};

CacheCall read_call(nb::handle tensors, nb::handle device, nb::handle rotary_interleaved,
                    nb::handle queries_advance, nb::handle num_threads, nb::handle validate) {
  CacheCall read;
  auto& [call, arrays, place] = read;
  fulmen_kv_cache_init(&call);
  call.rotary_interleaved = flag("rotary_interleaved", rotary_interleaved);
  call.queries_advance = flag("queries_advance", queries_advance);
  call.num_threads = thread_count(num_threads);
  call.validate = flag("validate", validate);
  const Py_ssize_t given = PyTuple_Size(tensors.ptr());
  if (given <= kQueries || given > kCachePlaces)
    throw nb::type_error("tensors: a tuple of 9, 10 or 11 is needed");
  for (int at = 0; at < given; ++at) {
    const auto& [name, member, ndim, accepted] = kCacheTensors[at];
    const nb::handle object = PyTuple_GetItem(tensors.ptr(), at);
    if (object.is_none()) {
      if (at <= kCacheV)
        throw nb::type_error((std::string(name) + " is None: " + kArrayNeeded).c_str());
      continue;
    }
    arrays[at] = at <= kCacheV  ? read_keys(object, name, true)
                 : is_scale(at) ? read_output(object, name)
                                : read_input(object, name);
    if (arrays[at].ndim != ndim) wrong_ndim(name, arrays[at], accepted);
    call.*member = in_four_dims(arrays[at]);
    if (is_written(at, call) && arrays[at].read_only)
      throw ArgumentError(std::string(name) + " is read-only: it is written");
  }
  place = device.is_none() ? device_of(arrays[kCacheK], "k_cache") : text("device", device);
  return read;
}

// The C ABI's k_new and v_new are k and v in the message, with the dims that the arrays have.
void check_call(int status) {
  if (status == FULMEN_OK) return;
  std::string message = fulmen_last_error();
  for (const CacheTensor& tensor : kCacheTensors) {
    if (!is_about(message, tensor.name) || tensor.ndim == 4) continue;
    std::vector<int> dims;
    for (int d = 4 - tensor.ndim; d < 4; ++d) dims.push_back(d);
    message = in_dims(std::move(message), dims, true);
    break;
  }
  for (const std::string_view name : {"k_new", "v_new"}) {
    for (size_t at = 0; (at = message.find(name, at)) != std::string::npos;)
      message.erase(at + 1, name.size() - 1);
  }
  raise(status, message.c_str());
}

}  // namespace

nb::object append_kv(nb::tuple tensors, nb::handle device, nb::handle rotary_interleaved,
                     nb::handle queries_advance, nb::handle num_threads, nb::handle validate) {
  auto [call, arrays, place] =
      read_call(tensors, device, rotary_interleaved, queries_advance, num_threads, validate);
  const auto like = [&, &arrays = arrays](int at) -> nb::object {
    const nb::handle object = PyTuple_GetItem(tensors.ptr(), at);
    if (object.is_none()) return nb::none();
    const char* name = kCacheTensors[at].name;
    const Array& array = arrays[at];
    if (array.framework == Framework::other) {
      throw nb::type_error(
          (std::string(name) + " is of type " + name_of_type(object) +
           ": a NumPy array or a torch tensor is needed, as a result is of its kind")
              .c_str());
    }
    return new_array(object, array, name, array.ndim, array.shape, array.dtype, false);
  };
  nb::object lengths = like(kCacheSeqlens), queries = like(kQueries);
  if (!lengths.is_none()) call.seqlens_k_out = in_four_dims(read_array(lengths, "seqlens_k"));
  if (!queries.is_none()) call.q_out = in_four_dims(read_array(queries, "q"));
  void* stream = stream_of(arrays[0]);
  const char* name = place.empty() ? nullptr : place.c_str();
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status =
        on_host(arrays[0]) ? append_on_host(call, name) : fulmen_append_kv(&call, name, stream);
  }
  check_call(status);
  if (!nb::handle(PyTuple_GetItem(tensors.ptr(), kNewK)).is_none()) {
    for (int at = 0; at < PyTuple_Size(tensors.ptr()); ++at) {
      if (!is_written(at, call) || arrays[at].framework != Framework::torch) continue;
      const nb::object& inner = arrays[at].owner;
      nb::handle object = PyTuple_GetItem(tensors.ptr(), at);
      if (PyTuple_Check(object.ptr()) != 0) object = PyTuple_GetItem(object.ptr(), 0);
      torch_is_written(inner.is_valid() ? nb::handle(inner) : object);
    }
  }
  return nb::make_tuple(std::move(queries), std::move(lengths));
}

void check_append_kv(nb::tuple tensors, nb::handle device, nb::handle rotary_interleaved,
                     nb::handle queries_advance, nb::handle num_threads, nb::handle validate) {
  fulmen_kv_cache call =
      read_call(tensors, device, rotary_interleaved, queries_advance, num_threads, validate).call;
  call.q_out = call.q;
  check_call(fulmen_append_kv_check(&call));
}

}  // namespace fulmen::python
