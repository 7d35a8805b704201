// The tensors of a benchmark's case.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "tools/bench/cases.h"
#include "tools/options/given_problem.h"
#include "tools/tensors/memory.h"
#include "tools/tensors/random_inputs.h"

namespace fulmen::tools {

// A case's tensors in memory of its own.
struct CaseData {
  std::vector<Memory> memory;
  std::unique_ptr<LoadedProblem> files;  // --problem's
  AttentionTensors tensors;
  AttentionOptions options;
  Problem problem;
  std::optional<Problem> backward;  // training
};
// The call of a case, its tensors without memory: enough for a plan. Real input has its shapes in
// its files and is not accepted.
Result<Problem> case_problem(const BenchCase& bench_case, Pass pass, AttentionOptions options);
// The files of a case of real input.
std::array<std::string, 4> real_case_files(const std::string& folder);

// Errors: a file is bad; the tensors would need more memory than max_bytes.
Result<std::unique_ptr<CaseData>> make_case_data(const BenchCase& bench_case, NormalPool& pool,
                                                 const AttentionOptions& options,
                                                 std::size_t max_bytes);

}  // namespace fulmen::tools
