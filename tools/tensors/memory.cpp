#include "tools/tensors/memory.h"

#include <cstdint>

#include "runtime/platform/memory.h"

namespace fulmen::tools {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void UnmapMemory::operator()(void* data) const noexcept { platform::unmap_pages(data, bytes); }

Memory::Memory(std::size_t bytes) : size_(bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return;
  const std::size_t page = platform::page_bytes(), rounded = (bytes + page - 1) / page * page;
  void* pages = bytes < kHugePage ? platform::map_pages(rounded, platform::PageAccess::write)
                                  : platform::map_huge_pages(rounded);
  if (pages == nullptr) return;
  data_ = std::unique_ptr<void, UnmapMemory>(pages, UnmapMemory{rounded});
}

}  // namespace fulmen::tools
