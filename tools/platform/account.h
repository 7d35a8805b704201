// What the user who runs the program may do here, for `fulmen doctor`.
#pragma once

#include <string>
#include <vector>

namespace fulmen::tools {

// Numbers of groups; none where the system has no such numbers.
std::vector<int> groups_of_this_process();
bool is_administrator();
// Whose rights the process has; empty: unknown.
std::string effective_user();
// A file's; -1: unknown.
int group_of(const std::string& path);

}  // namespace fulmen::tools
