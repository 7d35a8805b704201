// The tasks of a call whose sequences differ in length: listed in the workspace when the lengths
// are known, the longest first.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "cpu/tile/call.h"
#include "runtime/sequence_view.h"

namespace fulmen::cpu {

struct SequenceTask {
  int32_t sequence = 0;
  int32_t part = 0;  // a block of queries, or a split of the keys
};

// Puts the tasks that visit(put) names by put(sequence, part, cost) into `out`, dear ones first,
// and returns how many there are. visit is called twice. By powers of two and their quarters:
// enough for threads to end together, and no comparison.
template <class Visit>
int64_t order_tasks(const Visit& visit, SequenceTask* out) noexcept {
  constexpr int kBuckets = 256;
  const auto bucket_of = [](int64_t cost) {
    const auto x = static_cast<uint64_t>(cost < 4 ? 4 : cost);
    const int log = std::bit_width(x) - 1;
    return kBuckets - 1 - (log * 4 + static_cast<int>(x >> static_cast<unsigned>(log - 2) & 3U));
  };
  std::array<int64_t, kBuckets> next{};
  visit([&](int64_t, int64_t, int64_t cost) { ++next[static_cast<std::size_t>(bucket_of(cost))]; });
  int64_t total = 0;
  for (int64_t& count : next) {
    const int64_t first = total;
    total += count;
    count = first;
  }
  visit([&](int64_t sequence, int64_t part, int64_t cost) {
    out[next[static_cast<std::size_t>(bucket_of(cost))]++] = {static_cast<int32_t>(sequence),
                                                              static_cast<int32_t>(part)};
  });
  return total;
}

// What tasks of one sequence are told: the view's problem and tensors, its band and its pages.
inline void call_sequence(const Problem& problem, const AttentionTensors& tensors, int64_t b,
                          SequenceView& view, ForwardCall& call) noexcept {
  select_sequence(problem, tensors, b, view);
  const Problem& p = view.problem;
  call.problem = &p;
  call.tensors = &view.tensors;
  call.band = {p.seqlen_k, p.diagonal, p.window_left, p.window_right};
  if (problem.packed_k()) call.codes.select_packed(b, view.k_row, p.seqlen_k);
  if (problem.paged()) {
    const algorithm::SequenceTable table = sequence_table(problem, tensors);
    call.pages = {table.block_table + b * table.table_stride, table.page_size, view.first_row};
  }
}

}  // namespace fulmen::cpu
