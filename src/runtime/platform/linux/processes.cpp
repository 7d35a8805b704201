#include <fcntl.h>
#include <unistd.h>

#include "runtime/platform/posix/pipe.h"

namespace fulmen::platform {

bool open_pipe(int (&ends)[2]) noexcept { return ::pipe2(ends, O_CLOEXEC) == 0; }

}  // namespace fulmen::platform
