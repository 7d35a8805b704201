// `fulmen selftest`: its problems, its report, and that nothing private is in it.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "fulmen/fulmen.h"
#include "program.h"
#include "tools/selftest/append_check.h"
#include "tools/selftest/private_words.h"
#include "tools/selftest/problems.h"
#include "tools/selftest/report.h"

namespace fulmen::test {
namespace {

using nlohmann::json;

class Selftest : public ProgramTest {};

TEST_F(Selftest, ProblemsAreOfEveryKind) {
  const auto problems = tools::selftest_problems();
  // The guide to the first run states the number of problems.
  const std::string guide = read_text(FULMEN_SOURCE_DIR "/docs/guide/first_amd_run.md");
  const std::string all =
      "all " + std::to_string(problems.size() + tools::kAppendProblems) + " problems";
  EXPECT_NE(guide.find(all), std::string::npos)
      << "docs/guide/first_amd_run.md does not say: " << all;
  std::set<DType> dtypes;
  std::set<tools::Feature> features;
  std::set<tools::Sequences> sequences;
  int backward = 0, dropout = 0, grouped = 0;
  for (const auto& c : problems) {
    dtypes.insert(c.dtype);
    features.insert(c.feature);
    sequences.insert(c.sequences);
    backward += c.pass == Pass::backward ? 1 : 0;
    dropout += c.dropout > 0 ? 1 : 0;
    grouped += c.heads != c.kv_heads ? 1 : 0;
  }
  EXPECT_EQ(dtypes.size(), 3U);
  EXPECT_EQ(features.size(), static_cast<std::size_t>(tools::kFeatures));
  EXPECT_EQ(sequences.size(), 4U);
  EXPECT_GE(backward, 15);
  EXPECT_GE(dropout, 3);
  EXPECT_GE(grouped, 15);
}

TEST_F(Selftest, PrivateWordsAreTakenOut) {
  const tools::PrivateWords words({"/home/ada/", "/"}, "ada", "engine.lan");
  EXPECT_EQ(words.removed_from("/home/ada/.venv/lib/x.so of ada on engine.lan, engine"),
            "~/.venv/lib/x.so of USER on HOST, HOST");
  EXPECT_EQ(words.removed_from("/data/ada/x adapter engines /home/adam"),
            "/data/USER/x adapter engines /home/adam");
  EXPECT_EQ(words.removed_from("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(tools::PrivateWords({}, "", "").removed_from("as it is"), "as it is");
  const tools::PrivateWords folders(
      {"/home/ada"}, "", "",
      {{"/home/ada/secret/", "FULMEN_CACHE_DIR"}, {"/srv/firm", "TMPDIR"}, {"", "NONE"}});
  EXPECT_EQ(folders.removed_from("/home/ada/secret/x.kernel, /srv/firm and /home/ada/x"),
            "$FULMEN_CACHE_DIR/x.kernel, $TMPDIR and ~/x");
}

TEST_F(Selftest, ReportsAreTwoFiles) {
  using Pair = std::pair<std::string, std::string>;
  for (const char* name : {"r", "r.json", "r.html"})
    EXPECT_EQ(tools::report_files(name), Pair("r.json", "r.html"));
}

// Tables of a page: rows of cells, the head first.
using Table = std::vector<std::vector<std::string>>;
std::vector<Table> tables_with_heads(const std::string& html) {
  std::vector<Table> tables;
  const auto between = [](const std::string& text, std::size_t& at, const std::string& from,
                          const std::string& to) {
    const std::size_t begin = text.find(from, at);
    if (begin == std::string::npos) return std::string();
    const std::size_t end = text.find(to, begin);
    at = end;
    return text.substr(begin + from.size(), end - begin - from.size());
  };
  std::size_t at = 0;
  for (std::string table = between(html, at, "<table>", "</table>"); !table.empty();
       table = between(html, at, "<table>", "</table>")) {
    Table& rows = tables.emplace_back();
    std::size_t row_at = 0;
    for (std::string row = between(table, row_at, "<tr", "</tr>"); !row.empty();
         row = between(table, row_at, "<tr", "</tr>")) {
      const char* const name = rows.empty() ? "th>" : "td>";
      std::vector<std::string>& cells = rows.emplace_back();
      std::size_t cell_at = 0;
      while (row.find(std::string("<") + name, cell_at) != std::string::npos) {
        cells.push_back(between(row, cell_at, std::string("<") + name, std::string("</") + name));
      }
    }
  }
  tables.erase(tables.begin());  // the device
  return tables;
}

// Columns have names in words, and are not empty.
void expect_readable(const std::string& html) {
  for (const Table& rows : tables_with_heads(html)) {
    ASSERT_GE(rows.size(), 2U) << "a table has rows";
    for (std::size_t column = 0; column < rows[0].size(); ++column) {
      EXPECT_EQ(rows[0][column].find('_'), std::string::npos)
          << rows[0][column] << " is a name of the code";
      bool filled = false;
      for (std::size_t row = 1; row < rows.size(); ++row)
        filled = filled || !rows[row].at(column).empty();
      EXPECT_TRUE(filled) << "nothing is in the column " << rows[0][column];
    }
  }
}

TEST_F(Selftest, ThePageCountsAsTheTerminalAndIsReadable) {
  tools::SelftestReport report;
  report.device = "hip:0";
  report.runs.resize(3);
  report.runs[0].ok = report.runs[2].ok = true;
  report.runs[1].message = "off";
  report.speed.resize(2);
  report.speed[0].ok = true;
  report.kernels.resize(1);
  EXPECT_EQ(report.results(), 5);
  EXPECT_EQ(report.failed(), 2);
  const json all = tools::to_json(report, tools::PrivateWords({}, "", ""));
  EXPECT_EQ(all["results"], 5);
  EXPECT_EQ(all["failed"], 2);
  const std::string html = tools::to_html(all);
  EXPECT_NE(html.find("<p>5 results, 2 failed</p>"), std::string::npos) << html;
  EXPECT_EQ(tables_with_heads(html).size(), 3U) << "problems, speed and kernels";
  expect_readable(html);
}

// A result that is wrong is listed with its command, in both files, and marks are escaped.
TEST_F(Selftest, FailuresAreInTheReport) {
  tools::SelftestReport report;
  report.device = "hip:0";
  tools::SelftestRun run;
  run.number = 7;
  run.message = "<b>off</b> in /home/ada";
  run.repeat = "fulmen selftest --device hip:0 --only 7";
  run.emulated_elements = 100;
  run.differing = 3;
  report.runs = {run};
  report.probes = {{"subnormals", "what counts", true, false, "flushed by /home/ada"}};
  const json all = tools::to_json(report, tools::PrivateWords({"/home/ada"}, "ada", ""));
  EXPECT_EQ(all["failed"], 1);
  EXPECT_EQ(all["runs"][0]["repeat"], run.repeat);
  EXPECT_EQ(all["runs"][0]["bits_differ"], 3);
  EXPECT_EQ(all["probes"][0]["answer"], "NOT as expected");
  EXPECT_EQ(all["probes"][0]["found"], "flushed by ~");
  const std::string html = tools::to_html(all);
  for (const char* part : {"&lt;b&gt;off&lt;/b&gt; in ~", "class=\"bad\"", "--only 7"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(html.find("http"), std::string::npos) << "the page needs nothing else";
}

TEST_F(Selftest, RunsOnTheCpuAndWritesNothingPrivate) {
  // A home whose name would show, with the cache of kernels in it.
  std::filesystem::create_directory(folder_ / "secret-home");
  const std::string old_home = ::getenv("HOME") != nullptr ? ::getenv("HOME") : "";
  ::setenv("HOME", path("secret-home").c_str(), 1);
  ::unsetenv("FULMEN_CACHE_DIR");
  const Outcome outcome = fulmen({"selftest", "--device", "cpu", "--quick", "--report", "r.json"});
  ::setenv("FULMEN_CACHE_DIR", path("secret-cache").c_str(), 1);
  const Outcome elsewhere =
      fulmen({"selftest", "--device", "cpu", "--only", "1", "--report", "elsewhere.json"});
  ::unsetenv("FULMEN_CACHE_DIR");
  EXPECT_EQ(elsewhere.exit_code, 0) << elsewhere.out << elsewhere.err;
  for (const char* file : {"elsewhere.json", "elsewhere.html"}) {
    EXPECT_EQ(read_text(path(file)).find("secret-cache"), std::string::npos) << file;
    EXPECT_NE(read_text(path(file)).find("$FULMEN_CACHE_DIR"), std::string::npos) << file;
  }
  old_home.empty() ? ::unsetenv("HOME") : ::setenv("HOME", old_home.c_str(), 1);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const std::string text = read_text(path("r.json")), html = read_text(path("r.html"));
  const json report = json::parse(text);
  EXPECT_EQ(report["failed"], 0);
  const std::string counted =
      std::to_string(report["runs"].size() + report["speed"].size()) + " results, 0 failed";
  for (const std::string& told : {outcome.out, html})
    EXPECT_NE(told.find(counted), std::string::npos) << told;
  expect_readable(html);
  EXPECT_EQ(report["device"], "cpu");
  ASSERT_GE(report["runs"].size(), 13U);
  ASSERT_EQ(report["probes"].size(), 5U);
  for (const json& probe : report["probes"]) EXPECT_EQ(probe["answer"], "not probed") << probe;
  for (const json& run : report["runs"]) {
    EXPECT_TRUE(run["ok"].get<bool>()) << run;
    EXPECT_FALSE(run["kernel"].get<std::string>().empty()) << run;
  }
  for (const std::string& file : {text, html}) {
    EXPECT_EQ(file.find("secret-home"), std::string::npos);
    EXPECT_NE(file.find("~/.cache/fulmen"), std::string::npos)
        << "the folder of the cache is told without the home";
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    const bool tells = std::string(host.data()).size() > 4;  // a short name is part of many words
    EXPECT_TRUE(!tells || file.find(host.data()) == std::string::npos);
  }
}

TEST_F(Selftest, OneProblemRunsAgainByItsNumber) {
  const std::string last =
      std::to_string(tools::selftest_problems().size() + tools::kAppendProblems);
  const Outcome append = fulmen({"selftest", "--device", "cpu", "--only", last});
  EXPECT_EQ(append.exit_code, 0) << append.out << append.err;
  EXPECT_NE(append.out.find("1 results, 0 failed"), std::string::npos) << append.out;
  expect_one_sentence(fulmen({"selftest", "--only", "1000"}), "there are problems 1 to " + last);
  expect_one_sentence(fulmen({"selftest", "--only", last, "--kernel", "cpu.reference.double"}),
                      "append_kv");
  expect_one_sentence(fulmen({"selftest", "--device", "gpu"}), "gpu");
  expect_one_sentence(fulmen({"selftest", "--report", "nowhere/r"}), "nowhere/r.json");
}

TEST_F(Selftest, EmulatedChipsTakeAProblem) {
  const std::vector<DeviceInfo> all = devices();
  constexpr const char* kDevice = "emulated:gfx1100";
  if (!std::any_of(all.begin(), all.end(),
                   [](const DeviceInfo& d) { return d.name == kDevice && d.usable; })) {
    GTEST_SKIP() << "this build has no emulator, or there is no host compiler";
  }
  const Outcome outcome =
      fulmen({"selftest", "--device", kDevice, "--only", "27", "--report", "r"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json report = json::parse(read_text(path("r.json")));
  EXPECT_TRUE(report["runs"][0]["kernel"].get<std::string>().starts_with("emulated."))
      << report["runs"];
  EXPECT_TRUE(report["speed"].empty());
}

// A device that supports every problem and writes nothing.
class IdleBackend final : public Backend {
 public:
  std::string_view name() const noexcept override { return "idle"; }
  std::vector<DeviceInfo> devices() const override { return {{"idle", "a chip", "", true, ""}}; }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }
  Status append_kv(const std::string&, void*, const KvCacheProblem&, const KvCacheTensors&,
                   const KvCacheOptions&) const override {
    return {};
  }

 private:
  class IdleRunner final : public Runner {
   public:
    const KernelConfig& config() const noexcept override { return config_; }
    std::size_t workspace_bytes() const noexcept override { return 0; }
    Status run(void*, const AttentionTensors&, void*) const override { return {}; }

   private:
    KernelConfig config_{"idle.nothing.any", 0, 0, 0, 0};
  };
  class IdleKernel final : public Kernel {
   public:
    std::string_view name() const noexcept override { return "idle.nothing.any"; }
    Support supports(const Problem&, const std::string&) const override { return {}; }
    double rank(const Problem&) const override { return 1; }
    Result<std::unique_ptr<Runner>> prepare(const Problem&, const std::string&,
                                            const AttentionOptions&) const override {
      return std::unique_ptr<Runner>(std::make_unique<IdleRunner>());
    }
  };
  IdleKernel kernel_;
  std::vector<const Kernel*> kernels_{&kernel_};
};

TEST_F(Selftest, WrongResultsFail) {
  ASSERT_TRUE(register_backend(std::make_shared<IdleBackend>()).ok());
  tools::SelftestRuns runs({.device = "idle", .twin = "", .kernel = "", .only = 0, .quick = false});
  const auto run = runs.run(1);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_FALSE(run->ok);
  EXPECT_EQ(run->kernel, "idle.nothing.any");
  EXPECT_EQ(run->repeat, "fulmen selftest --device idle --only 1");
  EXPECT_FALSE(run->message.empty());
  for (int problem = 0; problem < tools::kAppendProblems; ++problem) {
    EXPECT_FALSE(tools::check_append("idle", problem).ok) << problem;
    EXPECT_TRUE(tools::check_append("cpu", problem).ok) << problem;
  }
  ASSERT_TRUE(unregister_backend("idle").ok());
}

TEST_F(Selftest, AppendIsRefusedWhereThereIsNoDevice) {
  const tools::AppendResult result = tools::check_append("no-such-device", 0);
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.message.find("no-such-device"), std::string::npos) << result.message;
}

}  // namespace
}  // namespace fulmen::test
