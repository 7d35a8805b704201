// Public names of kernels: one scheme, the files that have them, and names of earlier versions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "api/small_call.h"
#include "gpu/choice.h"
#include "plan/kernel_aliases.h"
#include "plan/registry.h"

namespace fulmen {
namespace {

TEST(KernelNames, AreABackendAFamilyAndAVariant) {
  // Not backends(): other tests of this program register some of their own.
  for (const auto& backend : builtin_backends()) {
    for (const Kernel* kernel : backend->kernels()) {
      const std::string name(kernel->name());
      EXPECT_TRUE(name.starts_with(std::string(backend->name()) + ".")) << name;
      EXPECT_EQ(std::count(name.begin(), name.end(), '.'), 2) << name;
    }
  }
}

// The family's name is that of its files. Variants without matrix instructions have files of their
// own.
TEST(KernelNames, OfGpusAreThoseOfTheFiles) {
  const std::filesystem::path source = std::filesystem::path(FULMEN_SOURCE_DIR) / "src";
  for (const gpu::Family* family : gpu::families()) {
    const std::string stem =
        std::string(family->name()) + (family->target().is_portable() ? "_portable" : "");
    const char* pass = family->pass() == Pass::forward ? "forward" : "backward";
    EXPECT_TRUE(exists(source / "gpu/launch" / (stem + ".cpp"))) << stem;
    EXPECT_TRUE(exists(source / "kernels" / pass / (stem + ".h"))) << stem;
  }
}

std::string page_of_choices() {
  std::ifstream file(std::filesystem::path(FULMEN_SOURCE_DIR) / "docs/choosing.md");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// docs/choosing.md has a row for each family, and for each instruction set of CPUs.
TEST(KernelNames, HaveRowsInThePageOfChoices) {
  const std::string page = page_of_choices();
  const auto expect_row = [&](const std::string& name) {
    EXPECT_NE(page.find("\n| " + name + " "), std::string::npos)
        << "docs/choosing.md has no row " << name;
  };
  for (const gpu::Family* family : gpu::families()) {
    expect_row(std::string(family->name()) + (family->target().is_portable() ? ".portable" : ""));
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

// And each rank of gpu/choice.cpp stands in a row of its family there.
TEST(KernelNames, HaveTheirRanksInThePageOfChoices) {
  const std::string page = page_of_choices();
  for (const gpu::Preference& row : gpu::preferences()) {
    const std::regex line("\n\\| " + std::string(row.family) + "\\b[^\n]*\\b" +
                          std::to_string(static_cast<int>(row.rank)) + "\\b");
    EXPECT_TRUE(std::regex_search(page, line))
        << "docs/choosing.md has no rank " << row.rank << " of " << row.family;
  }
}

TEST(GpuPreferences, AreWholeAndInOrder) {
  const Problem problem;
  for (const gpu::Family* family : gpu::families())
    EXPECT_GT(gpu::rank(*family, problem), 0) << family->name();
  double last = HUGE_VAL;
  Pass pass = Pass::forward;
  for (const gpu::Preference& row : gpu::preferences()) {
    const auto of_row = [&](const gpu::Family* family) { return family->name() == row.family; };
    const auto family = std::find_if(gpu::families().begin(), gpu::families().end(), of_row);
    ASSERT_NE(family, gpu::families().end()) << row.family;
    if ((*family)->pass() != pass) last = HUGE_VAL;
    pass = (*family)->pass();
    EXPECT_LE(row.rank, last) << row.family;
    last = row.rank;
  }
}

TEST(KernelNames, OfVersion01StillForceTheKernel) {
  EXPECT_EQ(present_kernel_name("cuda.forward.sm80"), "cuda.prefill.sm80");
  EXPECT_EQ(present_kernel_name("cuda.forward_wgmma.sm90"), "cuda.prefill_wgmma.sm90");
  EXPECT_EQ(present_kernel_name("hip.split_kv.gfx11"), "hip.decode.gfx11");
  EXPECT_EQ(present_kernel_name("hip.forward.portable"), "hip.prefill.portable");
  for (const char* same :
       {"", "cpu", "cpu.prefill.avx2", "cuda.backward.sm80", "mine.forward", "forward.split_kv"}) {
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
