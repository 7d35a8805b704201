// The first use of compiled kernels, on an emulated chip: a wrong kernel is refused, the next one
// runs, and the verdict is kept.
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "fulmen/fulmen.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/launch/family.h"
#include "program.h"

namespace fulmen::test {
namespace {

constexpr const char* kDevice = "emulated:gfx1100";
constexpr int kComputeUnits = 4;  // of an emulated chip

class FirstUseTest : public ProgramTest {
 protected:
  void SetUp() override {
    const std::vector<DeviceInfo> all = devices();
    if (!std::any_of(all.begin(), all.end(),
                     [](const DeviceInfo& d) { return d.name == kDevice && d.usable; })) {
      GTEST_SKIP() << "this build has no emulator, or there is no host compiler";
    }
    ProgramTest::SetUp();
    std::filesystem::create_directory(path("kernels"));
    write_kernel("prefill", false);
    write_kernel("short", true);
    ::setenv("FULMEN_CACHE_DIR", path("cache").c_str(), 1);
    ::setenv("FULMEN_KERNEL_PATH", path("kernels").c_str(), 1);
    ::setenv("FULMEN_FIRST_USE_CHECK", "1", 1);
  }
  void TearDown() override {
    for (const char* name : {"FULMEN_CACHE_DIR", "FULMEN_KERNEL_PATH", "FULMEN_FIRST_USE_CHECK"})
      ::unsetenv(name);
    if (!folder_.empty()) ProgramTest::TearDown();
  }

  // A causal problem of few rows.
  Outcome explain(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{
        "explain", "--device",   kDevice, "--batch",    "1",  "--heads", "2",    "--seqlen-q",
        "40",      "--seqlen-k", "50",    "--head-dim", "64", "--dtype", "bf16", "--causal"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return fulmen(arguments);
  }
  // A family's kernel for that problem among the prebuilt ones; a wrong one has no mask.
  void write_kernel(const std::string& name, bool wrong) const {
    AttentionTensors t;  // planning reads no data
    t.q = t.out = Tensor::bshd(&t, DType::bf16, 1, 40, 2, 64);
    t.k = t.v = Tensor::bshd(&t, DType::bf16, 1, 50, 2, 64);
    AttentionOptions options;
    options.causal = Causal::bottom_right;
    const Result<Problem> problem = make_problem(t, options);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip("gfx1100", storage, chip));
    for (const gpu::Family* family : gpu::families()) {
      if (family->name() != name || family->target().name != "gfx11") continue;
      gpu::Specialisation s =
          family->plan(problem.value(), chip, kComputeUnits).launches.front().specialisation;
      const auto request = compile_request(s, chip, gpu::Platform::emulated);
      ASSERT_TRUE(request.ok()) << request.status().message();
      gpu::CompileRequest made = request.value();
      if (wrong) {
        ASSERT_NE(s.band, 0);
        s.band = 0;
        made.source = compile_request(s, chip, gpu::Platform::emulated)->source;
      }
      const auto compiler = gpu::host_compiler();
      ASSERT_TRUE(compiler.ok()) << compiler.status().message();
      const auto code = gpu::cached_compile(compiler.value(), {}, made);
      ASSERT_TRUE(code.ok()) << code.status().message();
      ASSERT_TRUE(gpu::write_prebuilt(path("kernels"), request.value(), code.value()).ok());
      return;
    }
    FAIL() << "there is no family " << name;
  }

  // The verdicts' files, by the kernel, and the number that a file has as long as it is the same
  // one.
  std::map<std::string, std::pair<std::string, ino_t>> verdicts() const {
    std::map<std::string, std::pair<std::string, ino_t>> found;
    for (const gpu::CacheEntry& entry : gpu::list_cache()) {
      struct stat info{};
      if (!entry.name.starts_with("first use of ") || ::stat(entry.file.c_str(), &info) != 0)
        continue;
      found[entry.name.substr(13)] = {entry.file, info.st_ino};
    }
    return found;
  }
};

void expect_refused(const Outcome& outcome) {
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"\nemulated.prefill.gfx11 ", "the highest rank of those left, 20",
                           "\n  first use checked: the largest error of out was ",
                           "\n  not emulated.short.gfx11: its first use on emulated:gfx1100 gave a "
                           "wrong result: out[b, i, h, d]",
                           "exceeds", "FULMEN_FIRST_USE_CHECK=0"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in: " << outcome.out;
  }
}

TEST_F(FirstUseTest, AWrongKernelMakesRoomAndTheVerdictIsKept) {
  expect_refused(explain());
  const auto first = verdicts();
  ASSERT_EQ(first.size(), 2U);
  const Outcome again = explain();
  expect_refused(again);
  EXPECT_EQ(std::count(again.err.begin(), again.err.end(), '\n'), 1) << again.err;
  EXPECT_NE(again.err.find("kernel emulated.short.gfx11 is passed over on emulated:gfx1100, "
                           "emulated.prefill.gfx11 serves: its first use"),
            std::string::npos)
      << again.err;
  EXPECT_EQ(verdicts(), first) << "another process found out what was known";
  // A damaged verdict is reported, and the check repeated.
  const auto [file, number] = first.at("emulated.short.gfx11");
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const Outcome damaged = explain();
  expect_refused(damaged);
  EXPECT_NE(damaged.err.find("it is found out again"), std::string::npos) << damaged.err;
  const auto mended = verdicts();
  EXPECT_NE(mended.at("emulated.short.gfx11").second, number);
  EXPECT_EQ(mended.at("emulated.prefill.gfx11"), first.at("emulated.prefill.gfx11"));
}

TEST_F(FirstUseTest, AForcedKernelIsAnErrorAndTheCheckCanBeLeftOut) {
  const Outcome forced = explain({"--kernel", "emulated.short.gfx11"});
  EXPECT_NE(forced.exit_code, 0);
  EXPECT_NE(forced.err.find(
                "emulated.short.gfx11: its first use on emulated:gfx1100 gave a wrong result"),
            std::string::npos)
      << forced.err;
  ::setenv("FULMEN_FIRST_USE_CHECK", "0", 1);
  const Outcome unchecked = explain();
  ASSERT_EQ(unchecked.exit_code, 0) << unchecked.err;
  EXPECT_NE(unchecked.out.find("\nemulated.short.gfx11 "), std::string::npos) << unchecked.out;
  EXPECT_EQ(unchecked.out.find("first use"), std::string::npos) << unchecked.out;
}

// Without a compiler a kernel that is not prebuilt is passed over for one that is; where none is,
// the error gives the reason.
TEST_F(FirstUseTest, AKernelThatIsNotPrebuiltMakesRoom) {
  std::filesystem::remove_all(path("kernels"));
  write_kernel("prefill", false);
  ::setenv("FULMEN_CACHE_DIR", path("empty").c_str(), 1);
  ::setenv("FULMEN_FIRST_USE_CHECK", "0", 1);
  ::setenv("FULMEN_HOST_CXX", "/nowhere/c++", 1);
  const Outcome outcome = explain();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"\nemulated.prefill.gfx11 ", "the highest rank of those left, 20",
        "\n  not emulated.short.gfx11: ", "FULMEN_HOST_CXX is \"/nowhere/c++\""}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in: " << outcome.out;
  }
  std::filesystem::remove_all(path("kernels"));
  const Outcome none = explain();
  EXPECT_NE(none.exit_code, 0);
  EXPECT_NE(none.err.find("FULMEN_HOST_CXX is \"/nowhere/c++\""), std::string::npos) << none.err;
  ::unsetenv("FULMEN_HOST_CXX");
}

}  // namespace
}  // namespace fulmen::test
