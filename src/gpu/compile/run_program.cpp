#include "gpu/compile/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

extern char** environ;

namespace fulmen::gpu {

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : std::string();
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t length = std::min(rest.find(':'), rest.size());
    std::string candidate = fmt::format("{}/{}", rest.substr(0, length), name);
    if (access(candidate.c_str(), X_OK) == 0 && !std::filesystem::is_directory(candidate)) return candidate;
    rest.remove_prefix(std::min(length + 1, rest.size()));
  }
  return {};
}

Result<std::string> run_program(const std::vector<std::string>& command) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return Status(StatusCode::internal, fmt::format("pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 2);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, command.front().c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  std::string output;
  char buffer[4096];
  ssize_t count = 0;
  while (error == 0 && ((count = read(pipe_ends[0], buffer, sizeof(buffer))) > 0 || (count < 0 && errno == EINTR))) {
    if (count > 0) output.append(buffer, static_cast<std::size_t>(count));
  }
  close(pipe_ends[0]);
  if (error != 0)
    return Status(StatusCode::unavailable, fmt::format("{} cannot be started: {}", command.front(), std::strerror(error)));
  int state = 0;
  while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return output;
  return Status(StatusCode::internal, fmt::format("{} failed ({}): {}", command.front(),
                                                  WIFEXITED(state) ? fmt::format("exit code {}", WEXITSTATUS(state))
                                                                   : fmt::format("signal {}", WTERMSIG(state)),
                                                  output));
}

TemporaryDirectory::TemporaryDirectory() {
  const char* base = std::getenv("TMPDIR");
  if (base == nullptr || *base == '\0') base = "/tmp";
  std::string path = fmt::format("{}/fulmen-XXXXXX", base);
  if (mkdtemp(path.data()) != nullptr) {
    path_ = path;
  } else {
    const int error = errno;
    status_ = Status(StatusCode::unavailable, fmt::format("no folder can be made in {} (TMPDIR, else /tmp): {}", base,
                                                          std::generic_category().message(error)));
  }
}
TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (status_.ok()) std::filesystem::remove_all(path_, ignored);
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status{} : Status(StatusCode::unavailable, fmt::format("{} cannot be written", path));
}

Result<std::vector<std::byte>> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status(StatusCode::unavailable, fmt::format("{} cannot be read", path));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) return Status(StatusCode::unavailable, fmt::format("{} cannot be read", path));
  return bytes;
}

}  // namespace fulmen::gpu
