// Who says what a kernel's parameters are: tuned results, shipped or this user's own, the
// environment, the options of the plan. Later ones win.
#pragma once

#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/backend.h"
#include "tuning/results.h"
#include "tuning/space.h"

namespace fulmen::tuning {

// Whether anybody could say something; quick.
bool is_anything_asked(const AttentionOptions& options, KnownChip& chip, std::string_view kernel);

// FULMEN_TUNING's text, "" where it is not set. Errors: what cannot be read, or a name that no
// kernel of the library's has.
Result<std::string> tuning_of_environment();

// What to take of a kernel's space. Errors: a value that is not legal, of the environment or the
// options. A tuned result that does not fit is left out, and a note says why.
Result<Choice> tuned_choice(const Problem& problem, const AttentionOptions& options,
                            const KernelTuning& identity, const Space& space);

// The variables of other programs' guides, FATTN_NTHREADS_D<head_dim> and others. Errors: a value
// that nothing here is like.
Result<std::vector<Asked>> asked_by_old_names(const Problem& problem, const Space& space,
                                              std::vector<std::string>& notes);

}  // namespace fulmen::tuning
