// What decode's products prefetch of the next block while they read this one, by an instruction set
// that records the addresses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/decode/vector.h"
#include "cpu/isa/scalar.h"

namespace fulmen::cpu {
namespace {

struct DecodeRecorder : Scalar {
  static inline std::vector<int64_t> near, far;  // lines
  static int64_t line(const void* p) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)) / 64;
  }
  static void prefetch(const void* p) { near.push_back(line(p)); }
  static void prefetch_l2(const void* p) { far.push_back(line(p)); }
};

// One sequence of kKeys keys, [keys][KV heads][dim], as one split of all KV heads; pages of kPage
// rows, in another order, if paged.
template <class T>
struct DecodeCall {
  static constexpr int kKeys = 71, kKvHeads = 2, kBlock = 16, kPage = 8, kPages = 9;

  DecodeCall(int64_t dim, int64_t dim_v, int64_t group, bool paged) {
    problem.batch = problem.seqlen_q = 1;
    problem.seqlen_k = kKeys;
    problem.num_heads = group * kKvHeads;
    problem.num_kv_heads = kKvHeads;
    problem.head_dim = dim;
    problem.head_dim_v = dim_v;
    problem.softmax_scale = 1;
    problem.dtype = problem.k_dtype = problem.v_dtype = sizeof(T) == 4 ? DType::fp32 : DType::fp16;
    const auto spec = [&](int64_t rows, int64_t heads, int64_t width) {
      return TensorSpec{problem.dtype, true, {rows * heads * width, heads * width, width, 1}};
    };
    problem.q = spec(1, problem.num_heads, dim);
    problem.k = spec(kPage, kKvHeads, dim);
    problem.v = spec(kPage, kKvHeads, dim_v);
    problem.keep_mask = {DType::fp32, false, {0, 0, 0, 1}};
    const int64_t sizes[] = {problem.num_heads * dim, kPages * kPage * kKvHeads * dim,
                             kPages * kPage * kKvHeads * dim_v};
    Tensor* const all[] = {&tensors.q, &tensors.k, &tensors.v};
    for (int i = 0; i < 3; ++i) {
      data[i].resize(static_cast<std::size_t>(sizes[i]) * sizeof(T) + 64);
      all[i]->data =
          // NOLINTNEXTLINE
          reinterpret_cast<void*>(round_up(reinterpret_cast<intptr_t>(data[i].data()), 64));
    }
    if (paged) {
      pages = {4, 0, 7, 2, 8, 1, 6, 3, 5};
      call.pages = {pages.data(), kPage, 0};
    } else {
      problem.k.strides[0] = problem.v.strides[0] = 0;
    }
    call.problem = &problem;
    call.tensors = &tensors;
    call.band = {kKeys, kKeys - 1, -1, -1};
    call.block_bytes = 1;  // blocks of the fewest keys
    call.block_multiple = kBlock;
    call.heads_per_task = kKvHeads;
    call.split_keys = kKeys;
  }
  void run() {
    const DecodeScratch layout =
        decode_scratch(call, DecodeRecorder::kLanes, DecodeRecorder::kGroup);
    ASSERT_EQ(layout.block_keys, kBlock);
    call.partial_stride = layout.partial;
    std::vector<float> scratch(static_cast<std::size_t>(layout.total)),
        partial(static_cast<std::size_t>(layout.partial));
    DecodeTask task;
    task.kv_heads = kKvHeads;
    task.partials = partial.data();
    DecodeRecorder::near.clear();
    DecodeRecorder::far.clear();
    decode_task<DecodeRecorder, T>(call, task, scratch.data());
  }
  // Lines of all heads of a key's row of K or V.
  std::vector<int64_t> lines_of_row(const Tensor& tensor, const TensorSpec& spec, int key) const {
    const int row =
        pages.empty() ? key : pages[static_cast<std::size_t>(key / kPage)] * kPage + key % kPage;
    const auto first =
        reinterpret_cast<intptr_t>(element<const T>(tensor, spec, 0, 0, 0) + row * spec.strides[1]);
    std::vector<int64_t> lines;
    for (int64_t line = first / 64;
         line * 64 < first + spec.strides[1] * static_cast<int64_t>(sizeof(T)); ++line)
      lines.push_back(line);
    return lines;
  }
  // Lines of the keys behind the first block, which no other fetches, that were not fetched.
  int64_t missing() const {
    std::vector<int64_t> fetched = DecodeRecorder::far;
    std::sort(fetched.begin(), fetched.end());
    int64_t count = 0;
    for (int key = kBlock; key < kKeys; ++key) {
      for (const auto& lines :
           {lines_of_row(tensors.k, problem.k, key), lines_of_row(tensors.v, problem.v, key)}) {
        count += std::count_if(lines.begin(), lines.end(), [&](int64_t line) {
          return !std::binary_search(fetched.begin(), fetched.end(), line);
        });
      }
    }
    return count;
  }
  bool is_key(int64_t line) const {
    const auto first = reinterpret_cast<intptr_t>(tensors.k.data) / 64;
    return line >= first && line < first + static_cast<int64_t>(data[1].size() / 64);
  }

