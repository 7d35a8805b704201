#include "runtime/platform/memory.h"

#include <malloc.h>
#include <windows.h>

#include <cstdint>

namespace fulmen::platform {
namespace {

DWORD protection(PageAccess access) {
  return access == PageAccess::none   ? PAGE_NOACCESS
         : access == PageAccess::read ? PAGE_READONLY
                                      : PAGE_READWRITE;
}

}  // namespace

void* allocate_aligned(std::size_t alignment, std::size_t bytes) noexcept {
  return ::_aligned_malloc(bytes, alignment);
}

void free_aligned(void* memory) noexcept { ::_aligned_free(memory); }

std::size_t page_bytes() noexcept {
  SYSTEM_INFO info;
  ::GetSystemInfo(&info);
  return info.dwPageSize;
}

void* map_pages(std::size_t bytes, PageAccess access) noexcept {
  return ::VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, protection(access));
}

// Huge pages are a privilege that few accounts have.
void* map_huge_pages(std::size_t bytes) noexcept {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  void* reserved = ::VirtualAlloc(nullptr, bytes + kHugePage, MEM_RESERVE, PAGE_NOACCESS);
  if (reserved == nullptr) return nullptr;
  const auto at = reinterpret_cast<std::uintptr_t>(reserved);
  char* begin = static_cast<char*>(reserved) + (kHugePage - at % kHugePage) % kHugePage;
  if (::VirtualAlloc(begin, bytes, MEM_COMMIT, PAGE_READWRITE) != nullptr) return begin;
  ::VirtualFree(reserved, 0, MEM_RELEASE);
  return nullptr;
}

bool set_access(void* pages, std::size_t bytes, PageAccess access) noexcept {
  DWORD before = 0;
  return ::VirtualProtect(pages, bytes, protection(access), &before) != 0;
}

void unmap_pages(void* pages, std::size_t /*bytes*/) noexcept {
  MEMORY_BASIC_INFORMATION info{};
  if (::VirtualQuery(pages, &info, sizeof info) != 0)
    ::VirtualFree(info.AllocationBase, 0, MEM_RELEASE);
}

}  // namespace fulmen::platform
