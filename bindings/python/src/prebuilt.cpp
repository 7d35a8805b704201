#include "prebuilt.h"

#include <fulmen/fulmen_c.h>

#include <string>

#include "arguments/argument_error.h"

namespace fulmen::python {
namespace {

// Never destroyed: a thread may want a kernel while the interpreter ends.
nb::object& source() {
  static auto* const held = new nb::object;
  return *held;
}

bool ask(void* /*context*/, const char* arch, const char* kernel) {
  if (Py_IsInitialized() == 0) return false;
  nb::gil_scoped_acquire gil;
  try {
    return nb::cast<bool>(source()(arch, kernel));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("fulmen's prebuilt kernels");
  } catch (const nb::cast_error&) {
    // What is no bool adds none.
  }
  return false;
}

void check_added(int status) {
  if (status != FULMEN_OK) throw ArgumentError(fulmen_last_error());
}

}  // namespace

void add_prebuilt_path(const std::string& path) {
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_add_prebuilt_path(path.c_str());
  }
  check_added(status);
}

void add_prebuilt_pack(nb::bytes pack) {
  check_added(fulmen_add_prebuilt_pack(pack.data(), pack.size()));
}

void set_prebuilt_source(nb::object function) {
  const bool none = function.is_none();
  source() = std::move(function);
  fulmen_set_prebuilt_source(none ? nullptr : ask, nullptr);
}

}  // namespace fulmen::python
