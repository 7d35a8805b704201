// Planning and running a call, outside the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "arguments/call.h"

namespace fulmen::python {

enum class Pass : int { forward, backward };

// Computes into the call's outputs: on the host complete on return, on a GPU in the stream of q's
// framework.
void run(Pass pass, const Call& call);

// Runs a plan on arrays of the host, with scratch that the calling thread keeps from call to call;
// where the plan's device is emulated, on copies in its memory. options: those of the plan. Returns
// a fulmen_status.
int run_on_host(Pass pass, const fulmen_plan* plan, const fulmen_tensors& tensors,
                const fulmen_options& options);

// Sets rows of packed results that belong to no sequence to 0, of arrays of the host: what Python
// gets is defined everywhere. Returns a fulmen_status.
int zero_unused_rows_on_host(Pass pass, const fulmen_tensors& tensors,
                             const fulmen_options& options);
// The same for the call's tensors, wherever they are.
void zero_unused_rows(Pass pass, const Call& call);

}  // namespace fulmen::python
