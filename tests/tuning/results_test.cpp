// Results on disk: what is read, what is not used, damage, several writers.
#include "tuning/results.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "fulmen/fulmen.h"
#include "tools/tune/records.h"

namespace fulmen::tuning {
namespace {

namespace fs = std::filesystem;
using tools::TuneRecord;

class TunedResults : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "fulmen_tuned_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    ::setenv("FULMEN_CACHE_DIR", pattern.c_str(), 1);
    forget_results();
  }
  void TearDown() override {
    ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 1);
    ::unsetenv("FULMEN_TUNING");
    ship_instead({});
    fs::remove_all(folder_);
  }
  static Problem problem() {
    const Tensor q = Tensor::bshd(nullptr, DType::fp32, 1, 512, 2, 64);
    return make_problem({.q = q, .k = q, .v = q, .out = q}, {}).value();
  }
  static AttentionOptions scalar() {
    AttentionOptions options;
    options.kernel = "cpu.prefill.scalar";
    options.num_threads = 2;
    return options;
  }
  static KernelTuning identity() { return kernel_tuning(problem(), "cpu", scalar()).value(); }
  static TuneRecord record(const std::string& configuration) {
    const KernelTuning i = identity();
    TuneRecord r;
    r.chip = i.chip;
    r.kernel = i.kernel;
    r.problem_class = i.problem_class;
    r.build = i.build;
    r.compute_units = i.compute_units;
    r.configuration = configuration;
    return r;
  }
  static std::string file() { return tuned_results_file(identity().chip); }
  static std::string explained() { return plan(problem(), "cpu", scalar())->explain(); }
  fs::path folder_;
};

TEST_F(TunedResults, AreUsedAndNamed) {
  EXPECT_NE(explained().find("tiles_per_task=2 (default)"), std::string::npos) << explained();
  ASSERT_TRUE(tools::merge_records(file(), {record("block_n=64,tiles_per_task=1")}).ok());
  struct stat info{};
  ASSERT_EQ(::stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  forget_results();
  EXPECT_NE(explained().find("block_n=64 (own), tiles_per_task=1 (own)"), std::string::npos)
      << explained();
  ::setenv("FULMEN_TUNING", "tiles_per_task=2", 1);
  EXPECT_NE(explained().find("block_n=64 (own), tiles_per_task=2 (environment)"), std::string::npos)
      << explained();
  AttentionOptions options = scalar();
  options.tuning = "tiles_per_task=4";
  EXPECT_NE(plan(problem(), "cpu", options)->explain().find("tiles_per_task=4 (option)"),
            std::string::npos);
}

// The environment applies to all kernels: a parameter of another kernel is noted, one that no
// kernel has is refused.
TEST_F(TunedResults, NamesOfTheEnvironmentAreKnown) {
  ::setenv("FULMEN_TUNING", "ping_pong=1,block_n=64", 1);
  EXPECT_NE(explained().find("block_n=64 (environment)"), std::string::npos) << explained();
  EXPECT_NE(explained().find("not used: ping_pong=1 (environment): cpu.prefill.scalar has no such "
                             "parameter; it has block_n"),
            std::string::npos)
      << explained();
  AttentionOptions reference = scalar();
  reference.kernel = "cpu.reference.double";
  EXPECT_NE(plan(problem(), "cpu", reference)
                ->explain()
                .find("FULMEN_TUNING changes nothing: the kernel has no parameters"),
            std::string::npos);
  ::setenv("FULMEN_TUNING", "blok_n=64", 1);
  for (const AttentionOptions& options : {scalar(), reference}) {
    const Status status = plan(problem(), "cpu", options).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message().find("FULMEN_TUNING is \"blok_n=64\": no kernel has a parameter "
                                    "blok_n; the names are block_m, "),
              0U)
        << status.message();
  }
  ::setenv("FULMEN_TUNING", "block_n", 1);
  EXPECT_EQ(plan(problem(), "cpu", reference).status().code(), StatusCode::invalid_argument);
}

