// AMD kernels by an installed clang.
#include <gtest/gtest.h>

#include "gpu/compile/compiler.h"
#include "gpu/launch/shipped.h"
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

// Every kernel that people meet compiles without a warning.
// The others are looked at by spills_test.cpp.
TEST(OfflineClang, ShippedBackwardKernelsCompileCleanly) {
  const auto compiler = gpu::offline_clang_compiler();
  ASSERT_TRUE(compiler.ok());
  for (const std::string arch : {"gfx1100", "gfx942"}) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
    for (const gpu::Specialisation& s : gpu::shipped_kernels(chip, false)) {
      if (!s.entry.starts_with("backward")) continue;
      const auto request = gpu::compile_request(s, chip, gpu::Platform::amd);
      ASSERT_TRUE(request.ok()) << request.status().message();
      const auto compiled = compiler.value()->compile(request.value());
      ASSERT_TRUE(compiled.ok()) << compiled.status().message();
      EXPECT_EQ(compiled.value().log.find("warning:"), std::string::npos) << arch << compiled.value().log;
    }
  }
}

}  // namespace
}  // namespace fulmen::test
