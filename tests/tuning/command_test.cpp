// fulmen tune as a user calls it. The fastest configuration depends on the machine, so no test
// depends on it.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "fulmen/version.h"
#include "tools/tune/records.h"

namespace fulmen::test {
namespace {

class TuneCommand : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    ::setenv("FULMEN_CACHE_DIR", path("cache").c_str(), 1);
  }
  void TearDown() override {
    ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 1);
    ProgramTest::TearDown();
  }
  static std::vector<std::string> small(std::vector<std::string> more) {
    more.insert(more.begin(),
                {"tune", "--device", "cpu", "--kernel", "cpu.prefill.scalar", "--threads", "1",
                 "--minutes", "0.02", "--problem", "seqlen_q=130,heads=1,head_dim=8,dtype=fp32"});
    return more;
  }
};

tools::TuneRecord record_of_hopper() {
  tools::TuneRecord record;
  record.chip = "sm_90a";
  record.kernel = "cuda.prefill.sm80";
  record.problem_class = "forward bf16 d64/64";
  record.build = "0123";
  record.configuration = "block_m=64";
  return record;
}

TEST_F(TuneCommand, ShowsEveryCandidate) {
  const Outcome outcome = fulmen(small({"--json", "all.json", "--csv", "all.csv"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("fp32 1 x 1 x 8 q130: cpu.prefill.scalar on cpu"), std::string::npos)
      << outcome.out;
  const auto json = nlohmann::json::parse(read_text(path("all.json")));
  ASSERT_EQ(json.size(), 1U);
  const auto& candidates = json[0]["candidates"];
  ASSERT_GE(candidates.size(), 1U);
  EXPECT_GT(candidates[0]["median_s"].get<double>(), 0);
  for (const auto& candidate : candidates) EXPECT_EQ(candidate["problem"], "") << candidate;
  const std::string csv = read_text(path("all.csv"));
  EXPECT_EQ(static_cast<std::size_t>(std::count(csv.begin(), csv.end(), '\n')),
            candidates.size() + 1);
}

TEST_F(TuneCommand, TakesListsExportsAndDeletesResults) {
  tools::TuneRecord record = record_of_hopper();
  record.compute_units = 132;
  record.gain = 0.125;
  record.fulmen_version = version();
  write_bytes("in.json", "[" + tools::records_text(record.chip, {record}) + "]");
  EXPECT_EQ(fulmen({"tune", "--import", "in.json"}).out,
            "1 results are now among this user's own\n");
  EXPECT_NE(fulmen({"tune", "--list"}).out.find("block_m=64, 12.5 % less time"), std::string::npos);
  EXPECT_EQ(fulmen({"tune", "--export", "out.json"}).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_text(path("out.json"))),
            nlohmann::json::parse(read_text(path("in.json"))));
  EXPECT_EQ(fulmen({"tune", "--reset"}).out, "1 files of own results deleted\n");
  EXPECT_NE(fulmen({"tune", "--list"}).out.find("0 own results"), std::string::npos);
}

// A result holds only for this kernel, device and software.
TEST_F(TuneCommand, ResumesAfterWhatIsKept) {
  ASSERT_EQ(fulmen(small({"--json", "all.json"})).exit_code, 0);
  const auto tuned = nlohmann::json::parse(read_text(path("all.json")))[0];
  tools::TuneRecord record;
  record.chip = tuned["chip"].get<std::string>();
  record.kernel = tuned["kernel"].get<std::string>();
  record.problem_class = tuned["problem_class"].get<std::string>();
  record.build = tuned["build"].get<std::string>();
  record.configuration = tuned["candidates"][0]["configuration"].get<std::string>();
  record.compute_units = tuned["compute_units"].get<int>();
  const auto resumed = [&] {
    fulmen({"tune", "--reset"});
    write_bytes("in.json", "[" + tools::records_text(record.chip, {record}) + "]");
    EXPECT_EQ(fulmen({"tune", "--import", "in.json"}).exit_code, 0);
    return fulmen(small({"--resume"})).out;
  };
  EXPECT_NE(resumed().find("q130: its result is kept from before"), std::string::npos);
  record.build = "fulmen 0.0.1";
  EXPECT_EQ(resumed().find("is kept from before"), std::string::npos);
}

// Files that plans refuse are not listed; no call blocks on them or reads them whole.
TEST_F(TuneCommand, ListsNoFileThatPlansRefuse) {
  const std::filesystem::path folder = path("cache/tuned");
  std::filesystem::create_directories(folder);
  ASSERT_EQ(::mkfifo((folder / "fifo.json").c_str(), 0600), 0);
  write_bytes("cache/tuned/large.json", "{");
  ::chmod((folder / "large.json").c_str(), 0600);
  // No disk has as much.
  const bool sparse = ::truncate((folder / "large.json").c_str(), off_t{1} << 42) == 0;
  write_bytes("cache/tuned/others.json", "{}");
  ::chmod((folder / "others.json").c_str(), 0666);
  std::filesystem::create_symlink("others.json", folder / "link.json");
  for (const char* command : {"--list", "--export"}) {
    std::vector<std::string> call{"tune", command};
    if (std::string(command) == "--export") call.emplace_back("out.json");
    const Outcome outcome = fulmen(call);
    const std::string said = outcome.out + outcome.err;
    if (call.size() > 2) {
      EXPECT_EQ(outcome.exit_code, 2) << said;
      continue;
    }
    EXPECT_EQ(outcome.exit_code, 0) << said;
    EXPECT_NE(said.find("fifo.json: no regular file"), std::string::npos) << said;
    EXPECT_TRUE(!sparse ||
                said.find("large.json: it has 4398046511104 bytes, up to 16777216 are read") !=
                    std::string::npos)
        << said;
    EXPECT_NE(said.find("others.json: others can write it"), std::string::npos) << said;
    EXPECT_NE(said.find("0 own results"), std::string::npos) << said;
  }
  // Results of the same chip are still kept: a file that cannot be read is moved aside.
  tools::TuneRecord record = record_of_hopper();
  ASSERT_EQ(::mkfifo((folder / "sm_90a.json").c_str(), 0600), 0);
  ASSERT_TRUE(tools::merge_records((folder / "sm_90a.json").string(), {record}).ok());
  EXPECT_EQ(tools::read_records((folder / "sm_90a.json").string())->size(), 1U);
  // A lock that is no file is not waited for.
  std::filesystem::remove(folder / "sm_90a.json.lock");
  ASSERT_EQ(::mkfifo((folder / "sm_90a.json.lock").c_str(), 0600), 0);
  static_cast<void>(tools::merge_records((folder / "sm_90a.json").string(), {record}));
}

TEST_F(TuneCommand, TakesAChipsFileAsItIs) {
  const Outcome outcome = fulmen({"tune", "--import", FULMEN_SOURCE_DIR "/data/tuned/sm_90a.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto shipped =
      nlohmann::json::parse(read_text(FULMEN_SOURCE_DIR "/data/tuned/sm_90a.json"));
  const std::string count = std::to_string(shipped["entries"].size());
  // Its entries have the versions that measured them.
  std::string said = count + " results are now among this user's own\n";
  std::size_t of_others = 0;
  for (const auto& entry : shipped["entries"]) of_others += entry["fulmen"] == version() ? 0 : 1;
  if (of_others > 0) {
    said += std::to_string(of_others) + " of them are not of Fulmen " + version() +
            ": a result serves only while the kernel's code is what was measured (explain says so "
            "of a call)\n";
  }
  EXPECT_EQ(outcome.out, said);
  EXPECT_NE(fulmen({"tune", "--list"}).out.find(count + " own results"), std::string::npos);
}

TEST_F(TuneCommand, SaysWhichResultsAreOfAnotherFulmen) {
  tools::TuneRecord record = record_of_hopper();
  record.fulmen_version = "0.0.1";
  tools::TuneRecord own = record;
  own.problem_class = "forward bf16 d128/128";
  own.fulmen_version = version();
  write_bytes("in.json", "[" + tools::records_text(record.chip, {record, own}) + "]");
  const std::string out = fulmen({"tune", "--import", "in.json"}).out;
  EXPECT_NE(out.find("2 results are now among this user's own\n1 of them are not of Fulmen "),
            std::string::npos)
      << out;
}

TEST_F(TuneCommand, BadInputIsOneSentence) {
  const auto problem = [&](const std::string& text) {
    return fulmen({"tune", "--device", "cpu", "--problem", text});
  };
  expect_one_sentence(problem("heads=1"), "seqlen_q and head_dim are needed");
  expect_one_sentence(problem("seqlen_q=0,head_dim=8"),
                      "seqlen_q is a number from 1 to 1099511627776");
  expect_one_sentence(problem("seqlen_q=99999999999999999999,head_dim=8"),
                      "seqlen_q is a number from 1 to 1099511627776");
  expect_one_sentence(problem("seqlen_q=64,head_dim=8,heads=3,kv_heads=2"),
                      "heads is no multiple of kv_heads");
  expect_one_sentence(problem("seqlen_q=64,head_dim=8,wide"), "wide is not known");
  expect_one_sentence(problem("seqlen_q=64,head_dim=8,dtype=fp64"), "dtype is fp32, fp16 or bf16");
  expect_one_sentence(fulmen({"tune", "--device", "cpu", "--model", "gpt"}),
                      "--model gpt: all, t82, llama3-8b, sdxl are known");
  expect_one_sentence(fulmen({"tune", "--quick", "--full"}), "--quick and --full: one of them");
  write_bytes("bad.json", "{}");
  expect_one_sentence(fulmen({"tune", "--import", "bad.json"}),
                      "bad.json: it is no file of tuned results");
  write_bytes("bad.json", "7");
  expect_one_sentence(fulmen({"tune", "--import", "bad.json"}),
                      "bad.json: a chip's file of results, or what --export wrote, is accepted");
  for (const char* minutes : {"0", "-1", "1e400", "nan"}) {
    expect_one_sentence(fulmen({"tune", "--minutes", minutes}),
                        std::string("--minutes: '") + minutes +
                            "' is given, a number above 0, up to 1e+09, is accepted");
  }
  expect_one_sentence(fulmen({"tune", "--import", "none.json"}), "it cannot be read");
  expect_one_sentence(
      fulmen({"explain", "--seqlen-q", "8", "--heads", "1", "--head-dim", "8", "--set", "block"}),
      "options.tuning is \"block\": name=number");
  expect_one_sentence(
      fulmen({"explain", "--seqlen-q", "8", "--heads", "1", "--head-dim", "8", "--set",
              "block_m=99999999999"}),
      "options.tuning is \"block_m=99999999999\": block_m is a number from 0 to 2147483647");
}

TEST_F(TuneCommand, TakesTheProblemsOfALog) {
  write_bytes("log",
              "other lines\nfulmen: cpu.prefill.avx2 on cpu for fp32 b=1 sq=130 sk=130 h=1/1 d=8 "
              "scale=0.3: the highest rank\n"
              "fulmen: cpu.prefill.avx2 on cpu for fp32 b=1 sq=130 sk=130 h=1/1 d=8 softcap=3: the "
              "highest rank\n");
  const Outcome outcome =
      fulmen({"tune", "--device", "cpu", "--kernel", "cpu.prefill.scalar", "--threads", "1",
              "--minutes", "0.02", "--from-log", "log", "--html", "page.html"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("log: line 3: left out: it has softcap"), std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("fp32 1 x 1 x 8 q130: cpu.prefill.scalar on cpu"), std::string::npos)
      << outcome.out;
  EXPECT_NE(read_text(path("page.html")).find("<h2>Every candidate</h2>"), std::string::npos);
  expect_one_sentence(fulmen({"tune", "--from-log", "none"}), "--from-log none: it cannot be read");
  expect_one_sentence(fulmen({"tune", "--from-log", "log", "--problem", "seqlen_q=8,head_dim=8"}),
                      "one of them");
}

TEST_F(TuneCommand, ADeviceThatIsNotThereIsTold) {
  const Outcome outcome =
      fulmen({"tune", "--device", "nothing:0", "--problem", "seqlen_q=64,head_dim=8"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.out.find("there is no such device here"), std::string::npos) << outcome.out;
}

TEST_F(TuneCommand, NothingIsTimedOnAnEmulatedDevice) {
  const Outcome outcome =
      fulmen({"tune", "--device", "emulated:sm_80", "--kernel", "emulated.short.sm80", "--problem",
              "seqlen_q=16,heads=1,head_dim=32", "--json", "all.json", "--minutes", "0.01"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  if (outcome.out.find("cannot be used") != std::string::npos) GTEST_SKIP() << outcome.out;
  EXPECT_NE(outcome.out.find("nothing is timed and nothing is kept"), std::string::npos)
      << outcome.out;
  const auto json = nlohmann::json::parse(read_text(path("all.json")));
  for (const auto& candidate : json[0]["candidates"]) EXPECT_FALSE(candidate["timed"].get<bool>());
  EXPECT_NE(fulmen({"tune", "--list"}).out.find("0 own results"), std::string::npos);
}

}  // namespace
}  // namespace fulmen::test
