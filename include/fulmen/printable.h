// Text of somebody else's, such as a file's name, as it may be shown.
#pragma once

#include <string>
#include <string_view>

#include "fulmen/export.h"

namespace fulmen {

// Control characters, newlines and bytes that are no UTF-8 become \x1b, \n and the like: a terminal
// obeys them, and a log takes a newline for another entry. Messages of the library hold names of
// files, devices, chips and kernels, and reasons of backends, so.
FULMEN_API std::string printable(std::string_view text);

}  // namespace fulmen
