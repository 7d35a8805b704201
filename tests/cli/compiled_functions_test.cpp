// Compiled score functions as a user meets them: which of code and bytecode serves and why, and
// compilers and caches that fail.
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "cpu/isa/instruction_sets.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/compile/cache/cache_file.h"
#include "gpu/compile/toolchains/compiler.h"
#include "program.h"
#include "runtime/run_program.h"

namespace fulmen::test {
namespace {

constexpr const char* kByCode = " operations a pair by compiled code";

class CompiledFunctionsTest : public ProgramTest {
 protected:
  void SetUp() override {
    bool available = false;
    for (const cpu::InstructionSet& isa : cpu::instruction_sets())
      available = available || (isa.available && std::string(isa.table->name) == "avx2");
    if (!available || !gpu::host_compiler().ok())
      GTEST_SKIP() << "no AVX2 here, or no compiler of the host";
    ProgramTest::SetUp();
    ::setenv("FULMEN_CACHE_DIR", path("cache").c_str(), 1);
    ::setenv("FULMEN_COMPILE_FUNCTIONS", "1", 1);
  }
  void TearDown() override {
    ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 1);
    ::unsetenv("FULMEN_COMPILE_FUNCTIONS");
    ::unsetenv("FULMEN_HOST_CXX");
    if (!folder_.empty()) ProgramTest::TearDown();
  }

  // A mask of pairs: what becomes no band and no value of distances.
  Outcome explain(const std::string& seqlen = "80",
                  const std::string& kernel = "cpu.prefill.avx2") const {
    return fulmen({"explain", "--batch", "1", "--heads", "1", "--seqlen-q", seqlen, "--head-dim",
                   "16", "--kernel", kernel, "--mask-mod",
                   "q * k % 5 != 2 & abs(q - 9) + k < 90 | q * k < 40"});
  }
  static void expect_part(const Outcome& outcome, const std::string& part) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in: " << outcome.out;
  }
  // The file of the one function in the cache.
  static std::string cached_file() {
    const std::vector<gpu::CacheEntry> entries = gpu::list_cache();
    EXPECT_EQ(entries.size(), 1U);
    return entries.empty() ? "" : entries.front().file;
  }
  static gpu::CacheFile cached(const std::string& file) {
    const Result<std::vector<std::byte>> bytes = read_file(file);
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    Result<gpu::CacheFile> parsed = gpu::parse_cache_file(bytes.value());
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return std::move(parsed).value();
  }
};

TEST_F(CompiledFunctionsTest, ExplainSaysWhichServesAndWhy) {
  expect_part(explain(), kByCode);
  expect_part(explain("80", "cpu.prefill.scalar"), "by bytecode; scalar has no compiled one");
  ::setenv("FULMEN_COMPILE_FUNCTIONS", "0", 1);
  expect_part(explain(), "by bytecode; FULMEN_COMPILE_FUNCTIONS=0");
  ::unsetenv("FULMEN_COMPILE_FUNCTIONS");
  expect_part(explain(), " a call are not worth a compilation, 1.1e+09 would be");
  expect_part(explain("20000"), kByCode);
}

TEST_F(CompiledFunctionsTest, WithoutACompilerBytecodeServes) {
  ::setenv("FULMEN_HOST_CXX", "/nonexistent/c++", 1);
  const Outcome outcome = explain();
  expect_part(outcome, "by bytecode; FULMEN_HOST_CXX is \"/nonexistent/c++\"");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(CompiledFunctionsTest, ABrokenCompilerIsNamedOnce) {
  write_bytes("broken",
              "#!/bin/sh\nif [ \"$1\" = --version ]; then echo Broken 1; exit 0; fi\n"
              "echo 'error: no such register' >&2\nexit 1\n");
  ASSERT_EQ(::chmod(path("broken").c_str(), 0755), 0);
  ::setenv("FULMEN_HOST_CXX", path("broken").c_str(), 1);
  const Outcome outcome = explain();
  expect_part(outcome, " operations a pair by bytecode; kernel \"mask_mod of");
  EXPECT_NE(outcome.err.find("mask_mod is left to bytecode"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("no such register"), std::string::npos) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST_F(CompiledFunctionsTest, ACacheThatCannotBeWrittenIsLeftOut) {
  write_bytes("file", "");
  ::setenv("FULMEN_CACHE_DIR", path("file/cache").c_str(), 1);
  const Outcome outcome = explain();
  expect_part(outcome, kByCode);
  EXPECT_NE(outcome.err.find("kernels are kept in memory only"), std::string::npos) << outcome.err;
}

TEST_F(CompiledFunctionsTest, CachedCodeIsTakenIfItIsWholeAndOnesOwn) {
  expect_part(explain(), kByCode);
  const std::string file = cached_file();
  ::setenv("FULMEN_HOST_CXX", "/nonexistent/c++", 1);
  expect_part(explain(), "by bytecode");  // a key has the compiler's identity
  ::unsetenv("FULMEN_HOST_CXX");
  EXPECT_EQ(explain().err, "");

  // A bit of the code, then a file that others may write.
  std::string bytes = read_text(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(file, std::ios::binary) << bytes;
  Outcome outcome = explain();
  expect_part(outcome, kByCode);
  EXPECT_NE(outcome.err.find("it is compiled again"), std::string::npos) << outcome.err;
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  outcome = explain();
  expect_part(outcome, kByCode);
  EXPECT_NE(outcome.err.find("it is compiled again"), std::string::npos) << outcome.err;
}

// A whole file, with a checksum, whose code is no library.
TEST_F(CompiledFunctionsTest, CodeThatDoesNotLoadIsLeftToBytecode) {
  expect_part(explain(), kByCode);
  const std::string file = cached_file();
  gpu::CacheFile poisoned = cached(file);
  poisoned.compiled.code.resize(100);
  const std::vector<std::byte> bytes = gpu::write_cache_file(poisoned);
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  const Outcome outcome = explain();
  expect_part(outcome, "by bytecode; the kernel's shared object cannot be loaded");
  EXPECT_NE(outcome.err.find("mask_mod is left to bytecode"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace fulmen::test
