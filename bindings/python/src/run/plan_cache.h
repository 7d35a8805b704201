// Plans for device memory, kept by what they are plans of: there planning looks compiled kernels up, which costs more than the rest
// of a call. On the host it takes a fraction of a microsecond, and nothing is kept.
#pragma once

#include <memory>

#include "arguments/call.h"
#include "run/run.h"

namespace fulmen::python {

using SharedPlan = std::shared_ptr<const fulmen_plan>;

// The plan of the call; on an error null, and status says which. With the GIL, which it leaves to others while it makes a plan.
SharedPlan find_or_make_plan(Pass pass, const Call& call, int& status);

}  // namespace fulmen::python
