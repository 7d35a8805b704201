#include "runtime/platform/posix/change_time.h"

namespace fulmen::platform {

timespec change_time(const struct stat& info) { return info.st_mtim; }

}  // namespace fulmen::platform
