// The process's hooks, as the library uses them.
#pragma once

#include <string>

#include "fulmen/hooks.h"

namespace fulmen {

// To the program's callback, else on stderr. Does not throw.
void log_line(const std::string& line) noexcept;

// The allocator in force; its functions are null where there is none.
Allocator host_allocator() noexcept;

}  // namespace fulmen
