// Windows over keys that are split among workgroups or tasks: a window begins anywhere, so that a
// split's keys begin anywhere, and its last tile may reach into the next split.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/run_kernel.h"

namespace fulmen::testing {

// The layout of the keys.
enum class KeyLayout {
  contiguous,
  head_major,
  odd_strides,
  packed,
  padded,
  leftpad,
  pages_of_7,
  pages_of_16,
  pages_of_64
};

// Runs some such cases of that layout by each of the device's decode kernels that `asked` names.
// seqlen_k: enough for `splits` splits of every kernel; 0 splits leaves their number to the kernel.
void expect_split_windows_verified(const std::string& device, KeyLayout layout, CaseSpec spec,
                                   const std::vector<int>& splits,
                                   const std::function<bool(const std::string& kernel)>& asked,
                                   Random& random);

}  // namespace fulmen::testing
