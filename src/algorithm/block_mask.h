// A block mask's lists: which blocks of keys a block of queries attends. Host and device.
#pragma once

namespace fulmen::algorithm {

// One pair of lists; strides count elements, 0 where they are broadcast.
struct BlockList {
  const int* counts = nullptr;  // null: no such lists
  const int* indices = nullptr;
  long long counts_batch = 0, counts_head = 0, counts_row = 0;
  long long indices_batch = 0, indices_head = 0, indices_row = 0;
};

// The listed blocks of a row; numbers that name no block are left out by listed().
struct BlockRow {
  const int* indices = nullptr;
  int count = 0;
  int blocks = 0;  // of keys

  // The block of place `at`, or -1.
  int listed(int at) const { return indices[at] >= 0 && indices[at] < blocks ? indices[at] : -1; }
};

inline BlockRow block_row(const BlockList& list, long long batch, long long head, long long row,
                          int blocks) {
  if (list.counts == nullptr) return {};
  const int count =
      list.counts[batch * list.counts_batch + head * list.counts_head + row * list.counts_row];
  return {
      list.indices + batch * list.indices_batch + head * list.indices_head + row * list.indices_row,
      count < 0        ? 0
      : count < blocks ? count
                       : blocks,
      blocks};
}

}  // namespace fulmen::algorithm
