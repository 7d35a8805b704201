// Fibers with stacks of their own, over Boost.Context's jump, known to AddressSanitizer.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace fulmen::gpu::emulated {

// Stacks of one thread's fibers, kept from launch to launch.
class Stacks {
 public:
  static constexpr std::size_t kBytes = 128 * 1024;
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();
  // The lowest address of stack n; null when there is no memory.
  char* get(int n);

 private:
  char** stacks_ = nullptr;
  int count_ = 0;
};

// A fiber, or the scheduler that resumes fibers.
struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
  void* sanitizer_stack = nullptr;
};

void start(Fiber& fiber, char* stack, void (*entry)(boost::context::detail::transfer_t));
// Runs a fiber from the scheduler until it yields.
void resume(Fiber& scheduler, Fiber& fiber);
// Returns from a fiber to the scheduler; `last` if the fiber never runs again.
void yield(Fiber& scheduler, Fiber& fiber, bool last);
// To be called first in a fiber's entry.
void entered(Fiber& scheduler, boost::context::detail::transfer_t from);

}  // namespace fulmen::gpu::emulated
