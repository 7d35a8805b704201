// Programs that this process starts.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

namespace fulmen::platform {

// A running program: its process group, or on Windows its job, with all that it starts.
using Program = std::intptr_t;

struct StartedProgram {
  Program program = 0;
  std::intptr_t output = -1;  // a pipe with its standard output and error
};

struct ProgramEnd {
  bool by_itself = true;
  int code = 0;  // its exit code, or the number of the signal that ended it
};

// command[0] is a path. variables: its whole environment, "NAME=value". Its standard input is
// empty.
std::error_code start_program(const std::vector<std::string>& command,
                              const std::vector<std::string>& variables, StartedProgram& started);
// All that it prints until it ends; closes the pipe.
std::string read_output(const StartedProgram& started);
// Returns once it has ended; the number that Program is stays its own until end_of().
void wait_for(Program program) noexcept;
ProgramEnd end_of(Program program) noexcept;
void kill_program(Program program) noexcept;

std::int64_t this_process() noexcept;
// A forked process gets SIGTERM when its parent ends, where the system can do so.
void end_with_parent() noexcept;

}  // namespace fulmen::platform
