#include "runtime/platform/processes.h"

#include <fcntl.h>
#include <unistd.h>

#include "runtime/platform/posix/pipe.h"

namespace fulmen::platform {

void end_with_parent() noexcept {}

// macOS has no pipe2: a program that another thread starts between the calls inherits the pipe.
bool open_pipe(int (&ends)[2]) noexcept {
  if (::pipe(ends) != 0) return false;
  for (const int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
  return true;
}

}  // namespace fulmen::platform
