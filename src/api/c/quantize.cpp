// The C ABI of quantizing keys and values.
#include "fulmen/quantize.h"

#include "api/c/translation.h"

namespace fulmen::c_api {
namespace {

// Null is an absent one where it may be.
Status read(const char* name, const fulmen_tensor* view, bool optional, Tensor& to) {
  if (view == nullptr) return optional ? Status() : null_argument(name);
  if (Status status = check_reserved(name, *view); !status.ok()) return status;
  to = to_cpp(*view);
  return {};
}

template <class Body>
int translated(const fulmen_tensor* numbers, const fulmen_tensor* quantized,
               const fulmen_tensor* scale, const Body& body) {
  return guarded([&]() -> Status {
    Tensor of_numbers, of_quantized, of_scale;
    if (Status status = read("numbers", numbers, false, of_numbers); !status.ok()) return status;
    if (Status status = read("quantized", quantized, false, of_quantized); !status.ok())
      return status;
    if (Status status = read("scale", scale, true, of_scale); !status.ok()) return status;
    return body(of_numbers, of_quantized, of_scale);
  });
}

}  // namespace
}  // namespace fulmen::c_api

extern "C" {

int fulmen_quantize_kv(const fulmen_tensor* numbers, const fulmen_tensor* quantized,
                       const fulmen_tensor* scale, bool given_scales) {
  using fulmen::Tensor;
  return fulmen::c_api::translated(
      numbers, quantized, scale, [&](const Tensor& from, const Tensor& to, const Tensor& by) {
        return fulmen::quantize_kv(from, to, by, {.given_scales = given_scales});
      });
}

int fulmen_dequantize_kv(const fulmen_tensor* quantized, const fulmen_tensor* scale,
                         const fulmen_tensor* numbers) {
  using fulmen::Tensor;
  return fulmen::c_api::translated(numbers, quantized, scale,
                                   [&](const Tensor& to, const Tensor& from, const Tensor& by) {
                                     return fulmen::dequantize_kv(from, by, to);
                                   });
}

}  // extern "C"