// Options win over the environment, then own results, shipped ones, the kernel's choice: each is
// removed, one after the other.
TEST_F(TunedResults, SourcesHaveAnOrder) {
  ship_instead({{identity().chip,
                 tools::records_text(identity().chip, {record("block_n=64,tiles_per_task=4")})}});
  ASSERT_TRUE(tools::merge_records(file(), {record("block_n=64,tiles_per_task=1")}).ok());
  forget_results();
  ::setenv("FULMEN_TUNING", "block_n=128", 1);
  AttentionOptions options = scalar();
  options.tuning = "block_n=64";
  const auto says = [&](const std::string& words) {
    const std::string text = plan(problem(), "cpu", options)->explain();
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  says("block_n=64 (option), tiles_per_task=1 (own)");
  options.tuning.clear();
  says("block_n=128 (environment), tiles_per_task=1 (own)");
  ::unsetenv("FULMEN_TUNING");
  says("block_n=64 (own), tiles_per_task=1 (own)");
  fs::remove(file());
  forget_results();
  says("block_n=64 (shipped), tiles_per_task=4 (shipped)");
  ship_instead({});
  says("(default), tiles_per_task=2 (default)");
}

TEST_F(TunedResults, AShippedOneServesWhereTheOwnDoesNotFit) {
  TuneRecord stale = record("block_n=64,tiles_per_task=1");
  stale.build = "fulmen 0.0.1";
  ship_instead({{identity().chip,
                 tools::records_text(identity().chip, {record("block_n=64,tiles_per_task=4")})}});
  ASSERT_TRUE(tools::merge_records(file(), {stale}).ok());
  forget_results();
  EXPECT_NE(explained().find("tiles_per_task=4 (shipped)"), std::string::npos) << explained();
  EXPECT_NE(
      explained().find(
          "the own tuned result of this problem is not used: it was measured with other code"),
      std::string::npos)
      << explained();
  ship_instead({{identity().chip, "{}"}});
  std::string said;
  set_log_callback(
      [](void* context, const char* line) { *static_cast<std::string*>(context) += line; }, &said);
  EXPECT_NE(explained().find("tiles_per_task=2 (default)"), std::string::npos) << explained();
  set_log_callback(nullptr, nullptr);
  EXPECT_NE(said.find("it is not used: it has no version"), std::string::npos) << said;
}

// A GPU's identity: its product, and the driver and compiler that results were measured with.
TEST_F(TunedResults, OfAGpuFitItsProductAndSoftware) {
  const KernelTuning is{.kernel = "cuda.prefill.sm80",
                        .chip = "sm_90a",
                        .compute_units = 132,
                        .build = "0123",
                        .problem_class = "forward bf16",
                        .configurations = {},
                        .product = "NVIDIA H200",
                        .driver = "CUDA 13.0",
                        .compiler = "NVRTC 13.0 0a1b --options"};
  TunedResult result{"cuda.prefill.sm80", "forward bf16", "0123",      "block_m=64", 132,
                     "NVIDIA H200",       "CUDA 13.0",    "NVRTC 13.0"};
  const auto found = [&](bool other_software) { return find_result({result}, is, other_software); };
  EXPECT_EQ(found(false).configuration, "block_m=64") << found(false).why_not;
  result.compiler = "NVRTC 13";
  EXPECT_EQ(found(false).why_not,
            "it was measured with NVRTC 13, this is NVRTC 13.0 0a1b --options")
      << "13 is not 13.0";
  EXPECT_EQ(found(true).configuration, "block_m=64");
  EXPECT_EQ(found(true).note, "it was measured with NVRTC 13, this is NVRTC 13.0 0a1b --options");
  result.compiler = "NVRTC 13.0";
  result.driver = "CUDA 12.8";
  EXPECT_EQ(found(false).why_not, "it was measured with CUDA 12.8, this is CUDA 13.0");
  // As many multiprocessors of the same kind, and slower memory.
  result.product = "NVIDIA H100 80GB HBM3";
  EXPECT_EQ(found(true).why_not, "it was measured on NVIDIA H100 80GB HBM3, this is NVIDIA H200");
  result.product = "NVIDIA";
  EXPECT_EQ(found(true).why_not, "it was measured on NVIDIA, this is NVIDIA H200")
      << "a part of a name is another product's, too";
  result.compute_units = 114;
  EXPECT_EQ(found(true).why_not, "it was measured with 114 compute units, this has 132");
  result.problem_class = "forward fp16";
  EXPECT_EQ(found(true).why_not, "") << "there is none";
}

TEST_F(TunedResults, OfAnotherBuildOrOtherUnitsAreNotUsed) {
  TuneRecord other = record("block_n=64,tiles_per_task=1");
  other.build = "fulmen 0.0.1";
  ASSERT_TRUE(tools::merge_records(file(), {other}).ok());
  forget_results();
  EXPECT_NE(
      explained().find("is not used: it was measured with other code of the kernel (fulmen 0.0.1"),
      std::string::npos)
      << explained();
  other = record("block_n=64,tiles_per_task=1");
  other.compute_units = 77;
  fs::remove(file());
  ASSERT_TRUE(tools::merge_records(file(), {other}).ok());
  forget_results();
  EXPECT_NE(explained().find("it was measured with 77 threads"), std::string::npos) << explained();
  fs::remove(file());
  ASSERT_TRUE(tools::merge_records(file(), {record("block_n=48")}).ok());
  forget_results();
  EXPECT_NE(explained().find("is not used: block_n=48 (own)"), std::string::npos) << explained();
}

TEST_F(TunedResults, DamageOfEveryKindIsReportedAndIgnored) {
  const std::string whole =
      tools::records_text(identity().chip, {record("block_n=64,tiles_per_task=1")});
  ASSERT_TRUE(parse_results(whole, identity().chip).ok());
  for (std::size_t length = 0; length + 1 < whole.size(); ++length) {
    const auto cut = parse_results(whole.substr(0, length), identity().chip);
    EXPECT_FALSE(cut.ok() || cut.status().message().empty()) << length;
  }
  EXPECT_FALSE(parse_results(whole, "another chip").ok());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x15);
    static_cast<void>(parse_results(changed, identity().chip));  // whatever it is: no crash
  }
  for (const char* text : {"[]", "{}", "null", "{\"version\": 2}", "{\"version\": 1, \"chip\": 3}",
                           "\x80\xff", "1e999", "[[[["}) {
    EXPECT_FALSE(parse_results(text, identity().chip).ok()) << text;
  }
  EXPECT_FALSE(parse_results(std::string(100000, '['), identity().chip).ok());

  fs::create_directories(fs::path(file()).parent_path());
  std::ofstream(file()) << whole.substr(0, whole.size() / 2);
  ::chmod(file().c_str(), 0600);
  std::string said;
  set_log_callback(
      [](void* context, const char* line) { *static_cast<std::string*>(context) += line; }, &said);
  forget_results();
  EXPECT_NE(explained().find("(default)"), std::string::npos);
  EXPECT_NE(said.find("is not used"), std::string::npos) << said;
  // Other users could have written it.
  std::ofstream(file(), std::ios::trunc) << whole;
  ::chmod(file().c_str(), 0666);
  said.clear();
  forget_results();
  EXPECT_EQ(explained().find("(own)"), std::string::npos);
  EXPECT_NE(said.find("others can write it"), std::string::npos) << said;
  set_log_callback(nullptr, nullptr);
}

