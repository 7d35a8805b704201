#include "runtime/run_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/path_list.h"
#include "runtime/platform/files.h"
#include "runtime/platform/processes.h"
#include "runtime/platform/system.h"
#include "runtime/regular_file.h"

namespace fulmen {

namespace {

// The programs that run, and the folders they work in. A forked child has none of its parent's.
struct Running {
  Mutex mutex;
  std::int64_t process = platform::this_process();
  std::set<platform::Program> programs;
  std::set<std::string> folders;
  bool ended = false;  // nothing may be started any more
};
Running& running() {
  constinit static MadeOnce<Running> made;
  Running& r = made.get();
  const std::scoped_lock lock(r.mutex);
  if (const std::int64_t process = platform::this_process(); r.process != process) {
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
    variables = platform::environment_variables();
  }
  if (temporary_folder.empty()) return variables;
  for (const char* name : {"TMPDIR=", "TMP=", "TEMP="}) {
    // Windows' programs look at the others alone.
    if (std::string_view(name) != "TMPDIR=" && platform::kThisSystem != platform::System::windows)
      continue;
    std::erase_if(variables, [&](const std::string& v) { return v.starts_with(name); });
    variables.push_back(name + temporary_folder);
  }
  return variables;
}

Result<platform::StartedProgram> start(const std::vector<std::string>& command,
                                       const std::string& temporary_folder) {
  const std::vector<std::string> variables = environment_of_programs(temporary_folder);
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  if (r.ended) return ended();
  platform::StartedProgram started;
  if (const std::error_code error = platform::start_program(command, variables, started); error) {
    return Status(StatusCode::unavailable,
                  fmt::format("{} cannot be started: {}", command.front(), error.message()));
  }
  r.programs.insert(started.program);
  return started;
}

// Waits for a program. It leaves the list before its number can be another's.
platform::ProgramEnd wait_for(platform::Program program) {
  platform::wait_for(program);
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  r.programs.erase(program);
  return platform::end_of(program);
}

}  // namespace

std::string find_program(const std::string& name) {
  if (platform::has_folder(name)) return platform::is_program(name) ? name : std::string();
  for (const std::string& folder : listed_folders(program_path())) {
    std::string candidate = fmt::format("{}/{}{}", folder, name, platform::kProgramSuffix);
    if (platform::is_program(candidate)) return candidate;
  }
  return {};
}

Result<std::string> run_program(const std::vector<std::string>& command,
                                const std::string& temporary_folder) {
  const Result<platform::StartedProgram> started = start(command, temporary_folder);
  if (!started.ok()) return started.status();
  std::string output = platform::read_output(*started);
  const platform::ProgramEnd end = wait_for(started->program);
  if (end.by_itself && end.code == 0) return output;
  {
    Running& r = running();
    const std::scoped_lock lock(r.mutex);
    if (r.ended) return ended();
  }
  // Who kills a compiler (memory is short) says nothing of what it was to compile.
  const std::string how = fmt::format("{} {}", end.by_itself ? "exit code" : "signal", end.code);
  return Status(end.by_itself ? StatusCode::internal : StatusCode::unavailable,
                fmt::format("{} failed ({}): {}", command.front(), how, output));
}

void end_programs() noexcept {
  Running& r = running();
  {
    const std::scoped_lock lock(r.mutex);
    r.ended = true;
    for (const platform::Program program : r.programs) platform::kill_program(program);
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
  for (const std::string& folder : r.folders)
    std::filesystem::remove_all(platform::long_path(folder), ignored);
}

TemporaryDirectory::TemporaryDirectory() {
  std::string base = environment("TMPDIR");
  if (base.empty()) base = platform::usual_temporary_folder();
  std::error_code error;
  // Absolute: a compiler would take a name that begins with '-' for an option.
  std::string path =
      fmt::format("{}/fulmen-XXXXXX", std::filesystem::absolute(base, error).string());
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  if (r.ended) {
    status_ = ended();
    return;
  }
  if (!error) error = platform::make_new_folder(path);
  if (error) {
    status_ = Status(StatusCode::unavailable,
                     fmt::format("no folder can be made in {} (TMPDIR, else {}): {}", base,
                                 platform::usual_temporary_folder(), error.message()));
    return;
  }
  path_ = path;
  r.folders.insert(path);
}

TemporaryDirectory::~TemporaryDirectory() {
  if (!status_.ok()) return;
  std::error_code ignored;
  std::filesystem::remove_all(platform::long_path(path_), ignored);
  Running& r = running();
  const std::scoped_lock lock(r.mutex);
  r.folders.erase(path_);
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(platform::long_path(path), std::ios::binary);
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
