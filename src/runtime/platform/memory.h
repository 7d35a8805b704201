// Memory as the system gives it.
#pragma once

#include <cstddef>
#include <memory>

namespace fulmen::platform {

// bytes: a multiple of alignment. Null where there is none. Given back by free_aligned.
void* allocate_aligned(std::size_t alignment, std::size_t bytes) noexcept;
void free_aligned(void* memory) noexcept;

std::size_t page_bytes() noexcept;

enum class PageAccess { none, read, write };
// Zeroed pages, which cost nothing until they are written. Null where there are none.
void* map_pages(std::size_t bytes, PageAccess access) noexcept;
// The same, at a huge page's boundary and in huge pages where the system has them.
void* map_huge_pages(std::size_t bytes) noexcept;
bool set_access(void* pages, std::size_t bytes, PageAccess access) noexcept;
// All that one call has mapped.
void unmap_pages(void* pages, std::size_t bytes) noexcept;

}  // namespace fulmen::platform
