// A function of the module in Python's own calling convention: nanobind's takes half the time of a
// call to match the arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "arguments/argument_error.h"

namespace fulmen::python {

namespace nb = nanobind;

// The result of a function that throws as nanobind's do, for Python.
template <class Function>
PyObject* for_python(const Function& function) noexcept {
  try {
    return nb::object(function()).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const ArgumentError& error) {
    set_python_error(error);
  } catch (const nb::builtin_exception& error) {
    PyErr_SetString(
        error.type() == nb::exception_type::type_error ? PyExc_TypeError : PyExc_ValueError,
        error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// A function for METH_FASTCALL, as a PyMethodDef takes it.
template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace fulmen::python
