#include "runtime/platform/system.h"

#include <io.h>
#include <windows.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstring>
#include <vector>

#include "runtime/platform/windows/words.h"

namespace fulmen::platform {
namespace {

// The environment's block, freed at its end.
struct Block {
  Block() noexcept : text(::GetEnvironmentStringsW()) {}
  ~Block() {
    if (text != nullptr) ::FreeEnvironmentStringsW(text);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  wchar_t* text;
};

// Calls visit(variable) for each until it returns true.
template <class Visit>
bool visit_variables(const Visit& visit) {
  const Block block;
  for (const wchar_t* at = block.text; at != nullptr && *at != L'\0';) {
    const std::wstring_view variable(at);
    // "=C:=C:\folder" is a drive's current folder, and no variable.
    if (variable.front() != L'=' && visit(variable)) return true;
    at += variable.size() + 1;
  }
  return false;
}

bool begins_with(std::wstring_view variable, std::string_view prefix) noexcept {
  if (variable.size() < prefix.size()) return false;
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    if (variable[i] != static_cast<wchar_t>(prefix[i])) return false;
  }
  return true;
}

}  // namespace

const System kThisSystem = System::windows;

// Windows starts no program with more rights in its caller's environment.
bool has_more_rights_than_its_caller() noexcept { return false; }

std::optional<std::string> environment_variable(const char* name) {
  const std::wstring wide_name = wide(name);
  std::wstring value(128, L'\0');
  for (;;) {
    ::SetLastError(ERROR_SUCCESS);
    const DWORD count = ::GetEnvironmentVariableW(wide_name.c_str(), value.data(),
                                                  static_cast<DWORD>(value.size()));
    if (count == 0 && ::GetLastError() == ERROR_ENVVAR_NOT_FOUND) return std::nullopt;
    if (count < value.size()) return narrow({value.data(), count});
    value.resize(count);
  }
}

void set_environment_variable(const char* name, const char* value) {
  ::SetEnvironmentVariableW(wide(name).c_str(), value != nullptr ? wide(value).c_str() : nullptr);
}

std::vector<std::string> environment_variables() {
  std::vector<std::string> variables;
  visit_variables([&](std::wstring_view variable) {
    variables.push_back(narrow(variable));
    return false;
  });
  return variables;
}

bool has_variable_with_prefix(std::initializer_list<std::string_view> prefixes) noexcept {
  return visit_variables([&](std::wstring_view variable) {
    for (const std::string_view prefix : prefixes) {
      if (begins_with(variable, prefix)) return true;
    }
    return false;
  });
}

const char kListSeparator = ';';
const char* const kUsualProgramFolders = "C:\\Windows\\System32";
const char* const kProgramSuffix = ".exe";

bool has_folder(std::string_view name) noexcept {
  return name.find_first_of("/\\:") != std::string_view::npos;
}

std::size_t memory_bytes() noexcept {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  return ::GlobalMemoryStatusEx(&status) != 0 ? status.ullTotalPhys : 0;
}

std::string processor_name() {
#if defined(__x86_64__)
  std::array<unsigned, 12> words{};
  for (unsigned part = 0; part < 3; ++part) {
    unsigned* w = &words[4 * part];
    if (__get_cpuid(0x80000002U + part, w, w + 1, w + 2, w + 3) == 0) return {};
  }
  std::array<char, sizeof words + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof words);
  return text.data();
#else
  return {};
#endif
}

std::int64_t cache_bytes(int level) noexcept {
  DWORD bytes = 0;
  ::GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> list(bytes / sizeof(list[0]));
  if (list.empty() || ::GetLogicalProcessorInformation(list.data(), &bytes) == 0) return 0;
  for (const auto& entry : list) {
    if (entry.Relationship == RelationCache && entry.Cache.Level == level) return entry.Cache.Size;
  }
  return 0;
}

// Windows has a way to ask for it, which nobody here could try.
bool request_amx() noexcept { return false; }
bool has_arm_dot_products() noexcept { return false; }
bool has_arm_byte_matrices() noexcept { return false; }

std::string user_name() {
  std::array<wchar_t, 257> name{};
  auto count = static_cast<DWORD>(name.size());
  return ::GetUserNameW(name.data(), &count) != 0 ? narrow(name.data()) : std::string();
}

std::string home_folder() { return environment_variable("USERPROFILE").value_or(""); }

std::string host_name() {
  std::array<wchar_t, 256> name{};
  auto count = static_cast<DWORD>(name.size());
  return ::GetComputerNameExW(ComputerNameDnsHostname, name.data(), &count) != 0
             ? narrow(name.data())
             : std::string();
}

bool is_terminal(int stream) noexcept { return ::_isatty(stream) != 0; }

}  // namespace fulmen::platform
