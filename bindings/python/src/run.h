// Planning and running a call, outside the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "call.h"

namespace fulmen::python {

enum class Pass : int { forward, backward };

// Computes into the call's outputs: on the host complete on return, on a GPU in the stream of q's framework.
void run(Pass pass, const Call& call);

// The calling thread's scratch on the host, kept from call to call, at least that large; null where the call shall take its own.
void* host_workspace(size_t bytes);

}  // namespace fulmen::python
