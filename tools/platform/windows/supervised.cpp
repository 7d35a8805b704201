#include "tools/tune/supervised.h"

namespace fulmen::tools {

void Teller::begin(const std::string& /*step*/, double /*limit_seconds*/) const {}
void Teller::tell(const std::string& /*message*/) const {}

// Windows has no fork().
WorkerEnd run_supervised(const std::function<void(const Teller&)>& /*work*/,
                         const std::function<void(const std::string&)>& /*on_message*/) {
  WorkerEnd end;
  end.why = "each problem is tuned in a forked process, which Windows has not: tune on Linux";
  return end;
}

}  // namespace fulmen::tools
