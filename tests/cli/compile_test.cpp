// fulmen compile and fulmen cache.
#include "fulmen/compile.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "program.h"
#include "tools/compile/sparse_progress.h"

namespace fulmen::test {
namespace {

class CompileTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    ::setenv("FULMEN_CACHE_DIR", path("cache").c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("FULMEN_CACHE_DIR");
    ProgramTest::TearDown();
  }
};

// A board of 64 x 64 with 32 dims: 16 x 4 products of q and k, and as many of the probabilities and
// v.
TEST_F(CompileTest, CountsWhatMachineCodeExecutes) {
  const Outcome counted =
      fulmen({"counts", "--arch", "gfx1100", "--family", "short", "--json", "counts.json"});
  if (counted.exit_code == 2) GTEST_SKIP() << counted.err;  // no clang, or no disassembler
  ASSERT_EQ(counted.exit_code, 0) << counted.err;
  const auto rows = nlohmann::json::parse(read_text(path("counts.json")));
  ASSERT_EQ(rows.size(), 3U) << counted.out;
  for (const auto& row : rows) {
    const std::string kernel = row["kernel"].get<std::string>();
    EXPECT_NE(counted.out.find(kernel), std::string::npos);
    EXPECT_TRUE(kernel.starts_with("short ")) << kernel;
    const int dim = kernel.find(" d32 ") != std::string::npos   ? 32
                    : kernel.find(" d64 ") != std::string::npos ? 64
                                                                : 128;
    EXPECT_EQ(row["matrix"].get<int>(), 2 * 4 * 4 * dim / 16) << kernel;
    for (const char* count : {"vector", "transcendental", "scalar", "global", "waits"})
      EXPECT_GT(row[count].get<int>(), 0) << row;
    EXPECT_EQ(row["scratch"].get<int>(), 0) << kernel;
    EXPECT_EQ(row["launch"].get<int>(), 0) << kernel;
    EXPECT_TRUE(row["problem"].get<std::string>().starts_with("fp16 b=1 sq=64 sk=64")) << row;
  }
  EXPECT_EQ(fulmen({"counts", "--arch", "sm_80"}).exit_code, 2);
  const Outcome none = fulmen({"counts", "--arch", "gfx1100", "--family", "long"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("--family long: prefill, prefill_fp32, short"), std::string::npos)
      << none.err;
}

TEST_F(CompileTest, ReportsListsAndClears) {
  const Outcome first = fulmen({"compile", "--arch", "gfx1100", "--only", "bf16 prefill d64",
                                "--report", "--json", "report.json", "--out", "prebuilt"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  std::istringstream progress(first.err);  // a line every ten seconds
  for (std::string line; std::getline(progress, line);) {
    EXPECT_TRUE(line.starts_with("fulmen: gfx1100: ") &&
                line.find(" kernels, ") != std::string::npos)
        << line;
  }
  EXPECT_NE(first.out.find("prefill gfx11 bf16 d64"), std::string::npos) << first.out;
  std::istringstream head(first.out);
  for (const char* column : {"arch", "kernel", "regs", "acc", "LDS", "spills", "scratch", "waves",
                             "bytes", "|", "matrix", "VALU", "trans", "LDS", "mem", "VALU/512m"}) {
    std::string word;
    head >> word;
    EXPECT_EQ(word, column);
  }
  const auto rows = nlohmann::json::parse(read_text(path("report.json")));
  ASSERT_GT(rows.size(), 3U);
  for (const auto& row : rows) {
    EXPECT_EQ(row["arch"], "gfx1100");
    EXPECT_TRUE(row["kernel"].get<std::string>().starts_with("prefill gfx11 bf16 ")) << row;
    EXPECT_GT(row["registers"].get<int>(), 0) << row;
    EXPECT_GT(row["occupancy"].get<int>(), 0) << row;
    EXPECT_GT(row["code_bytes"].get<int>(), 1000) << row;
    EXPECT_EQ(row["spills"].get<int>() + row["scratch_bytes"].get<int>(), 0) << row;
    // Without a disassembler the report has no loop.
    const nlohmann::json& loop = row["loop"];
    if (first.out.find("is not known") != std::string::npos) continue;
    for (const char* count : {"matrix", "vector", "transcendental", "lds", "memory"})
      EXPECT_GT(loop[count].get<int>(), 0) << row;
  }
  const auto count = std::to_string(rows.size());
  const Outcome list = fulmen({"cache", "list"});
  ASSERT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find(path("cache") + ": " + count + " kernels"), std::string::npos)
      << list.out;
  EXPECT_NE(list.out.find("gfx1100"), std::string::npos);
  // What was compiled once is found again, and the same.
  const Outcome again =
      fulmen({"compile", "--arch", "gfx1100", "--only", "bf16 prefill d64", "--report"});
  EXPECT_EQ(again.out, first.out);
  // One file has them all.
  const Outcome packed = fulmen({"compile", "--arch", "gfx1100", "--only", "bf16 prefill d64",
                                 "--out", "prebuilt", "--pack", "kernels.pack"});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  const std::string pack = read_text(path("kernels.pack"));
  EXPECT_NE(packed.out.find(count + " kernels, " + std::to_string(pack.size()) +
                            " bytes, in kernels.pack"),
            std::string::npos)
      << packed.out;
  const Result<int> added = add_prebuilt_kernels(pack.data(), pack.size());
  ASSERT_TRUE(added.ok()) << added.status().message();
  EXPECT_EQ(static_cast<std::size_t>(added.value()), rows.size());
  EXPECT_EQ(fulmen({"cache", "dir"}).out, path("cache") + "\n");
  const Outcome clear = fulmen({"cache", "clear"});
  EXPECT_EQ(clear.exit_code, 0) << clear.err;
  EXPECT_NE(clear.out.find(count + " kernels deleted"), std::string::npos) << clear.out;
  EXPECT_NE(fulmen({"cache", "list"}).out.find(": 0 kernels"), std::string::npos);
  std::size_t prebuilt = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("prebuilt")))
    prebuilt += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(prebuilt, rows.size());
}

TEST_F(CompileTest, ErrorsNameTheArgument) {
  struct Case {
    std::vector<std::string> arguments;
    const char* part;
  };
  for (const Case& c : {Case{{"compile"}, "--arch"}, Case{{"compile", "--arch", "gfx"}, "\"gfx\""},
                        Case{{"compile", "--arch", "sm_50"}, "sm_50"},
                        Case{{"compile", "--arch", "gfx1100", "--arhc"}, "--arhc"},
                        Case{{"compile", "--arch", "gfx1100", "--only", "prefil"},
                             "only is \"prefil\": words of kernels' names are accepted"},
                        Case{{"cache"}, "list, clear or dir"}, Case{{"cache", "lists"}, "lists"}}) {
    const Outcome outcome = fulmen(c.arguments);
    EXPECT_EQ(outcome.exit_code, 2) << c.part;
    EXPECT_NE(outcome.err.find(c.part), std::string::npos) << outcome.err;
  }
}

TEST_F(CompileTest, ChipsWhoseCodeIsNotExecutedAreNamedAsTheyWereGiven) {
  for (const char* arch : {"sm_90", "sm_80", "gfx803", "nothing"}) {
    const Outcome outcome = fulmen({"counts", "--arch", arch});
    // No clang, or no disassembler.
    if (outcome.err.find("emulated-isa") != std::string::npos) GTEST_SKIP() << outcome.err;
    expect_one_sentence(outcome, std::string("--arch ") + arch +
                                     ": an AMD chip whose machine code is executed is expected; ");
  }
  const Outcome near = fulmen({"counts", "--arch", "gx1201"});
  EXPECT_NE(near.err.find("did you mean \"gfx1201\"?"), std::string::npos) << near.err;
}

// A line every ten seconds where no terminal shows which kernel is compiled.
TEST(SparseProgress, SaysALineNowAndThen) {
  tools::SparseProgress::Clock::time_point now{};
  std::vector<std::string> said;
  tools::SparseProgress progress([&](const std::string& text) { said.push_back(text); },
                                 [&] { return now; });
  for (std::size_t done = 1; done <= 100; ++done) {
    now += std::chrono::milliseconds(600);
    progress.tell(done, 100);
  }
  ASSERT_EQ(said.size(), 5U);
  EXPECT_EQ(said[0], "17 of 100 kernels, 10 s");
  EXPECT_EQ(said[4], "85 of 100 kernels, 51 s");
}

TEST_F(CompileTest, WhatIsWrongIsSaidBeforeAnythingIsCompiled) {
  expect_one_sentence(fulmen({"compile", "--arch", "gfx1100,gfx", "--report"}), "arch is \"gfx\"");
  expect_one_sentence(fulmen({"compile", "--arch", "gfx1100", "--json", "missing/report.json"}),
                      "missing/report.json");
  write_bytes("file", "text");
  expect_one_sentence(fulmen({"compile", "--arch", "gfx1100", "--out", "file/prebuilt"}),
                      "file/prebuilt cannot be made");
  expect_one_sentence(fulmen({"compile", "--arch", "gfx1100", "--out", "file"}),
                      "file cannot be written");
  // Only the compiler knows whether such a chip exists.
  expect_one_sentence(fulmen({"compile", "--arch", "gfx1100,gfx9999"}),
                      "arch is \"gfx9999\": AMD chips from gfx803");
  EXPECT_EQ(fulmen({"cache", "list"}).out, path("cache") + ": 0 kernels, 0.0 MB\n");
}

TEST_F(CompileTest, CacheThatIsNoFolderIsSaid) {
  write_bytes("file", "text");
  ::setenv("FULMEN_CACHE_DIR", path("file").c_str(), 1);
  for (const char* command : {"list", "clear", "dir"})
    expect_one_sentence(fulmen({"cache", command}), "file is not a folder");
  EXPECT_EQ(read_text(path("file")), "text");
}

TEST_F(CompileTest, NoCompilerIsASentenceWithItsRemedy) {
  const std::string old = std::getenv("PATH");
  ::setenv("PATH", path("").c_str(), 1);
  const Outcome outcome = fulmen({"compile", "--arch", "gfx1100"});
  ::setenv("PATH", old.c_str(), 1);
  if (outcome.exit_code == 0) GTEST_SKIP() << "ROCm is installed";
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("apt-get install clang-19 lld-19"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace fulmen::test
