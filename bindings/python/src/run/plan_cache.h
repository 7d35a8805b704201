// Plans for device memory, kept by their problems: planning looks compiled kernels up there, which
// costs more than the rest of a call. On the host planning takes a fraction of a microsecond, and
// no plan is kept.
#pragma once

#include <memory>

#include "arguments/call.h"
#include "run/run.h"

namespace fulmen::python {

using SharedPlan = std::shared_ptr<const fulmen_plan>;

// The plan of the call; null on an error, which status names. The caller holds the GIL; it is
// released while a plan is made.
SharedPlan find_or_make_plan(Pass pass, const Call& call, int& status);

}  // namespace fulmen::python
