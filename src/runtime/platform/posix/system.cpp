#include "runtime/platform/system.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

extern char** environ;

namespace fulmen::platform {

std::optional<std::string> environment_variable(const char* name) {
  const char* value = has_more_rights_than_its_caller() ? nullptr : ::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

void set_environment_variable(const char* name, const char* value) {
  if (value == nullptr) {
    ::unsetenv(name);
  } else {
    ::setenv(name, value, 1);
  }
}

std::vector<std::string> environment_variables() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

bool has_variable_with_prefix(std::initializer_list<std::string_view> prefixes) noexcept {
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    for (const std::string_view prefix : prefixes) {
      if (**variable == prefix.front() &&
          std::strncmp(*variable, prefix.data(), prefix.size()) == 0)
        return true;
    }
  }
  return false;
}

const char kListSeparator = ':';
const char* const kUsualProgramFolders = "/usr/local/bin:/usr/bin:/bin";
const char* const kProgramSuffix = "";

bool has_folder(std::string_view name) noexcept { return name.find('/') != std::string_view::npos; }

std::size_t memory_bytes() noexcept {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGE_SIZE));
}

std::string user_name() {
  const passwd* entry = ::getpwuid(::getuid());
  return entry != nullptr ? entry->pw_name : std::string();
}

std::string home_folder() {
  const passwd* entry = ::getpwuid(::getuid());
  return entry != nullptr ? entry->pw_dir : std::string();
}

std::string host_name() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : std::string();
}

bool is_terminal(int stream) noexcept { return ::isatty(stream) != 0; }

}  // namespace fulmen::platform
