// Pages with plots in one file: HTML and inline SVG, without scripts or anything that is loaded.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fulmen::tools {

// Returns the text with <, >, & and quotes escaped for HTML.
std::string html_text(std::string_view text);

struct ChartPoint {
  double x = 0, y = 0;
  std::string label;  // shown where the pointer rests on it
};
struct ChartSeries {
  std::string name;                // empty: not in the legend
  std::vector<ChartPoint> points;  // joined in this order
  int color = 0;
  bool dashed = false;  // its points are hollow, too: a series for comparison
  bool joined = true;
  bool marked = true;
};
// Both axes are logarithmic. Points that are not above 0 are left out.
struct Chart {
  std::string title, x_label, y_label;
  std::vector<ChartSeries> series;
};
// A figure with its legend; "" where there is nothing to draw.
std::string chart_html(const Chart& chart);

// Horizontal bars from 0, each with its range.
struct Bar {
  std::string name;
  double value = 0, low = 0, high = 0;
  int color = 0;
};
std::string bars_html(const std::string& title, const std::string& unit,
                      const std::vector<Bar>& bars);

// The first row is the head. Columns from `numbers_from` on are right-aligned.
std::string table_html(const std::vector<std::vector<std::string>>& rows, std::size_t numbers_from);

// body: HTML.
std::string html_page(const std::string& title, const std::string& body);

}  // namespace fulmen::tools
