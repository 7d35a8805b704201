// What a program may give the library for the whole process: where its log lines go, and where host
// workspaces come from. A thread pool is given with each call (AttentionOptions::parallel_for).
#pragma once

#include <cstddef>

#include "fulmen/export.h"
#include "fulmen/status.h"

namespace fulmen {

// Takes one line of the log, without a newline at its end; "\n" may be within. Called from any
// thread, also from several at once; what it throws is ignored.
using LogCallback = void (*)(void* context, const char* line);

// Where the log goes from now on: the lines of FLASH_ATTENTION_DEBUG, troubles of the kernel cache,
// FULMEN_EMULATOR_BANKS. Null, the default, is stderr, each line after "fulmen: ". A call of the
// callback before may still be under way on another thread.
FULMEN_API void set_log_callback(LogCallback callback, void* context) noexcept;

// Host memory for workspaces that a run allocates because the caller gave none. Called from any
// thread; must not throw. Memory of GPUs comes from their backends (Backend::allocate).
struct Allocator {
  // At least bytes, at a multiple of alignment (64), or null. bytes > 0.
  void* (*allocate)(void* context, std::size_t bytes, std::size_t alignment) = nullptr;
  // memory, bytes: of allocate().
  void (*free)(void* context, void* memory, std::size_t bytes) = nullptr;
  void* context = nullptr;
};

// The allocator from now on; both functions null, the default: the backend's own. What an allocator
// gave is freed by the same one. Errors: one function of the two is missing.
FULMEN_API Status set_allocator(const Allocator& allocator);

}  // namespace fulmen
