#include "kv_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "array.h"
#include "call.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::python {
namespace {

// In the order of the tuple.
constexpr struct {
  const char* name;
  fulmen_tensor fulmen_kv_cache::* member;
  int ndim;
  const char* accepted;
} kTensors[] = {
    {"k_cache", &fulmen_kv_cache::k_cache, 4, "[batch, rows, kv_heads, head_dim], or pages,"},
    {"v_cache", &fulmen_kv_cache::v_cache, 4, "[batch, rows, kv_heads, head_dim_v], or pages,"},
    {"seqlens_k", &fulmen_kv_cache::seqlens_k, 1, "[batch]"},
    {"block_table", &fulmen_kv_cache::block_table, 2, "[batch, max_pages]"},
    {"k", &fulmen_kv_cache::k_new, 4, "[batch, seqlen_new, kv_heads, head_dim]"},
    {"v", &fulmen_kv_cache::v_new, 4, "[batch, seqlen_new, kv_heads, head_dim_v]"},
    {"rotary_cos", &fulmen_kv_cache::rotary_cos, 2, "[positions, rotary_dim / 2]"},
    {"rotary_sin", &fulmen_kv_cache::rotary_sin, 2, "[positions, rotary_dim / 2]"},
    {"q", &fulmen_kv_cache::q, 4, "[batch, seqlen_q, heads, head_dim]"},
};
constexpr int kCount = std::size(kTensors), kSeqlens = 2, kQueries = 8;

fulmen_tensor in_four_dims(const View& a) {
  fulmen_tensor t{a.data, a.dtype, {1, 1, 1, 1}, {0, 0, 0, 1}};
  std::copy_n(a.shape, a.ndim, t.shape + 4 - a.ndim);
  std::copy_n(a.strides, a.ndim, t.strides + 4 - a.ndim);
  if (t.shape[3] == 1 || std::find(t.shape, t.shape + 4, 0) != t.shape + 4) t.strides[3] = 1;
  return t;
}

}  // namespace

nb::object append_kv(nb::tuple tensors, nb::handle device, bool rotary_interleaved, bool queries_advance, int num_threads) {
  fulmen_kv_cache call;
  fulmen_kv_cache_init(&call);
  call.rotary_interleaved = rotary_interleaved;
  call.queries_advance = queries_advance;
  call.num_threads = num_threads;
  Array arrays[kCount];
  for (int at = 0; at < kCount; ++at) {
    const auto& [name, member, ndim, accepted] = kTensors[at];
    const nb::handle object = PyTuple_GetItem(tensors.ptr(), at);
    if (object.is_none()) continue;
    arrays[at] = read_array(object, name);
    if (arrays[at].ndim != ndim) wrong_ndim(name, arrays[at], accepted);
    if (at < kSeqlens && !arrays[at].writable) throw nb::value_error((std::string(name) + " is read-only: it is written").c_str());
    call.*member = in_four_dims(arrays[at]);
  }
  const auto like = [&](int at) {
    const nb::handle object = PyTuple_GetItem(tensors.ptr(), at);
    return object.is_none() ? nb::object(nb::none())
                            : new_array(object, arrays[at], arrays[at].ndim, arrays[at].shape, arrays[at].dtype, false);
  };
  nb::object lengths = like(kSeqlens), queries = like(kQueries);
  if (!lengths.is_none()) call.seqlens_k_out = in_four_dims(read_array(lengths, "seqlens_k"));
  if (!queries.is_none()) call.q_out = in_four_dims(read_array(queries, "q"));
  const std::string place = device.is_none() ? device_of(arrays[0], "k_cache") : nb::cast<std::string>(device);
  void* stream = stream_of(arrays[0]);
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_append_kv(&call, place.empty() ? nullptr : place.c_str(), stream);
  }
  check(status);
  return nb::make_tuple(std::move(queries), std::move(lengths));
}

}  // namespace fulmen::python
