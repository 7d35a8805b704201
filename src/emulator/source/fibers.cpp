#include "emulator/source/fibers.h"

#include <cstdlib>

#include "runtime/platform/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#define FULMEN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FULMEN_ASAN 1
#endif
#endif
#ifdef FULMEN_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace fulmen::gpu::emulated {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

void leave([[maybe_unused]] Fiber& from, [[maybe_unused]] const Fiber& to,
           [[maybe_unused]] bool last) {
#ifdef FULMEN_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &from.sanitizer_stack, to.stack, to.stack_bytes);
#endif
}
void arrive([[maybe_unused]] Fiber& here, [[maybe_unused]] Fiber* from) {
#ifdef FULMEN_ASAN
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(here.sanitizer_stack, &stack, &bytes);
  if (from != nullptr) {
    from->stack = stack;
    from->stack_bytes = bytes;
  }
#endif
}

}  // namespace

Stacks::~Stacks() {
  for (int n = 0; n < count_; ++n) platform::unmap_pages(stacks_[n], kBytes);
  std::free(static_cast<void*>(stacks_));
}

char* Stacks::get(int n) {
  constexpr std::size_t kGuard = 4096;
  while (count_ <= n) {
    auto** more = static_cast<char**>(std::realloc(
        static_cast<void*>(stacks_), sizeof(char*) * static_cast<std::size_t>(count_ + 1)));
    if (more == nullptr) return nullptr;
    stacks_ = more;
    void* memory = platform::map_pages(kBytes, platform::PageAccess::write);
    if (memory == nullptr) return nullptr;
    platform::set_access(memory, kGuard, platform::PageAccess::none);
    stacks_[count_++] = static_cast<char*>(memory);
  }
  return stacks_[n];
}

void start(Fiber& fiber, char* stack, void (*entry)(transfer_t)) {
  fiber.stack = stack;
  fiber.stack_bytes = Stacks::kBytes;
  fiber.sanitizer_stack = nullptr;
#ifdef FULMEN_ASAN
  // A fiber that was stopped by a report never left its frames.
  __asan_unpoison_memory_region(stack, Stacks::kBytes);
#endif
  fiber.context = make_fcontext(stack + Stacks::kBytes, Stacks::kBytes, entry);
}

void resume(Fiber& scheduler, Fiber& fiber) {
  leave(scheduler, fiber, false);
  const transfer_t back = jump_fcontext(fiber.context, nullptr);
  arrive(scheduler, nullptr);
  fiber.context = back.fctx;
}

void entered(Fiber& scheduler, transfer_t from) {
  Fiber fresh;
  arrive(fresh, &scheduler);
  scheduler.context = from.fctx;
}

void yield(Fiber& scheduler, Fiber& fiber, bool last) {
  leave(fiber, scheduler, last);
  const transfer_t back = jump_fcontext(scheduler.context, nullptr);
  arrive(fiber, nullptr);
  scheduler.context = back.fctx;
}

}  // namespace fulmen::gpu::emulated
