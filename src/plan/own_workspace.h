// A workspace that the library allocates.
#pragma once

#include <cstddef>

#include "plan/plan_impl.h"
#include "runtime/hooks.h"

namespace fulmen {

inline constexpr std::size_t kWorkspaceAlignment = 64;

// A workspace of the program's allocator, if there is one and the backend uses host memory, else of
// the backend. On a GPU its stream frees it when the run has ended there.
class OwnWorkspace {
 public:
  OwnWorkspace(const Plan::Impl& plan, void* stream, std::size_t bytes)
      : plan_(plan), stream_(stream), bytes_(bytes) {
    if (plan.backend->uses_host_memory()) allocator_ = host_allocator();
    memory_ = allocator_.allocate != nullptr
                  ? allocator_.allocate(allocator_.context, bytes, kWorkspaceAlignment)
              : stream != nullptr ? plan.backend->allocate_in_stream(plan.device, stream, bytes)
                                  : plan.backend->allocate(plan.device, bytes);
  }
  ~OwnWorkspace() {
    if (memory_ == nullptr) return;
    if (allocator_.free != nullptr) {
      allocator_.free(allocator_.context, memory_, bytes_);
    } else if (stream_ != nullptr) {
      plan_.backend->free_in_stream(plan_.device, stream_, memory_);
    } else {
      plan_.backend->free(plan_.device, memory_);
    }
  }
  OwnWorkspace(const OwnWorkspace&) = delete;
  OwnWorkspace& operator=(const OwnWorkspace&) = delete;
  void* memory() const noexcept { return memory_; }
  std::size_t bytes() const noexcept { return bytes_; }
  // What a run could not be given.
  Status check() const;

 private:
  const Plan::Impl& plan_;
  void* stream_;
  std::size_t bytes_;
  Allocator allocator_;
  void* memory_;
};

// Checks the size and alignment of a workspace that needs at least `needed` bytes; a null workspace
// passes.
Status check_workspace(std::size_t needed, const void* workspace, std::size_t bytes);

}  // namespace fulmen