TEST_F(TunedResults, TwoWritersLoseNothing) {
  constexpr int kWriters = 4, kRecords = 10;
  std::vector<pid_t> children;
  for (int writer = 0; writer < kWriters; ++writer) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int n = 0; n < kRecords; ++n) {
        TuneRecord r = record("block_n=64,tiles_per_task=1");
        r.problem_class = std::to_string(writer) + " " + std::to_string(n);
        if (!tools::merge_records(file(), {r}).ok()) ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const auto kept = tools::read_records(file());
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  EXPECT_EQ(kept->size(), static_cast<std::size_t>(kWriters * kRecords));
}

TEST_F(TunedResults, AFullDiskLeavesWhatWasThere) {
  ASSERT_TRUE(tools::merge_records(file(), {record("block_n=64,tiles_per_task=1")}).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    // A limit of the file's size stands for a full disk: writes fail.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{10, 10};
    ::setrlimit(RLIMIT_FSIZE, &none);
    ::_exit(tools::merge_records(file(), {record("block_n=128,tiles_per_task=2")}).ok() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "a write that fails is told";
  const auto kept = tools::read_records(file());
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  ASSERT_EQ(kept->size(), 1U);
  EXPECT_EQ(kept->front().configuration, "block_n=64,tiles_per_task=1");
}

// Wherever a tuner is killed, kept results remain, and the next one continues.
TEST_F(TunedResults, AKilledWriterLeavesAWholeFile) {
  for (int round = 0; round < 5; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int n = 0;; ++n) {
        TuneRecord r = record("block_n=64,tiles_per_task=1");
        r.problem_class = std::to_string(n % 7);
        if (!tools::merge_records(file(), {r}).ok()) ::_exit(1);
        if (n == round && ::write(ready[1], "x", 1) != 1) ::_exit(1);
      }
    }
    ::close(ready[1]);
    char one = 0;
    EXPECT_EQ(::read(ready[0], &one, 1), 1);
    ::close(ready[0]);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    const auto kept = tools::read_records(file());
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    EXPECT_GT(kept->size(), static_cast<std::size_t>(round));
    EXPECT_TRUE(tools::merge_records(file(), {record("block_n=128,tiles_per_task=2")}).ok());
    fs::remove(file());
  }
}

TEST_F(TunedResults, NumbersThatNoIntHasAreRefused) {
  const std::string whole =
      tools::records_text(identity().chip, {record("block_n=64,tiles_per_task=1")});
  for (const char* name : {"\"version\": ", "\"compute_units\": "}) {
    for (const char* number :
         {"1e300", "-1", "4294967297", "1.5", "null", "18446744073709551615"}) {
      std::string changed = whole;
      const std::size_t at = changed.find(name) + std::string(name).size();
      changed.replace(at, changed.find_first_of(",\n", at) - at, number);
      const auto records = tools::parse_records(changed, "in.json");
      EXPECT_EQ(records.status().message().find("in.json: "), 0U) << name << number;
    }
  }
}

TEST_F(TunedResults, ADamagedFileMovesAsideWhenNewResultsCome) {
  fs::create_directories(fs::path(file()).parent_path());
  std::ofstream(file()) << "{";
  ASSERT_TRUE(tools::merge_records(file(), {record("block_n=64,tiles_per_task=1")}).ok());
  EXPECT_EQ(tools::read_records(file())->size(), 1U);
  EXPECT_TRUE(fs::exists(file() + ".damaged"));
}

}  // namespace
}  // namespace fulmen::tuning
