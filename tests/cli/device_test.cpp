// The program on a device with memory of its own: an emulated GPU.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "fulmen/fulmen.h"
#include "program.h"
#include "runtime/platform/system.h"
#include "support/random.h"

namespace fulmen::test {
namespace {

class DeviceTest : public ProgramTest {
 protected:
  static constexpr const char* kDevice = "emulated:gfx1100";

  void SetUp() override {
    const std::vector<DeviceInfo> all = devices();
    if (!std::any_of(all.begin(), all.end(),
                     [](const DeviceInfo& d) { return d.name == kDevice && d.usable; })) {
      GTEST_SKIP() << "this build has no emulator, or there is no host compiler";
    }
    ProgramTest::SetUp();
  }
  void TearDown() override {
    if (!folder_.empty()) ProgramTest::TearDown();
  }
};

TEST_F(DeviceTest, RunVerifiesAndWritesWhatTheCpuDoes) {
  std::vector<std::string> arguments{"run",   "--verify", "--out",    "out.npy",
                                     "--lse", "lse.npy",  "--device", kDevice};
  for (const std::string& argument : example_inputs()) arguments.push_back(argument);
  const Outcome outcome = fulmen(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("by emulated."), std::string::npos) << outcome.out;
  for (const char* name : {"out.npy", "lse.npy"}) {
    const auto ours = tools::read_npy(path(name), false),
               expected = tools::read_npy(example(name), false);
    ASSERT_TRUE(ours.ok() && expected.ok());
    ASSERT_EQ(ours->shape, expected->shape);
    const auto* a = static_cast<const float*>(ours->data.data());
    const auto* b = static_cast<const float*>(expected->data.data());
    for (std::size_t i = 0; i < ours->element_count(); ++i)
      ASSERT_NEAR(a[i], b[i], 2e-5F) << name << ' ' << i;
  }
}

TEST_F(DeviceTest, VerifyTakesASmallerGrid) {
  if (const std::string why = testing::left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
  const Outcome outcome = fulmen({"verify", "--device", kDevice, "--dtype", "fp16", "--kernel",
                                  "emulated.decode.gfx11", "--seed", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("an emulated chip"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("emulated.decode.gfx11"), std::string::npos) << outcome.out;
}

// No compiler is no wrong result.
TEST_F(DeviceTest, VerifyTellsWhatDidNotRunFromWhatIsWrong) {
  ::setenv("FULMEN_HOST_CXX", "/nonexistent/c++", 1);
  ::setenv("FULMEN_CACHE_BYTES", "0", 1);
  for (const std::vector<std::string>& what :
       {std::vector<std::string>{"--random", "1"}, {"--seed", "3"}}) {
    std::vector<std::string> arguments{
        "verify", "--device", kDevice, "--dtype", "fp16", "--kernel", "emulated.prefill.gfx11"};
    arguments.insert(arguments.end(), what.begin(), what.end());
    const Outcome outcome = fulmen(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    EXPECT_NE(outcome.err.find(" cannot be used: "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("FULMEN_HOST_CXX is \"/nonexistent/c++\""), std::string::npos)
        << outcome.err;
    EXPECT_EQ(outcome.err.find("tolerance"), std::string::npos) << outcome.err;
  }
  ::unsetenv("FULMEN_HOST_CXX");
  ::unsetenv("FULMEN_CACHE_BYTES");
}

TEST_F(DeviceTest, BenchVerifiesAndGivesNoTimes) {
  const Outcome outcome = fulmen(
      {"bench", "--suite", "boards", "--dtype", "fp16", "--device", kDevice, "--json", "b.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("its times mean nothing"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("peak fp32"), std::string::npos)
      << "the CPU's ceilings are no yardstick here:\n"
      << outcome.out;
  const auto rows = nlohmann::json::parse(read_text(path("b.json")));
  ASSERT_GE(rows.size(), 2U);
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["device"], kDevice);
    EXPECT_EQ(row["verified"], true);
    for (const char* field :
         {"median_s", "min_s", "tflops", "gb_s", "ceiling", "standard_s", "speedup"}) {
      EXPECT_TRUE(row[field].is_null()) << field;
    }
  }
}

TEST_F(DeviceTest, BackwardRunVerifies) {
  std::vector<std::string> arguments{
      "run",    "--backward",       "--verify", "--device", kDevice, "--dtype", "fp16",
      "--dout", example("out.npy"), "--dq",     "dq.npy",   "--dk",  "dk.npy",  "--dv",
      "dv.npy"};
  for (const std::string& argument : example_inputs()) arguments.push_back(argument);
  const Outcome outcome = fulmen(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("dk.npy [2, 44, 6, 32] by emulated.backward."), std::string::npos)
      << outcome.out;
}

TEST_F(DeviceTest, BackwardVerifyTakesAGridOfItsOwn) {
  if (const std::string why = testing::left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
  const Outcome outcome = fulmen({"verify", "--backward", "--device", kDevice, "--dtype", "bf16",
                                  "--kernel", "emulated.backward.gfx11", "--seed", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("emulated.backward.gfx11"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("dbias"), std::string::npos) << outcome.out;
}

TEST_F(DeviceTest, TrainingBenchVerifiesBothPasses) {
  if (const std::string why = testing::left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
  const Outcome outcome = fulmen(
      {"bench", "--suite", "training", "--dtype", "fp16", "--device", kDevice, "--json", "b.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const auto rows = nlohmann::json::parse(read_text(path("b.json")));
  ASSERT_GE(rows.size(), 3U);
  bool bias = false;
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["suite"], "training");
    EXPECT_EQ(row["verified"], true) << row;
    EXPECT_EQ(row["verified_how"], "all");
    const auto kernel = row["backward_kernel"].get<std::string>();
    EXPECT_TRUE(kernel.starts_with("emulated.backward.") ||
                kernel.starts_with("emulated.short_backward."))
        << row;
    EXPECT_GT(row["extra_bytes"].get<int64_t>(), 0) << row;
    EXPECT_TRUE(row["backward_s"].is_null());
    bias = bias || row["bias"].get<bool>();
  }
  EXPECT_TRUE(bias) << "boards have a gradient of their bias";
}

// Kernels that add by atomics only where the caller lets gradients differ from run to run.
TEST_F(DeviceTest, TrainingBenchWithAtomicsWhereAsked) {
  if (const std::string why = testing::left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
  std::vector<std::string> arguments{"bench",          "--suite",  "training",
                                     "--dtype",        "fp16",     "--device",
                                     "emulated:sm_80", "--kernel", "emulated.backward_atomic.sm80",
                                     "--json",         "b.json"};
  const Outcome refused = fulmen(arguments);
  EXPECT_NE(refused.out.find("options.deterministic = false allows it"), std::string::npos)
      << refused.out << refused.err;
  arguments.emplace_back("--no-deterministic");
  const Outcome outcome = fulmen(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  bool by_atomics = false;
  for (const nlohmann::json& row : nlohmann::json::parse(read_text(path("b.json")))) {
    by_atomics = by_atomics || row["backward_kernel"] == "emulated.backward_atomic.sm80";
    EXPECT_EQ(row["verified"], true) << row;
  }
  EXPECT_TRUE(by_atomics);
}

TEST_F(DeviceTest, ExplainNamesKernelsOfTheDevice) {
  const Outcome outcome = fulmen({"explain", "--device", kDevice, "--dtype", "bf16", "--seqlen-q",
                                  "500", "--heads", "4", "--head-dim", "64"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("emulated.prefill.gfx11"), std::string::npos) << outcome.out;
  EXPECT_NE(
      outcome.out.find("not emulated.prefill.gfx12: gfx1100 has the matrix instructions of gfx11"),
      std::string::npos)
      << outcome.out;
}

// What the first call of a problem waits for is said, and that the next process does not.
TEST_F(DeviceTest, ExplainTellsWhatWasCompiledForThePlan) {
  const std::string before = platform::environment_variable("FULMEN_CACHE_DIR").value_or("");
  ::setenv("FULMEN_CACHE_DIR", path("fresh").c_str(), 1);
  const std::vector<std::string> problem{"explain", "--device", kDevice,      "--seqlen-q", "5",
                                         "--heads", "1",        "--head-dim", "8"};
  const Outcome first = fulmen(problem), second = fulmen(problem);
  ::setenv("FULMEN_CACHE_DIR", before.c_str(), 1);
  EXPECT_NE(first.out.find("1 kernel was compiled in "), std::string::npos) << first.out;
  EXPECT_NE(second.out.find("emulated."), std::string::npos) << second.err;
  EXPECT_EQ(second.out.find("compiled in "), std::string::npos) << second.out;
}

// A device on which nothing can be compiled, and nothing is prebuilt, is not usable.
TEST_F(DeviceTest, WithoutACompilerIsNotUsable) {
  ::setenv("FULMEN_HOST_CXX", "/nowhere/c++", 1);
  const Outcome outcome = fulmen({"devices", "--all"});
  const Outcome planned = fulmen(
      {"explain", "--device", kDevice, "--seqlen-q", "5", "--heads", "1", "--head-dim", "8"});
  ::unsetenv("FULMEN_HOST_CXX");
  const std::size_t at = outcome.out.find(std::string(kDevice) + "\n");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  const std::size_t usable = outcome.out.find("  usable    ", at);
  EXPECT_EQ(outcome.out.compare(usable + 12, 4, "no: "), 0) << outcome.out.substr(at, 400);
  EXPECT_NE(outcome.out.find("FULMEN_HOST_CXX is \"/nowhere/c++\"", usable), std::string::npos)
      << outcome.out.substr(at, 400);
  expect_one_sentence(planned, "cannot be used: there are no prebuilt kernels");
}

TEST_F(DeviceTest, UnusableDevicesSayWhyInLinesThatCanBeRead) {
  const Outcome outcome = fulmen({"devices", "--all"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.size() <= 125 || line.find(' ', 12) == std::string::npos) << line;
    EXPECT_EQ(line, line.substr(0, line.find_last_not_of(' ') + 1)) << "no space at a line's end";
  }
}

}  // namespace
}  // namespace fulmen::test
