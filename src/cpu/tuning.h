// What measured results of this processor are kept under.
#pragma once

#include <string>

#include "fulmen/backend.h"
#include "tuning/sources.h"

namespace fulmen::cpu {

tuning::KnownChip& tuned_chip();
KernelTuning cpu_identity(const std::string& kernel, const Problem& problem, int threads);
// The same with every configuration of the space.
KernelTuning cpu_tuning(KernelTuning identity, const tuning::Space& space);

}  // namespace fulmen::cpu
