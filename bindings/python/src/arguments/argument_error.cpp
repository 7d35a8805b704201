#include "arguments/argument_error.h"

#include <exception>

namespace fulmen::python {
namespace {

namespace nb = nanobind;

constexpr const char* kDoc =
    "An argument is wrong; the message names it, its value and what is accepted.\n\n"
    "It is a ValueError, as in Python's own functions, and a RuntimeError, as in torch's and "
    "flash_attn's.";

PyObject* python_type = nullptr;  // lives as long as the process

}  // namespace

void add_argument_error(nb::module_& m) {
  const nb::object bases =
      nb::make_tuple(nb::handle(PyExc_ValueError), nb::handle(PyExc_RuntimeError));
  python_type = PyErr_NewExceptionWithDoc("fulmen.ArgumentError", kDoc, bases.ptr(), nullptr);
  if (python_type == nullptr) throw nb::python_error();
  m.attr("ArgumentError") = nb::handle(python_type);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void* /*payload*/) {
    try {
      std::rethrow_exception(thrown);
    } catch (const ArgumentError& error) {
      set_python_error(error);
    }
  });
}

void set_python_error(const ArgumentError& error) { PyErr_SetString(python_type, error.what()); }

}  // namespace fulmen::python
