#include "tools/platform/arguments.h"

namespace fulmen::tools {

std::vector<std::string> program_arguments(int argc, char** argv) { return {argv, argv + argc}; }

}  // namespace fulmen::tools