  Problem problem;
  AttentionTensors tensors;
  ForwardCall call;
  std::vector<int> pages;
  std::vector<char> data[3];
  std::vector<uint8_t> keep;
};

template <class T>
void expect_every_block_fetched() {
  for (const int64_t dim : {8, 32, 40, 48, 64, 96, 112, 128}) {
    for (const int64_t dim_v : {dim, int64_t{48}, int64_t{64}}) {
      for (const int64_t group : {1, 4, 8}) {
        for (const bool paged : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "head_dim " << dim << " and " << dim_v << ", group "
                                            << group << ", paged " << paged);
          DecodeCall<T> call(dim, dim_v, group, paged);
          call.run();
          EXPECT_EQ(call.missing(), 0);
          EXPECT_TRUE(DecodeRecorder::near.empty());
        }
      }
    }
  }
}

TEST(DecodePrefetch, EveryBlockButTheFirstIsFetched) {
  expect_every_block_fetched<float>();
  expect_every_block_fetched<Fp16>();
}

// Both products alternate between two rows of keys and two of values.
TEST(DecodePrefetch, FourStreams) {
  DecodeCall<float> call(64, 64, 4, false);
  call.run();
  const auto& lines = DecodeRecorder::far;
  const auto of_block = static_cast<std::size_t>(2 * DecodeCall<float>::kBlock *
                                                 DecodeCall<float>::kKvHeads * 64 * 4 / 64);
  ASSERT_GE(lines.size(), of_block);
  for (std::size_t i = 0; i < of_block; i += 4) {
    std::vector<int64_t> turn(lines.begin() + static_cast<std::ptrdiff_t>(i),
                              lines.begin() + static_cast<std::ptrdiff_t>(i) + 4);
    EXPECT_EQ(
        std::count_if(turn.begin(), turn.end(), [&](int64_t line) { return call.is_key(line); }), 2)
        << i;
    std::sort(turn.begin(), turn.end());
    EXPECT_EQ(std::unique(turn.begin(), turn.end()), turn.end()) << i;
  }
}

// The second product skips keys that no row attends, and with them the rows that they would have
// prefetched.
TEST(DecodePrefetch, MaskedKeysLeaveOutTheirOwnRowsOnly) {
  DecodeCall<float> call(64, 64, 4, false);
  call.keep.assign(DecodeCall<float>::kKeys, 1);
  for (std::size_t key = 3; key < call.keep.size(); key += 8) call.keep[key] = 0;
  call.problem.keep_mask.present = true;
  call.tensors.keep_mask.data = call.keep.data();
  call.run();
  const int64_t row = DecodeCall<float>::kKvHeads * 64 * 4 / 64;
  EXPECT_LE(call.missing(), std::count(call.keep.begin(), call.keep.end(), 0) * row);
}

}  // namespace
}  // namespace fulmen::cpu
