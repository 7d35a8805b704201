#include "tools/platform/account.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace fulmen::tools {

std::vector<int> groups_of_this_process() {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  groups.resize(static_cast<std::size_t>(
      std::max(0, ::getgroups(static_cast<int>(groups.size()), groups.data()))));
  groups.push_back(::getegid());
  return {groups.begin(), groups.end()};
}

bool is_administrator() { return ::geteuid() == 0; }

std::string effective_user() {
  const passwd* entry = ::getpwuid(::geteuid());
  return entry != nullptr ? entry->pw_name : std::string();
}

int group_of(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<int>(status.st_gid) : -1;
}

}  // namespace fulmen::tools
