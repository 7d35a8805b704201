// fulmen bench --compare and the pages with plots.
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "tools/bench_compare.h"
#include "tools/bench_page.h"
#include "tools/bench_report.h"
#include "tools/tune_page.h"

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

std::vector<tools::ComparedRow> compared(const std::vector<BenchRow>& a, const std::vector<BenchRow>& b) {
  auto rows = tools::compare_reports(tools::json_report(a), "a", tools::json_report(b), "b");
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  return rows.ok() ? std::move(rows).value() : std::vector<tools::ComparedRow>{};
}

TEST(CompareReports, ARatioBeyondTheNoiseIsAVerdict) {
  BenchRow wrong = row("e", 5, 1, 1);
  wrong.verified = false;
  const auto rows = compared({row("a", 1, 1, 1.02), row("b", 2, 1, 1), row("c", 3, 1, 1), row("d", 4, 1, 1), row("e", 5, 1, 1),
                              row("f", 6, 1, 1), row("g", 7, 0, 0)},
                             {row("a", 1, 1.04, 1.08), row("b", 2, 1.02, 1.02), row("c", 3, 0.9, 0.9), row("d", 4, 1.005, 1), wrong,
                              row("g", 7, 0, 0), row("h", 8, 1, 1)});
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
  EXPECT_EQ(tools::comparison_status(rows).message(), "of B's rows 1 are slower, 1 wrong and 1 missing");
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
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "c.json"}), "c.json: it is no report of `fulmen bench --json`");
  write_bytes("c.json", "[{\"suite\": 3}]");
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "c.json"}), "c.json: it is no report");
  expect_one_sentence(fulmen({"bench", "--compare", "a.json", "none.json"}), "--compare none.json: it cannot be read");
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Pages, OfTheBenchmarkHavePlotsAndEveryRow) {
  BenchRow odd = row("<b>", 1024, 3e-3, 4e-3);
  odd.bench_case.name = "<b>";
  const std::string page = tools::bench_page({row("S256", 256, 1e-3, 1e-3), row("S512", 512, 2e-3, 2e-3), odd}, "cpu & more");
  EXPECT_NE(page.find("cpu &amp; more"), std::string::npos);
  EXPECT_EQ(count(page, "<b>"), 0U) << "names are text";
  EXPECT_EQ(count(page, "<td>&lt;b&gt;</td>"), 1U);
  for (const char* title :
       {"Time by length", "Rate of arithmetic by length", "Rate of memory by length", "Extra memory by length", "Roofline"}) {
    EXPECT_EQ(count(page, std::string("<figcaption>") + title), 1U) << title;
  }
  EXPECT_EQ(count(page, "by batch"), 0U) << "all rows have one batch";
  for (const char* outside : {"http:", "https:", "<script", "src=", "@import"}) EXPECT_EQ(count(page, outside), 0U) << outside;
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
