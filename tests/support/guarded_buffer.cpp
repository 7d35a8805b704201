#include "support/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace fulmen::testing {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes, Flush flush) : size_(bytes) {
  const std::size_t page = page_bytes();
  const std::size_t inside = (bytes + page - 1) / page * page;
  mapped_ = inside + 2 * page;
  void* mapping = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(mapping);
  if (inside > 0 && mprotect(mapping_ + page, inside, PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc();
  data_ = mapping_ + page + (flush == Flush::end ? inside - bytes : 0);
}

GuardedBuffer::~GuardedBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
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
  const std::size_t page = page_bytes();
  if (mapped_ > 2 * page && mprotect(mapping_ + page, mapped_ - 2 * page, PROT_READ) != 0)
    throw std::bad_alloc();
}

}  // namespace fulmen::testing
