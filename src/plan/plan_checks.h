// Whether the tensors of a run are those that its plan was made for.
#pragma once

#include "fulmen/attention.h"
#include "fulmen/plan.h"
#include "fulmen/status.h"
#include "plan/plan_impl.h"

namespace fulmen {

// Dtype, shape and strides of each tensor that the plan's pass uses. Pointers are another check's.
Status check_tensors(const Plan::Impl& plan, const AttentionTensors& tensors);
// The same as a yes or no.
bool same_tensors(const Plan::Impl& plan, const AttentionTensors& tensors);

}  // namespace fulmen
