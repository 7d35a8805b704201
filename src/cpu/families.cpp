#include "cpu/families.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>

#include "cpu/decode/call.h"

namespace fulmen::cpu {
namespace {

Support any_problem(const Problem& /*problem*/) { return {}; }

template <int kRank>
double usual_rank(const InstructionSet& isa, const Problem& /*problem*/) {
  return kRank + static_cast<double>(isa.preference);
}

// One score row holds them.
Support takes_short(const Problem& problem) {
  constexpr int64_t kShortKeys = 128;
  if (problem.seqlen_k <= kShortKeys) return {};
  return Support::no("seqlen_k is " + std::to_string(problem.seqlen_k) + ", at most " + std::to_string(kShortKeys) +
                     " fit one score row");
}

// Query rows that share a KV head; the most of the type where they are more than it holds.
int64_t shared_rows(const Problem& problem) {
  int64_t rows = 0;
  return __builtin_mul_overflow(problem.group_size(), problem.seqlen_q, &rows) ? std::numeric_limits<int64_t>::max() : rows;
}

Support takes_decode(const Problem& problem) {
  const int64_t rows = shared_rows(problem);
  if (rows <= kMaxDecodeRows) return {};
  return Support::no(std::to_string(rows) + " query rows share a KV head (seqlen_q x num_heads / num_kv_heads), at most " +
                     std::to_string(kMaxDecodeRows) + " are served");
}

// Decode reads K and V once, at the speed of memory. Many queries of a head fill the tiles of prefill and short, whose arithmetic
// is faster: as measured (docs/lab/cpu_decode.md, "Many rows a KV head").
double decode_rank(const InstructionSet& isa, const Problem& problem) {
  constexpr double kBelowPrefill = 9;
  constexpr double kAbovePrefill = 10.5, kAboveShort = 20.5;  // of the same instruction set, below matrix tiles'
  constexpr int kTileRows = 16, kHalfTile = 32;
  constexpr int64_t kFewQueries = 8;
  constexpr double kCachedBytes = 64e6;
  const double usual = usual_rank<30>(isa, problem);
  const int64_t rows = shared_rows(problem);
  const bool tiles = isa.table->amx_tiles;
  // Vectors read keys and values once for each query head; matrix tiles are faster than vectors all the same.
  if (rows > kTileRows && problem.seqlen_q > kFewQueries) {
    if (tiles && problem.seqlen_k <= kFewQueries * problem.seqlen_q) return kBelowPrefill;
    if (!tiles && problem.group_size() == 1 && (problem.seqlen_k <= kMaxBlockN || rows > kHalfTile)) return kBelowPrefill;
    if (!tiles) return (problem.seqlen_k <= kMaxBlockN ? kAboveShort : kAbovePrefill) + isa.preference;
  }
  // One quad of rows and keys that come from memory: products in vectors hide behind it, and read it more evenly.
  return tiles && rows <= 4 && problem.bytes() > kCachedBytes ? usual - 2.5 : usual;
}

constexpr Family kFamilies[]{
    {.name = "prefill",
     .pass = Pass::forward,
     .dropout = true,
     .variable_lengths = true,
     .paged = true,
     .out_over_q = true,
     .serves = [](const IsaTable& table, int dtype) { return table.prefill_task[dtype] != nullptr; },
     .takes = any_problem,
     .rank = usual_rank<10>,
     .make = make_prefill_kernel},
    {.name = "short",
     .pass = Pass::forward,
     .dropout = false,
     .variable_lengths = true,
     .paged = false,
     .out_over_q = true,
     .serves = [](const IsaTable& table, int dtype) { return table.short_task[dtype] != nullptr; },
     .takes = takes_short,
     .rank = usual_rank<20>,
     .make = make_short_kernel},
    {.name = "decode",
     .pass = Pass::forward,
     .dropout = false,
     .variable_lengths = true,
     .paged = true,
     .out_over_q = true,
     .serves = [](const IsaTable& table, int dtype) { return table.decode_task[dtype] != nullptr; },
     .takes = takes_decode,
     .rank = decode_rank,
     .make = make_decode_kernel},
    {.name = "backward",
     .pass = Pass::backward,
     .dropout = true,
     .variable_lengths = true,
     .paged = false,
     .out_over_q = false,
     .serves = [](const IsaTable& table, int dtype) { return table.backward[dtype] != nullptr; },
     .takes = any_problem,
     .rank = usual_rank<10>,
     .make = make_backward_kernel},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

std::unique_ptr<const Kernel> make_kernel(std::string_view name, const InstructionSet& isa) {
  const Family& family = *std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return f.name == name; });
  return family.make(family, isa);
}

FamilyKernel::FamilyKernel(const Family& family, const InstructionSet& isa)
    : family_(family), isa_(isa), name_(std::string("cpu.") + family.name + "." + isa.table->name) {}

Support FamilyKernel::supports(const Problem& problem, const std::string& /*device*/) const {
  if (Support support = family_.takes(problem); !support.yes) return support;
  if (!family_.serves(*isa_.table, static_cast<int>(problem.dtype))) {
    return Support::no(std::string("not built for dtype ") + to_string(problem.dtype));
  }
  return isa_.available ? Support{} : Support::no("this processor lacks " + std::string(isa_.missing));
}

}  // namespace fulmen::cpu
