#include "tools/selftest/problems.h"

namespace fulmen::tools {
namespace {

constexpr DType kF32 = DType::fp32, kF16 = DType::fp16, kB16 = DType::bf16;

GridCase problem(DType dtype, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                 int64_t kv_heads, int64_t head_dim, Feature feature,
                 Layout layout = Layout::bshd) {
  GridCase c;
  c.dtype = dtype;
  c.batch = batch;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = c.head_dim_v = head_dim;
  c.feature = feature;
  c.layout = layout;
  return c;
}

GridCase with(GridCase c, Sequences sequences, int64_t page_size = 0) {
  c.sequences = sequences;
  c.page_size = page_size;
  return c;
}

GridCase with_dropout(GridCase c, float probability) {
  c.dropout = probability;
  return c;
}

GridCase with_head_dim_v(GridCase c, int64_t head_dim_v) {
  c.head_dim_v = head_dim_v;
  return c;
}

GridCase with_large_inputs(GridCase c) {
  c.large = true;
  return c;
}

GridCase backward(GridCase c, float dropout = 0, int dbias_summed = 0) {
  c.pass = Pass::backward;
  c.dropout = dropout;
  c.dbias_summed = dbias_summed;
  c.dlse = dbias_summed == 0 && dropout > 0;
  return c;
}

// Self-attention of a prompt, every head dim and mask.
void add_prefill(std::vector<GridCase>& list) {
  using F = Feature;
  for (const GridCase& c :
       {problem(kB16, 1, 150, 150, 4, 4, 64, F::none),
        problem(kF16, 1, 150, 150, 4, 2, 64, F::causal),
        problem(kF32, 1, 150, 150, 4, 4, 64, F::causal),
        problem(kB16, 1, 200, 200, 4, 1, 128, F::causal),
        problem(kF16, 1, 70, 260, 2, 2, 128, F::none),
        problem(kB16, 1, 140, 140, 2, 2, 256, F::causal),
        problem(kF16, 1, 140, 200, 2, 1, 80, F::window),
        problem(kB16, 1, 140, 200, 2, 2, 96, F::top_left),
        problem(kF16, 2, 130, 130, 2, 2, 32, F::bias),
        problem(kB16, 2, 130, 150, 2, 2, 64, F::row_bias),
        problem(kB16, 1, 130, 150, 4, 2, 64, F::keep),
        problem(kF16, 1, 130, 150, 4, 4, 64, F::alibi),
        problem(kB16, 1, 130, 150, 4, 2, 64, F::sinks),
        problem(kF16, 1, 130, 150, 2, 2, 128, F::softcap),
        problem(kB16, 1, 130, 150, 4, 2, 64, F::all_at_once),
        problem(kF32, 1, 130, 150, 4, 2, 40, F::all_at_once),
        problem(kF16, 1, 133, 141, 2, 2, 59, F::causal, Layout::odd_strides),
        problem(kB16, 1, 150, 150, 3, 3, 64, F::none, Layout::packed_qkv),
        with_head_dim_v(problem(kF16, 1, 140, 140, 2, 2, 64, F::causal, Layout::bhsd), 32),
        with_large_inputs(problem(kB16, 1, 140, 140, 2, 2, 64, F::none)),
        with_large_inputs(problem(kF16, 1, 140, 140, 2, 2, 128, F::none)),
        with_dropout(problem(kB16, 1, 140, 140, 2, 2, 64, F::none), 0.1F)}) {
    list.push_back(c);
  }
}

// Few keys: boards of 64 squares, short sequences, the edges of lengths.
void add_short(std::vector<GridCase>& list) {
  using F = Feature;
  for (const GridCase& c :
       {problem(kF16, 3, 64, 64, 4, 4, 32, F::none), problem(kF16, 2, 64, 64, 4, 4, 32, F::bias),
        problem(kB16, 2, 64, 64, 2, 2, 64, F::none), problem(kB16, 2, 44, 44, 6, 6, 32, F::keep),
        problem(kF16, 2, 20, 100, 4, 2, 64, F::causal),
        problem(kB16, 2, 33, 128, 2, 2, 128, F::alibi), problem(kF32, 2, 64, 64, 2, 2, 32, F::bias),
        problem(kF16, 2, 1, 1, 2, 2, 64, F::none), problem(kB16, 2, 5, 0, 2, 2, 64, F::sinks)}) {
    list.push_back(c);
  }
}

// One new query or a few, keys enough to be split.
void add_decode(std::vector<GridCase>& list) {
  using F = Feature;
  for (const GridCase& c :
       {problem(kB16, 1, 1, 1100, 4, 1, 64, F::none), problem(kF16, 2, 1, 700, 8, 2, 128, F::none),
        problem(kB16, 1, 3, 1100, 2, 2, 128, F::causal),
        problem(kF16, 1, 1, 1100, 4, 1, 64, F::sinks), problem(kB16, 1, 1, 300, 2, 2, 256, F::none),
        problem(kF32, 1, 1, 1100, 4, 1, 64, F::none)}) {
    list.push_back(c);
  }
}

// Sequences of different lengths and pages.
void add_sequences(std::vector<GridCase>& list) {
  using F = Feature;
  list.push_back(with(problem(kB16, 4, 70, 150, 4, 2, 64, F::causal), Sequences::packed));
  list.push_back(with(problem(kF16, 4, 130, 64, 2, 2, 128, F::none), Sequences::packed));
  list.push_back(with(problem(kF16, 4, 1, 300, 4, 1, 64, F::none), Sequences::padded));
  list.push_back(with(problem(kB16, 3, 60, 200, 2, 2, 64, F::alibi), Sequences::padded));
  list.push_back(with(problem(kB16, 4, 1, 600, 4, 1, 64, F::none), Sequences::paged, 16));
  list.push_back(with(problem(kF16, 4, 1, 300, 4, 2, 128, F::none), Sequences::paged, 64));
  list.push_back(with(problem(kB16, 3, 50, 150, 2, 2, 64, F::causal), Sequences::paged, 7));
  list.push_back(with(problem(kF32, 3, 50, 150, 2, 2, 64, F::causal), Sequences::paged, 16));
}

void add_backward(std::vector<GridCase>& list) {
  using F = Feature;
  constexpr int kSumsAll = 4;
  for (const GridCase& c :
       {backward(problem(kB16, 1, 140, 140, 2, 2, 64, F::none)),
        backward(problem(kF16, 1, 140, 140, 4, 2, 64, F::causal)),
        backward(problem(kF32, 1, 100, 140, 2, 2, 64, F::causal)),
        backward(problem(kB16, 1, 140, 140, 2, 1, 128, F::causal)),
        backward(problem(kF16, 1, 100, 140, 2, 2, 128, F::window)),
        backward(problem(kB16, 1, 70, 140, 1, 1, 256, F::none)),
        backward(problem(kB16, 1, 140, 140, 2, 2, 64, F::none), 0.1F),
        backward(problem(kF16, 1, 100, 100, 4, 2, 64, F::keep), 0.1F),
        backward(problem(kF16, 2, 64, 64, 2, 2, 32, F::bias), 0, kSumsAll),
        backward(problem(kB16, 2, 64, 64, 2, 2, 32, F::none)),
        backward(problem(kF16, 2, 130, 130, 2, 2, 64, F::bias), 0, 1),
        backward(problem(kB16, 1, 100, 140, 2, 2, 64, F::alibi)),
        backward(problem(kF16, 1, 100, 140, 2, 2, 64, F::sinks)),
        backward(problem(kB16, 1, 100, 140, 2, 2, 80, F::softcap)),
        backward(problem(kB16, 1, 100, 140, 4, 2, 64, F::all_at_once)),
        backward(problem(kF32, 1, 100, 140, 2, 1, 40, F::all_at_once)),
        backward(problem(kF16, 1, 133, 141, 2, 2, 59, F::causal, Layout::odd_strides)),
        backward(with(problem(kB16, 4, 70, 150, 4, 2, 64, F::causal), Sequences::packed)),
        backward(with(problem(kF16, 3, 100, 70, 2, 2, 128, F::none), Sequences::packed))}) {
    list.push_back(c);
  }
}

}  // namespace

std::vector<GridCase> selftest_problems() {
  std::vector<GridCase> list;
  add_prefill(list);
  add_short(list);
  add_decode(list);
  add_sequences(list);
  add_backward(list);
  return list;
}

}  // namespace fulmen::tools
