// Which kernel is chosen for a problem with several query rows a KV head, as measured
// (docs/lab/cpu_decode.md).
#include <gtest/gtest.h>

#include <optional>
#include <string>

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

}  // namespace
}  // namespace fulmen::testing
