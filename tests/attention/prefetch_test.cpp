// What decode fetches ahead of itself, by an instruction set that only writes down the addresses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/stream_prefetch.h"

namespace fulmen::cpu {
namespace {

struct Recorder {
  static inline std::vector<int64_t> lines;  // from address 0
  static inline std::size_t into_l1, into_l2;
  static void prefetch(const void* p) {
    lines.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)) / 64);
    ++into_l1;
  }
  static void prefetch_l2(const void* p) {
    lines.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)) / 64);
    ++into_l2;
  }
};

constexpr int64_t kRow = 256, kLinesOfRow = kRow / 64;

// Addresses alone are computed with, nothing is there.
const char* at(int64_t line) { return reinterpret_cast<const char*>(static_cast<uintptr_t>(line * 64)); }  // NOLINT

template <int kLines, class Prefetch>
std::vector<int64_t> fetched(Prefetch prefetch, int calls) {
  Recorder::lines.clear();
  Recorder::into_l1 = Recorder::into_l2 = 0;
  for (int i = 0; i < calls; ++i) prefetch.template lines<Recorder, kLines>();
  return Recorder::lines;
}

// The lines of rows of kRow bytes, first and so on `stride` lines apart.
std::vector<int64_t> lines_of(int64_t first, int64_t stride, int64_t rows) {
  std::vector<int64_t> lines;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t line = 0; line < kLinesOfRow; ++line) lines.push_back(first + row * stride + line);
  }
  return lines;
}

template <int kLines>
void expect_four_streams() {
  constexpr int64_t kFirst[] = {1000, 2000, 3000, 4000}, kRows = 3, kStride = 10;
  const StridedWalk walks[] = {
      {at(kFirst[0]), kStride * 64}, {at(kFirst[1]), kStride * 64}, {at(kFirst[2]), kStride * 64}, {at(kFirst[3]), kStride * 64}};
  const auto lines = fetched<kLines>(BlockPrefetch<StridedWalk>(walks, kRow, kRow, kRows), 100);  // more calls than there are lines
  ASSERT_EQ(lines.size(), 4U * kRows * kLinesOfRow) << kLines;
  EXPECT_EQ(Recorder::into_l2, lines.size());
  for (const int64_t first : kFirst) {
    std::vector<int64_t> stream;
    std::copy_if(lines.begin(), lines.end(), std::back_inserter(stream), [&](int64_t line) { return line / 1000 == first / 1000; });
    EXPECT_EQ(stream, lines_of(first, kStride, kRows)) << kLines;
  }
  // By turns, as many of each.
  constexpr std::ptrdiff_t kTurn = kLines < 4 ? 4 : kLines;
  for (auto turn = lines.begin(); turn != lines.end(); turn += kTurn) {
    for (const int64_t first : kFirst) {
      const auto own = std::count_if(turn, turn + kTurn, [&](int64_t line) { return line / 1000 == first / 1000; });
      EXPECT_EQ(own, kTurn / 4) << kLines << " lines a call";
    }
  }
}

TEST(Prefetch, BlockIsFetchedOnceInFourStreams) {
  expect_four_streams<1>();
  expect_four_streams<2>();
  expect_four_streams<4>();
  expect_four_streams<8>();
}

// The pace is that of the calls, whatever they ask for.
TEST(Prefetch, BlockKeepsThePaceOfItsCalls) {
  const StridedWalk walks[] = {{at(1000), 640}, {at(2000), 640}, {at(3000), 640}, {at(4000), 640}};
  const BlockPrefetch<StridedWalk> block(walks, kRow, kRow, 3);
  EXPECT_EQ(fetched<1>(block, 8).size(), 8U);
  EXPECT_EQ(fetched<2>(block, 8).size(), 16U);
  EXPECT_EQ(fetched<4>(block, 8).size(), 32U);
}

// Rows of values a quarter as long as those of keys, and the other way round: each line once, none behind a row's end, and none
// left when as many were asked for as there are.
TEST(Prefetch, BlockOfRowsOfTwoLengths) {
  const StridedWalk walks[] = {{at(1000), 640}, {at(2000), 640}, {at(3000), 640}, {at(4000), 640}};
  for (const bool longer_keys : {true, false}) {
    const int64_t keys = longer_keys ? kRow : 64, values = longer_keys ? 64 : kRow;
    constexpr int kRows = 3, kLines = 2 * kRows * (kLinesOfRow + 1);
    const BlockPrefetch<StridedWalk> block(walks, keys, values, kRows);
    std::vector<int64_t> expected;
    for (int stream = 0; stream < 4; ++stream) {
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t line = 0; line < ((stream % 2 == 0) == longer_keys ? kLinesOfRow : 1); ++line)
          expected.push_back((stream + 1) * 1000 + row * 10 + line);
      }
    }
    for (auto lines :
         {fetched<1>(block, kLines), fetched<2>(block, kLines / 2), fetched<4>(block, kLines), fetched<8>(block, kLines)}) {
      std::sort(lines.begin(), lines.end());
      EXPECT_EQ(lines, expected) << longer_keys;
    }
  }
}

TEST(Prefetch, StreamIsFetchedOnceInOrder) {
  EXPECT_EQ(fetched<1>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, 5), 100), lines_of(7, 10, 5));
  EXPECT_EQ(fetched<2>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, 5), 100), lines_of(7, 10, 5));
  EXPECT_EQ(Recorder::into_l1, Recorder::lines.size());
  EXPECT_TRUE(fetched<2>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, 0), 100).empty());
  EXPECT_TRUE(fetched<2>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, -3), 100).empty());
}

// Counts its steps: a step behind the last row would read a page's number that is not there.
struct CountedWalk : StridedWalk {
  static inline int steps;
  using StridedWalk::StridedWalk;
  void next() {
    StridedWalk::next();
    ++steps;
  }
};

TEST(Prefetch, NeverStepsBehindTheLastRow) {
  CountedWalk::steps = 0;
  fetched<2>(StreamPrefetch<CountedWalk>({at(7), 640}, kRow, 5), 100);
  EXPECT_EQ(CountedWalk::steps, 4);
  CountedWalk::steps = 0;
  const CountedWalk walks[] = {{at(1000), 640}, {at(2000), 640}, {at(3000), 640}, {at(4000), 640}};
  fetched<4>(BlockPrefetch<CountedWalk>(walks, kRow, kRow, 5), 100);
  EXPECT_EQ(CountedWalk::steps, 4 * 4);
}

// Pages of 2 rows, fp32.
TEST(Prefetch, PagesAreFollowed) {
  const std::vector<int> pages{4, 0, 2};
  TensorSpec spec;
  spec.strides = {1000 * 16, 10 * 16, 16, 1};  // elements: a page 1000 lines, a row 10
  const PageTable table{pages.data(), 2, 0};
  std::vector<int64_t> expected;
  constexpr int64_t kBase = 100000;
  for (const int64_t first : {4010, 0, 10, 2000, 2010}) {
    const auto row = lines_of(kBase + first, 0, 1);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  const PagedWalk walk(at(kBase), 4, PageWalk(table, spec, 1));
  EXPECT_EQ(fetched<2>(StreamPrefetch<PagedWalk>(walk, kRow, 5), 100), expected);
  const PagedWalk walks[] = {walk, walk, walk, walk};
  auto lines = fetched<4>(BlockPrefetch<PagedWalk>(walks, kRow, kRow, 5), 100);
  ASSERT_EQ(lines.size(), 4 * expected.size());
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i], expected[i / 4]) << i;
}

}  // namespace
}  // namespace fulmen::cpu
