#include "tools/tune/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "fulmen/printable.h"
#include "fulmen/read_file.h"
#include "runtime/platform/files.h"
#include "tools/files/output_file.h"

namespace fulmen::tools {
namespace {

constexpr int kVersion = 1;

Status failure(const std::string& path, const std::string& why) {
  return {StatusCode::unavailable, fmt::format("{}: {}", printable(path), why)};
}

nlohmann::ordered_json to_json(const TuneRecord& r) {
  return {{"kernel", r.kernel},
          {"problem_class", r.problem_class},
          {"configuration", r.configuration},
          {"default", r.usual},
          {"is_default", r.is_default},
          {"build", r.build},
          {"compute_units", r.compute_units},
          {"device", r.device},
          {"product", r.product},
          {"driver", r.driver},
          {"compiler", r.compiler},
          {"fulmen", r.fulmen_version},
          {"when", r.when},
          {"problem", r.problem},
          {"arguments", r.arguments},
          {"median_s", r.median_s},
          {"default_median_s", r.default_median_s},
          {"spread", r.spread},
          {"gain", r.gain},
          {"noise", r.noise}};
}

// Accepts any number: get<int>() is for numbers that fit into an int.
int integer(const nlohmann::json& j, const char* name) {
  const nlohmann::json& value = j.at(name);
  const double number = value.get<double>();
  if (value.is_number_integer() && number >= 0 && number <= std::numeric_limits<int>::max())
    return value.get<int>();
  throw std::out_of_range(fmt::format("{} is {}: a whole number is accepted", name, value.dump()));
}

TuneRecord from_json(const nlohmann::json& j) {
  TuneRecord r;
  r.kernel = j.at("kernel").get<std::string>();
  r.problem_class = j.at("problem_class").get<std::string>();
  r.configuration = j.at("configuration").get<std::string>();
  r.build = j.at("build").get<std::string>();
  r.compute_units = integer(j, "compute_units");
  r.usual = j.value("default", "");
  r.is_default = j.value("is_default", false);
  r.device = j.value("device", "");
  r.product = j.value("product", "");
  r.driver = j.value("driver", "");
  r.compiler = j.value("compiler", "");
  r.fulmen_version = j.value("fulmen", "");
  r.when = j.value("when", "");
  r.problem = j.value("problem", "");
  r.arguments = j.value("arguments", "");
  r.median_s = j.value("median_s", 0.0);
  r.default_median_s = j.value("default_median_s", 0.0);
  r.spread = j.value("spread", 0.0);
  r.gain = j.value("gain", 0.0);
  r.noise = j.value("noise", 0.0);
  return r;
}

bool same_entry(const TuneRecord& a, const TuneRecord& b) {
  return a.kernel == b.kernel && a.problem_class == b.problem_class &&
         a.compute_units == b.compute_units && a.product == b.product;
}

}  // namespace

std::string records_text(const std::string& chip, const std::vector<TuneRecord>& records) {
  nlohmann::ordered_json file{
      {"version", kVersion}, {"chip", chip}, {"entries", nlohmann::ordered_json::array()}};
  for (const TuneRecord& record : records) file["entries"].push_back(to_json(record));
  return file.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<std::vector<TuneRecord>> parse_records(const std::string& text, const std::string& path) {
  try {
    const nlohmann::json file = nlohmann::json::parse(text);
    if (const int version = integer(file, "version"); version != kVersion) {
      return failure(path,
                     fmt::format("its version is {}, this program reads {}", version, kVersion));
    }
    const auto chip = file.at("chip").get<std::string>();
    std::vector<TuneRecord> records;
    for (const nlohmann::json& entry : file.at("entries")) {
      records.push_back(from_json(entry));
      records.back().chip = chip;
    }
    return records;
  } catch (const std::exception& error) {  // JSON's, and integer()'s
    return failure(path,
                   fmt::format("it is no file of tuned results: {}", printable(error.what())));
  }
}

Result<std::vector<TuneRecord>> read_records(const std::string& path) {
  const Result<std::optional<std::string>> text =
      read_regular_file(path, kMaxTunedResultsBytes, FileTrust::own);
  if (!text.ok()) return failure(path, text.status().message());
  return *text ? parse_records(**text, path) : std::vector<TuneRecord>{};
}

Status merge_records(const std::string& path, const std::vector<TuneRecord>& records) {
  if (records.empty()) return {};
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
  error = platform::make_folder(folder, platform::Access::own);
  if (error && error != std::errc::file_exists) return failure(folder, error.message());
  // Held while the file is read, changed and replaced.
  const platform::File lock = platform::File::lock(path + ".lock", error);
  if (error) return failure(path, fmt::format("it cannot be locked: {}", error.message()));
  Result<std::vector<TuneRecord>> kept = read_records(path);
  if (!kept.ok()) {
    // A file that no program can read is kept under another name, in case its owner wants it.
    const std::string aside = path + ".damaged";
    error = platform::replace_file(path, aside);
    if (error) return failure(path, error.message());
    fmt::print(stderr, "fulmen: {}; it is now {}\n", kept.status().message(), printable(aside));
    kept = std::vector<TuneRecord>{};
  }
  for (const TuneRecord& record : records) {
    std::erase_if(kept.value(), [&](const TuneRecord& old) { return same_entry(old, record); });
    kept->push_back(record);
  }
  Result<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  const std::string text = records_text(records.front().chip, kept.value());
  Status status = file->write(std::as_bytes(std::span(text)));
  if (status.ok()) status = file->commit();
  if (!status.ok()) return status;
  error = platform::make_private(path);
  return error ? failure(path, error.message()) : status;
}

}  // namespace fulmen::tools
