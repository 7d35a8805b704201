// What is thrown for an argument that is wrong, and what Python makes of it.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>

namespace fulmen::python {

// The message names the argument, its value and what is accepted. Throwing it needs no GIL: XLA's
// handlers do so, too.
struct ArgumentError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Makes fulmen.ArgumentError, a ValueError and a RuntimeError, a member of the module. Functions of
// the module raise it.
void add_argument_error(nanobind::module_& m);

// Sets Python's error.
void set_python_error(const ArgumentError& error);

}  // namespace fulmen::python
