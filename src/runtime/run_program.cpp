#include "runtime/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/regular_file.h"

extern char** environ;

namespace fulmen {

namespace {

// The programs that run, by their process groups, and the folders they work in. A forked child has
// none of its parent's.
struct Running {
  Mutex mutex;
  pid_t process = ::getpid();
  std::set<pid_t> programs;
  std::set<std::string> folders;
  bool ended = false;  // nothing may be started any more
};
Running& running() {
  constinit static MadeOnce<Running> made;
  Running& r = made.get();
  const std::scoped_lock lock(r.mutex);
  if (const pid_t process = ::getpid(); r.process != process) {
    r.process = process;
    r.programs.clear();
    r.folders.clear();
  }
  return r;
}

Status ended() {
  return {StatusCode::unavailable, "this process is about to end: no compiler is started any more"};
}

// "NAME=value" for each variable of the program's environment.
std::vector<std::string> environment_of_programs(const std::string& temporary_folder) {
  std::vector<std::string> variables;
  if (has_more_rights_than_its_caller()) {
    variables.push_back("PATH=" + program_path());
  } else {
    for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
      if (temporary_folder.empty() || !std::string_view(*variable).starts_with("TMPDIR="))
        variables.emplace_back(*variable);
    }
  }
  if (!temporary_folder.empty()) variables.push_back("TMPDIR=" + temporary_folder);
  return variables;
}

std::vector<char*> null_terminated(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Its standard output and error go to `output`. A process group of its own, so that end_programs()
// reaches what it starts; and no signal is blocked in it, whatever this thread blocks.
Result<pid_t> start(const std::vector<std::string>& command, const std::string& temporary_folder,
                    int output) {
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
  const std::vector<std::string> variables = environment_of_programs(temporary_folder);
  const std::vector<char*> arguments = null_terminated(command),
                           environment = null_terminated(variables);
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  pid_t program = 0;
  const int error = r.ended ? 0
                            : posix_spawn(&program, command.front().c_str(), &actions, &attributes,
                                          arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (r.ended) return ended();
  if (error != 0) {
    return Status(StatusCode::unavailable, fmt::format("{} cannot be started: {}", command.front(),
                                                       std::generic_category().message(error)));
  }
  r.programs.insert(program);
  return program;
}

// Waits for a program; its state as waitpid has it. It leaves the list before its number can be
// another's.
int wait_for(pid_t program) {
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(program), &info, WEXITED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  r.programs.erase(program);
  int state = 0;
  while (waitpid(program, &state, 0) < 0 && errno == EINTR) {
  }
  return state;
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(descriptor, buffer, sizeof(buffer))) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

std::string find_program(const std::string& name) {
  const auto is_program = [](const std::string& path) {
    std::error_code error;
    return access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path, error);
  };
  if (name.find('/') != std::string::npos) return is_program(name) ? name : std::string();
  const std::string path = program_path();
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::size_t length = std::min(rest.find(':'), rest.size());
    if (std::string candidate = fmt::format("{}/{}", rest.substr(0, length), name);
        is_program(candidate))
      return candidate;
    rest.remove_prefix(std::min(length + 1, rest.size()));
  }
  return {};
}

Result<std::string> run_program(const std::vector<std::string>& command,
                                const std::string& temporary_folder) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
    return Status(StatusCode::internal,
                  fmt::format("pipe: {}", std::generic_category().message(errno)));
  }
  const Result<pid_t> program = start(command, temporary_folder, pipe_ends[1]);
  close(pipe_ends[1]);
  const std::string output = program.ok() ? read_all(pipe_ends[0]) : "";
  close(pipe_ends[0]);
  if (!program.ok()) return program.status();
  const int state = wait_for(program.value());
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return output;
  {
    Running& r = running();
    const std::scoped_lock lock(r.mutex);
    if (r.ended) return ended();
  }
  // Who kills a compiler (memory is short) says nothing of what it was to compile.
  const bool ended_by_itself = WIFEXITED(state);
  const std::string how = ended_by_itself ? fmt::format("exit code {}", WEXITSTATUS(state))
                                          : fmt::format("signal {}", WTERMSIG(state));
  return Status(ended_by_itself ? StatusCode::internal : StatusCode::unavailable,
                fmt::format("{} failed ({}): {}", command.front(), how, output));
}

void end_programs() noexcept {
  Running& r = running();
  {
    const std::scoped_lock lock(r.mutex);
    r.ended = true;
    for (const pid_t program : r.programs) ::kill(-program, SIGKILL);
  }
  // The threads that wait for them remove their folders, at once: nothing that they do takes long
  // now.
  const auto all_ended = [&r] {
    const std::scoped_lock lock(r.mutex);
    return r.programs.empty() && r.folders.empty();
  };
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!all_ended() && std::chrono::steady_clock::now() < latest)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::scoped_lock lock(r.mutex);
  std::error_code ignored;
  for (const std::string& folder : r.folders) std::filesystem::remove_all(folder, ignored);
}

TemporaryDirectory::TemporaryDirectory() {
  std::string base = environment("TMPDIR");
  if (base.empty()) base = "/tmp";
  std::error_code error;
  // Absolute: a compiler would take a name that begins with '-' for an option.
  std::string path =
      fmt::format("{}/fulmen-XXXXXX", std::filesystem::absolute(base, error).string());
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  if (r.ended) {
    status_ = ended();
  } else if (!error && mkdtemp(path.data()) != nullptr) {
    path_ = path;
    r.folders.insert(path);
  } else {
    status_ = Status(StatusCode::unavailable,
                     fmt::format("no folder can be made in {} (TMPDIR, else /tmp): {}", base,
                                 error ? error.message() : std::generic_category().message(errno)));
  }
}

TemporaryDirectory::~TemporaryDirectory() {
  if (!status_.ok()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  r.folders.erase(path_);
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status{}
              : Status(StatusCode::unavailable, fmt::format("{} cannot be written", path));
}

Result<std::vector<std::byte>> read_file(const std::string& path) {
  const Result<std::optional<RegularFile>> opened = RegularFile::open(path, FileTrust::given);
  if (opened.ok() && *opened) {
    const RegularFile& file = **opened;
    auto bytes = file.read<std::vector<std::byte>>(file.bytes());
    if (bytes.size() == file.bytes()) return bytes;
  }
  return Status(StatusCode::unavailable, fmt::format("{} cannot be read", path));
}

}  // namespace fulmen
