#include "tools/selftest/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "fulmen/version.h"

namespace fulmen::tools {
namespace {

using nlohmann::json;

json json_of(const SelftestRun& run, const PrivateWords& words) {
  json one{{"number", run.number},
           {"problem", run.problem},
           {"kernel", words.removed_from(run.kernel)},
           {"ok", run.ok},
           {"tensor", run.tensor},
           {"worst_error", run.worst_error},
           {"bound", run.bound},
           {"message", words.removed_from(run.message)}};
  if (!run.ok) one["repeat"] = words.removed_from(run.repeat);
  if (run.emulated_elements > 0) {
    one["bits_compared"] = run.emulated_elements;
    one["bits_differ"] = run.differing;
    one["emulated_ok"] = run.emulated_ok;
  }
  return one;
}

json json_of(const KernelReport& k) {
  return {{"kernel", k.kernel},       {"registers", k.registers},
          {"spills", k.spills},       {"scratch_bytes", k.scratch_bytes},
          {"lds_bytes", k.lds_bytes}, {"occupancy", k.occupancy},
          {"findings", k.findings}};
}

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '&':
        html += "&amp;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string cell(const json& value) {
  if (value.is_string()) return escaped(value.get<std::string>());
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_array()) {
    std::string list;
    for (const json& one : value) list += (list.empty() ? "" : "; ") + cell(one);
    return list;
  }
  return escaped(value.dump());
}

struct Column {
  const char* key;
  const char* title;
};

std::string cell_of(const json& row, const Column& column) {
  return row.contains(column.key) ? cell(row[column.key]) : "";
}

