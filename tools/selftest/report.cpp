#include "tools/selftest/report.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

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
  return {{"kernel", k.kernel},       {"registers", k.registers}, {"spills", k.spills},    {"scratch_bytes", k.scratch_bytes},
          {"lds_bytes", k.lds_bytes}, {"occupancy", k.occupancy}, {"findings", k.findings}};
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
  return escaped(value.dump());
}

// A table with a row for each object; columns in the given order.
std::string table(const json& rows, const std::vector<std::string>& columns) {
  std::string html = "<table><tr>";
  for (const std::string& column : columns) html += fmt::format("<th>{}</th>", escaped(column));
  html += "</tr>\n";
  for (const json& row : rows) {
    const bool bad = row.value("ok", true) == false || row.value("verdict", "") == "fail";
    html += bad ? "<tr class=\"bad\">" : "<tr>";
    for (const std::string& column : columns) html += fmt::format("<td>{}</td>", row.contains(column) ? cell(row[column]) : "");
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

}  // namespace

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
  for (const std::string& path : report.libraries) all["libraries"].push_back(words.removed_from(path));
  int failed = 0;
  for (const SelftestRun& run : report.runs) {
    failed += run.ok ? 0 : 1;
    all["runs"].push_back(json_of(run, words));
  }
  all["failed"] = failed;
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
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>fulmen selftest</title>\n<style>"
      "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin-bottom:2em}"
      "td,th{border:1px solid #999;padding:2px 6px;text-align:left}.bad{background:#fcc}</style>\n";
  html += fmt::format("<h1>fulmen {} on {}</h1>\n<p>{} runs, {} failed</p>\n", cell(r["fulmen"]), cell(r["device"]),
                      r["runs"].size(), cell(r["failed"]));
  html += "<table>\n";
  for (const char* key : {"chip", "features", "emulated_twin"})
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", key, cell(r[key]));
  for (const json& path : r["libraries"]) html += fmt::format("<tr><th>library</th><td>{}</td></tr>\n", cell(path));
  html +=
      "</table>\n<h2>Problems</h2>\n<p>bits_differ counts outputs whose bits are not the emulated chip's: where rounding allows "
      "that, it is no failure.</p>\n";
  html += table(r["runs"], {"number", "problem", "kernel", "ok", "tensor", "worst_error", "bound", "bits_differ", "bits_compared",
                            "message", "repeat"});
  html += "<h2>Speed</h2>\n" + table(r["speed"], {"problem", "kernel", "seconds", "tflops", "gb_s", "ok", "message"});
  html += table(r["yardsticks"], {"what", "value", "unit"});
  html += "<h2>Hardware</h2>\n" + table(r["probes"], {"probe", "answer", "found", "decides"});
  html += "<h2>Kernels</h2>\n<p>" + cell(r["kernels_missing"]) + "</p>\n" +
          table(r["kernels"], {"kernel", "registers", "spills", "scratch_bytes", "lds_bytes", "occupancy", "findings"});
  html += "<h2>Preconditions</h2>\n" + table(r["findings"], {"id", "verdict", "seen", "mend"});
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
