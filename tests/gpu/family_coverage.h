// Which kernel families some problems reach.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/launch/family.h"
#include "support/attention_case.h"

namespace fulmen::testing {

struct Use {
  int64_t seqlen_q, seqlen_k;
  bool backward = false, deterministic = true;
  DType dtype = DType::bf16;
  Precision precision = Precision::exact;
};

// Names of the families for the device's chip that take none of the cases: empty where each takes
// one. `asked`: the families that are asked about. A family that takes no case any more would
// otherwise silently go untested.
std::string idle_families(const std::string& device, const std::vector<Use>& uses,
                          const std::function<CaseSpec(const Use&)>& spec_of, Random& random,
                          const std::function<bool(const gpu::Family&)>& asked);

}  // namespace fulmen::testing
