// Whose a file is, and who may write to it, by Windows' access control lists.
#pragma once

#include <windows.h>

namespace fulmen::platform {

bool is_this_users(HANDLE file) noexcept;
// Everybody, or every user who has logged on.
bool others_may_write(HANDLE file) noexcept;

// Security of what this user alone may use, and what is made in it.
class OwnAccess {
 public:
  OwnAccess() noexcept;
  ~OwnAccess();
  OwnAccess(const OwnAccess&) = delete;
  OwnAccess& operator=(const OwnAccess&) = delete;
  // Null where the system gives none: the folder's own apply.
  SECURITY_ATTRIBUTES* attributes() const noexcept;

 private:
  mutable SECURITY_ATTRIBUTES attributes_{sizeof(SECURITY_ATTRIBUTES), nullptr, FALSE};
};

}  // namespace fulmen::platform
