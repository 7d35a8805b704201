// Public names of kernels: one scheme, the files that have them, and names of earlier versions.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "api/small_call.h"
#include "gpu/launch/family.h"
#include "plan/kernel_aliases.h"

namespace fulmen {
namespace {

TEST(KernelNames, AreABackendAFamilyAndAVariant) {
  for (const auto& backend : backends()) {
    for (const Kernel* kernel : backend->kernels()) {
      const std::string name(kernel->name());
      EXPECT_TRUE(name.starts_with(std::string(backend->name()) + ".")) << name;
      EXPECT_EQ(std::count(name.begin(), name.end(), '.'), 2) << name;
    }
  }
}

// The family's name is that of its files. Variants without matrix instructions have files of their own.
TEST(KernelNames, OfGpusAreThoseOfTheFiles) {
  const std::filesystem::path source = std::filesystem::path(FULMEN_SOURCE_DIR) / "src";
  for (const gpu::Family* family : gpu::families()) {
    const std::string stem = std::string(family->name()) + (family->target() == "portable" ? "_portable" : "");
    const char* pass = family->pass() == Pass::forward ? "forward" : "backward";
    EXPECT_TRUE(exists(source / "gpu/launch" / (stem + ".cpp"))) << stem;
    EXPECT_TRUE(exists(source / "kernels" / pass / (stem + ".h"))) << stem;
  }
}

// docs/choosing.md has a row for each family, and for each instruction set of CPUs.
TEST(KernelNames, HaveRowsInThePageOfChoices) {
  std::ifstream file(std::filesystem::path(FULMEN_SOURCE_DIR) / "docs/choosing.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto expect_row = [&](const std::string& name) {
    EXPECT_NE(page.find("\n| " + name + " "), std::string::npos) << "docs/choosing.md has no row " << name;
  };
  for (const gpu::Family* family : gpu::families()) {
    expect_row(std::string(family->name()) + (family->target() == "portable" ? ".portable" : ""));
  }
  for (const auto& backend : backends()) {
    if (backend->name() != "cpu") continue;
    for (const Kernel* kernel : backend->kernels()) {
      const std::string name(kernel->name());
      const std::size_t first = name.find('.'), second = name.find('.', first + 1);
      const std::string family = name.substr(first + 1, second - first - 1);
      expect_row(family);
      if (family != "standard" && family != "reference") expect_row(name.substr(second + 1));
    }
  }
}

TEST(KernelNames, OfVersion01StillForceTheKernel) {
  EXPECT_EQ(present_kernel_name("cuda.forward.sm80"), "cuda.prefill.sm80");
  EXPECT_EQ(present_kernel_name("cuda.forward_wgmma.sm90"), "cuda.prefill_wgmma.sm90");
  EXPECT_EQ(present_kernel_name("hip.split_kv.gfx11"), "hip.decode.gfx11");
  EXPECT_EQ(present_kernel_name("hip.forward.portable"), "hip.prefill.portable");
  for (const char* same : {"", "cpu", "cpu.prefill.avx2", "cuda.backward.sm80", "mine.forward", "forward.split_kv"}) {
    EXPECT_EQ(present_kernel_name(same), same);
  }
  testing::SmallCall call;
  call.options.kernel = "emulated.forward.portable";
  const auto problem = make_problem(call.tensors, call.options);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const Result<Plan> made = plan(problem.value(), "emulated:gfx1100", call.options);
  if (made.status().code() == StatusCode::unavailable) GTEST_SKIP() << made.status().message();
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->config().kernel, "emulated.prefill.portable");
}

}  // namespace
}  // namespace fulmen
