// Names of devices, kernels and chips that somebody asked for and that do not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulmen/export.h"

namespace fulmen {

// What such a name is answered with: `did you mean "cpu"? Known are "cpu", "cuda" (not usable) and
// 30 more`. Six of the names at most, those like what was asked for first; the question where one
// is nearly it. A name may have a remark behind it, separated by a newline, which is shown in
// parentheses.
FULMEN_API std::string names_like(std::string_view asked, const std::vector<std::string>& names);

}  // namespace fulmen