// A section with a row for each object. A column that no row has anything in is left out, and
// `none` stands where there are no rows.
std::string section(const char* title, const std::string& note, const json& rows,
                    const std::vector<Column>& columns, const std::string& none) {
  std::string html = fmt::format("<h2>{}</h2>\n", title);
  if (rows.empty()) return html + fmt::format("<p>{}</p>\n", escaped(none));
  if (!note.empty()) html += fmt::format("<p>{}</p>\n", escaped(note));
  std::vector<Column> used;
  for (const Column& column : columns) {
    if (std::any_of(rows.begin(), rows.end(),
                    [&](const json& row) { return !cell_of(row, column).empty(); }))
      used.push_back(column);
  }
  html += "<table><tr>";
  for (const Column& column : used) html += fmt::format("<th>{}</th>", escaped(column.title));
  html += "</tr>\n";
  for (const json& row : rows) {
    const bool bad = row.value("ok", true) == false || row.value("verdict", "") == "fail";
    html += bad ? "<tr class=\"bad\">" : "<tr>";
    for (const Column& column : used) html += fmt::format("<td>{}</td>", cell_of(row, column));
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

}  // namespace

int SelftestReport::results() const { return static_cast<int>(runs.size() + speed.size()); }

int SelftestReport::failed() const {
  const auto wrong = [](const auto& rows) {
    return std::count_if(rows.begin(), rows.end(), [](const auto& row) { return !row.ok; });
  };
  return static_cast<int>(wrong(runs) + wrong(speed));
}

json to_json(const SelftestReport& report, const PrivateWords& words) {
  json all{{"fulmen", version()},
           {"device", words.removed_from(report.device)},
           {"chip", words.removed_from(report.chip)},
           {"features", words.removed_from(report.features)},
           {"emulated_twin", words.removed_from(report.twin)},
           {"libraries", json::array()},
           {"runs", json::array()},
           {"speed", json::array()},
           {"yardsticks", json::array()},
           {"probes", json::array()},
           {"kernels", json::array()},
           {"kernels_missing", words.removed_from(report.kernels_missing)},
           {"findings", json::array()}};
  for (const std::string& path : report.libraries)
    all["libraries"].push_back(words.removed_from(path));
  for (const SelftestRun& run : report.runs) all["runs"].push_back(json_of(run, words));
  all["results"] = report.results();
  all["failed"] = report.failed();
  for (const SpeedRow& row : report.speed) {
    all["speed"].push_back({{"problem", row.problem},
                            {"kernel", row.kernel},
                            {"seconds", row.seconds},
                            {"tflops", row.tflops},
                            {"gb_s", row.gigabytes_per_second},
                            {"ok", row.ok},
                            {"message", words.removed_from(row.message)}});
  }
  for (const Yardstick& one : report.yardsticks) {
    all["yardsticks"].push_back({{"what", one.what}, {"value", one.value}, {"unit", one.unit}});
  }
  for (const HardwareProbe& probe : report.probes) {
    all["probes"].push_back({{"probe", probe.name},
                             {"decides", probe.decides},
                             {"answer", !probe.probed       ? "not probed"
                                        : probe.as_expected ? "as expected"
                                                            : "NOT as expected"},
                             {"ok", !probe.probed || probe.as_expected},
                             {"found", words.removed_from(probe.found)}});
  }
  for (const KernelReport& kernel : report.kernels) all["kernels"].push_back(json_of(kernel));
  for (const Finding& finding : report.findings) {
    all["findings"].push_back({{"id", finding.id},
                               {"verdict", to_string(finding.verdict)},
                               {"seen", words.removed_from(finding.seen)},
                               {"mend", words.removed_from(finding.mend)}});
  }
  return all;
}

std::string to_html(const json& r) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>fulmen "
      "selftest</title>\n<style>"
      "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin-bottom:2em}"
      "td,th{border:1px solid #999;padding:2px 6px;text-align:left}.bad{background:#fcc}</style>\n";
  html += fmt::format("<h1>fulmen {} on {}</h1>\n<p>{} results, {} failed</p>\n<table>\n",
                      cell(r["fulmen"]), cell(r["device"]), cell(r["results"]), cell(r["failed"]));
  for (const Column& line : {Column{"chip", "chip"},
                             {"features", "features"},
                             {"emulated_twin", "bits compared with"}}) {
    if (const std::string value = cell(r[line.key]); !value.empty())
      html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", line.title, value);
  }
  for (const json& path : r["libraries"])
    html += fmt::format("<tr><th>library</th><td>{}</td></tr>\n", cell(path));
  html += "</table>\n";
  html += section("Problems",
                  "Other bits than the emulated chip's are no failure where rounding allows them.",
                  r["runs"],
                  {{"number", "no."},
                   {"problem", "problem"},
                   {"kernel", "kernel"},
                   {"ok", "right"},
                   {"tensor", "worst tensor"},
                   {"worst_error", "largest error"},
                   {"bound", "allowed"},
                   {"bits_compared", "elements compared with the emulated chip"},
                   {"bits_differ", "of them other bits"},
                   {"message", "what is wrong"},
                   {"repeat", "repeat it"}},
                  "No problem was run.");
  html += section("Speed", "", r["speed"],
                  {{"problem", "problem"},
                   {"kernel", "kernel"},
                   {"seconds", "time, s"},
                   {"tflops", "TFLOP/s"},
                   {"gb_s", "GB/s"},
                   {"ok", "right"},
                   {"message", "what is wrong"}},
                  "Nothing was timed: an emulated chip has no times, --quick, --only and --kernel "
                  "leave them out.");
  html += section("What the device can do", "", r["yardsticks"],
                  {{"what", "what"}, {"value", "rate"}, {"unit", "unit"}}, "Nothing was timed.");
  html += section(
      "Hardware", "", r["probes"],
      {{"probe", "question"}, {"answer", "answer"}, {"found", "found"}, {"decides", "it decides"}},
      "The device was asked nothing.");
  const std::string missing = r["kernels_missing"].get<std::string>();
  html +=
      section("Compiled kernels", "", r["kernels"],
              {{"kernel", "kernel"},
               {"registers", "registers"},
               {"spills", "spills"},
               {"scratch_bytes", "scratch, bytes"},
               {"lds_bytes", "LDS, bytes"},
               {"occupancy", "waves"},
               {"findings", "findings"}},
              missing.empty() ? "None are reported for this device and these options." : missing);
  html +=
      section("Preconditions", "", r["findings"],
              {{"id", "what"}, {"verdict", "verdict"}, {"seen", "seen"}, {"mend", "what mends it"}},
              "None were examined.");
  return html + "</html>\n";
}

std::pair<std::string, std::string> report_files(const std::string& name) {
  std::string stem = name;
  for (const char* extension : {".json", ".html"}) {
    if (name.ends_with(extension)) stem = name.substr(0, name.size() - 5);
  }
  return {stem + ".json", stem + ".html"};
}

}  // namespace fulmen::tools
