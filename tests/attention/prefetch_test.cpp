// What decode and short sequences prefetch, by an instruction set that only records the addresses.
#include "cpu/decode/prefetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "cpu/decode/stream_prefetch.h"
#include "cpu/isa/scalar.h"
#include "cpu/short/vector.h"
#include "cpu/tile/step_prefetch.h"

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

// Only the addresses are computed; there is no memory behind them.
const char* at(int64_t line) {
  // NOLINTNEXTLINE
  return reinterpret_cast<const char*>(static_cast<uintptr_t>(line * 64));
}

template <int kLines, class Prefetch>
std::vector<int64_t> fetched(Prefetch prefetch, int calls) {
  Recorder::lines.clear();
  Recorder::into_l1 = Recorder::into_l2 = 0;
  for (int i = 0; i < calls; ++i) {
    if constexpr (requires { prefetch.template lines<Recorder>(kLines); }) {
      prefetch.template lines<Recorder>(kLines);
    } else {
      prefetch.template lines<Recorder, kLines>();
    }
  }
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
  const StridedWalk walks[] = {{at(kFirst[0]), kStride * 64},
                               {at(kFirst[1]), kStride * 64},
                               {at(kFirst[2]), kStride * 64},
                               {at(kFirst[3]), kStride * 64}};
  // More calls than there are lines.
  const auto lines = fetched<kLines>(BlockPrefetch<StridedWalk>(walks, kRow, kRow, kRows), 100);
  ASSERT_EQ(lines.size(), 4U * kRows * kLinesOfRow) << kLines;
  EXPECT_EQ(Recorder::into_l2, lines.size());
  for (const int64_t first : kFirst) {
    std::vector<int64_t> stream;
    std::copy_if(lines.begin(), lines.end(), std::back_inserter(stream),
                 [&](int64_t line) { return line / 1000 == first / 1000; });
    EXPECT_EQ(stream, lines_of(first, kStride, kRows)) << kLines;
  }
  // Alternately, as many of each.
  constexpr std::ptrdiff_t kTurn = kLines < 4 ? 4 : kLines;
  for (auto turn = lines.begin(); turn != lines.end(); turn += kTurn) {
    for (const int64_t first : kFirst) {
      const auto own = std::count_if(turn, turn + kTurn,
                                     [&](int64_t line) { return line / 1000 == first / 1000; });
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

// The calls set the pace, whatever they prefetch.
TEST(Prefetch, BlockKeepsThePaceOfItsCalls) {
  const StridedWalk walks[] = {{at(1000), 640}, {at(2000), 640}, {at(3000), 640}, {at(4000), 640}};
  const BlockPrefetch<StridedWalk> block(walks, kRow, kRow, 3);
  EXPECT_EQ(fetched<1>(block, 8).size(), 8U);
  EXPECT_EQ(fetched<2>(block, 8).size(), 16U);
  EXPECT_EQ(fetched<4>(block, 8).size(), 32U);
}

// Rows of values a quarter as long as those of keys, and the other way round: each line once, none
// behind a row's end, and none left when as many were asked for as there are.
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
    for (auto lines : {fetched<1>(block, kLines), fetched<2>(block, kLines / 2),
                       fetched<4>(block, kLines), fetched<8>(block, kLines)}) {
      std::sort(lines.begin(), lines.end());
      EXPECT_EQ(lines, expected) << longer_keys;
    }
  }
}

TEST(Prefetch, StreamIsFetchedOnceInOrder) {
  EXPECT_EQ(fetched<1>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, 5), 100),
            lines_of(7, 10, 5));
  EXPECT_EQ(fetched<2>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, 5), 100),
            lines_of(7, 10, 5));
  EXPECT_EQ(Recorder::into_l1, Recorder::lines.size());
  EXPECT_TRUE(fetched<2>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, 0), 100).empty());
  EXPECT_TRUE(fetched<2>(StreamPrefetch<StridedWalk>({at(7), 640}, kRow, -3), 100).empty());
}

// Counts its steps: a step behind the last row would read beyond the page table.
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

// Decode's products over a block of `count` keys of two heads, whose rows have these lines, with
// `next` keys in the block that they fetch: kScoreRows and kValueRows are read together, a line or
// two at a time.
constexpr int64_t kKeyBase = 100000, kValueBase = 200000, kRowLines = 50, kHeadLines = 20;

