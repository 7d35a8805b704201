// Planning and running a call, outside the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "call.h"

namespace fulmen::python {

enum class Pass : int { forward, backward };

// Computes into the call's outputs: on the host complete on return, on a GPU in the stream of q's framework.
void run(Pass pass, const Call& call);

// Runs a plan on arrays of the host, with scratch that the calling thread keeps from call to call; where the plan's device is
// emulated, on copies in its memory. options: those of the plan. Returns a fulmen_status.
int run_on_host(Pass pass, const fulmen_plan* plan, const fulmen_tensors& tensors, const fulmen_options& options);

}  // namespace fulmen::python
