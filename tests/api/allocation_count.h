// What this test program has allocated by operator new so far, in all its threads; always 0 under
// ThreadSanitizer.
#pragma once

#include <cstdint>

namespace fulmen::testing {

int64_t allocations();

}  // namespace fulmen::testing
