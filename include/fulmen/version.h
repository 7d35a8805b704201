// Semantic version of the library.
#pragma once

namespace fulmen {

// "0.1.0" of the library that is loaded.
const char* version() noexcept;

}  // namespace fulmen
