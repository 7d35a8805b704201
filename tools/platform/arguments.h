// The program's arguments.
#pragma once

#include <string>
#include <vector>

namespace fulmen::tools {

// In UTF-8, whatever main() was given.
std::vector<std::string> program_arguments(int argc, char** argv);

}  // namespace fulmen::tools
