// Compiles a GPU's kernels for a list of problems on all processors while the first problems run already: one after the other, each
// takes a second when it is first planned.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "verify_grid.h"

namespace fulmen::tools {

class CompileAhead {
 public:
  // For every kernel of the device that supports a problem, or the one that is named. Devices with host memory have nothing to
  // compile. Errors are left to who plans the problem itself. `cases` must outlive this.
  CompileAhead(const std::vector<GridCase>& cases, std::string device, std::string kernel);
  // Waits for the kernels that are being compiled; no more are begun.
  ~CompileAhead();
  CompileAhead(const CompileAhead&) = delete;
  CompileAhead& operator=(const CompileAhead&) = delete;

 private:
  void work();
  void plan_all(const GridCase& grid_case) const;

  const std::vector<GridCase>& cases_;
  std::string device_, kernel_;
  std::atomic<std::size_t> next_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace fulmen::tools
