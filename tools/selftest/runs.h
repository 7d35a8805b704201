// Runs of `fulmen selftest`: a problem by a kernel, against the oracle and against the emulator's
// bits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/verify/grid.h"

namespace fulmen::tools {

struct SelftestRun {
  int number = 0;       // the problem's, from 1
  std::string problem;  // in words
  std::string kernel;   // the kernel that ran, or the one that was asked for if none did
  bool ok = false;
  double worst_error = 0, bound = 0;
  std::string tensor;   // the tensor with the error
  std::string message;  // when not ok
  std::string repeat;   // the command that runs it again
  // Elements of the outputs whose bits are not the emulated chip's. emulated_elements is 0 where
  // none was compared.
  int64_t differing = 0, emulated_elements = 0;
  bool emulated_ok = true;  // the emulated chip's own result obeys the rule
};

struct SelftestArguments {
  std::string device;
  std::string twin;    // the emulated chip whose bits are compared; empty: none
  std::string kernel;  // one kernel; empty: the chosen one of each problem, then what was never
                       // chosen
  int only = 0;        // one problem; 0: all
  bool quick = false;  // every fifth
};

// The emulated device of the same chip, where this build has one that is usable and `device` is a
// GPU that is not it.
std::string emulated_twin(const std::string& device);

class SelftestRuns {
 public:
  explicit SelftestRuns(SelftestArguments arguments);
  // Problems and those of append_kv: how many there are, and the numbers of those that shall run.
  int count() const noexcept;
  std::vector<int> numbers() const;

  // Compiles what run(number) needs, on the device and on its twin, and runs nothing: for several
  // threads at once.
  void compile(int number) const;
  // Runs the device's choice, or the kernel that was asked for. Errors: the problem cannot be
  // planned. A wrong result is no error.
  Result<SelftestRun> run(int number);
  // Returns the kernels that support a problem which ran and were never the choice, each with the
  // first such problem.
  std::vector<std::pair<std::string, int>> left_over() const;
  SelftestRun run_forced(int number, const std::string& kernel) const;

 private:
  SelftestRun run_attention(int number, const std::string& kernel) const;
  SelftestRun run_append(int number) const;

  SelftestArguments arguments_;
  std::vector<GridCase> problems_;
  std::map<std::string, int> supported_;  // kernel: the first problem
  std::vector<std::string> ran_;
};

}  // namespace fulmen::tools
