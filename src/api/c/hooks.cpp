// The C ABI of hooks.h.
#include "fulmen/hooks.h"

#include "api/c/translation.h"

extern "C" {

int fulmen_set_log_callback(void (*callback)(void* context, const char* line), void* context) {
  return fulmen::c_api::guarded([&]() -> fulmen::Status {
    fulmen::set_log_callback(callback, context);
    return {};
  });
}

int fulmen_set_allocator(const fulmen_allocator* allocator) {
  return fulmen::c_api::guarded([&]() -> fulmen::Status {
    fulmen_allocator a{};
    if (allocator != nullptr) {
      if (fulmen::Status status = fulmen::c_api::read_struct("allocator", allocator, a);
          !status.ok())
        return status;
    }
    return fulmen::set_allocator({a.allocate, a.free, a.context});
  });
}

}  // extern "C"
