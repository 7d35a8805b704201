#include "runtime/platform/processes.h"

#include <windows.h>

#include <algorithm>
#include <array>
#include <memory>

#include "runtime/platform/windows/words.h"

namespace fulmen::platform {
namespace {

struct Job {
  HANDLE process = nullptr;
  HANDLE job = nullptr;  // with all that the process starts
};

Job& job_of(Program program) {
  return *reinterpret_cast<Job*>(program);  // NOLINT(performance-no-int-to-ptr)
}

// An argument as Windows' C library takes it out of a command line.
std::wstring quoted(const std::wstring& argument) {
  if (!argument.empty() && argument.find_first_of(L" \t\n\v\"") == std::wstring::npos)
    return argument;
  std::wstring text = L"\"";
  std::size_t backslashes = 0;
  for (const wchar_t letter : argument) {
    if (letter == L'"') text.append(backslashes + 1, L'\\');
    backslashes = letter == L'\\' ? backslashes + 1 : 0;
    text += letter;
  }
  return text.append(backslashes, L'\\') + L"\"";
}

std::wstring command_line(const std::vector<std::string>& command) {
  std::wstring line;
  for (const std::string& argument : command)
    line += (line.empty() ? L"" : L" ") + quoted(wide(argument));
  return line;
}

// Sorted by name, each with its NUL, and one more at the end.
std::wstring environment_block(std::vector<std::string> variables) {
  std::sort(variables.begin(), variables.end());
  std::wstring block;
  for (const std::string& variable : variables) block += wide(variable) + L'\0';
  return block + L'\0';
}

// Handles that the new process inherits, and no others.
class Inherited {
 public:
  explicit Inherited(std::array<HANDLE, 2> handles) : handles_(handles) {
    SIZE_T bytes = 0;
    ::InitializeProcThreadAttributeList(nullptr, 1, 0, &bytes);
    memory_ = std::make_unique<std::byte[]>(bytes);
    made_ = ::InitializeProcThreadAttributeList(list(), 1, 0, &bytes) != 0 &&
            ::UpdateProcThreadAttribute(list(), 0, PROC_THREAD_ATTRIBUTE_HANDLE_LIST,
                                        handles_.data(), sizeof handles_, nullptr, nullptr) != 0;
  }
  ~Inherited() {
    if (made_) ::DeleteProcThreadAttributeList(list());
  }
  Inherited(const Inherited&) = delete;
  Inherited& operator=(const Inherited&) = delete;
  LPPROC_THREAD_ATTRIBUTE_LIST list() const {
    return reinterpret_cast<LPPROC_THREAD_ATTRIBUTE_LIST>(memory_.get());
  }

 private:
  std::array<HANDLE, 2> handles_;
  std::unique_ptr<std::byte[]> memory_;
  bool made_ = false;
};

// A job whose processes end when this process does.
HANDLE make_job() {
  HANDLE job = ::CreateJobObjectW(nullptr, nullptr);
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits{};
  limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
  if (job != nullptr)
    ::SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
  return job;
}

std::error_code spawn(const std::vector<std::string>& command,
                      const std::vector<std::string>& variables, HANDLE input, HANDLE output,
                      StartedProgram& started) {
  const Inherited inherited({input, output});
  STARTUPINFOEXW startup{};
  startup.StartupInfo.cb = sizeof startup;
  startup.StartupInfo.dwFlags = STARTF_USESTDHANDLES;
  startup.StartupInfo.hStdInput = input;
  startup.StartupInfo.hStdOutput = startup.StartupInfo.hStdError = output;
  startup.lpAttributeList = inherited.list();
  std::wstring line = command_line(command), block = environment_block(variables);
  PROCESS_INFORMATION made{};
  // Suspended until it is in its job: nothing that it starts is missed.
  constexpr DWORD kFlags = CREATE_SUSPENDED | CREATE_UNICODE_ENVIRONMENT | CREATE_NO_WINDOW |
                           EXTENDED_STARTUPINFO_PRESENT;
  if (::CreateProcessW(wide_path(command.front()).c_str(), line.data(), nullptr, nullptr, TRUE,
                       kFlags, block.data(), nullptr, &startup.StartupInfo, &made) == 0)
    return last_error();
  auto job = std::make_unique<Job>(Job{made.hProcess, make_job()});
  if (job->job != nullptr) ::AssignProcessToJobObject(job->job, made.hProcess);
  ::ResumeThread(made.hThread);
  ::CloseHandle(made.hThread);
  started.program = reinterpret_cast<Program>(job.release());
  return {};
}

}  // namespace

std::error_code start_program(const std::vector<std::string>& command,
                              const std::vector<std::string>& variables, StartedProgram& started) {
  SECURITY_ATTRIBUTES inheritable{sizeof inheritable, nullptr, TRUE};
  HANDLE reading = nullptr, writing = nullptr;
  if (::CreatePipe(&reading, &writing, &inheritable, 0) == 0) return last_error();
  ::SetHandleInformation(reading, HANDLE_FLAG_INHERIT, 0);
  HANDLE nothing = ::CreateFileW(L"NUL", GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE,
                                 &inheritable, OPEN_EXISTING, 0, nullptr);
  const std::error_code error = spawn(command, variables, nothing, writing, started);
  ::CloseHandle(nothing);
  ::CloseHandle(writing);
  if (error) {
    ::CloseHandle(reading);
  } else {
    started.output = reinterpret_cast<std::intptr_t>(reading);
  }
  return error;
}

std::string read_output(const StartedProgram& started) {
  HANDLE pipe = reinterpret_cast<HANDLE>(started.output);  // NOLINT(performance-no-int-to-ptr)
  std::string text;
  std::array<char, 4096> buffer;
  DWORD count = 0;
  while (::ReadFile(pipe, buffer.data(), buffer.size(), &count, nullptr) != 0 && count > 0)
    text.append(buffer.data(), count);
  ::CloseHandle(pipe);
  return text;
}

void wait_for(Program program) noexcept {
  ::WaitForSingleObject(job_of(program).process, INFINITE);
}

ProgramEnd end_of(Program program) noexcept {
  const std::unique_ptr<Job> job(&job_of(program));
  DWORD code = 0;
  ::WaitForSingleObject(job->process, INFINITE);
  ::GetExitCodeProcess(job->process, &code);
  ::CloseHandle(job->process);
  if (job->job != nullptr) ::CloseHandle(job->job);
  // An exception's number, 0xC0000005 say, is the end of a process that did not end itself, and so
  // is what kill_program() says.
  constexpr DWORD kSevere = 0xC0000000;
  return {(code & kSevere) != kSevere, static_cast<int>(code)};
}

void kill_program(Program program) noexcept {
  constexpr UINT kKilled = 0xC000013A;  // as if by ^C
  if (job_of(program).job == nullptr || ::TerminateJobObject(job_of(program).job, kKilled) == 0)
    ::TerminateProcess(job_of(program).process, kKilled);
}

void end_with_parent() noexcept {}
std::int64_t this_process() noexcept { return ::GetCurrentProcessId(); }

}  // namespace fulmen::platform
