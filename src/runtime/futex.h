// Sleeping until an atomic number has changed.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>

namespace fulmen {

// Returns once it is not `expected` any more, and at times before.
inline void futex_wait(std::atomic<int>& state, int expected) noexcept {
  ::syscall(SYS_futex, &state, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
inline void futex_wake(std::atomic<int>& state) noexcept {
  ::syscall(SYS_futex, &state, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fulmen
