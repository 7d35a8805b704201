// Running a compiler: a program, its arguments, everything it printed.
#pragma once

#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::gpu {

// The program's path: as given if it holds a '/', else searched in PATH; empty when it is not there.
std::string find_program(const std::string& name);

// Runs without a shell; waits. The output is stdout and stderr together. Errors: it cannot be started, or its exit code is not 0
// (with the output).
Result<std::string> run_program(const std::vector<std::string>& command);

// A folder that only this user can read, deleted with all its files at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  // Whether it was made.
  const Status& status() const noexcept { return status_; }
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  Status status_;
};

Status write_file(const std::string& path, const std::string& text);
Result<std::vector<std::byte>> read_file(const std::string& path);

}  // namespace fulmen::gpu
