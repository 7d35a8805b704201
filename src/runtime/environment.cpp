#include "runtime/environment.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace fulmen {

bool has_more_rights_than_its_caller() noexcept { return getauxval(AT_SECURE) != 0; }

std::string environment(const char* name) {
  const char* value = ::secure_getenv(name);
  return value != nullptr ? value : "";
}

bool environment_flag(const char* name) {
  const std::string value = environment(name);
  return !value.empty() && value != "0";
}

bool environment_has(std::initializer_list<std::string_view> prefixes) noexcept {
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    for (const std::string_view prefix : prefixes) {
      if (**variable == prefix.front() &&
          std::strncmp(*variable, prefix.data(), prefix.size()) == 0)
        return true;
    }
  }
  return false;
}

std::string program_path() {
  std::string path = environment("PATH");
  return path.empty() ? "/usr/local/bin:/usr/bin:/bin" : path;
}

}  // namespace fulmen
