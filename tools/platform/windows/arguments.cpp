#include "tools/platform/arguments.h"

#include <windows.h>
// It uses the types of the header above.
#include <shellapi.h>

#include "runtime/platform/windows/words.h"

namespace fulmen::tools {

std::vector<std::string> program_arguments(int argc, char** argv) {
  // The console shows UTF-8 as such.
  ::SetConsoleOutputCP(CP_UTF8);
  int count = 0;
  LPWSTR* list = ::CommandLineToArgvW(::GetCommandLineW(), &count);
  if (list == nullptr) return {argv, argv + argc};
  std::vector<std::string> arguments;
  for (int i = 0; i < count; ++i) arguments.push_back(platform::narrow(list[i]));
  ::LocalFree(static_cast<void*>(list));
  return arguments;
}

}  // namespace fulmen::tools