template <int kScoreRows, int kValueRows, class Rows>
std::vector<int64_t> fetched_of_block(const Rows& keys, const Rows& values, int64_t key_lines,
                                      int64_t value_lines, int count, int next) {
  Recorder::lines.clear();
  Recorder::into_l1 = Recorder::into_l2 = 0;
  const BlockRows<Rows> k{keys, kHeadLines * 16}, v{values, kHeadLines * 16};
  const bool alike = key_lines == value_lines;
  BlockAhead<float, Rows, kScoreRows> scores(DecodeProduct::scores, k, v, next, alike);
  for (int key = 0; key < count; key += kScoreRows) {
    scores.begin(key / kScoreRows);
    for (int head = 0; head < 2; ++head, scores.next_head()) {
      for (int64_t line = 0; line < key_lines; ++line)
        scores.template read<Recorder, kScoreRows, 64>(0, line * 16);
    }
  }
  BlockAhead<float, Rows, kValueRows> outputs(DecodeProduct::values, k, v, next, alike);
  for (int key = 0; key < count; key += kValueRows) {
    outputs.begin(key / kValueRows);
    for (int head = 0; head < 2; ++head, outputs.next_head()) {
      for (int64_t line = 0; line < value_lines; line += 2) {
        for (int row = 0; row < kValueRows; row += 2)
          outputs.template read<Recorder, 2, 128>(row, line * 16);
      }
    }
  }
  EXPECT_EQ(Recorder::into_l1, 0U);
  std::sort(Recorder::lines.begin(), Recorder::lines.end());
  return Recorder::lines;
}

// All lines of `rows` keys and values of both heads, in order.
std::vector<int64_t> lines_of_block(int64_t key_lines, int64_t value_lines, int rows) {
  std::vector<int64_t> lines;
  for (const auto& [base, count] :
       {std::pair{kKeyBase, key_lines}, std::pair{kValueBase, value_lines}}) {
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < 2; ++head) {
        for (int64_t line = 0; line < count; ++line)
          lines.push_back(base + row * kRowLines + head * kHeadLines + line);
      }
    }
  }
  return lines;
}

const float* float_at(int64_t line) { return reinterpret_cast<const float*>(at(line)); }

TEST(Prefetch, DecodeFetchesEachLineOfTheNextBlockOnce) {
  const StridedRows<float> keys{float_at(kKeyBase), kRowLines * 16},
      values{float_at(kValueBase), kRowLines * 16};
  for (const int count : {16, 32, 64}) {
    EXPECT_EQ((fetched_of_block<4, 4>(keys, values, 8, 8, count, count)),
              lines_of_block(8, 8, count))
        << count;
    EXPECT_EQ((fetched_of_block<4, 8>(keys, values, 8, 8, count, count)),
              lines_of_block(8, 8, count))
        << count;
    EXPECT_EQ((fetched_of_block<4, 4>(keys, values, 4, 8, count, count)),
              lines_of_block(4, 8, count))
        << count;
    EXPECT_EQ((fetched_of_block<4, 8>(keys, values, 12, 8, count, count)),
              lines_of_block(12, 8, count))
        << count;
  }
}

TEST(Prefetch, DecodeFetchesAllLinesOfWhatIsRead) {
  const BlockRows<StridedRows<float>> rows{{float_at(kKeyBase), kRowLines * 16}, kHeadLines * 16};
  BlockAhead<float, StridedRows<float>, 4> ahead(DecodeProduct::scores, rows, rows, 16, true);
  ahead.begin(0);
  const auto count = [&](auto read) {
    Recorder::lines.clear();
    read();
    return Recorder::lines.size();
  };
  EXPECT_EQ(count([&] { ahead.read<Recorder, 1, 16>(0, 0); }), 1U);
  EXPECT_EQ(count([&] { ahead.read<Recorder, 1, 64>(0, 0); }), 1U);
  EXPECT_EQ(count([&] { ahead.read<Recorder, 1, 96>(0, 0); }), 2U);  // 48 columns of 16 bits
  EXPECT_EQ(count([&] { ahead.read<Recorder, 2, 128>(0, 0); }), 4U);
}

// A shorter block is fetched whole, and nothing behind it: some of its lines twice.
TEST(Prefetch, DecodeFetchesAShorterBlock) {
  const StridedRows<float> keys{float_at(kKeyBase), kRowLines * 16},
      values{float_at(kValueBase), kRowLines * 16};
  std::vector<int64_t> offsets(32);
  for (int i = 0; i < 32; ++i) offsets[static_cast<std::size_t>(i)] = i * kRowLines * 16;
  const ListedRows<float> listed_keys{float_at(kKeyBase), offsets.data()},
      listed_values{float_at(kValueBase), offsets.data()};
  for (int next = 1; next <= 32; ++next) {
    for (const int64_t key_lines : {8, 4}) {
      const auto expected = lines_of_block(key_lines, 8, next);
      for (auto lines :
           {fetched_of_block<4, 4>(keys, values, key_lines, 8, 32, next),
            fetched_of_block<4, 8>(keys, values, key_lines, 8, 32, next),
            fetched_of_block<4, 8>(listed_keys, listed_values, key_lines, 8, 32, next)}) {
        lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
        EXPECT_EQ(lines, expected) << next << " rows of " << key_lines << " and 8 lines";
      }
    }
  }
}

