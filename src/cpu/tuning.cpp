#include "cpu/tuning.h"

#include "cpu/isa/instruction_sets.h"
#include "fulmen/version.h"
#include "runtime/fork_safe.h"
#include "tuning/results.h"

namespace fulmen::cpu {

tuning::KnownChip& tuned_chip() {
  constinit static MadeOnce<tuning::KnownChip* const> chip;
  // Reads a file of the system's.
  return *chip.get([] { return &tuning::known_chip(chip_name()); });
}

KernelTuning cpu_identity(const std::string& kernel, const Problem& problem, int threads) {
  return {kernel,
          tuned_chip().name,
          threads,
          std::string("fulmen ") + version(),
          tuning::problem_class(problem),
          {}};
}

KernelTuning cpu_tuning(KernelTuning identity, const tuning::Space& space) {
  for (const tuning::Values& values : tuning::configurations(space)) {
    identity.configurations.push_back(tuning::to_text(space, values));
  }
  return identity;
}

}  // namespace fulmen::cpu
