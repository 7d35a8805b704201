// Semantic version of the library.
#pragma once

#include "fulmen/export.h"

namespace fulmen {

// "0.1.0" of the library that is loaded.
FULMEN_API const char* version() noexcept;

}  // namespace fulmen