std::vector<int64_t> fetched_in_steps(StepPrefetch<Recorder> prefetch, int steps) {
  Recorder::lines.clear();
  Recorder::into_l1 = Recorder::into_l2 = 0;
  for (int i = 0; i < steps; ++i) prefetch.step();
  return Recorder::lines;
}

TEST(Prefetch, StepsShareTheLinesEvenly) {
  constexpr int64_t kRows = 6, kStride = 10;
  for (const bool into_l2 : {false, true}) {
    StepPrefetch<Recorder> prefetch(into_l2);
    prefetch.add(fetch_rows(at(1000), kStride * 64, kRow, kRows));
    prefetch.add({});  // nothing
    prefetch.add(fetch_rows(at(2000), kStride * 64, kRow, kRows));
    prefetch.spread(16);  // 8 turns of 24 lines each
    const auto lines = fetched_in_steps(prefetch, 100);
    EXPECT_EQ(into_l2 ? Recorder::into_l2 : Recorder::into_l1, lines.size());
    for (std::size_t turn = 0; turn * 3 < lines.size(); ++turn) {
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_EQ(lines[turn * 3 + i] / 1000, turn % 2 + 1) << "a stream after the other";
    }
    for (const int64_t first : {1000, 2000}) {
      std::vector<int64_t> stream;
      std::copy_if(lines.begin(), lines.end(), std::back_inserter(stream),
                   [&](int64_t line) { return line / 1000 == first / 1000; });
      EXPECT_EQ(stream, lines_of(first, kStride, kRows));
    }
  }
}

// The shares cover every line, in any number of steps, and hardly more.
TEST(Prefetch, StepsOfShares) {
  constexpr int64_t kRows = 5, kStride = 7, kParts = 3;
  for (const int steps : {1, 2, 3, 6, 100}) {
    std::vector<int64_t> lines;
    for (int64_t part = 0; part < kParts; ++part) {
      StepPrefetch<Recorder> prefetch(false);
      prefetch.add(fetch_rows(at(1000), kStride * 64, kRow, kRows), part, kParts);
      prefetch.spread(steps);
      const auto count =
          kRows * kLinesOfRow * (part + 1) / kParts - kRows * kLinesOfRow * part / kParts;
      const auto share = fetched_in_steps(prefetch, steps);
      ASSERT_GE(static_cast<int64_t>(share.size()), count) << steps;
      ASSERT_LT(static_cast<int64_t>(share.size()), count + (count + steps - 1) / steps) << steps;
      lines.insert(lines.end(), share.begin(), share.begin() + count);
    }
    EXPECT_EQ(lines, lines_of(1000, kStride, kRows)) << steps;
  }
}

// Records what each of a worker's tasks prefetches.
struct ShortRecorder : Scalar {
  static inline std::map<int64_t, int> near, far;  // lines, and how often
  static int64_t line(const void* p) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)) / 64;
  }
  static void prefetch(const void* p) { ++near[line(p)]; }
  static void prefetch_l2(const void* p) { ++far[line(p)]; }
  static int64_t times() {
    int64_t all = 0;
    for (const auto* lines : {&near, &far}) {
      for (const auto& [line, count] : *lines) all += count;
    }
    return all;
  }
};

