// How long a case would take on a chip: what the emulators count on small cases, scaled, over what
// the chip's units do a second.
#pragma once

#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "tools/bench/cases.h"
#include "tools/bench/model/rates.h"

namespace fulmen::tools {

struct ModelledRow {
  BenchCase bench_case;
  Pass pass = Pass::forward;
  std::string kernel;  // its name and parameters
  UnitWork work;
  UnitTimes times;
  double flops = 0;
};

// device: "emulated:<chip>". options: kernel and deterministic. Errors: a device or case that the
// model does not take, with the reason; the emulators'.
Result<ModelledRow> model_case(const BenchCase& bench_case, Pass pass, const std::string& device,
                               const AttentionOptions& options);

}  // namespace fulmen::tools
