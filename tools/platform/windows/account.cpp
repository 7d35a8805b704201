#include "tools/platform/account.h"

#include <windows.h>

#include "runtime/platform/system.h"

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

int group_of(const std::string& /*path*/) { return -1; }

}  // namespace fulmen::tools
