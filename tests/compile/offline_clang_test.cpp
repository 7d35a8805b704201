// AMD kernels by an installed clang.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "gpu/compile/kernel_source.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/compile/toolchains/first_llvm.h"
#include "runtime/run_program.h"
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

// ELFABIVERSION_AMDGPU_HSA_V4, which every HIP from 5.0 on loads, whatever the compiler's own is.
TEST(OfflineClang, EveryRuntimeLoadsItsCodeObjects) {
  for (const std::string& arch : kAmdArchs) {
    const gpu::CompiledCode code = compile_tiny(arch);
    ASSERT_GT(code.code.size(), 16U);
    EXPECT_EQ(code.code[8], std::byte{2}) << arch;
  }
}

// The disassembly of a kernel's code by llvm-objdump; empty without that program.
std::string disassembly(const std::string& source, const std::string& arch) {
  std::string disassembler;
  for (const char* name : {"llvm-objdump-19", "llvm-objdump-22", "llvm-objdump"}) {
    const int version = gpu::version_in_name(name);
    const bool knows_it = version == 0 || version >= gpu::first_llvm(arch);
    if (disassembler.empty() && knows_it) disassembler = find_program(name);
  }
  if (disassembler.empty()) return {};
  const auto compiler = gpu::offline_clang_compiler();
  EXPECT_TRUE(compiler.ok()) << compiler.status().message();
  if (!compiler.ok()) return {};
  const auto compiled = compiler.value()->compile({"disassembled", source, arch, 64});
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  if (!compiled.ok()) return {};
  const TemporaryDirectory folder;
  const std::string file = folder.path() + "/kernel";
  EXPECT_TRUE(write_file(file, {reinterpret_cast<const char*>(compiled->code.data()),
                                compiled->code.size()})
                  .ok());
  const auto text = run_program({disassembler, "-d", file});
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? text.value() : std::string();
}

// RDNA3 can lose a result between two instructions that are issued as one.
TEST(OfflineClang, Rdna3GetsNoDualInstructions) {
  const std::string source = R"(
extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 64))) void fulmen_kernel(float* p, int n) {
  const unsigned id = __builtin_amdgcn_workitem_id_x();
  float a = p[id], b = p[id + 64], c = p[id + 128], d = p[id + 192];
  for (int i = 0; i < n; ++i) {
    const float e = a * b + 1.0f, f = c * d + 1.0f;
    a = e * c;
    b = f * d;
    c = e + b;
    d = f + a;
  }
  p[id] = a + b + c + d;
}
)";
  const std::string rdna4 = disassembly(source, "gfx1201");
  if (rdna4.empty()) GTEST_SKIP() << "llvm-objdump is not in PATH";
  EXPECT_NE(rdna4.find("v_dual_"), std::string::npos)
      << "RDNA4 has no such defect, and would use them here";
  for (const char* arch : {"gfx1100", "gfx1103", "gfx1150", "gfx1151"}) {
    const std::string text = disassembly(source, arch);
    EXPECT_NE(text.find("v_fma"), std::string::npos) << text;
    EXPECT_EQ(text.find("v_dual_"), std::string::npos) << arch << "\n" << text;
  }
}

// clang before 19 has no builtins for buffers: kernels then use LLVM's intrinsics, which must come
// to the same instructions.
TEST(OfflineClang, BuffersWithoutBuiltinsAreTheSame) {
  const std::string kernel = R"(#include "core/base.h"
namespace fulmen::kernels {
struct Arguments { unsigned* x; const void* y; unsigned bytes, fixed; };
FULMEN_DEVICE void kernel(const Arguments& a) {
  const Buffer buffer(a.y, a.bytes);
  const unsigned l = static_cast<unsigned>(lane_id());
  const auto four = buffer.load<Words<4> >(16 * l, a.fixed);
  const auto two = buffer.load<Words<2> >(8 * l, a.fixed);
  const auto one = buffer.load<Words<1> >(4 * l, a.fixed);
  a.x[l] = four.word[0] + four.word[1] + four.word[2] + four.word[3] + two.word[0] + two.word[1] + one.word[0];
}
}
FULMEN_KERNEL(fulmen::kernels::Arguments, fulmen::kernels::kernel)
)";
  for (const char* arch : {"gfx1100", "gfx1201", "gfx942", "gfx90a", "gfx1030"}) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
    const std::string sizes = "#define FULMEN_CONFIGURATION .workgroup = 64\n";
    const auto source = [&](const std::string& more) {
      return gpu::kernel_source_of(kernel, sizes + more, chip, gpu::Platform::amd).value();
    };
    const std::string text = disassembly(source(""), arch);
    if (text.empty()) GTEST_SKIP() << "llvm-objdump is not in PATH";
    const auto loads = [](const std::string& of) {
      std::vector<std::string> found;
      for (std::size_t at = of.find("buffer_load_"); at != std::string::npos;
           at = of.find("buffer_load_", at + 1)) {
        found.push_back(of.substr(at, of.find(' ', at) - at));
      }
      std::sort(found.begin(), found.end());
      return found;
    };
    EXPECT_EQ(loads(text).size(), 3U) << text;
    EXPECT_EQ(loads(text), loads(disassembly(source("#define FULMEN_BUFFER_INTRINSICS 1\n"), arch)))
        << arch;
  }
}

