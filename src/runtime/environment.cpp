#include "runtime/environment.h"

#include <sys/auxv.h>

#include <cstdlib>

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

std::string program_path() {
  std::string path = environment("PATH");
  return path.empty() ? "/usr/local/bin:/usr/bin:/bin" : path;
}

}  // namespace fulmen
