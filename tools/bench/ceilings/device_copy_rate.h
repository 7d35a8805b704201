// How fast a device copies within its own memory: the yardstick of kernels that memory bounds.
#pragma once

#include <string>

namespace fulmen::tools {

// GB/s read and written, the best of several copies of 1 GiB (less where the device has less); 0
// where it cannot be measured.
double device_copy_rate(const std::string& device);

}  // namespace fulmen::tools