// The barrier instruction alone orders nothing: the fences around it make a wave's LDS writes
// complete before the other waves continue.
TEST(OfflineClang, LdsIsWrittenBeforeABarrier) {
  const std::string kernel = R"(#include "core/base.h"
namespace fulmen::kernels {
struct Arguments { unsigned* x; };
FULMEN_DEVICE void kernel(const Arguments& a) {
  lds_store(4 * thread_id(), a.x[thread_id()]);
  barrier();
  a.x[thread_id()] = lds_load<unsigned>(4 * (127 - thread_id()));
}
}
FULMEN_KERNEL(fulmen::kernels::Arguments, fulmen::kernels::kernel)
)";
  for (const std::string& arch : kAmdArchs) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
    const std::string sizes = "#define FULMEN_CONFIGURATION .workgroup = 128, .lds_bytes = 512\n";
    const std::string text =
        disassembly(gpu::kernel_source_of(kernel, sizes, chip, gpu::Platform::amd).value(), arch);
    if (text.empty()) GTEST_SKIP() << "llvm-objdump is not in PATH";
    const std::size_t store = std::min(text.find("ds_store"), text.find("ds_write")),
                      barrier = text.find("s_barrier", store);
    ASSERT_NE(barrier, std::string::npos) << text;
    const std::string between = text.substr(store, barrier - store);
    EXPECT_TRUE(between.find("lgkmcnt(0)") != std::string::npos ||
                between.find("dscnt 0x0") != std::string::npos)
        << text;
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
  const auto bad = compiler.value()->compile(
      {"broken one", "#line 7 \"forward/prefill.h\"\nint x = nothing;\n", "gfx1100", 64});
  ASSERT_FALSE(bad.ok());
  for (const char* part : {"broken one", "gfx1100", "forward/prefill.h:7", "nothing"}) {
    EXPECT_NE(bad.status().message().find(part), std::string::npos) << bad.status().message();
  }
  EXPECT_FALSE(compiler.value()->compile(tiny_request("gfx9999")).ok());
}

// Programs that are named like clangs of these versions and refuse everything.
void make_clangs(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    ASSERT_TRUE(write_file(path, "#!/bin/sh\necho \"" + name + " refuses\" >&2\nexit 1\n").ok());
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
}

// In a process of its own: a compiler that was found is kept.
TEST(OfflineClangDeathTest, AChipGetsTheFirstClangThatKnowsIt) {
  const TemporaryDirectory folder;
  make_clangs(folder.path(), {"clang++-19", "clang++-22"});
  const auto message = [](const std::string& arch) {
    const auto compiler = gpu::offline_clang_compiler();
    return compiler.ok() ? compiler.value()->compile(tiny_request(arch)).status().message()
                         : compiler.status().message();
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("PATH", folder.path().c_str(), 1);
        ::unsetenv("ROCM_PATH");
        const auto compiler = gpu::offline_clang_compiler();
        const bool right =
            message("gfx1100").find("clang++-19 refuses") != std::string::npos &&
            message("gfx950").find("clang++-22 refuses") != std::string::npos &&
            compiler.value()->identity("gfx950") != compiler.value()->identity("gfx942") &&
            compiler.value()->identity("gfx1201") == compiler.value()->identity("gfx942");
        std::exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}
// A wrapper is asked for its version, which takes time: no other one than the chip's is.
TEST(OfflineClangDeathTest, NoClangIsAskedThatNoChipNeeds) {
  const TemporaryDirectory folder;
  int number = 0;
  const auto make_wrapper = [&](const std::string& name, const std::string& does) {
    const std::string file = folder.path() + "/wrapper_" + std::to_string(++number);
    ASSERT_TRUE(write_file(file, "#!/bin/sh\necho " + name + " $1 >>\"" + folder.path() +
                                     "/asked\"\n" + does)
                    .ok());
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    std::filesystem::create_symlink(file, folder.path() + "/" + name);
  };
  make_wrapper("amdclang++", "exit 1\n");  // does not run
  make_wrapper("clang++-19", "echo clang version 19\n");
  make_wrapper("clang++", "echo clang version 99\n");
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("PATH", (folder.path() + ":/usr/bin:/bin").c_str(), 1);
        ::unsetenv("ROCM_PATH");
        const std::string identity = gpu::offline_clang_compiler().value()->identity("gfx1100");
        std::ifstream file(folder.path() + "/asked");
        const std::string asked(std::istreambuf_iterator<char>(file), {});
        std::cerr << identity << "\n" << asked;
        std::exit(identity.starts_with("clang version 19 ") ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "\namdclang\\+\\+ --version\nclang\\+\\+-19 --version\n$");
}
TEST(OfflineClangDeathTest, AChipThatNoClangKnowsIsNamedWithTheVersionThatDoes) {
  const TemporaryDirectory folder;
  make_clangs(folder.path(), {"clang++-19"});
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("PATH", folder.path().c_str(), 1);
        ::unsetenv("ROCM_PATH");
        const auto compiled =
            gpu::offline_clang_compiler().value()->compile(tiny_request("gfx950"));
        const std::string said = compiled.status().message();
        const bool right = compiled.status().code() == StatusCode::unavailable &&
                           said.find("no installed clang knows gfx950, LLVM 20") != said.npos &&
                           said.find("clang++-19") != said.npos;
        std::exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
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
  EXPECT_NE(compiled.status().message().find("/absent (TMPDIR, else /tmp): No such file"),
            std::string::npos)
      << compiled.status().message();
}

}  // namespace
}  // namespace fulmen::test
