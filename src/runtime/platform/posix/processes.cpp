#include "runtime/platform/processes.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "runtime/platform/posix/pipe.h"

namespace fulmen::platform {
namespace {

std::vector<char*> null_terminated(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Its standard output and error go to `output`. A process group of its own, so that kill_program()
// reaches what it starts; and no signal is blocked in it, whatever this thread blocks.
int spawn(pid_t& program, const std::vector<std::string>& command,
          const std::vector<std::string>& variables, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, output, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  const std::vector<char*> arguments = null_terminated(command),
                           environment = null_terminated(variables);
  const int error = posix_spawn(&program, command.front().c_str(), &actions, &attributes,
                                arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

std::error_code start_program(const std::vector<std::string>& command,
                              const std::vector<std::string>& variables, StartedProgram& started) {
  int ends[2];
  if (!open_pipe(ends)) return {errno, std::generic_category()};
  pid_t program = 0;
  const int error = spawn(program, command, variables, ends[1]);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    return {error, std::generic_category()};
  }
  started = {program, ends[0]};
  return {};
}

std::string read_output(const StartedProgram& started) {
  const int descriptor = static_cast<int>(started.output);
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(descriptor, buffer, sizeof(buffer))) > 0 ||
         (count < 0 && errno == EINTR)) {
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(descriptor);
  return text;
}

void wait_for(Program program) noexcept {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(program), &info, WEXITED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
}

ProgramEnd end_of(Program program) noexcept {
  int state = 0;
  while (::waitpid(static_cast<pid_t>(program), &state, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(state)) return {true, WEXITSTATUS(state)};
  return {false, WTERMSIG(state)};
}

void kill_program(Program program) noexcept { ::kill(-static_cast<pid_t>(program), SIGKILL); }

std::int64_t this_process() noexcept { return ::getpid(); }

}  // namespace fulmen::platform
