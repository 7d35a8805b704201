// Any bytes given as a log of plans are refused with a sentence, or are problems that can be made.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tools/tune/log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto found =
      fulmen::tools::problems_of_log({reinterpret_cast<const char*>(data), size}, "log");
  if (!found.ok()) {
    if (found.status().message().empty()) std::abort();
    return 0;
  }
  if (found->problems.empty()) std::abort();
  for (const auto& problem : found->problems) {
    const auto& c = problem.bench_case;
    if (c.batch < 1 || c.seqlen_q < 1 || c.seqlen_k < 1 || c.kv_heads < 1 ||
        c.heads % c.kv_heads != 0 || c.head_dim < 1)
      std::abort();
    if (c.name.empty() || c.suite.empty()) std::abort();
  }
  return 0;
}
