// A problem's options: checked, read back and changed.
#pragma once

#include "fulmen/attention.h"
#include "fulmen/plan.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

// Checks a call's options and sets those of the problem, whose shapes are known.
Status check_options(const AttentionOptions& o, Problem& p);

// What the options say in place of the problem's own. Errors: a value that make_problem() refuses,
// too.
Status apply(const RunOptions& options, Problem& problem);

// Those that make_problem() made the problem with, as far as the problem tells.
AttentionOptions options_of(const Problem& p);

}  // namespace fulmen
