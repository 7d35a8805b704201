// The memory that runs work in: what they are given, and what they are made.
#include <fmt/format.h>

#include <cstdint>
#include <new>
#include <utility>

#include "fulmen/plan.h"
#include "plan/own_workspace.h"

namespace fulmen {

Status check_workspace(std::size_t needed, const void* workspace, std::size_t bytes) {
  if (workspace == nullptr || needed == 0) return {};
  if (bytes < needed) {
    return {StatusCode::invalid_argument,
            fmt::format("workspace_bytes is {}: at least {} are needed", bytes, needed)};
  }
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("workspace is {}: an address divisible by 64 is needed", workspace)};
  }
  return {};
}

Status OwnWorkspace::check() const {
  if (memory_ != nullptr) return check_workspace(bytes_, memory_, bytes_);  // the allocator's
  return {StatusCode::out_of_memory,
          fmt::format("no memory for a workspace of {} bytes on device {}", bytes_, plan_.device)};
}

struct Workspace::Memory {
  Memory(std::shared_ptr<const Plan::Impl> of, std::size_t bytes)
      : plan(std::move(of)), own(*plan, nullptr, bytes) {}
  std::shared_ptr<const Plan::Impl> plan;
  OwnWorkspace own;
};

Workspace::Workspace(std::unique_ptr<Memory> memory) noexcept : memory_(std::move(memory)) {}
Workspace::Workspace(Workspace&& from) noexcept = default;
Workspace& Workspace::operator=(Workspace&& from) noexcept = default;
Workspace::~Workspace() = default;

Result<Workspace> Workspace::make(const Plan& plan) {
  try {
    if (plan.workspace_bytes() == 0) return Workspace(nullptr);
    auto memory = std::make_unique<Memory>(plan.impl_, plan.workspace_bytes());
    if (Status status = memory->own.check(); !status.ok()) return status;
    return Workspace(std::move(memory));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory for a workspace");
  } catch (...) {
    return Status(StatusCode::internal,
                  "making a workspace failed: an allocator or a backend threw");
  }
}

void* Workspace::data() const noexcept {
  return memory_ != nullptr ? memory_->own.memory() : nullptr;
}
std::size_t Workspace::bytes() const noexcept {
  return memory_ != nullptr ? memory_->own.bytes() : 0;
}

}  // namespace fulmen
