#include "tools/platform/account.h"

#include <io.h>
#include <windows.h>

#include "runtime/platform/system.h"
#include "runtime/platform/windows/words.h"

namespace fulmen::tools {

std::vector<int> groups_of_this_process() { return {}; }

bool is_administrator() {
  HANDLE token = nullptr;
  if (::OpenProcessToken(::GetCurrentProcess(), TOKEN_QUERY, &token) == 0) return false;
  TOKEN_ELEVATION elevation{};
  DWORD bytes = 0;
  const bool asked =
      ::GetTokenInformation(token, TokenElevation, &elevation, sizeof elevation, &bytes) != 0;
  ::CloseHandle(token);
  return asked && elevation.TokenIsElevated != 0;
}

std::string effective_user() { return platform::user_name(); }

bool can_use(const std::string& path) {
  constexpr int kReadAndWrite = 6;
  return ::_waccess(platform::wide_path(path).c_str(), kReadAndWrite) == 0;
}

int group_of(const std::string& /*path*/) { return -1; }

}  // namespace fulmen::tools
