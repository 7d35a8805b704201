// Plans for device memory, kept by their problems: planning looks compiled kernels up there, which
// costs more than the rest of a call. On the host planning takes a fraction of a microsecond, and
// no plan is kept.
#pragma once

#include <memory>

#include "run/run.h"

namespace fulmen::python {

using SharedPlan = std::shared_ptr<const fulmen_plan>;

// All that planning reads.
struct Planned {
  Pass pass;
  const fulmen_tensors& tensors;
  uint32_t places;  // bit n: the tensor at place n is there
  const fulmen_options& options;
  const char* device;
};

// The plan of the call; null on an error, which status names. has_gil: the caller holds the GIL; it
// is released while a plan is made.
SharedPlan find_or_make_plan(const Planned& call, bool has_gil, int& status);

}  // namespace fulmen::python
