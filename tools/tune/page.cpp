#include "tools/tune/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/report/report.h"
#include "tools/files/html_page.h"

namespace fulmen::tools {
namespace {

constexpr int kDefaultColor = 7, kWinnerColor = 2, kOtherColor = 0;
constexpr std::size_t kMostBars = 24;

std::string found_text(const TunedProblem& t) {
  const TuneOutcome& o = t.outcome;
  if (o.winner == 0)
    return fmt::format("the default stays: nothing was faster by more than {:.1f} %",
                       100 * std::max(o.noise, 0.01));
  return fmt::format("{:.1f} % less time than the default, noise {:.1f} %", 100 * o.gain,
                     100 * o.noise);
}

// The fastest candidates of a problem, and the default.
std::string candidates_of(const TunedProblem& t) {
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t n = 0; n < t.outcome.candidates.size(); ++n) {
    const TuneCandidate& c = t.outcome.candidates[n];
    if (c.timed && c.problem.empty()) order.emplace_back(c.statistics.median, n);
  }
  std::sort(order.begin(), order.end());
  const double slowest = order.empty() ? 0 : order.back().first;
  const auto [scale, unit] = slowest < 1e-2 ? std::pair{1e6, "us"}
                             : slowest < 10 ? std::pair{1e3, "ms"}
                                            : std::pair{1.0, "s"};
  std::vector<Bar> bars;
  for (const auto& [median, n] : order) {
    const TuneCandidate& c = t.outcome.candidates[n];
    if (bars.size() >= kMostBars && n != 0 && n != t.outcome.winner) continue;
    const char* mark = n == 0 ? " (default)" : n == t.outcome.winner ? " (winner)" : "";
    const int color = n == 0 ? kDefaultColor : n == t.outcome.winner ? kWinnerColor : kOtherColor;
    bars.push_back({c.configuration + mark, scale * median, scale * c.statistics.min,
                    scale * c.statistics.max, color});
  }
  return bars_html(fmt::format("{}: {}", t.name, t.identity.kernel), unit, bars);
}

// Default and winner of each problem, by the arithmetic that a byte of theirs gets.
std::string rates_of(const std::vector<TunedProblem>& tuned) {
  Chart chart{"Rates before and after", "floating-point operations a byte", "TFLOP/s", {}};
  ChartSeries usual{"default", {}, kDefaultColor, true, false},
      best{"tuned", {}, kWinnerColor, false, false};
  for (const TunedProblem& t : tuned) {
    if (!(t.bytes > 0) || t.outcome.candidates.empty()) continue;
    const auto add = [&](ChartSeries& series, const TuneCandidate& c) {
      if (!c.timed) return;
      const double rate = t.flops / c.statistics.median / 1e12;
      series.points.push_back(
          {t.flops / t.bytes, rate,
           fmt::format("{}: {:.4g} TFLOP/s with {}", t.name, rate, c.configuration)});
    };
    add(usual, t.outcome.candidates.front());
    if (t.outcome.winner != 0) add(best, t.outcome.candidates[t.outcome.winner]);
  }
  chart.series = {usual, best};
  return chart_html(chart);
}

std::string row_name(const TuneCandidate& c, std::size_t n, std::size_t winner) {
  return c.configuration + (n == 0 ? " (default)" : "") +
         (n == winner && n != 0 ? " (winner)" : "");
}

}  // namespace

std::string tuned_page(const std::vector<TunedProblem>& tuned) {
  std::string body;
  if (!tuned.empty()) {
    const TunedProblem& t = tuned.front();
    body += fmt::format(
        "<p>{}</p>\n",
        html_text(fmt::format(
            "{} ({}){}{}. Each candidate was verified before it was timed, in turn with "
            "the default. Bars are medians; the line within is from the least to "
            "the most.",
            t.device, t.identity.product.empty() ? t.identity.chip : t.identity.product,
            t.identity.driver.empty() ? "" : ", " + t.identity.driver,
            t.identity.compiler.empty() ? "" : ", " + t.identity.compiler)));
  }
  std::vector<std::vector<std::string>> table{
      {"problem", "kernel", "configuration", "median", "mean", "most", "least", "spread"}};
  std::string plots, notes;
  for (const TunedProblem& t : tuned) {
    notes += fmt::format("<li>{}</li>\n", html_text(fmt::format("{}: {}", t.name, found_text(t))));
    plots += candidates_of(t);
    for (std::size_t n = 0; n < t.outcome.candidates.size(); ++n) {
      const TuneCandidate& c = t.outcome.candidates[n];
      const TuneStatistics& s = c.statistics;
      std::vector<std::string> row{t.name, t.identity.kernel, row_name(c, n, t.outcome.winner)};
      if (!c.problem.empty()) {
        row.push_back("left out: " + c.problem);
      } else if (c.timed) {
        for (const double value : {s.median, s.mean, s.max, s.min}) row.push_back(time_text(value));
        row.push_back(fmt::format("{:.1f} %", 100 * s.spread()));
      }
      row.resize(table.front().size());
      table.push_back(std::move(row));
    }
  }
  body += fmt::format("<h2>What was found</h2>\n<ul>\n{}</ul>\n",
                      notes.empty() ? "<li>nothing was tuned</li>\n" : notes);
  plots += rates_of(tuned);
  if (!plots.empty())
    body += fmt::format("<h2>Candidates</h2>\n<div class=\"plots\">\n{}</div>\n", plots);
  body += "<h2>Every candidate</h2>\n" + table_html(table, 3);
  return html_page("fulmen tune", body);
}

}  // namespace fulmen::tools
