#include "tools/bench/report/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/bench/report/case_json.h"

namespace fulmen::tools {
namespace {

nlohmann::ordered_json number_or_null(double value) {
  return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

nlohmann::ordered_json row_object(const BenchRow& row) {
  const BenchCase& c = row.bench_case;
  nlohmann::ordered_json object{{"suite", c.suite},
                                {"case", c.name},
                                {"device", row.device},
                                {"kernel", row.kernel},
                                {"backward_kernel", text_or_null(row.backward_kernel)}};
  add_problem(c, object);
  object.update({{"median_s", number_or_null(row.median_s)},
                 {"min_s", number_or_null(row.min_s)},
                 {"tflops", number_or_null(row.tflops)},
                 {"gb_s", number_or_null(row.gb_s)},
                 {"ceiling", number_or_null(row.ceiling)},
                 {"share_of_ceiling", number_or_null(row.share_of_ceiling)},
                 {"backward_s", number_or_null(row.backward_s)},
                 {"backward_tflops", number_or_null(row.backward_tflops)},
                 {"standard_kernel", text_or_null(row.standard_kernel)},
                 {"standard_s", number_or_null(row.standard_s)},
                 {"speedup", number_or_null(row.speedup)},
                 {"extra_bytes", row.extra_bytes},
                 {"standard_extra_bytes", row.standard_extra_bytes > 0
                                              ? nlohmann::ordered_json(row.standard_extra_bytes)
                                              : nlohmann::ordered_json(nullptr)},
                 {"verified", row.verified},
                 {"verified_how", row.verified_how}});
  return object;
}

// Quotes a text with a comma or a quote, as RFC 4180 says.
std::string csv_field(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace

std::string time_text(double seconds) {
  if (seconds <= 0) return "-";
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string bytes_text(std::size_t bytes) {
  const double b = static_cast<double>(bytes);
  return b < 1e6   ? fmt::format("{:.0f} kB", b / 1e3)
         : b < 1e9 ? fmt::format("{:.1f} MB", b / 1e6)
                   : fmt::format("{:.1f} GB", b / 1e9);
}

std::string table_head() {
  return fmt::format("{:8} {:5} {:20} {:26} {:>9} {:>9} {:>14} {:>8} {:>9} {:>8} {:>18}  {}",
                     "suite", "dtype", "case", "kernel", "median", "min", "rate", "ceiling",
                     "standard", "speed-up", "extra (standard's)", "verified");
}

std::string table_line(const BenchRow& row) {
  const BenchCase& c = row.bench_case;
  std::string rate = "-";
  if (row.min_s > 0)
    rate = row.by_bytes ? fmt::format("{:.1f} GB/s", row.gb_s)
                        : fmt::format("{:.3f} TFLOP/s", row.tflops);
  const std::string share =
      row.ceiling > 0 ? fmt::format("{:.1f} %", 100 * row.share_of_ceiling) : "-";
  const std::string speedup = row.speedup > 0 ? fmt::format("{:.2f} x", row.speedup) : "-";
  // Training: beside what standard attention needs.
  std::string extra = bytes_text(row.extra_bytes);
  if (row.standard_extra_bytes > 0)
    extra += fmt::format(" ({})", bytes_text(row.standard_extra_bytes));
  const std::string how = row.verified_how == "all" ? "" : " (" + row.verified_how + ")";
  const std::string verified = row.verified ? "yes" + how : "NO: " + row.verify_message;
  return fmt::format("{:8} {:5} {:20} {:26} {:>9} {:>9} {:>14} {:>8} {:>9} {:>8} {:>18}  {}",
                     c.suite, to_string(c.dtype), c.name,
                     c.training ? row.backward_kernel : row.kernel, time_text(row.median_s),
                     time_text(row.min_s), rate, share, time_text(row.standard_s), speedup, extra,
                     verified);
}

std::string json_report(const std::vector<BenchRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) list.push_back(row_object(row));
  return list.dump(1) + "\n";
}

std::string csv_report(const std::vector<BenchRow>& rows) {
  std::string text;
  const nlohmann::ordered_json names = row_object({});
  for (const auto& item : names.items()) text += (text.empty() ? "" : ",") + item.key();
  for (const BenchRow& row : rows) {
    std::string line;
    const nlohmann::ordered_json object = row_object(row);
    for (const auto& item : object.items())
      line += (line.empty() ? "" : ",") + csv_field(item.value());
    text += '\n' + line;
  }
  return text + '\n';
}

}  // namespace fulmen::tools
