#include "tools/tune/supervised.h"

#include <algorithm>
#include <exception>

namespace fulmen::tools {
namespace {

struct Listener {
  WorkerEnd& end;
  const std::function<void(const std::string&)>& on_message;
};
Listener* listener = nullptr;  // of the work that runs

}  // namespace

void Teller::begin(const std::string& step, double /*limit_seconds*/) const {
  listener->end.step = step;
}
void Teller::tell(const std::string& message) const {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  listener->on_message(line);
}

// Windows has no fork(): the work is done in this process, which a crash ends, and no step is
// stopped at its limit.
WorkerEnd run_supervised(const std::function<void(const Teller&)>& work,
                         const std::function<void(const std::string&)>& on_message) {
  WorkerEnd end;
  Listener here{end, on_message};
  listener = &here;
  try {
    work(Teller(-1));
    end.done = true;
  } catch (const std::exception& error) {
    end.why = error.what();
  }
  listener = nullptr;
  return end;
}

}  // namespace fulmen::tools
