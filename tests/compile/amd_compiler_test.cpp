// FULMEN_AMD_COMPILER.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "fulmen/compile.h"
#include "gpu/compile/toolchains/compiler.h"
#include "runtime/run_program.h"
#include "tiny_kernel.h"

namespace fulmen::test {
namespace {

class AmdCompiler : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv("FULMEN_AMD_COMPILER"); }
  // Refused for a device and offline, with these words.
  static void expect_refusal(const std::string& value, const std::string& words) {
    ::setenv("FULMEN_AMD_COMPILER", value.c_str(), 1);
    for (const gpu::AmdCompilerUse use :
         {gpu::AmdCompilerUse::device, gpu::AmdCompilerUse::offline}) {
      const auto compiler = gpu::amd_compiler(use);
      ASSERT_FALSE(compiler.ok()) << value << " gave " << compiler.value()->name();
      EXPECT_EQ(compiler.status().code(), StatusCode::unavailable);
      for (const std::string& part : {"FULMEN_AMD_COMPILER is \"" + value + "\"",
                                      std::string("hiprtc, clang, or the path"), words}) {
        EXPECT_NE(compiler.status().message().find(part), std::string::npos)
            << part << " in: " << compiler.status().message();
      }
    }
    EXPECT_NE(check_arch("gfx1100").message().find("FULMEN_AMD_COMPILER is"), std::string::npos)
        << check_arch("gfx1100").message();
  }
};

TEST_F(AmdCompiler, NoOtherServesForOneThatIsNotThere) {
  expect_refusal("/nonexistent/clang++", "no program /nonexistent/clang++");
  expect_refusal("gcc-of-nobody", "no program gcc-of-nobody");
  expect_refusal("HIPRTC", "no program HIPRTC");
  const TemporaryDirectory folder;
  const std::string program = folder.path() + "/clang++";
  ASSERT_TRUE(write_file(program, "#!/bin/sh\necho \"a C compiler 12\"\n").ok());
  expect_refusal(program, "no program");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  expect_refusal(program, "says that it is \"a C compiler 12\"");
  ASSERT_TRUE(write_file(program, "#!/bin/sh\nexit 3\n").ok());
  expect_refusal(program, program);
}

TEST_F(AmdCompiler, HipRtcIsNotReplacedByClang) {
  ::setenv("FULMEN_AMD_COMPILER", "hiprtc", 1);
  const auto compiler = gpu::amd_compiler(gpu::AmdCompilerUse::offline);
  if (compiler.ok()) {
    EXPECT_EQ(compiler.value()->name(), "hipRTC");
  } else {
    expect_refusal("hiprtc", "libhiprtc.so");
  }
}

TEST_F(AmdCompiler, AClangIsChosenByItsPath) {
  const auto usual = gpu::offline_clang_compiler();
  if (!usual.ok()) GTEST_SKIP() << usual.status().message();
  ::setenv("FULMEN_AMD_COMPILER", "clang", 1);
  const auto device = gpu::amd_compiler(gpu::AmdCompilerUse::device);
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ(device.value(), usual.value());

  std::string real;
  for (const char* name : {"clang++-19", "clang++-18", "clang++-17", "clang++-16", "clang++"}) {
    if (real.empty()) real = find_program(name);
  }
  if (real.empty()) GTEST_SKIP() << "clang++ is not in PATH";
  // A program that the usual search does not find: a script with a version of its own.
  const TemporaryDirectory folder;
  const std::string program = folder.path() + "/mine";
  ASSERT_TRUE(
      write_file(program,
                 "#!/bin/sh\n[ \"$1\" = --version ] && echo \"my clang 99\" && exit\nexec " + real +
                     " \"$@\"\n")
          .ok());
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  ::setenv("FULMEN_AMD_COMPILER", program.c_str(), 1);
  const auto mine = gpu::amd_compiler(gpu::AmdCompilerUse::device);
  ASSERT_TRUE(mine.ok()) << mine.status().message();
  EXPECT_NE(mine.value()->identity("gfx1100").find("my clang 99"), std::string::npos)
      << mine.value()->identity("gfx1100");
  EXPECT_EQ(gpu::amd_compiler(gpu::AmdCompilerUse::offline).value(), mine.value()) << "found once";
  EXPECT_TRUE(mine.value()->compile(tiny_request("gfx1100")).ok());
}

}  // namespace
}  // namespace fulmen::test
