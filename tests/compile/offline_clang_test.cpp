// AMD kernels by an installed clang.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gpu/compile/compiler.h"
#include "tiny_kernel.h"

namespace fulmen::test {
namespace {

TEST(OfflineClang, MakesACodeObjectAndTellsItsRegisters) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  for (const std::string& arch : kAmdArchs) {
    const auto compiled = compiler.value()->compile(tiny_request(arch));
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    ASSERT_GT(compiled.value().code.size(), 500U);
    EXPECT_EQ(compiled.value().code[1], std::byte{'E'});
    EXPECT_NE(compiled.value().log.find("VGPRs: "), std::string::npos) << compiled.value().log;
    EXPECT_EQ(compiled.value().log.find("warning:"), std::string::npos) << compiled.value().log;
  }
}

TEST(OfflineClang, SameSourceGivesSameCode) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok());
  const auto a = compiler.value()->compile(tiny_request("gfx1100"));
  const auto b = compiler.value()->compile(tiny_request("gfx1100"));
  EXPECT_EQ(a.value().code, b.value().code);
  EXPECT_EQ(a.value().log, b.value().log);
}

TEST(OfflineClang, ErrorsNameKernelChipAndLine) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok());
  const auto bad = compiler.value()->compile({"broken one", "#line 7 \"forward.h\"\nint x = nothing;\n", "gfx1100", 64});
  ASSERT_FALSE(bad.ok());
  for (const char* part : {"broken one", "gfx1100", "forward.h:7", "nothing"}) {
    EXPECT_NE(bad.status().message().find(part), std::string::npos) << bad.status().message();
  }
  EXPECT_FALSE(compiler.value()->compile(tiny_request("gfx9999")).ok());
}

TEST(OfflineClang, AFolderForTemporaryFilesThatIsNotThereIsNamed) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok());
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/absent", 1);
  const auto compiled = compiler.value()->compile(tiny_request("gfx1100"));
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  ASSERT_FALSE(compiled.ok());
  EXPECT_NE(compiled.status().message().find("/absent (TMPDIR, else /tmp): No such file"), std::string::npos)
      << compiled.status().message();
}

}  // namespace
}  // namespace fulmen::test
