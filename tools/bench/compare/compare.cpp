#include "tools/bench/compare/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "fulmen/printable.h"
#include "tools/bench/report/report.h"

namespace fulmen::tools {
namespace {

using nlohmann::json;

constexpr double kLeastNoise = 0.01;
constexpr std::array kVerdicts{"the same", "faster",    "slower",   "WRONG in B",
                               "not in B", "only in B", "not timed"};

struct Timing {
  double min_s = 0, median_s = 0;
  bool verified = false;
};
struct Report {
  std::vector<std::string> order;
  std::map<std::string, Timing> rows;
};

double seconds(const json& row, const char* name) {
  const auto found = row.find(name);
  if (found == row.end() || found->is_null()) return 0;
  const auto value = found->get<double>();
  return value > 0 ? value : 0;
}

Result<Report> read_report(const std::string& text, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    return Status{StatusCode::invalid_argument,
                  fmt::format("{}: it is no report of `fulmen bench --json`: {}", printable(name),
                              printable(why))};
  };
  Report report;
  try {
    const json rows = json::parse(text);
    if (!rows.is_array()) return refuse("a list of rows is expected");
    for (const json& row : rows) {
      const std::string key = fmt::format(
          "{} {} {}, batch {}, {}/{} heads of {}, {} x {}{}{}{}",
          row.at("suite").get<std::string>(), row.at("dtype").get<std::string>(),
          row.at("case").get<std::string>(), row.at("batch").get<int64_t>(),
          row.at("heads").get<int64_t>(), row.at("kv_heads").get<int64_t>(),
          row.at("head_dim").get<int64_t>(), row.at("seqlen_q").get<int64_t>(),
          row.at("seqlen_k").get<int64_t>(), row.at("causal").get<bool>() ? " causal" : "",
          row.at("bias").get<bool>() ? " bias" : "",
          row.value("mask", "none") == "none" ? "" : " mask");
      const Timing timing{seconds(row, "min_s"), seconds(row, "median_s"),
                          row.at("verified").get<bool>()};
      if (!report.rows.emplace(key, timing).second) return refuse("it has a row twice: " + key);
      report.order.push_back(key);
    }
  } catch (const json::exception& error) {
    return refuse(error.what());
  }
  return report;
}

double spread(const Timing& t) { return t.min_s > 0 ? std::max(0.0, t.median_s / t.min_s - 1) : 0; }

ComparedRow compared(const std::string& name, const Timing& a, const Timing& b) {
  ComparedRow row{name, a.min_s, b.min_s};
  if (!b.verified) {
    row.verdict = Verdict::wrong;
  } else if (a.min_s > 0 && b.min_s > 0) {
    row.ratio = b.min_s / a.min_s;
    row.noise = std::max(kLeastNoise, spread(a) + spread(b));
    row.verdict = row.ratio > 1 + row.noise   ? Verdict::slower
                  : row.ratio < 1 - row.noise ? Verdict::faster
                                              : Verdict::same;
  }
  return row;
}

}  // namespace

Result<std::vector<ComparedRow>> compare_reports(const std::string& a, const std::string& name_a,
                                                 const std::string& b, const std::string& name_b) {
  const Result<Report> first = read_report(a, name_a), second = read_report(b, name_b);
  if (!first.ok()) return first.status();
  if (!second.ok()) return second.status();
  std::vector<ComparedRow> rows;
  for (const std::string& name : first->order) {
    const auto other = second->rows.find(name);
    if (other == second->rows.end()) {
      rows.push_back({.name = name, .a = first->rows.at(name).min_s, .verdict = Verdict::missing});
    } else {
      rows.push_back(compared(name, first->rows.at(name), other->second));
    }
  }
  for (const std::string& name : second->order) {
    if (first->rows.contains(name)) continue;
    rows.push_back({.name = name, .b = second->rows.at(name).min_s, .verdict = Verdict::added});
  }
  return rows;
}

std::string comparison_table(const std::vector<ComparedRow>& rows) {
  std::size_t width = 4;
  for (const ComparedRow& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format("{:{}} {:>10} {:>10} {:>7} {:>7}  {}\n", "case", width, "A", "B",
                                 "B / A", "noise", "B is");
  std::array<int, kVerdicts.size()> counts{};
  for (const ComparedRow& row : rows) {
    ++counts[static_cast<std::size_t>(row.verdict)];
    const std::string ratio = row.ratio > 0 ? fmt::format("{:.3f}", row.ratio) : "-";
    const std::string noise = row.noise > 0 ? fmt::format("{:.1f} %", 100 * row.noise) : "-";
    text += fmt::format("{:{}} {:>10} {:>10} {:>7} {:>7}  {}\n", printable(row.name), width,
                        time_text(row.a), time_text(row.b), ratio, noise,
                        kVerdicts[static_cast<std::size_t>(row.verdict)]);
  }
  text += fmt::format("{} rows", rows.size());
  for (std::size_t n = 0; n < counts.size(); ++n) {
    if (counts[n] > 0) text += fmt::format(", {} {}", counts[n], kVerdicts[n]);
  }
  return text;
}

Status comparison_status(const std::vector<ComparedRow>& rows) {
  const auto count = [&](Verdict verdict) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const ComparedRow& row) { return row.verdict == verdict; });
  };
  const auto slower = count(Verdict::slower), wrong = count(Verdict::wrong),
             missing = count(Verdict::missing);
  if (slower + wrong + missing == 0) return {};
  return {
      StatusCode::verification_failed,
      fmt::format("of B's rows {} are slower, {} wrong and {} missing", slower, wrong, missing)};
}

}  // namespace fulmen::tools
