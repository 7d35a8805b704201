#include "gpu/usual_problems.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kDims[] = {64, 80, 96, 128, 256};

// As many heads as models have of that width, and the ways that heads share keys.
struct Heads {
  int64_t heads, kv_heads;
};
constexpr Heads kHeads[] = {{16, 16}, {32, 8}, {32, 4}};

void add_both_passes(std::vector<Problem>& list, const Problem& p) {
  list.push_back(p);
  list.push_back(backward_of(p));
  list.push_back(list.back());
  list.back().deterministic = false;
}

// Long sequences, short ones (fewer keys than a tile of the largest kind), and packed documents:
// forward and backward.
void add_prefill(std::vector<Problem>& list, DType dtype, int64_t dim, const Heads& heads) {
  for (const bool causal : {false, true}) {
    for (const int64_t length : {4096, 2048, 512, 256}) {
      add_both_passes(
          list,
          usual_problem(dtype, {4096 / length, length, length, heads.heads, heads.kv_heads, dim},
                        causal));
    }
    add_both_passes(list, packed(usual_problem(
                              dtype, {8, 2048, 2048, heads.heads, heads.kv_heads, dim}, causal)));
  }
}

// One query and a few, by one sequence whose keys are split and by many that are not; rows of a
// cache that sequences use in part; pages. Then chunks of queries behind cached keys.
void add_caches(std::vector<Problem>& list, DType dtype, int64_t dim, const Heads& heads) {
  for (const int64_t batch : {1, 8, 64, 256}) {
    for (const int64_t queries : {1, 4}) {
      Problem p;
      for (const int64_t keys : {256, 1024, 8192}) {
        p = usual_problem(dtype, {batch, queries, keys, heads.heads, heads.kv_heads, dim},
                          queries > 1);
        list.push_back(p);
      }
      list.push_back(p);
      list.back().seqlens_k = {DType::int32, true, {0, 0, 0, 1}};
      for (const int64_t page_size : {16, 64, 256}) list.push_back(paged(p, page_size));
    }
  }
  const Problem chunk =
      usual_problem(dtype, {8, 512, 8192, heads.heads, heads.kv_heads, dim}, true);
  list.push_back(chunk);
  for (const int64_t page_size : {16, 64, 256}) list.push_back(paged(chunk, page_size));
}

// lc0's boards, with a bias a head and without, and their training.
void add_boards(std::vector<Problem>& list, DType dtype) {
  for (const int64_t dim : {32, 64, 96, 128}) {
    for (const int64_t batch : {1, 64, 1024}) {
      const int64_t heads = 768 / dim;
      Problem board = usual_problem(dtype, {batch, 64, 64, heads, heads, dim}, false);
      add_both_passes(list, board);
      add_bias(board, dtype);
      add_both_passes(list, board);
      for (std::size_t n = list.size() - 2; n < list.size(); ++n) list[n].dbias = board.bias;
    }
  }
}

}  // namespace

std::vector<Problem> common_calls() {
  std::vector<Problem> list;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const int64_t dim : kDims) {
      for (const Heads& heads : kHeads) {
        add_prefill(list, dtype, dim, heads);
        add_caches(list, dtype, dim, heads);
      }
      // A padding mask, and an additive mask a head.
      Problem masked = usual_problem(dtype, {8, 512, 512, 12, 12, dim}, false);
      masked.keep_mask = {DType::boolean, true, {512, 0, 0, 1}};
      add_both_passes(list, masked);
      masked.keep_mask = {};
      add_bias(masked, dtype);
      list.push_back(masked);
    }
    add_boards(list, dtype);
  }
  return list;
}

}  // namespace fulmen::gpu
