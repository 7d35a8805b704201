// fulmen bench --compare and the pages with plots.
#include "tools/bench/compare/compare.h"

#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "tools/bench/compare/counts_compare.h"
#include "tools/bench/report/page.h"
#include "tools/bench/report/report.h"
#include "tools/tune/page.h"

namespace fulmen::test {
namespace {

using tools::BenchRow;
using tools::Verdict;

BenchRow row(const std::string& name, int64_t length, double min_s, double median_s) {
  BenchRow r;
  r.bench_case.suite = "prefill";
  r.bench_case.name = name;
  r.bench_case.seqlen_q = r.bench_case.seqlen_k = length;
  r.bench_case.head_dim = 64;
  r.kernel = "cpu.prefill.avx2";
  r.min_s = min_s;
  r.median_s = median_s;
  r.tflops = 0.5;
  r.gb_s = 10;
  r.ceiling = 1;
  r.standard_s = 2 * min_s;
  r.standard_kernel = "cpu.standard.blas";
  r.extra_bytes = 1 << 20;
  r.verified = true;
  return r;
}

std::vector<tools::ComparedRow> compared(const std::vector<BenchRow>& a,
                                         const std::vector<BenchRow>& b) {
  auto rows = tools::compare_reports(tools::json_report(a), "a", tools::json_report(b), "b");
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  return rows.ok() ? std::move(rows).value() : std::vector<tools::ComparedRow>{};
}

TEST(CompareReports, ARatioBeyondTheNoiseIsAVerdict) {
  BenchRow wrong = row("e", 5, 1, 1);
  wrong.verified = false;
  const auto rows =
      compared({row("a", 1, 1, 1.02), row("b", 2, 1, 1), row("c", 3, 1, 1), row("d", 4, 1, 1),
                row("e", 5, 1, 1), row("f", 6, 1, 1), row("g", 7, 0, 0)},
               {row("a", 1, 1.04, 1.08), row("b", 2, 1.02, 1.02), row("c", 3, 0.9, 0.9),
                row("d", 4, 1.005, 1), wrong, row("g", 7, 0, 0), row("h", 8, 1, 1)});
  ASSERT_EQ(rows.size(), 8U);
  EXPECT_EQ(rows[0].verdict, Verdict::same) << "4 % is within what both vary by";
  EXPECT_NEAR(rows[0].noise, 0.02 + 0.04 / 1.04, 1e-9);
  EXPECT_EQ(rows[1].verdict, Verdict::slower);
  EXPECT_NEAR(rows[1].ratio, 1.02, 1e-12);
  EXPECT_EQ(rows[2].verdict, Verdict::faster);
  EXPECT_EQ(rows[3].verdict, Verdict::same);
  EXPECT_EQ(rows[4].verdict, Verdict::wrong);
  EXPECT_EQ(rows[5].verdict, Verdict::missing);
  EXPECT_EQ(rows[6].verdict, Verdict::not_timed);
  EXPECT_EQ(rows[7].verdict, Verdict::added);
  EXPECT_EQ(tools::comparison_status(rows).message(),
            "of B's rows 1 are slower, 1 wrong and 1 missing");
  EXPECT_TRUE(tools::comparison_status({rows[0], rows[2], rows[3], rows[6], rows[7]}).ok());
}

class CompareCommand : public ProgramTest {};

TEST_F(CompareCommand, TellsByItsExitCode) {
  write_bytes("a.json", tools::json_report({row("a", 1, 1, 1)}));
  write_bytes("b.json", tools::json_report({row("a", 1, 1.5, 1.5)}));
  const Outcome slower = fulmen({"bench", "--compare", "a.json", "b.json"});
  EXPECT_EQ(slower.exit_code, 1);
  EXPECT_NE(slower.out.find("1.500   1.0 %  slower"), std::string::npos) << slower.out;
  EXPECT_EQ(slower.err, "fulmen: of B's rows 1 are slower, 0 wrong and 0 missing\n");
  const Outcome faster = fulmen({"bench", "--compare", "b.json", "a.json"});
  EXPECT_EQ(faster.exit_code, 0) << faster.err;
  EXPECT_NE(faster.out.find("1 rows, 1 faster"), std::string::npos) << faster.out;
  write_bytes("c.json", "{}");
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "c.json"}),
                      "c.json: it is no report of `fulmen bench --json`");
  write_bytes("c.json", "[{\"suite\": 3}]");
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "c.json"}),
                      "c.json: it is no report");
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "none.json"}),
                      "--compare none.json: it cannot be read");
}

std::string launch(const std::string& kernel, int number, int vector, int scratch = 0) {
  return nlohmann::json{{"arch", "gfx1100"},  {"problem", "p"},  {"launch", number},
                        {"kernel", kernel},   {"workgroups", 1}, {"matrix", 1000},
                        {"vector", vector},   {"scalar", 100},   {"transcendental", 10},
                        {"scalar_loads", 10}, {"lds", 10},       {"global", 10},
                        {"scratch", scratch}, {"waits", 60}}
      .dump();
}
std::string launches(const std::vector<std::string>& rows) {
  std::string text;
  for (const std::string& row : rows) text += (text.empty() ? "" : ",\n") + row;
  return "[\n" + text + "\n]\n";
}

