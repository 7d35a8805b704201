// The time of a file's last change, whose member has another name on each system.
#pragma once

#include <sys/stat.h>

#include <ctime>

namespace fulmen::platform {

timespec change_time(const struct stat& info);

}  // namespace fulmen::platform
