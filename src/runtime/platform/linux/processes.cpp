#include "runtime/platform/processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "runtime/platform/posix/pipe.h"

namespace fulmen::platform {

void end_with_parent() noexcept { ::prctl(PR_SET_PDEATHSIG, SIGTERM); }

bool open_pipe(int (&ends)[2]) noexcept { return ::pipe2(ends, O_CLOEXEC) == 0; }

}  // namespace fulmen::platform
