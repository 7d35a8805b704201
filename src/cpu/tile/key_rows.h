// Where rows of a tensor lie: one after the other, or wherever their pages are.
#pragma once

#include <cstdint>

#include "cpu/tile/tile.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

template <class T>
struct StridedRows {
  using Element = T;
  const T* first = nullptr;
  int64_t stride = 0;  // elements
  FULMEN_INLINE const T* operator[](int row) const { return first + row * stride; }
  FULMEN_INLINE StridedRows from(int row) const { return {(*this)[row], stride}; }
  FULMEN_INLINE void step(int64_t elements) { first += elements; }
};

template <class T>
struct ListedRows {
  using Element = T;
  const T* base = nullptr;
  const int64_t* offsets = nullptr;  // elements from the base, a row each
  FULMEN_INLINE const T* operator[](int row) const { return base + offsets[row]; }
  FULMEN_INLINE ListedRows from(int row) const { return {base, offsets + row}; }
  FULMEN_INLINE void step(int64_t elements) { base += elements; }
};

// The pages of one sequence's keys: key j is row first_row + j of them.
struct PageTable {
  const int* pages = nullptr;
  int64_t page_size = 1;
  int64_t first_row = 0;
};

// Goes through a sequence's keys, page after page. Offsets are elements from the tensor's data, of
// head 0.
class PageWalk {
 public:
  FULMEN_INLINE PageWalk(const PageTable& table, const TensorSpec& spec, int64_t key)
      : pages_(table.pages + (table.first_row + key) / table.page_size),
        row_((table.first_row + key) % table.page_size),
        page_size_(table.page_size),
        page_stride_(spec.strides[0]),
        row_stride_(spec.strides[1]),
        offset_(*pages_ * page_stride_ + row_ * row_stride_) {}
  FULMEN_INLINE int64_t offset() const { return offset_; }
  // Only while there is a next key: its page is looked up.
  FULMEN_INLINE void next() {
    offset_ += row_stride_;
    if (++row_ < page_size_) return;
    row_ = 0;
    offset_ = *++pages_ * page_stride_;
  }
  FULMEN_INLINE int64_t left_in_page() const { return page_size_ - row_; }

 private:
  const int* pages_;
  int64_t row_;
  int64_t page_size_;
  int64_t page_stride_;
  int64_t row_stride_;
  int64_t offset_;
};

// offsets[count] of keys from `first` on; count is 1 at least.
FULMEN_INLINE void list_rows(const PageTable& table, const TensorSpec& spec, int64_t first,
                             int count, int64_t* offsets) {
  PageWalk walk(table, spec, first);
  for (int i = 0;; walk.next()) {
    offsets[i] = walk.offset();
    if (++i == count) return;
  }
}

}  // namespace fulmen::cpu
