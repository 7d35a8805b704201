#include "runtime/platform/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace fulmen::platform {
namespace {

int protection(PageAccess access) {
  return access == PageAccess::none   ? PROT_NONE
         : access == PageAccess::read ? PROT_READ
                                      : PROT_READ | PROT_WRITE;
}

}  // namespace

void* allocate_aligned(std::size_t alignment, std::size_t bytes) noexcept {
  return std::aligned_alloc(alignment, bytes);
}

void free_aligned(void* memory) noexcept { std::free(memory); }

std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

void* map_pages(std::size_t bytes, PageAccess access) noexcept {
  void* pages = ::mmap(nullptr, bytes, protection(access),
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void* map_huge_pages(std::size_t bytes) noexcept {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  // Over-map by a huge page and cut the ends off: mmap aligns to pages only.
  void* raw = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(raw);
  const std::size_t head =
      (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (head != 0) ::munmap(begin, head);
  begin += head;
  if (head != kHugePage) ::munmap(begin + bytes, kHugePage - head);
#ifdef MADV_HUGEPAGE
  ::madvise(begin, bytes, MADV_HUGEPAGE);
#endif
  return begin;
}

bool set_access(void* pages, std::size_t bytes, PageAccess access) noexcept {
  return ::mprotect(pages, bytes, protection(access)) == 0;
}

void unmap_pages(void* pages, std::size_t bytes) noexcept { ::munmap(pages, bytes); }

}  // namespace fulmen::platform
