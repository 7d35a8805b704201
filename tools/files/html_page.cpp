#include "tools/files/html_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace fulmen::tools {
namespace {

// Sizes in units of the picture, which is as wide as its column.
constexpr double kWidth = 420, kHeight = 260, kLeft = 62, kRight = 12, kTop = 10, kBottom = 40;
constexpr int kColors = 8;

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--text:#1b1f24;--quiet:#5b6470;--line:#d7dce2;--back:#fff;--panel:#f6f8fa;
--c0:#0b62c4;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce;--c4:#b91c5c;--c5:#0f766e;--c6:#92600a;--c7:#475569}
@media(prefers-color-scheme:dark){:root{--text:#e6e9ed;--quiet:#9aa4b0;--line:#3a424c;--back:#15181c;--panel:#1d2126;
--c0:#6cb2ff;--c1:#ff9560;--c2:#5fd38a;--c3:#c79bff;--c4:#ff85b3;--c5:#4fd1c5;--c6:#e5b454;--c7:#a9b6c6}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 8px}
p{margin:4px 0 12px;color:var(--quiet);max-width:75ch}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr));gap:16px}
figure{margin:0;background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:10px 12px}
figcaption{font-weight:600;margin-bottom:4px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--quiet);font:11px system-ui,sans-serif}
.grid{stroke:var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:6px 0 0;padding:0;list-style:none;font-size:13px}
.legend span{display:inline-block;width:18px;height:0;border-top:3px solid;vertical-align:middle;margin-right:6px}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:4px 10px;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
th{background:var(--panel)}tr:last-child td{border-bottom:0}.n{text-align:right})";

std::string color(int n) { return fmt::format("var(--c{})", n % kColors); }

struct Axis {
  double low = 0, high = 0;  // powers of ten
  double begin = 0, end = 0;
  double at(double value) const {
    return begin + (std::log10(value) - low) / (high - low) * (end - begin);
  }
};

Axis axis_of(double least, double most, double begin, double end) {
  double low = std::log10(least), high = std::log10(most);
  const double room = std::max(0.06, (high - low) * 0.06);
  return {low - room, high + room, begin, end};
}

// Returns three or four round numbers of a range of less than a factor of 5.
std::vector<double> even_ticks(double low, double high) {
  const double power = std::pow(10.0, std::floor(std::log10((high - low) / 3)));
  double step = power;
  for (const double times : {2.0, 5.0, 10.0}) {
    if ((high - low) / step > 4) step = times * power;
  }
  std::vector<double> list;
  const auto last = static_cast<int64_t>(std::floor(high / step));
  for (auto n = static_cast<int64_t>(std::ceil(low / step)); n <= last; ++n)
    list.push_back(static_cast<double>(n) * step);
  return list;
}

// Returns 1, 2 and 5 times powers of ten; fewer of them where there are many.
std::vector<double> ticks(const Axis& axis) {
  std::vector<double> list;
  constexpr std::array kAll{1.0, 2.0, 5.0}, kFew{1.0, 0.0, 0.0};
  const std::array<double, 3>& digits = axis.high - axis.low > 2.5 ? kFew : kAll;
  for (int power = static_cast<int>(std::floor(axis.low));
       power <= static_cast<int>(std::ceil(axis.high)); ++power) {
    for (const double digit : digits) {
      const double value = digit * std::pow(10.0, power);
      if (value > 0 && std::log10(value) >= axis.low && std::log10(value) <= axis.high)
        list.push_back(value);
    }
  }
  constexpr std::size_t kEnough = 3;
  return list.size() < kEnough ? even_ticks(std::pow(10.0, axis.low), std::pow(10.0, axis.high))
                               : list;
}

// Returns the values themselves where they are few, as lengths and batches are.
std::vector<double> ticks_at(const Axis& axis, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::vector<double> kept;
  constexpr double kApart = 34;
  for (const double value : values) {
    if (value != std::floor(value)) return ticks(axis);
    if (kept.empty() || axis.at(value) - axis.at(kept.back()) >= kApart) kept.push_back(value);
  }
  return kept;
}

std::string number_text(double value) {
  if (value >= 10000 && value < 1e6 && std::fmod(value, 1024) == 0)
    return fmt::format("{:g}k", value / 1024);
  return fmt::format("{:g}", value);
}

std::string axes_svg(const Chart& chart, const Axis& x, const Axis& y,
                     const std::vector<double>& x_values) {
  std::string svg;
  for (const double value : ticks(y)) {
    svg += fmt::format(R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)",
                       x.begin, x.end, y.at(value), y.at(value));
    svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)", x.begin - 5,
                       y.at(value) + 4, number_text(value));
  }
  for (const double value : ticks_at(x, x_values)) {
    svg += fmt::format(R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)",
                       x.at(value), x.at(value), y.begin, y.begin + 4);
    svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", x.at(value),
                       y.begin + 16, number_text(value));
  }
  svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                     (x.begin + x.end) / 2, kHeight - 6, html_text(chart.x_label));
  svg += fmt::format(
      R"svg(<text transform="translate(12 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>)svg",
      (y.begin + y.end) / 2, html_text(chart.y_label));
  return svg;
}

