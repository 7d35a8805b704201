#include "quantize.h"

#include <string>

#include "arguments/array.h"
#include "arguments/call.h"
#include "fulmen/fulmen_c.h"
#include "kv_cache.h"

namespace fulmen::python {
namespace {

struct View4 {
  Array array;
  fulmen_tensor tensor{};
};

View4 read(nb::handle object, const char* name, bool written) {
  View4 view{read_keys(object, name, written)};
  if (view.array.ndim != 4)
    wrong_ndim(name, view.array, "[batch, seqlen, kv_heads, head_dim], for scales with 1s,");
  if (!on_host(view.array))
    throw ArgumentError(std::string(name) + " is on " + device_of(view.array, name) +
                        ": the CPU is accepted");
  view.tensor = in_four_dims(view.array);
  return view;
}

}  // namespace

void quantize_kv(nb::handle numbers, nb::handle quantized, nb::handle scale, bool given_scales) {
  const View4 from = read(numbers, "numbers", false), to = read(quantized, "quantized", true);
  const View4 by = scale.is_none() ? View4{} : read(scale, "scale", !given_scales);
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_quantize_kv(&from.tensor, &to.tensor, &by.tensor, given_scales);
  }
  if (status != FULMEN_OK) raise(status, fulmen_last_error());
}

void dequantize_kv(nb::handle quantized, nb::handle scale, nb::handle numbers) {
  const View4 from = read(quantized, "quantized", false), to = read(numbers, "numbers", true);
  const View4 by = scale.is_none() ? View4{} : read(scale, "scale", false);
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_dequantize_kv(&from.tensor, &by.tensor, &to.tensor);
  }
  if (status != FULMEN_OK) raise(status, fulmen_last_error());
}

}  // namespace fulmen::python
