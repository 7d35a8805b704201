// Work in a process of its own, which may crash or hang. What it told until then is kept.
#pragma once

#include <functional>
#include <string>

#include "fulmen/status.h"

namespace fulmen::tools {

// The worker's way to tell.
class Teller {
 public:
  explicit Teller(int descriptor) : descriptor_(descriptor) {}
  // A step begins, which may take so many seconds.
  void begin(const std::string& step, double limit_seconds) const;
  // A message without newlines.
  void tell(const std::string& message) const;

 private:
  void write_line(char kind, const std::string& text) const;
  int descriptor_;
};

struct WorkerEnd {
  bool done = false;  // it came to its end
  std::string step;   // else the step that it was in,
  std::string why;    // and what happened: "it ran for more than 60 s", "it ended by signal 11
                      // (Segmentation fault)"
};

// Runs work(teller) in a forked process (on Windows in this one, without limits), and on_message
// for every message as it comes. To be called before the process has threads of the library or a
// vendor's driver: a fork does not inherit these. The worker ends with this process.
WorkerEnd run_supervised(const std::function<void(const Teller&)>& work,
                         const std::function<void(const std::string&)>& on_message);

}  // namespace fulmen::tools