std::string series_svg(const ChartSeries& series, const Axis& x, const Axis& y) {
  std::string svg, path;
  for (const ChartPoint& p : series.points)
    path += fmt::format("{:.1f},{:.1f} ", x.at(p.x), y.at(p.y));
  if (series.joined && series.points.size() > 1) {
    svg +=
        fmt::format(R"(<polyline fill="none" stroke="{}" stroke-width="1.8"{} points="{}"/>)",
                    color(series.color), series.dashed ? R"( stroke-dasharray="5 4")" : "", path);
  }
  for (const ChartPoint& p : series.points) {
    if (!series.marked) break;
    svg += fmt::format(
        R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.4" stroke="{}" stroke-width="1.6" fill="{}"><title>{}</title></circle>)",
        x.at(p.x), y.at(p.y), color(series.color),
        series.dashed ? "var(--panel)" : color(series.color), html_text(p.label));
  }
  return svg;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string chart_html(const Chart& given) {
  Chart chart = given;
  constexpr double kMost = std::numeric_limits<double>::max();
  double left = kMost, right = 0, low = kMost, high = 0;
  std::vector<double> x_values;
  for (ChartSeries& series : chart.series) {
    std::erase_if(series.points, [](const ChartPoint& p) { return !(p.x > 0 && p.y > 0); });
    for (const ChartPoint& p : series.points) {
      left = std::min(left, p.x), right = std::max(right, p.x);
      low = std::min(low, p.y), high = std::max(high, p.y);
      if (series.marked) x_values.push_back(p.x);
    }
  }
  std::erase_if(chart.series, [](const ChartSeries& series) { return series.points.empty(); });
  if (chart.series.empty()) return "";
  const Axis x = axis_of(left, right, kLeft, kWidth - kRight),
             y = axis_of(low, high, kHeight - kBottom, kTop);
  std::string html = fmt::format(
      R"(<figure><figcaption>{}</figcaption><svg viewBox="0 0 {} {}" role="img" aria-label="{}">)",
      html_text(chart.title), kWidth, kHeight, html_text(chart.title));
  html += axes_svg(chart, x, y, x_values);
  for (const ChartSeries& series : chart.series) html += series_svg(series, x, y);
  html += "</svg><ul class=\"legend\">";
  for (const ChartSeries& series : chart.series) {
    if (series.name.empty()) continue;
    html += fmt::format(R"(<li><span style="border-color:{};border-top-style:{}"></span>{}</li>)",
                        color(series.color), series.dashed ? "dashed" : "solid",
                        html_text(series.name));
  }
  return html + "</ul></figure>\n";
}

std::string bars_html(const std::string& title, const std::string& unit,
                      const std::vector<Bar>& bars) {
  double most = 0;
  for (const Bar& bar : bars) most = std::max({most, bar.value, bar.high});
  if (!(most > 0)) return "";
  constexpr double kRow = 34, kBar = 10, kText = 70;  // a name above each bar, its value behind it
  const double height = kRow * static_cast<double>(bars.size()) + 4;
  const auto at = [&](double value) { return value / most * (kWidth - kText); };
  std::string html = fmt::format(
      R"(<figure><figcaption>{}</figcaption><svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">)",
      html_text(title), kWidth, height, html_text(title));
  double y = 0;
  for (const Bar& bar : bars) {
    html += fmt::format(R"(<text x="0" y="{:.1f}">{}</text>)", y + 12, html_text(bar.name));
    html += fmt::format(R"(<rect x="0" y="{:.1f}" width="{:.1f}" height="{}" rx="2" fill="{}"/>)",
                        y + 17, at(bar.value), kBar, color(bar.color));
    if (bar.high > bar.low) {
      html += fmt::format(
          R"svg(<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" stroke="var(--text)" stroke-width="1.4"/>)svg",
          at(bar.low), at(bar.high), y + 17 + kBar / 2, y + 17 + kBar / 2);
    }
    html += fmt::format(R"(<text x="{:.1f}" y="{:.1f}">{:.4g} {}</text>)",
                        at(std::max(bar.value, bar.high)) + 6, y + 26, bar.value, html_text(unit));
    y += kRow;
  }
  return html + "</svg></figure>\n";
}

std::string table_html(const std::vector<std::vector<std::string>>& rows,
                       std::size_t numbers_from) {
  std::string html = "<div class=\"scroll\"><table>\n";
  for (std::size_t n = 0; n < rows.size(); ++n) {
    html += "<tr>";
    for (std::size_t column = 0; column < rows[n].size(); ++column) {
      const char* tag = n == 0 ? "th" : "td";
      html += fmt::format("<{}{}>{}</{}>", tag, column >= numbers_from ? " class=\"n\"" : "",
                          html_text(rows[n][column]), tag);
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style></"
      "head>\n"
      "<body><main>\n<h1>{0}</h1>\n{2}</main></body></html>\n",
      html_text(title), kStyle, body);
}

}  // namespace fulmen::tools
