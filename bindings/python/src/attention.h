// fulmen.attention as Python calls it.
#pragma once

#include <Python.h>

namespace fulmen::python {

PyMethodDef* attention_methods();

}  // namespace fulmen::python
