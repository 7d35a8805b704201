#include "support/guarded_buffer.h"

#include <new>
#include <utility>

#include "runtime/platform/memory.h"

namespace fulmen::testing {

using platform::PageAccess;

GuardedBuffer::GuardedBuffer(std::size_t bytes, Flush flush) : size_(bytes) {
  const std::size_t page = platform::page_bytes();
  const std::size_t inside = (bytes + page - 1) / page * page;
  mapped_ = inside + 2 * page;
  void* mapping = platform::map_pages(mapped_, PageAccess::none);
  if (mapping == nullptr) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(mapping);
  if (inside > 0 && !platform::set_access(mapping_ + page, inside, PageAccess::write))
    throw std::bad_alloc();
  data_ = mapping_ + page + (flush == Flush::end ? inside - bytes : 0);
}

GuardedBuffer::~GuardedBuffer() {
  if (mapping_ != nullptr) platform::unmap_pages(mapping_, mapped_);
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

void GuardedBuffer::make_read_only() {
  const std::size_t page = platform::page_bytes();
  if (mapped_ > 2 * page &&
      !platform::set_access(mapping_ + page, mapped_ - 2 * page, PageAccess::read))
    throw std::bad_alloc();
}

}  // namespace fulmen::testing
