#include "tools/tensors/memory.h"

#include <sys/mman.h>

#include <cstdint>

namespace fulmen::tools {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void UnmapMemory::operator()(void* data) const noexcept { ::munmap(data, bytes); }

Memory::Memory(std::size_t bytes) : size_(bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return;
  const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
  // Over-map by a huge page and cut the ends off: mmap aligns to 4 KiB only.
  const std::size_t mapped = bytes < kHugePage ? rounded : rounded + kHugePage;
  void* raw = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return;
  char* begin = static_cast<char*>(raw);
  if (mapped != rounded) {
    const std::size_t head =
        (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
    if (head != 0) ::munmap(begin, head);
    begin += head;
    if (head != kHugePage) ::munmap(begin + rounded, kHugePage - head);
#ifdef MADV_HUGEPAGE
    ::madvise(begin, rounded, MADV_HUGEPAGE);
#endif
  }
  data_ = std::unique_ptr<void, UnmapMemory>(begin, UnmapMemory{rounded});
}

}  // namespace fulmen::tools