struct ShortCall {
  // side_by_side: heads of a row lie beside each other; else each head's rows do.
  ShortCall(int64_t kv_heads, bool side_by_side, int64_t keys = 50) {
    problem.batch = kBatch;
    problem.seqlen_q = kQueries;
    problem.seqlen_k = keys;
    problem.num_heads = kHeads;
    problem.num_kv_heads = kv_heads;
    problem.head_dim = kDim;
    problem.head_dim_v = kDimV;
    problem.softmax_scale = 1;
    const auto spec = [&](int64_t rows, int64_t heads, int64_t dim) {
      return TensorSpec{DType::fp32, true,
                        side_by_side
                            ? std::array<int64_t, 4>{rows * heads * dim, heads * dim, dim, 1}
                            : std::array<int64_t, 4>{rows * heads * dim, dim, rows * dim, 1}};
    };
    problem.q = spec(kQueries, kHeads, kDim);
    problem.k = spec(keys, kv_heads, kDim);
    problem.v = spec(keys, kv_heads, kDimV);
    problem.out = spec(kQueries, kHeads, kDimV);
    const TensorSpec* const specs[] = {&problem.q, &problem.k, &problem.v, &problem.out};
    Tensor* const all[] = {&tensors.q, &tensors.k, &tensors.v, &tensors.out};
    for (int i = 0; i < 4; ++i) {
      bytes_of_batch[i] = specs[i]->strides[0] * 4;
      data[i].resize(static_cast<std::size_t>(kBatch * specs[i]->strides[0] + 16), 0.5F);
      all[i]->data =
          // NOLINTNEXTLINE
          reinterpret_cast<void*>(round_up(reinterpret_cast<intptr_t>(data[i].data()), 64));
    }
    call.problem = &problem;
    call.tensors = &tensors;
    call.band = {keys, problem.diagonal, problem.window_left, problem.window_right};
    scratch.resize(static_cast<std::size_t>(short_scratch(problem, Scalar::kLanes, 1).total));
  }
  void run(int64_t batch) {
    ShortRecorder::near.clear();
    ShortRecorder::far.clear();
    for (int64_t head = 0; head < kHeads; ++head) {
      // As the kernel's workers do.
      for (int64_t row = (kQueries - 1) / kBlockM * kBlockM; row >= 0; row -= kBlockM) {
        const int64_t end = row + kBlockM < kQueries ? row + kBlockM : kQueries;
        const PrefillRows next =
            row > 0 ? PrefillRows{batch, head, row - kBlockM, row}
                    : PrefillRows{batch, head + 1, (kQueries - 1) / kBlockM * kBlockM, kQueries};
        const PrefillRows task{batch, head, row, end, next.head < kHeads ? &next : nullptr};
        short_task<ShortRecorder, float>(call, task, scratch.data());
      }
    }
  }
  static constexpr int64_t kBatch = 3, kQueries = 100, kHeads = 6, kDim = 32, kDimV = 48;
  Problem problem;
  AttentionTensors tensors;
  ForwardCall call;
  int64_t bytes_of_batch[4];
  std::vector<float> data[4], scratch;
};

// While one batch element is computed, the whole of the next one is prefetched, into L2 or through
// L1, and little of it twice.
void expect_next_batch_fetched(ShortCall& call, bool into_l2) {
  call.call.fetch_batches = true;
  call.call.fetch_into_l2 = into_l2;
  call.run(0);
  const Tensor inputs[] = {call.tensors.q, call.tensors.k, call.tensors.v};
  int64_t lines = 0, missing = 0;
  for (int i = 0; i < 3; ++i) {
    for (int64_t byte = 0; byte < call.bytes_of_batch[i]; byte += 64, ++lines) {
      const char* p = static_cast<const char*>(inputs[i].data) + call.bytes_of_batch[i] + byte;
      if ((into_l2 ? ShortRecorder::far : ShortRecorder::near).count(ShortRecorder::line(p)) == 0)
        ++missing;
    }
  }
  EXPECT_EQ(missing, 0) << "of " << lines;
  // Its lines are fetched, too, before they are written.
  const int64_t output = call.bytes_of_batch[3] / 64;
  EXPECT_LE(ShortRecorder::times(),
            (lines + output) * (call.problem.group_size() == 1 ? 3 : 5) / 2);
  EXPECT_TRUE((into_l2 ? ShortRecorder::near : ShortRecorder::far).empty());

  call.run(ShortCall::kBatch - 1);  // there is none after the last one
  EXPECT_LE(ShortRecorder::times(), output * 9 / 8);
}

TEST(Prefetch, ShortSequencesFetchTheNextBatchElement) {
  for (const int64_t kv_heads : {6, 2, 1}) {
    for (const bool side_by_side : {true, false}) {
      for (const int64_t keys : {50, 100}) {
        SCOPED_TRACE(::testing::Message() << kv_heads << " KV heads, side by side: " << side_by_side
                                          << ", keys: " << keys);
        for (const bool into_l2 : {true, false}) {
          ShortCall call(kv_heads, side_by_side, keys);
          expect_next_batch_fetched(call, into_l2);
        }
      }
    }
  }
}

// One that all batch elements share is not fetched again.
TEST(Prefetch, ShortSequencesFetchNoSharedKeys) {
  ShortCall call(ShortCall::kHeads, true);
  call.call.fetch_batches = call.call.fetch_into_l2 = true;
  call.problem.k.strides[0] = call.problem.v.strides[0] = 0;
  call.run(0);
  EXPECT_LE(ShortRecorder::times(), (call.bytes_of_batch[0] + call.bytes_of_batch[3]) / 64 * 3 / 2);
}

