// Kernels that were compiled ahead: fulmen/_prebuilt.py.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace fulmen::python {

namespace nb = nanobind;

void add_prebuilt_path(const std::string& path);
void add_prebuilt_pack(nb::bytes pack);
// function(arch, kernel) -> bool, as fulmen_set_prebuilt_source() says; None is none.
void set_prebuilt_source(nb::object function);

}  // namespace fulmen::python
