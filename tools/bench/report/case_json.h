// The fields of JSON rows that describe a benchmark's problem.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/bench/cases.h"

namespace fulmen::tools {

// Adds dtype, sizes and features to a row.
inline void add_problem(const BenchCase& c, nlohmann::ordered_json& row) {
  row.update({{"dtype", to_string(c.dtype)},
              {"batch", c.batch},
              {"heads", c.heads},
              {"kv_heads", c.kv_heads},
              {"seqlen_q", c.seqlen_q},
              {"seqlen_k", c.seqlen_k},
              {"head_dim", c.head_dim},
              {"causal", c.causal},
              {"bias", c.bias},
              {"mask", to_string(c.mask)}});
}

}  // namespace fulmen::tools
