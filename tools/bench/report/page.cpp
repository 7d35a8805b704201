#include "tools/bench/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "tools/bench/report/report.h"
#include "tools/files/html_page.h"

namespace fulmen::tools {
namespace {

constexpr std::size_t kMostSeries = 8;

struct Metric {
  const char* title;
  const char* unit;
  double (*ours)(const BenchRow&);
  double (*standard)(const BenchRow&);  // 0: not known
};
constexpr std::array kMetrics{
    Metric{"Time", "ms", [](const BenchRow& r) { return 1e3 * r.min_s; },
           [](const BenchRow& r) { return 1e3 * r.standard_s; }},
    Metric{
        "Rate of arithmetic", "TFLOP/s", [](const BenchRow& r) { return r.tflops; },
        [](const BenchRow& r) { return r.standard_s > 0 ? r.tflops * r.min_s / r.standard_s : 0; }},
    Metric{"Rate of memory", "GB/s", [](const BenchRow& r) { return r.gb_s; },
           [](const BenchRow&) { return 0.0; }},
    Metric{"Extra memory", "MB",
           [](const BenchRow& r) { return 1e-6 * static_cast<double>(r.extra_bytes); },
           [](const BenchRow& r) { return 1e-6 * static_cast<double>(r.standard_extra_bytes); }}};

// The x axis of a plot, and what rows of one line share.
struct Along {
  const char* title;
  double (*x)(const BenchCase&);
  std::string (*line)(const BenchCase&);
};
std::string masks_of(const BenchCase& c) {
  const std::string mask = c.mask == CaseMask::none ? "" : fmt::format(" {}", to_string(c.mask));
  return fmt::format("{}{}{}", c.causal ? " causal" : "", c.bias ? " bias" : "", mask);
}
std::string heads_of(const BenchCase& c) {
  return c.heads == c.kv_heads ? fmt::format("{}", c.heads)
                               : fmt::format("{}/{}", c.heads, c.kv_heads);
}
// Rows of several batches are no line: each batch has its own.
std::string batch_of(const BenchCase& c) {
  return c.batch > 1 ? fmt::format("batch {}, ", c.batch) : "";
}
std::string lengths_of(const BenchCase& c) {
  return c.seqlen_q == c.seqlen_k ? fmt::format("S{}", c.seqlen_q)
                                  : fmt::format("{} x {}", c.seqlen_q, c.seqlen_k);
}
constexpr std::array kAlong{
    Along{"length", [](const BenchCase& c) { return static_cast<double>(c.seqlen_k); },
          [](const BenchCase& c) {
            return fmt::format("{}{} x {}", batch_of(c), heads_of(c), c.head_dim);
          }},
    Along{"head_dim", [](const BenchCase& c) { return static_cast<double>(c.head_dim); },
          [](const BenchCase& c) { return batch_of(c) + lengths_of(c); }},
    Along{"batch", [](const BenchCase& c) { return static_cast<double>(c.batch); },
          [](const BenchCase& c) {
            return fmt::format("{} x {} {}", heads_of(c), c.head_dim, lengths_of(c));
          }}};

using Lines = std::map<std::string, std::vector<const BenchRow*>>;

// Keeps lines of two places at least: one point shows nothing that the table does not.
Lines lines_along(const std::vector<BenchRow>& rows, const Along& along) {
  Lines lines;
  for (const BenchRow& row : rows) {
    const BenchCase& c = row.bench_case;
    lines[fmt::format("{} {} {}{}", c.suite, to_string(c.dtype), along.line(c), masks_of(c))]
        .push_back(&row);
  }
  std::erase_if(lines, [&](const auto& line) {
    return std::all_of(line.second.begin(), line.second.end(), [&](const BenchRow* row) {
      return along.x(row->bench_case) == along.x(line.second.front()->bench_case);
    });
  });
  for (auto& [name, line] : lines) {
    const auto place = [&](const BenchRow* row) {
      return std::pair(along.x(row->bench_case), row);
    };  // as the rows stand
    std::sort(line.begin(), line.end(),
              [&](const BenchRow* a, const BenchRow* b) { return place(a) < place(b); });
  }
  return lines;
}

std::string label_of(const BenchRow& row, double value, const char* unit) {
  return fmt::format("{} {} {}: {:.4g} {} by {}", row.bench_case.suite,
                     to_string(row.bench_case.dtype), row.bench_case.name, value, unit,
                     row.bench_case.training ? row.backward_kernel : row.kernel);
}

std::string plots_along(const std::vector<BenchRow>& rows, const Along& along) {
  const Lines lines = lines_along(rows, along);
  std::string html;
  for (const Metric& metric : kMetrics) {
    Chart chart{fmt::format("{} by {}", metric.title, along.title), along.title, metric.unit, {}};
    for (const auto& [name, line] : lines) {
      if (chart.series.size() >= 2 * kMostSeries) break;
      const int color = static_cast<int>(chart.series.size() / 2);
      ChartSeries ours{name, {}, color}, standard{"", {}, color, true};
      for (const BenchRow* row : line) {
        const double x = along.x(row->bench_case), value = metric.ours(*row),
                     other = metric.standard(*row);
        ours.points.push_back({x, value, label_of(*row, value, metric.unit)});
        if (other > 0)
          standard.points.push_back(
              {x, other, fmt::format("{:.4g} {} by {}", other, metric.unit, row->standard_kernel)});
      }
      chart.series.push_back(std::move(ours));
      chart.series.push_back(std::move(standard));
    }
    html += chart_html(chart);
  }
  if (html.empty()) return "";
  std::string note;
  if (lines.size() > kMostSeries)
    note = fmt::format("<p>{} of {} lines; the table has all.</p>\n", kMostSeries, lines.size());
  return fmt::format("<h2>By {}</h2>\n{}<div class=\"plots\">\n{}</div>\n", along.title, note,
                     html);
}

// Rates against the arithmetic that a byte gets, below what the machine was measured to do.
std::string roofline(const std::vector<BenchRow>& rows) {
  Chart chart{"Roofline", "floating-point operations a byte", "TFLOP/s", {}};
  std::map<std::string, ChartSeries> by_kind;
  double gb_s = 0, tflops = 0, first = 0, last = 0;
  for (const BenchRow& row : rows) {
    if (!(row.tflops > 0 && row.gb_s > 0)) continue;
    const double x = 1e3 * row.tflops / row.gb_s;
    const std::string kind =
        fmt::format("{} {}", row.bench_case.suite, to_string(row.bench_case.dtype));
    by_kind[kind].points.push_back({x, row.tflops, label_of(row, row.tflops, "TFLOP/s")});
    double& ceiling = row.by_bytes ? gb_s : tflops;
    ceiling = std::max(ceiling, row.ceiling);
    first = first > 0 ? std::min(first, x) : x;
    last = std::max(last, x);
  }
  for (auto& [kind, series] : by_kind) {
    series.name = kind;
    series.color = static_cast<int>(chart.series.size());
    series.joined = false;
    chart.series.push_back(std::move(series));
  }
  ChartSeries roof{"measured ceiling", {}, 7, true, true, false};
  if (gb_s > 0) {
    const double ridge = tflops > 0 ? 1e3 * tflops / gb_s : last;
    roof.points.push_back({std::min(first, ridge), std::min(first, ridge) * gb_s / 1e3, ""});
    roof.points.push_back({ridge, ridge * gb_s / 1e3, ""});
    if (last > ridge) roof.points.push_back({last, tflops, ""});
  } else if (tflops > 0) {
    roof.points = {{first, tflops, ""}, {last, tflops, ""}};
  }
  chart.series.push_back(std::move(roof));
  const std::string html = chart_html(chart);
  return html.empty()
             ? ""
             : fmt::format("<h2>Against the machine</h2>\n<div class=\"plots\">\n{}</div>\n", html);
}

}  // namespace

std::string bench_page(const std::vector<BenchRow>& rows, const std::string& about) {
  std::string body = fmt::format(
      "<p>{}. Times and rates are those of the fastest repetitions; every row was verified before "
      "it was "
      "timed. Dashed: standard attention on the same device.</p>\n",
      html_text(about));
  for (const Along& along : kAlong) body += plots_along(rows, along);
  body += roofline(rows);
  std::vector<std::vector<std::string>> table{{"suite", "dtype", "case", "kernel", "verified",
                                               "median", "fastest", "TFLOP/s", "GB/s", "of ceiling",
                                               "standard", "speed-up", "extra memory"}};
  const auto number = [](double value, const char* format) {
    return value > 0 ? fmt::format(fmt::runtime(format), value) : "-";
  };
  for (const BenchRow& row : rows) {
    const BenchCase& c = row.bench_case;
    table.push_back({c.suite, to_string(c.dtype), c.name,
                     c.training ? row.backward_kernel : row.kernel, row.verified ? "yes" : "NO",
                     time_text(row.median_s), time_text(row.min_s), number(row.tflops, "{:.3f}"),
                     number(row.gb_s, "{:.1f}"), number(100 * row.share_of_ceiling, "{:.1f} %"),
                     time_text(row.standard_s), number(row.speedup, "{:.2f}"),
                     bytes_text(row.extra_bytes)});
  }
  body += "<h2>All rows</h2>\n" + table_html(table, 5);
  return html_page("fulmen bench", body);
}

}  // namespace fulmen::tools
