// Running a compiler: a program, its arguments, everything it printed. A process with more rights
// than its caller (runtime/environment.h) looks for programs in /usr/local/bin:/usr/bin:/bin, and
// they see nothing of its environment.
#pragma once

#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen {

// The program's path: as given if it holds a '/', else searched in PATH; empty when it is not
// there.
std::string find_program(const std::string& name);

// Runs without a shell; waits. The output is stdout and stderr together. The program has a process
// group of its own, and keeps its temporary files in temporary_folder where one is given. Errors:
// it cannot be started, or its exit code is not 0 (with the output).
Result<std::string> run_program(const std::vector<std::string>& command,
                                const std::string& temporary_folder = {});

// Kills every program that runs and what it started, and waits until the temporary folders are
// gone. None starts afterwards.
void end_programs() noexcept;

// A folder below $TMPDIR, else /tmp, that only this user can read, deleted with all its files at
// the end. Its path is absolute.
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

}  // namespace fulmen
