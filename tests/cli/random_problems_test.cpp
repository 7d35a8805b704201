// `fulmen verify --random`: the problems that it draws, and the time that a small problem takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <random>
#include <set>

#include "program.h"
#include "support/random.h"
#include "tools/tensors/device_tensors.h"
#include "tools/verify/grid.h"
#include "tools/verify/verified_run.h"

namespace fulmen::test {
namespace {

auto threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

class RandomProblems : public ProgramTest {};

// A team of threads that waits for the next problem takes ten times as long as the problem does.
TEST_F(RandomProblems, OneThreadVerifiesWhereOneIsAskedFor) {
  const auto before = threads_of_this_process();
  if (before > 1)
    GTEST_SKIP() << "another test of this process has started threads: ctest runs this one alone";
  tools::NormalPool pool(testing::test_seed());
  int verified = 0;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const tools::GridCase& c :
         tools::verify_grid(tools::GridSize::emulated, DType::fp32, pass)) {
      const tools::GridData data = tools::make_grid_data(c, pool, 1);
      const Problem problem = tools::problem_of(c, data).value();
      const auto there = tools::DeviceTensors::make("cpu", data.tensors);
      const std::string kernel =
          pass == Pass::forward ? "cpu.standard.plain" : "cpu.reference.backward";
      EXPECT_TRUE(tools::run_and_verify(problem, data, *there.value(), "cpu", kernel, 1).report.ok)
          << to_string(c);
      ++verified;
    }
  }
  EXPECT_GT(verified, 20);
  EXPECT_EQ(threads_of_this_process(), before);
}

TEST_F(RandomProblems, AreSmallWithAShareOfLargeOnes) {
  constexpr int kDraws = 20000;
  for (const bool few_kernels : {false, true}) {
    std::mt19937_64 generator(testing::test_seed());
    int single_rows = 0, single_heads = 0, tiny_dims = 0, many_keys = 0, large_scores = 0,
        equal_keys = 0, split_windows = 0, quantized = 0, wide = 0;
    for (int n = 0; n < kDraws; ++n) {
      const tools::GridCase c =
          tools::random_case(generator, DType::bf16, Pass::forward, few_kernels);
      single_rows += c.seqlen_q == 1;
      single_heads += c.batch == 1 && c.heads == 1;
      tiny_dims += c.head_dim <= 4;
      many_keys += c.seqlen_k >= 1000;
      large_scores += c.large || c.q_size > 1;
      equal_keys += c.equal_keys;
      quantized += c.k_format || c.v_format;
      wide += c.head_dim > 90;
      split_windows += c.seqlen_k >= 1024 && c.feature == tools::Feature::window &&
                       c.window_left >= 128 && c.lse;
      EXPECT_LE(c.batch * c.heads * c.seqlen_q, 4 * 4 * 12);
    }
    for (const int often : {single_rows, tiny_dims, large_scores}) EXPECT_GT(often, kDraws / 5);
    EXPECT_GT(equal_keys, kDraws / 20);
    EXPECT_GT(quantized, kDraws / 50);
    EXPECT_TRUE(few_kernels || wide > kDraws / 100) << wide;
    EXPECT_GT(many_keys, kDraws / 2000);
    EXPECT_GT(split_windows, kDraws / 100) << "windows over keys that every family splits";
    EXPECT_GT(kDraws - single_heads, kDraws / 10) << "several heads and batches";
    if (few_kernels) {
      EXPECT_GT(single_heads, kDraws * 3 / 4) << "an emulated workgroup a head takes milliseconds";
    }
  }
}

// Every format is drawn, its problem is made, and a kernel that has it is right.
TEST_F(RandomProblems, HaveKeysAndValuesInEveryFormat) {
  std::mt19937_64 generator(testing::test_seed());
  tools::NormalPool pool(testing::test_seed());
  std::set<DType> of_k, of_v;
  int verified = 0;
  for (int n = 0; n < 20000 && (of_k.size() < 10 || of_v.size() < 10); ++n) {
    const tools::GridCase c = tools::random_case(generator, DType::fp32, Pass::forward, false);
    const bool is_new = (c.k_format && of_k.insert(*c.k_format).second) |
                        (c.v_format && of_v.insert(*c.v_format).second);
    if (!is_new) continue;
    const tools::GridData data = tools::make_grid_data(c, pool, 1);
    const Result<Problem> problem = tools::problem_of(c, data);
    ASSERT_TRUE(problem.ok()) << to_string(c) << ": " << problem.status().message();
    EXPECT_TRUE(problem->quantized_kv()) << to_string(c);
    const auto there = tools::DeviceTensors::make("cpu", data.tensors);
    const Result<Plan> chosen = plan(problem.value(), "cpu", data.options);
    ASSERT_TRUE(chosen.ok()) << to_string(c) << ": " << chosen.status().message();
    EXPECT_TRUE(tools::run_and_verify(problem.value(), data, *there.value(), "cpu",
                                      chosen->config().kernel, 1)
                    .report.ok)
        << to_string(c);
    ++verified;
  }
  EXPECT_EQ(of_k.size(), 10U);
  EXPECT_EQ(of_v.size(), 10U);
  EXPECT_GE(verified, 10);
}

TEST_F(RandomProblems, EachHasASeedOfItsOwn) {
  const Outcome outcome = fulmen({"verify", "--random", "40", "--seed", "7", "--device", "cpu"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("40 problems, "), std::string::npos) << outcome.out;
  EXPECT_EQ(
      fulmen({"verify", "--random", "40", "--seed", "7", "--device", "cpu", "--threads", "3"}).out,
      outcome.out)
      << "the same problems and results for any number of threads";
}

}  // namespace
}  // namespace fulmen::test
