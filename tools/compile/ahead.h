// Compiles a GPU's kernels for a list of problems on all processors while the first problems run
// already: one after the other, each takes a second when it is first planned.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tools/verify/grid.h"

namespace fulmen::tools {

class CompileAhead {
 public:
  // Compiles every kernel of the device that supports a problem, or the one that is named. Devices
  // with host memory have nothing to compile. Errors appear when the problem itself is planned.
  // `cases` must outlive this.
  CompileAhead(const std::vector<GridCase>& cases, const std::string& device,
               const std::string& kernel);
  // plan_one(n), n from 0 to count - 1, compiles what problem n needs; on several threads at once.
  CompileAhead(std::size_t count, std::function<void(std::size_t)> plan_one);
  // Waits for the kernels that are being compiled and begins no more.
  ~CompileAhead();
  CompileAhead(const CompileAhead&) = delete;
  CompileAhead& operator=(const CompileAhead&) = delete;

 private:
  void work();

  std::size_t count_;
  std::function<void(std::size_t)> plan_one_;
  std::atomic<std::size_t> next_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace fulmen::tools
