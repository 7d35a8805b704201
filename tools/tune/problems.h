// The problems that `fulmen tune` looks at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "tools/bench/cases.h"

namespace fulmen::tools {

inline constexpr int64_t kMostNumber = int64_t{1} << 40;  // the largest size of a dim

struct TuneProblem {
  BenchCase bench_case;
  Pass pass = Pass::forward;
};

// "bf16 1 x 32/8 x 128 q4096 causal"
std::string tune_problem_name(const BenchCase& bench_case, Pass pass);
std::vector<std::string> tune_models();
// Returns the problems of a model, or of all. full: more lengths and batches. size: what the device
// can do in the time.
Result<std::vector<TuneProblem>> tune_problems(const std::string& model, DType dtype, CaseSize size,
                                               bool full);
// "batch=1,seqlen_q=4096,heads=32,kv_heads=8,head_dim=128,causal,bias,backward,page_size=16,dtype=bf16".
// Errors name --problem.
Result<TuneProblem> parse_tune_problem(const std::string& text);
// Returns the text of which parse_tune_problem() makes the same problem.
std::string tune_problem_text(const BenchCase& bench_case, Pass pass);

}  // namespace fulmen::tools
