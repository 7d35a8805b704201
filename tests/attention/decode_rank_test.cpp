// Which CPU kernel is taken: the ranks of docs/choosing.md, measured in docs/lab/cpu_decode.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "cpu/choice.h"
#include "cpu/families.h"
#include "cpu/isa/instruction_sets.h"
#include "support/attention_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

struct Rows {
  int64_t queries, group, keys;
  DType dtype = DType::bf16;
};

Problem problem_of(const Rows& rows) {
  CaseSpec spec;
  spec.dtype = rows.dtype;
  spec.batch = 1;
  spec.seqlen_q = rows.queries;
  spec.seqlen_k = rows.keys;
  spec.num_kv_heads = 2;
  spec.num_heads = 2 * rows.group;
  spec.head_dim = spec.head_dim_v = 128;
  Random random(8400);
  return Case(spec, random).problem();
}

// The rank of kernel cpu.<family>.<set>, whether or not this processor has the set; none where it
// was not compiled.
std::optional<double> rank(const Rows& rows, const std::string& name) {
  for (const auto& backend : backends()) {
    for (const Kernel* kernel : backend->kernels()) {
      if (kernel->name() == "cpu." + name) return kernel->rank(problem_of(rows));
    }
  }
  return std::nullopt;
}

TEST(DecodeRank, VectorsTakeGroupsOfHeads) {
  if (!rank({1, 1, 1}, "decode.avx512")) GTEST_SKIP() << "built without AVX-512";
  EXPECT_GT(rank({1, 8, 4096}, "decode.avx512"), rank({1, 8, 4096}, "prefill.avx512"));
  EXPECT_GT(rank({16, 4, 4096}, "decode.avx512"), rank({16, 4, 4096}, "prefill.avx512"));
  EXPECT_GT(rank({16, 4, 100}, "decode.avx512"), rank({16, 4, 100}, "short.avx512"));
  EXPECT_GT(rank({32, 1, 200}, "decode.avx512"), rank({32, 1, 200}, "prefill.avx512"));
  EXPECT_LT(rank({32, 1, 100}, "decode.avx512"), rank({32, 1, 100}, "short.avx512"));
  EXPECT_LT(rank({64, 1, 4096}, "decode.avx512"), rank({64, 1, 4096}, "prefill.avx512"));
}

TEST(DecodeRank, MatrixTilesComeBeforeVectors) {
  if (!rank({1, 1, 1}, "decode.amx")) GTEST_SKIP() << "built without AMX";
  EXPECT_LT(rank({16, 4, 100}, "decode.avx512"), rank({16, 4, 100}, "short.amx"));
  EXPECT_LT(rank({32, 1, 200}, "decode.avx512"), rank({32, 1, 200}, "prefill.amx"));
  EXPECT_LT(rank({64, 1, 300}, "decode.avx512"), rank({64, 1, 300}, "prefill.amx"));
  EXPECT_GT(rank({16, 4, 4096}, "decode.amx"), rank({16, 4, 4096}, "prefill.amx"));
}

// A problem by its sizes alone, which may be larger than memory.
Problem sized(int64_t queries, int64_t group, int64_t keys) {
  Problem p;
  p.dtype = p.k_dtype = p.v_dtype = DType::bf16;
  p.batch = 1;
  p.seqlen_q = queries;
  p.seqlen_k = keys;
  p.num_kv_heads = 2;
  p.num_heads = 2 * group;
  p.head_dim = p.head_dim_v = 128;
  return p;
}

// Decode's rank as docs/choosing.md says it.
double decode_rank_of_the_page(const cpu::InstructionSet& set, const Problem& p) {
  const int64_t group = p.num_heads / p.num_kv_heads, rows = group * p.seqlen_q;
  if (rows > 16 && p.seqlen_q > 8) {
    if (set.table->amx_tiles) return p.seqlen_k <= 8 * p.seqlen_q ? 9 : 30 + set.preference;
    if (group == 1 && (p.seqlen_k <= 128 || rows > 32)) return 9;
    return (p.seqlen_k <= 128 ? 20.5 : 10.5) + set.preference;
  }
  return (set.table->amx_tiles && rows <= 4 && p.bytes() > 64e6 ? 27.5 : 30) + set.preference;
}

TEST(CpuPreferences, AreThoseOfThePage) {
  for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
    for (const int64_t group : {1, 2, 4, 8, 16, 17, 64}) {
      for (const int64_t queries : {0, 1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64}) {
        for (const int64_t keys :
             {0, 1, 64, 72, 73, 127, 128, 129, 256, 257, 264, 512, 513, 4096, 1 << 20}) {
          const Problem p = sized(queries, group, keys);
          SCOPED_TRACE(std::string(set.table->name) + " " + to_string(p));
          EXPECT_EQ(cpu::rank("decode", set, p), decode_rank_of_the_page(set, p));
          EXPECT_EQ(cpu::rank("short", set, p), 20 + set.preference);
          EXPECT_EQ(cpu::rank("prefill", set, p), 10 + set.preference);
          EXPECT_EQ(cpu::rank("backward", set, p), 10 + set.preference);
        }
      }
    }
  }
}

TEST(CpuPreferences, AreWholeAndInOrder) {
  double last = std::numeric_limits<double>::infinity();
  Pass pass = Pass::forward;
  for (const cpu::Preference& row : cpu::preferences()) {
    const auto of_row = [&](const cpu::Family& family) { return family.name == row.family; };
    const auto families = cpu::families();
    const auto family = std::find_if(families.begin(), families.end(), of_row);
    ASSERT_NE(family, families.end()) << row.family;
    if (family->pass != pass) last = std::numeric_limits<double>::infinity();
    pass = family->pass;
    EXPECT_LT(row.rank, last) << row.family;
    last = row.rank;
  }
  for (const cpu::Family& family : cpu::families()) {
    EXPECT_GT(cpu::rank(family.name, cpu::instruction_sets().front(), Problem{}), 0) << family.name;
  }
}

TEST(CpuPreferences, CountMoreSharedRowsThanTheTypeHolds) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(cpu::shared_rows(sized(5, 3, 1)), 15);
  EXPECT_EQ(cpu::shared_rows(sized(kMost / 2, 3, 1)), kMost);
}

}  // namespace
}  // namespace fulmen::testing
