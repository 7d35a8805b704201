#include "runtime/hooks.h"

#include <cstdio>
#include <mutex>

#include "runtime/fork_safe.h"

namespace fulmen {
namespace {

struct Hooks {
  Mutex mutex;
  LogCallback log = nullptr;
  void* log_context = nullptr;
  Allocator allocator;
};

// Never destroyed: other threads may call until the process has ended.
Hooks& hooks() {
  constinit static MadeOnce<Hooks> made;
  return made.get();
}

}  // namespace

void set_log_callback(LogCallback callback, void* context) noexcept {
  const std::scoped_lock lock(hooks().mutex);
  hooks().log = callback;
  hooks().log_context = context;
}

Status set_allocator(const Allocator& allocator) {
  if ((allocator.allocate == nullptr) != (allocator.free == nullptr)) {
    return {StatusCode::invalid_argument,
            allocator.free == nullptr
                ? "allocator.free is null: both functions or neither are accepted"
                : "allocator.allocate is null: both functions or neither are accepted"};
  }
  const std::scoped_lock lock(hooks().mutex);
  hooks().allocator = allocator;
  return {};
}

void log_line(const std::string& line) noexcept {
  LogCallback log = nullptr;
  void* context = nullptr;
  {
    const std::scoped_lock lock(hooks().mutex);
    log = hooks().log;
    context = hooks().log_context;
  }
  if (log == nullptr) {
    std::fprintf(stderr, "fulmen: %s\n", line.c_str());
    return;
  }
  try {
    // Without the lock: it may make calls that log.
    log(context, line.c_str());
  } catch (...) {  // NOLINT(bugprone-empty-catch): documented, what a callback throws is ignored
  }
}

Allocator host_allocator() noexcept {
  const std::scoped_lock lock(hooks().mutex);
  return hooks().allocator;
}

}  // namespace fulmen