TEST(CompareCounts, ARiseIsNamedAndAFallIsWorthKeeping) {
  const std::string a = launches({launch("a", 0, 800), launch("b", 1, 800), launch("c", 2, 800),
                                  launch("d", 3, 800), launch("e", 4, 800)});
  const std::string b = launches({launch("a", 0, 830), launch("b", 1, 850), launch("c", 2, 700),
                                  launch("d", 3, 790, 4), launch("f", 5, 1)});
  const auto rows = tools::compare_counts(a, "a", b, "b");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 6U);
  using tools::CountVerdict;
  EXPECT_EQ((*rows)[0].verdict, CountVerdict::same) << "1.5 %";
  EXPECT_EQ((*rows)[1].verdict, CountVerdict::more);
  EXPECT_EQ((*rows)[1].changed, "vector 800 -> 850");
  EXPECT_EQ((*rows)[2].verdict, CountVerdict::fewer);
  EXPECT_EQ((*rows)[3].verdict, CountVerdict::more) << "it spills";
  EXPECT_EQ((*rows)[3].changed, "scratch 0 -> 4");
  EXPECT_EQ((*rows)[4].verdict, CountVerdict::missing);
  EXPECT_EQ((*rows)[5].verdict, CountVerdict::added);
  EXPECT_EQ(tools::counts_status(rows.value()).message(),
            "gfx1100 b executes 1.025 times the instructions (vector 800 -> 850); gfx1100 d "
            "executes 0.997 times the instructions "
            "(scratch 0 -> 4); gfx1100 e is missing");
  EXPECT_NE(tools::counts_table(rows.value()).find("1 only in B: B is worth keeping in A's place"),
            std::string::npos);
  EXPECT_TRUE(tools::counts_status({(*rows)[0], (*rows)[2], (*rows)[5]}).ok());
}

TEST_F(CompareCommand, TakesCountsOfInstructions) {
  write_bytes("a.json", launches({launch("a", 0, 800)}));
  write_bytes("b.json", launches({launch("a", 0, 900)}));
  const Outcome more = fulmen({"bench", "--compare", "a.json", "b.json"});
  EXPECT_EQ(more.exit_code, 1);
  EXPECT_NE(more.out.find("1.050  MORE"), std::string::npos) << more.out;
  EXPECT_EQ(more.err,
            "fulmen: gfx1100 a executes 1.050 times the instructions (vector 800 -> 900)\n");
  EXPECT_EQ(fulmen({"bench", "--compare", "a.json", "a.json"}).exit_code, 0);
  write_bytes("c.json", tools::json_report({row("a", 1, 1, 1)}));
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "c.json"}),
                      "c.json: it is no file of `fulmen counts --json`");
  write_bytes("c.json", launches({launch("a", 0, -1)}));
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "c.json"}),
                      "vector of gfx1100 a is -1: a count is expected");
  write_bytes("c.json", launches({launch("a", 0, 1), launch("b", 0, 1)}));
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "c.json"}),
                      "it has a launch twice: gfx1100 b");
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Pages, OfTheBenchmarkHavePlotsAndEveryRow) {
  BenchRow odd = row("<b>", 1024, 3e-3, 4e-3);
  odd.bench_case.name = "<b>";
  const std::string page = tools::bench_page(
      {row("S256", 256, 1e-3, 1e-3), row("S512", 512, 2e-3, 2e-3), odd}, "cpu & more");
  EXPECT_NE(page.find("cpu &amp; more"), std::string::npos);
  EXPECT_EQ(count(page, "<b>"), 0U) << "names are text";
  EXPECT_EQ(count(page, "<td>&lt;b&gt;</td>"), 1U);
  for (const char* title : {"Time by length", "Rate of arithmetic by length",
                            "Rate of memory by length", "Extra memory by length", "Roofline"}) {
    EXPECT_EQ(count(page, std::string("<figcaption>") + title), 1U) << title;
  }
  EXPECT_EQ(count(page, "by batch"), 0U) << "all rows have one batch";
  for (const char* outside : {"http:", "https:", "<script", "src=", "@import"})
    EXPECT_EQ(count(page, outside), 0U) << outside;
}

TEST(Pages, OfTuningHaveABarACandidate) {
  tools::TunedProblem t;
  t.name = "bf16 1 x 2 x 64 q512";
  t.device = "cuda:0";
  t.identity.kernel = "cuda.prefill.sm80";
  t.identity.product = "NVIDIA H200";
  t.flops = 1e9;
  t.bytes = 1e6;
  t.outcome.candidates = {{"block_m=64", "", true, {1e-3, 1e-3, 1.1e-3, 0.9e-3, 1e-5}, 1},
                          {"block_m=128", "", true, {8e-4, 8e-4, 9e-4, 7e-4, 1e-5}, 1},
                          {"block_m=32", "wrong results", false, {}, 0}};
  t.outcome.winner = 1;
  t.outcome.gain = 0.2;
  const std::string page = tools::tuned_page({t});
  EXPECT_EQ(count(page, "<rect"), 2U);
  EXPECT_NE(page.find("20.0 % less time than the default"), std::string::npos);
  EXPECT_NE(page.find("block_m=128 (winner)"), std::string::npos);
  EXPECT_NE(page.find("left out: wrong results"), std::string::npos);
  EXPECT_NE(tools::tuned_page({}).find("nothing was tuned"), std::string::npos);
}

}  // namespace
}  // namespace fulmen::test