// A bias of each batch element: the next head's is prefetched, or a share of the next element's
// where heads share it. A bias that all elements share is not prefetched.
TEST(Prefetch, ShortSequencesFetchTheNextBias) {
  constexpr int64_t kKeys = 50, kOfHead = ShortCall::kQueries * kKeys,
                    kOfBatch = kOfHead * ShortCall::kHeads;
  const std::vector<float> bias(static_cast<std::size_t>(ShortCall::kBatch * kOfBatch), 0.25F);
  const auto found = [&](int64_t batch_stride, int64_t head_stride, int64_t begin, int64_t count) {
    ShortCall call(ShortCall::kHeads, true, kKeys);
    call.call.fetch_batches = call.call.fetch_into_l2 = true;
    call.problem.bias = {DType::fp32, true, {batch_stride, head_stride, kKeys, 1}};
    call.tensors.bias.data = const_cast<float*>(bias.data());  // NOLINT
    call.run(1);
    int64_t fetched = 0;
    for (int64_t i = begin; i < begin + count; ++i)
      fetched += ShortRecorder::far.count(ShortRecorder::line(bias.data() + i)) > 0 ? 1 : 0;
    return fetched;
  };
  constexpr int64_t kOthers = kOfBatch - kOfHead;
  EXPECT_EQ(found(kOfBatch, kOfHead, kOfBatch + kOfHead, kOthers), kOthers);
  EXPECT_EQ(found(kOfHead, 0, 2 * kOfHead, kOfHead), kOfHead);
  EXPECT_EQ(found(0, kOfHead, 0, kOfBatch), 0);
}

// On other processors a task prefetches its own values and output, and the next one's queries and
// keys, into L1.
TEST(Prefetch, ShortSequencesFetchTheNextHead) {
  for (const bool side_by_side : {true, false}) {
    ShortCall call(ShortCall::kHeads, side_by_side);
    call.run(0);
    EXPECT_TRUE(ShortRecorder::far.empty());
    const Tensor inputs[] = {call.tensors.q, call.tensors.k, call.tensors.v, call.tensors.out};
    const int64_t rows[] = {ShortCall::kQueries, 50, 50, ShortCall::kQueries};
    for (int i = 0; i < 4; ++i) {
      const int64_t dim = i < 2 ? ShortCall::kDim : ShortCall::kDimV;
      const auto& strides = i == 0   ? call.problem.q.strides
                            : i == 1 ? call.problem.k.strides
                            : i == 2 ? call.problem.v.strides
                                     : call.problem.out.strides;
      int64_t missing = 0;
      // The first head's were there before.
      for (int64_t head = i < 2 ? 1 : 0; head < ShortCall::kHeads; ++head) {
        for (int64_t row = 0; row < rows[i]; ++row) {
          for (int64_t d = 0; d < dim; ++d) {
            const float* p = static_cast<const float*>(inputs[i].data) + row * strides[1] +
                             head * strides[2] + d;
            if (ShortRecorder::near.count(ShortRecorder::line(p)) == 0) ++missing;
          }
        }
      }
      EXPECT_EQ(missing, 0) << i << ' ' << side_by_side;
    }
  }
}

template <int kVectorLanes, int kMostVecs>
struct Blocks {
  static constexpr int kLanes = kVectorLanes, kPvVecs = kMostVecs;
};

// Stores past the caches write whole lines: 96 columns are two blocks of 48, which in 16 bits are
// 96 bytes.
TEST(Prefetch, PastTheCachesGoWholeLines) {
  using Avx512 = Blocks<16, 4>;
  for (const int64_t dim : {16, 32, 48, 64, 96, 128, 192, 256})
    EXPECT_TRUE(output_blocks_are_lines<Avx512>(dim, 4)) << dim;
  for (const int64_t dim : {32, 64, 128, 192, 256})
    EXPECT_TRUE(output_blocks_are_lines<Avx512>(dim, 2)) << dim;
  for (const int64_t dim : {16, 96, 160})
    EXPECT_FALSE(output_blocks_are_lines<Avx512>(dim, 2)) << dim;
  using Avx2 = Blocks<8, 3>;
  EXPECT_TRUE(output_blocks_are_lines<Avx2>(32, 4));  // 2 + 2 vectors of 32 bytes
  for (const int64_t dim : {64, 96, 128})
    EXPECT_FALSE(output_blocks_are_lines<Avx2>(dim, 4)) << dim;
}

}  // namespace
}  // namespace fulmen::cpu
