// Lists of folders in variables, such as PATH.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/platform/system.h"

namespace fulmen {

// The folders of a list, without empty ones: in no variable that Fulmen reads do they mean the
// current folder, in which anybody may have put a file.
inline std::vector<std::string> listed_folders(std::string_view list,
                                               char separator = platform::kListSeparator) {
  std::vector<std::string> folders;
  while (!list.empty()) {
    const std::size_t length = std::min(list.find(separator), list.size());
    if (length > 0) folders.emplace_back(list.substr(0, length));
    list.remove_prefix(std::min(length + 1, list.size()));
  }
  return folders;
}

}  // namespace fulmen
