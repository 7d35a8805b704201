// Between numbers and the formats of keys and values.
#pragma once

#include <nanobind/nanobind.h>

namespace fulmen::python {

// Arrays of the host, of four dims. scale may be None. given_scales: it is read, else written.
void quantize_kv(nanobind::handle numbers, nanobind::handle quantized, nanobind::handle scale,
                 bool given_scales);
void dequantize_kv(nanobind::handle quantized, nanobind::handle scale, nanobind::handle numbers);

}  // namespace fulmen::python
