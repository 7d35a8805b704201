// How many different kernels the calls of FlashAttention's own tests take, counted without a GPU:
// what a process that meets all of them compiles. docs/lab/kernel_count.md says what each compiled
// value costs.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpu/launch/specialisation.h"
#include "gpu/shipped.h"
#include "gpu/usual_problems.h"

namespace fulmen::gpu {
namespace {

using Lengths = std::vector<std::pair<int64_t, int64_t>>;

// The parameters of its test_flash_attn.py.
const std::vector<int64_t> kDims{32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256};
const std::vector<int64_t> kOutputDims{32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256};
const std::vector<int64_t> kCacheDims{32, 59, 64, 80, 128, 256};
const std::vector<int64_t> kSelf{97, 128, 200, 384, 768, 1024, 1025, 2048};
const std::vector<int64_t> kPackedSelf{97, 128, 200, 257, 384, 512, 768, 1025, 2048};
const Lengths kCross{{113, 203}, {128, 217},   {113, 211},   {108, 256},   {256, 512},
                     {512, 256}, {1024, 1024}, {1023, 1024}, {1024, 1023}, {2048, 2048}};
const Lengths kCache{{1, 128},   {1, 339},    {3, 1024},   {64, 800},    {64, 256}, {3, 799},
                     {64, 2048}, {16, 20000}, {1, 131072}, {16, 131072}, {128, 128}};

struct Scores {
  bool alibi, local, causal;
};

class Grid {
 public:
  explicit Grid(const char* arch) { found_ = find_chip(arch, storage_, chip_); }

  std::size_t kernels() {
    EXPECT_TRUE(found_);
    for (const bool alibi : {false, true}) {
      for (const bool local : {false, true}) {
        for (const bool causal : {false, true}) {
          for (const DType dtype : {DType::fp16, DType::bf16}) {
            for (const bool dropout : {false, true}) add(dtype, {alibi, local, causal}, dropout);
          }
          add_cache({alibi, local, causal});
        }
      }
    }
    std::set<std::string> seen;
    for (const Specialisation& s : kernels_of(problems_, chip_))
      seen.insert(std::string(s.entry) + prelude(s));
    return seen.size();
  }

 private:
  static Problem with(Problem p, const Scores& scores, bool dropout, float softcap = 0) {
    if (scores.local) {
      p.window_left = p.seqlen_k / 3;
      p.window_right = scores.causal ? 0 : p.seqlen_k / 4;
    }
    if (scores.alibi) p.alibi_slopes = {DType::fp32, true, {p.num_heads, 0, 0, 1}};
    if (dropout) p.dropout = 11141;  // of 65536: 0.17
    p.softcap = softcap;
    return p;
  }
  void both_passes(const Problem& p) {
    problems_.push_back(p);
    problems_.push_back(backward_of(p));
  }
  void add(DType dtype, const Scores& scores, bool dropout) {
    for (const int64_t dim : kDims) {
      for (const int64_t s : kSelf)
        both_passes(
            with(usual_problem(dtype, {4, s, s, 9, 9, dim}, scores.causal), scores, dropout));
      for (const int64_t s : kPackedSelf)
        both_passes(with(packed(usual_problem(dtype, {5, s, s, 6, 6, dim}, scores.causal)), scores,
                         dropout));
    }
    for (const float softcap : {0.F, 50.F}) {
      if (dropout && softcap > 0) continue;
      const int64_t heads = softcap > 0 ? 4 : 6;
      for (const int64_t kv_heads : {heads, int64_t{1}, int64_t{2}}) {
        for (const int64_t dim : kOutputDims) {
          for (const auto& [q, k] : kCross) {
            const Problem p = usual_problem(dtype, {4, q, k, heads, kv_heads, dim}, scores.causal);
            both_passes(with(p, scores, dropout, softcap));
            both_passes(with(packed(p), scores, dropout, softcap));
          }
        }
      }
    }
  }
  void add_cache(const Scores& scores) {
    for (const int64_t kv_heads : {6, 1, 3}) {
      for (const int64_t dim : kCacheDims) {
        for (const auto& [q, k] : kCache) {
          const Problem p = usual_problem(DType::fp16, {2, q, k, 6, kv_heads, dim}, scores.causal);
          problems_.push_back(with(p, scores, false));
          problems_.push_back(with(paged(p, 256), scores, false));
        }
      }
    }
  }

  std::string storage_;
  Chip chip_{};
  bool found_ = false;
  std::vector<Problem> problems_;
};

// More of them are more to wait for: a number grows here where somebody means it to.
TEST(FlashAttentionGrid, TakesSoManyKernels) {
  const std::size_t cdna3 = Grid("gfx942").kernels(), hopper = Grid("sm_90a").kernels();
  EXPECT_GT(cdna3, 1000U) << "the grid is there";
  EXPECT_LE(cdna3, 2206U);
  EXPECT_GT(hopper, 1000U);
  EXPECT_LE(hopper, 3535U);
}

}  // namespace
}  // namespace fulmen::gpu
