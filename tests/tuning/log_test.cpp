// Problems from the lines of FLASH_ATTENTION_DEBUG=1.
#include "tools/tune/log.h"

#include <gtest/gtest.h>

#include "fulmen/fulmen.h"
#include "tools/bench/case_data.h"

namespace fulmen::tools {
namespace {

// What the library itself prints for a problem.
std::string line_of(const BenchCase& bench_case, Pass pass) {
  NormalPool pool = NormalPool::without_values();
  const auto data = make_case_data(bench_case, pool, {}, std::size_t{1} << 30);
  EXPECT_TRUE(data.ok()) << data.status().message();
  const Problem& problem = pass == Pass::forward ? data.value()->problem : *data.value()->backward;
  return "fulmen: cpu.prefill.avx2 block_m=64 on cpu for " + to_string(problem) +
         ": the highest rank, 11; with block_n=64 (default)\n";
}

TEST(TuneLog, ReadsWhatThePlansPrint) {
  const auto all = tune_problems("all", DType::bf16, CaseSize::emulated, true);
  ASSERT_TRUE(all.ok());
  for (const TuneProblem& problem : all.value()) {
    const BenchCase& c = problem.bench_case;
    const Result<LogProblems> found = problems_of_log(line_of(c, problem.pass), "log");
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_EQ(found->problems.size(), 1U);
    EXPECT_TRUE(found->left_out.empty()) << found->left_out.front();
    const BenchCase& read = found->problems[0].bench_case;
    EXPECT_EQ(found->problems[0].pass, problem.pass);
    EXPECT_EQ(read.name, tune_problem_name(c, problem.pass));
    EXPECT_EQ(read.training, c.training);
  }
  BenchCase paged{.suite = "paged",
                  .name = {},
                  .dtype = DType::fp16,
                  .batch = 3,
                  .seqlen_q = 1,
                  .seqlen_k = 100,
                  .heads = 4};
  paged.kv_heads = 2;
  paged.head_dim = 32;
  paged.page_size = 16;
  const Result<LogProblems> found = problems_of_log(line_of(paged, Pass::forward), "log");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->problems[0].bench_case.page_size, 16);
  EXPECT_EQ(found->problems[0].bench_case.suite, "paged");
}

TEST(TuneLog, TakesAProblemOnceAndPassesOverOtherLines) {
  const std::string line =
      "fulmen: k on cuda:0 for bf16 b=1 sq=64 sk=64 h=2/1 d=32 scale=0.1768 window=-1,0 "
      "diagonal=0: forced by name\n";
  const Result<LogProblems> found =
      problems_of_log("starting b=3\n" + line + "loss 0.3\n" + line + "no end", "log");
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->problems.size(), 1U);
  EXPECT_EQ(found->problems[0].bench_case.name, "bf16 1 x 2/1 x 32 q64 causal");
  EXPECT_TRUE(found->left_out.empty());
}

TEST(TuneLog, NamesLinesThatItLeavesOut) {
  const std::string good = "for bf16 b=1 sq=64 sk=64 h=2/2 d=32: forced\n";
  const auto left_out = [&](const std::string& problem) {
    const Result<LogProblems> found = problems_of_log(good + "for " + problem + ": forced", "log");
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() && found->left_out.size() == 1 ? found->left_out[0] : "";
  };
  EXPECT_EQ(left_out("bf16 b=1 sq=x sk=64 h=2/2 d=32"),
            "line 2: left out: sq is \"x\": a number from 1 on is expected");
  EXPECT_EQ(left_out("bf16 b=1 sq=0 sk=64 h=2/2 d=32"),
            "line 2: left out: sq is \"0\": a number from 1 on is expected");
  EXPECT_NE(left_out("bf16 b=1 sq=8 sk=64 h=3/2 d=32").find("h is \"3/2\""), std::string::npos);
  EXPECT_NE(left_out("bf16 b=1 sq=8 sk=8 d=32").find("one of b, sq, sk, h and d is not there"),
            std::string::npos);
  EXPECT_NE(left_out("fp64 b=1 sq=8 sk=64 h=2/2 d=32").find("a dtype is expected"),
            std::string::npos);
  EXPECT_NE(left_out("bf16 b=1 sq=8 sk=64 h=2/2 d=32/64").find("its head_dim_v is another one"),
            std::string::npos);
  EXPECT_NE(left_out("bf16 b=1 sq=8 sk=64 h=2/2 d=32 softcap=30").find("it has softcap"),
            std::string::npos);
  EXPECT_NE(left_out("bf16 b=1 sq=8 sk=64 h=2/2 d=32 window=64,0 diagonal=56")
                .find("it has a window of 64,0"),
            std::string::npos);
  EXPECT_NE(left_out("bf16 b=1 sq=8 sk=64 h=2/2 d=32 window=-1,0 diagonal=0").find("top-left"),
            std::string::npos);
  EXPECT_NE(left_out("backward bf16 b=1 sq=8 sk=8 h=2/2 d=32 gives dq")
                .find("without one of dq, dk and dv"),
            std::string::npos);
  EXPECT_NE(left_out("bf16 b=1 sq=8 sk=8 h=2/2 d=32 colour=red").find("colour is not known"),
            std::string::npos);
  const Result<LogProblems> none = problems_of_log("hello\n", "my.log");
  EXPECT_EQ(none.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(none.status().message(),
            "--from-log my.log: no problem of it can be tuned: a line a plan is expected, which "
            "programs print under "
            "FLASH_ATTENTION_DEBUG=1");
}

}  // namespace
}  // namespace fulmen::tools
