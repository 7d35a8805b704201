#include "tools/bench/cases.h"

#include <fmt/format.h>

namespace fulmen::tools {
namespace {

struct Prefill {
  int64_t tokens, width;  // batch = tokens / seqlen, heads = width / head_dim
  std::vector<int64_t> dims, seqlens;
  int64_t causal_from;  // the shortest seqlen that is also measured with a causal mask
  int64_t masked;       // the seqlen that is also measured with bool masks
};
struct Boards {
  std::vector<int64_t> batches;
  int64_t width;
  std::vector<int64_t> dims;
  int64_t masked;  // the batch of the first dim that is also measured with a bool mask
};
struct Decode {
  struct Cache {
    int64_t batch, length;
  };
  std::vector<Cache> caches;
  struct Rows {
    int64_t queries, heads;
  };
  std::vector<Rows> more_rows;  // over the first rows
  bool masked;                  // the case is also measured with padded keys
};

// A case with a bool mask beside the one without, or with a causal one.
BenchCase with_mask(BenchCase c, CaseMask mask) {
  c.causal = false;
  c.mask = mask;
  c.name = c.name.substr(0, c.name.rfind(" causal")) + " " + to_string(mask);
  return c;
}

// A model's width has as many heads as fill it, so that every length has the work of a real layer.
// [batch, seqlen, head, dim]. tokens 0: a batch of 1.
void add_prefill(std::vector<BenchCase>& cases, DType dtype, const Prefill& p, bool brief) {
  for (const int64_t dim : p.dims) {
    for (const bool causal : {false, true}) {
      for (const int64_t seqlen : p.seqlens) {
        if (causal && seqlen < p.causal_from) continue;
        if (brief && (dim != p.dims[p.dims.size() / 2] ||
                      seqlen != p.seqlens[p.seqlens.size() / 2] || causal))
          continue;
        const int64_t heads = p.width / dim;
        const int64_t batch = p.tokens == 0 ? 1 : p.tokens / seqlen;
        cases.push_back(
            {.suite = "prefill",
             .name = fmt::format("{}{}x{} S{}{}", batch == 1 ? "" : fmt::format("{} x ", batch),
                                 heads, dim, seqlen, causal ? " causal" : ""),
             .dtype = dtype,
             .batch = batch,
             .seqlen_q = seqlen,
             .seqlen_k = seqlen,
             .heads = heads,
             .kv_heads = heads,
             .head_dim = dim,
             .causal = causal});
        // What the causal mask says as a bool mask, beside it; and padding, as encoders have it.
        if (causal && seqlen == p.masked) {
          const BenchCase unmasked = cases.back();
          for (const CaseMask mask : {CaseMask::triangle, CaseMask::padding})
            cases.push_back(with_mask(unmasked, mask));
        }
      }
    }
  }
}

// Chess engines: 64 squares, interleaved [batch, 64, heads * dim]; the bias is one of each board
// and head.
void add_boards(std::vector<BenchCase>& cases, DType dtype, const Boards& boards, bool brief) {
  for (const int64_t dim : boards.dims) {
    for (const int64_t batch : boards.batches) {
      for (const bool bias : {false, true}) {
        if (brief && (dim != boards.dims[0] ||
                      batch != boards.batches[boards.batches.size() / 2 - 1] || bias))
          continue;
        const int64_t heads = boards.width / dim;
        cases.push_back(
            {.suite = "boards",
             .name = fmt::format("{} x {}x{}{}", batch, heads, dim, bias ? " bias" : ""),
             .dtype = dtype,
             .batch = batch,
             .seqlen_q = 64,
             .seqlen_k = 64,
             .heads = heads,
             .kv_heads = heads,
             .head_dim = dim,
             .bias = bias});
        if (!brief && !bias && dim == boards.dims[0] && batch == boards.masked) {
          cases.push_back(with_mask(BenchCase(cases.back()), CaseMask::triangle));
        }
      }
    }
  }
}

// One token of a language model with 32 query and 8 KV heads; the cache is
// [batch, head, seqlen, dim]. Then models with more query heads a KV head, and tokens that a
// smaller model has proposed.
void add_decode(std::vector<BenchCase>& cases, DType dtype, const Decode& decode, bool brief) {
  const auto add = [&](const Decode::Cache& cache, const Decode::Rows& rows,
                       const std::string& name) {
    cases.push_back({.suite = "decode",
                     .name = name,
                     .dtype = dtype,
                     .batch = cache.batch,
                     .seqlen_q = rows.queries,
                     .seqlen_k = cache.length,
                     .heads = rows.heads,
                     .kv_heads = 8,
                     .head_dim = 128,
                     .causal = rows.queries > 1});
  };
  for (const Decode::Cache& cache : decode.caches) {
    add(cache, {1, 32}, fmt::format("{} x kv {}", cache.batch, cache.length));
    if (brief) return;
    if (decode.masked && &cache == &decode.caches.front())
      cases.push_back(with_mask(BenchCase(cases.back()), CaseMask::padding));
  }
  const Decode::Cache& first = decode.caches.front();
  for (const Decode::Rows& rows : decode.more_rows) {
    add(first, rows,
        fmt::format("{} x kv {} {}/8{}", first.batch, first.length, rows.heads,
                    rows.queries > 1 ? fmt::format(" q{}", rows.queries) : ""));
  }
}

// The same over pages of several sizes, beside rows one after the other; the cache is
// [page, row, head, dim].
void add_paged(std::vector<BenchCase>& cases, DType dtype, const Decode::Cache& cache, bool brief) {
  for (const int64_t page_size : {0, 256, 64, 16}) {
    if (brief && page_size != 64) continue;
    cases.push_back({.suite = "paged",
                     .name = fmt::format("{} x kv {}{}", cache.batch, cache.length,
                                         page_size > 0 ? fmt::format(" p{}", page_size) : ""),
                     .dtype = dtype,
                     .batch = cache.batch,
                     .seqlen_q = 1,
                     .seqlen_k = cache.length,
                     .heads = 32,
                     .kv_heads = 8,
                     .head_dim = 128,
                     .page_size = page_size});
  }
}

// Forward and backward: layers of language models, and of a chess engine whose bias is learnt.
void add_training(std::vector<BenchCase>& cases, DType dtype, const Prefill& layers,
                  const Boards& boards, bool brief) {
  std::vector<BenchCase> more;
  add_prefill(more, dtype, layers, brief);
  const std::size_t first_board = more.size();
  add_boards(more, dtype, boards, brief);
  for (std::size_t i = 0; i < more.size(); ++i) {
    const bool board = i >= first_board;
    if (board && !brief && !more[i].bias) continue;
    if (board && brief) more[i].name += " bias";
    more[i].bias = board;
    more[i].suite = "training";
    more[i].training = true;
    cases.push_back(std::move(more[i]));
  }
}

struct Suites {
  Prefill prefill;
  Boards boards;
  Decode decode;
  Decode::Cache paged;
  Prefill training_layers;
  Boards training_boards;
};

Suites suites_of(CaseSize size) {
  switch (size) {
    case CaseSize::gpu:
      return {{16384, 2048, {64, 128, 256}, {512, 2048, 16384}, 0, 2048},
              {{1, 16, 64, 256, 1024}, 768, {32, 64, 96, 128}, 256},
              {{{16, 8192}, {64, 4096}, {1, 65536}, {1, 16384}}, {{1, 64}, {4, 32}}, true},
              {16, 8192},
              {16384, 2048, {64, 128, 256}, {512, 2048, 16384}, 0, 2048},
              {{1, 64, 256, 1024}, 768, {32, 64, 96, 128}, 0}};
    case CaseSize::emulated:
      return {{0, 128, {64, 128}, {150}, 0, 0}, {{2, 3}, 64, {32}, 0},
              {{{1, 300}}, {}, false},          {2, 300},
              {0, 128, {64, 128}, {150}, 0, 0}, {{2}, 64, {32}, 0}};
    default:
      return {{0, 1024, {64, 128}, {1024, 2048, 4096}, 2048, 2048},
              {{1, 64, 256, 1024}, 768, {32, 64, 96, 128}, 256},
              {{{1, 16384}, {4, 16384}, {16, 16384}, {1, 65536}, {4, 65536}, {16, 65536}},
               {{1, 64}, {4, 32}, {8, 32}},
               true},
              {4, 16384},
              {0, 1024, {64, 128, 256}, {512, 2048}, 0, 512},
              {{1, 64, 256, 1024}, 768, {32, 64, 96, 128}, 0}};
  }
}

}  // namespace

std::vector<BenchCase> bench_cases(const std::string& suite, DType dtype, CaseSize size,
                                   bool brief) {
  std::vector<BenchCase> cases;
  const bool all = suite == "all";
  const Suites suites = suites_of(size);
  if (all || suite == "prefill") add_prefill(cases, dtype, suites.prefill, brief);
  if (all || suite == "boards") add_boards(cases, dtype, suites.boards, brief);
  if (all || suite == "decode") add_decode(cases, dtype, suites.decode, brief);
  if (suite == "paged" || (all && !brief)) add_paged(cases, dtype, suites.paged, brief || all);
  // Training takes the longest for what it adds: it has two rows, and none for a dtype that has few
  // rows of the other suites.
  if (suite == "training" || (all && !brief)) {
    add_training(cases, dtype, suites.training_layers, suites.training_boards, brief || all);
  }
  return cases;
}

}  // namespace fulmen::tools
