#include "runtime/environment.h"

#include "runtime/platform/system.h"

namespace fulmen {

bool has_more_rights_than_its_caller() noexcept {
  return platform::has_more_rights_than_its_caller();
}

std::string environment(const char* name) {
  return platform::environment_variable(name).value_or("");
}

bool environment_flag(const char* name) {
  const std::string value = environment(name);
  return !value.empty() && value != "0";
}

bool environment_has(std::initializer_list<std::string_view> prefixes) noexcept {
  return platform::has_variable_with_prefix(prefixes);
}

std::string program_path() {
  std::string path = environment("PATH");
  return path.empty() ? platform::kUsualProgramFolders : path;
}

}  // namespace fulmen
