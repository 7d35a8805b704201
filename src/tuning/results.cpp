#include "tuning/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "fulmen/compile.h"
#include "fulmen/printable.h"
#include "fulmen/read_file.h"
#include "runtime/fork_safe.h"
#include "runtime/hooks.h"
#include "runtime/tensor_checks.h"
#include "tuning/json.h"
#include "tuning/shipped.h"

namespace fulmen::tuning {
namespace {

bool take_string(const Json& entry, const char* name, std::string& value) {
  const Json* found = entry.find(name);
  if (found == nullptr || found->kind != Json::Kind::string || found->string.empty()) return false;
  value = found->string;
  return true;
}

bool take_int(const Json& entry, const char* name, int& value) {
  const Json* found = entry.find(name);
  if (found == nullptr || found->kind != Json::Kind::number ||
      !(found->number >= 0 && found->number < 1e9))
    return false;
  value = static_cast<int>(found->number);
  return value == found->number;
}

std::map<std::string, std::string, std::less<>> shipped_texts() {
  std::map<std::string, std::string, std::less<>> texts;
  for (const ShippedFile* file = kShippedFiles; file != kShippedFiles + kShippedFileCount; ++file) {
    texts.emplace(file->name, file->text);
  }
  return texts;
}

struct Known {
  WorkLock reading;  // the files of this user
  Mutex mutex;
  std::map<std::string, KnownChip, std::less<>> chips;
  // All of them: a plan may be looking at one that is forgotten.
  std::vector<std::unique_ptr<const ChipResults>> read;
  std::map<std::string, std::string, std::less<>> shipped = shipped_texts();  // by the chip
};
Known& known() {
  constinit static MadeOnce<Known> made;
  return made.get();
}

std::string shipped_text(const std::string& name) {
  const std::scoped_lock lock(known().mutex);
  const auto shipped = known().shipped.find(name);
  return shipped == known().shipped.end() ? std::string() : shipped->second;
}

// What is wrong with them is added to `log`, a line each.
std::vector<TunedResult> parsed(const std::string& what, const Result<std::string>& text,
                                std::string_view chip, std::vector<std::string>& log) {
  if (text.ok() && text->empty()) return {};
  Result<std::vector<TunedResult>> results =
      text.ok() ? parse_results(text.value(), chip) : text.status();
  if (results.ok()) return std::move(results).value();
  log.push_back(printable(fmt::format("{}: it is not used: {}", what, results.status().message())));
  return {};
}

int64_t rounded(int64_t length) {
  return length <= 0 ? 0
                     : static_cast<int64_t>(std::bit_ceil(
                           static_cast<uint64_t>(std::min(length, int64_t{1} << 62))));
}

}  // namespace

Result<std::vector<TunedResult>> parse_results(std::string_view text, std::string_view chip) {
  const Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status();
  int version = 0;
  if (!take_int(json.value(), "version", version))
    return invalid("it has no version: it is no file of tuned results");
  if (version != kResultsVersion) {
    return invalid(
        fmt::format("its version is {}, this program reads {}", version, kResultsVersion));
  }
  std::string of;
  if (!take_string(json.value(), "chip", of) || of != chip) {
    return invalid(fmt::format("its chip is \"{}\", this is \"{}\"", printable(of),
                               printable(std::string(chip))));
  }
  const Json* entries = json->find("entries");
  if (entries == nullptr || entries->kind != Json::Kind::array)
    return invalid("it has no list \"entries\"");
  std::vector<TunedResult> results;
  for (const Json& entry : entries->items) {
    TunedResult& result = results.emplace_back();
    const bool whole = take_string(entry, "kernel", result.kernel) &&
                       take_string(entry, "problem_class", result.problem_class) &&
                       take_string(entry, "build", result.build) &&
                       take_string(entry, "configuration", result.configuration) &&
                       take_int(entry, "compute_units", result.compute_units);
    for (const auto& [name, value] : {std::pair{"product", &result.product},
                                      {"driver", &result.driver},
                                      {"compiler", &result.compiler}}) {
      take_string(entry, name, *value);
    }
    if (!whole) {
      return invalid(fmt::format(
          "entry {} lacks one of kernel, problem_class, build, configuration and compute_units",
          results.size() - 1));
    }
  }
  return results;
}

bool ChipResults::has(std::string_view kernel) const {
  const auto is_of_kernel = [&](const TunedResult& result) { return result.kernel == kernel; };
  return std::any_of(own.begin(), own.end(), is_of_kernel) ||
         std::any_of(shipped.begin(), shipped.end(), is_of_kernel);
}

KnownChip& known_chip(std::string_view name) {
  const std::scoped_lock lock(known().mutex);
  KnownChip& chip = known().chips[std::string(name)];
  if (chip.name.empty()) chip.name = name;
  return chip;
}

const ChipResults& results_of(KnownChip& chip) {
  if (const ChipResults* found = chip.results.load(std::memory_order_acquire); found != nullptr)
    return *found;
  std::vector<std::string> log;  // said when all is published: a callback may plan
  const ChipResults* const results = [&] {
    Known& all = known();
    const std::scoped_lock one_reads(all.reading);
    if (const ChipResults* found = chip.results.load(std::memory_order_acquire); found != nullptr)
      return found;
    auto read = std::make_unique<ChipResults>();
    const std::string name = file_name_of(chip.name), path = tuned_results_file(chip.name);
    if (!path.empty()) {
      Result<std::optional<std::string>> text =
          read_regular_file(path, kMaxTunedResultsBytes, FileTrust::own);
      read->own = parsed(path, text.ok() ? text->value_or("") : Result<std::string>(text.status()),
                         chip.name, log);
    }
    read->shipped = parsed("the library's " + name, shipped_text(name), chip.name, log);
    const std::scoped_lock lock(all.mutex);
    all.read.push_back(std::move(read));
    const ChipResults* const found = all.read.back().get();
    chip.results.store(found, std::memory_order_release);
    return found;
  }();
  for (const std::string& line : log) log_line(line);
  return *results;
}

void forget_results() {
  const std::scoped_lock none_reads(known().reading);
  const std::scoped_lock lock(known().mutex);
  for (auto& [name, chip] : known().chips) chip.results = nullptr;
}

void ship_instead(std::map<std::string, std::string, std::less<>> texts) {
  const std::scoped_lock none_reads(known().reading);
  const std::scoped_lock lock(known().mutex);
  known().shipped.clear();
  for (auto& [chip, text] : texts) known().shipped.emplace(file_name_of(chip), std::move(text));
  for (auto& [name, chip] : known().chips) chip.results = nullptr;
}

namespace {

// Whether a name is the wished one or begins it: "NVRTC 13.0" stands for every build of that
// version.
bool begins(std::string_view wished, std::string_view name) {
  return name.starts_with(wished) &&
         (wished.empty() || name.size() == wished.size() || name[wished.size()] == ' ');
}

// Why a result of the kernel and class is not this device's and build's; "" where it is.
std::string misfit(const TunedResult& one, const KernelTuning& identity) {
  if (one.build != identity.build) {
    return fmt::format("it was measured with other code of the kernel ({}, this is {})",
                       printable(one.build), identity.build);
  }
  if (one.compute_units != identity.compute_units) {
    return fmt::format("it was measured with {} {}, this has {}", one.compute_units,
                       identity.product.empty() ? "threads" : "compute units",
                       identity.compute_units);
  }
  if (!one.product.empty() && one.product != identity.product) {
    return fmt::format("it was measured on {}, this is {}", printable(one.product),
                       printable(identity.product));
  }
  return "";
}

// "it was measured with NVRTC 12.8, this is NVRTC 13.0"; "" where the compiler and the driver are
// the same.
std::string other_software(const TunedResult& one, const KernelTuning& identity) {
  for (const auto& [was, is] :
       {std::pair{&one.compiler, &identity.compiler}, std::pair{&one.driver, &identity.driver}}) {
    if (!begins(*was, *is))
      return fmt::format("it was measured with {}, this is {}", printable(*was), printable(*is));
  }
  return "";
}

}  // namespace

FoundResult find_result(const std::vector<TunedResult>& results, const KernelTuning& identity,
                        bool with_other_software) {
  FoundResult found;
  for (const TunedResult& one : results) {
    if (one.kernel != identity.kernel || one.problem_class != identity.problem_class) continue;
    found.why_not = misfit(one, identity);
    const std::string software = other_software(one, identity);
    if (found.why_not.empty() && (software.empty() || with_other_software))
      return {one.configuration, "", software};
    if (found.why_not.empty()) found.why_not = software;
  }
  return found;
}

std::string file_name_of(std::string_view chip) {
  std::string name;
  for (const char c : chip) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '_';
    name += plain ? c : '_';
  }
  return (name.empty() || name.front() == '.' ? "_" + name : name) + ".json";
}

std::string problem_class(const Problem& p) {
  std::string text = fmt::format(
      "{} {} d{}/{} q{} k{} heads{} kv{}", p.pass == Pass::forward ? "forward" : "backward",
      to_string(p.dtype), p.head_dim, p.head_dim_v, rounded(p.seqlen_q), rounded(p.seqlen_k),
      rounded(p.batch * p.num_heads), p.group_size());
  if (p.window_left >= 0) text += fmt::format(" window{}", rounded(p.window_left + 1));
  if (p.window_right >= 0) text += p.window_left < 0 && p.window_right == 0 ? " causal" : " right";
  for (const auto& [there, name] : {std::pair{p.bias.present, " bias"},
                                    {p.keep_mask.present, " keep"},
                                    {p.alibi_slopes.present, " alibi"},
                                    {p.softcap > 0, " softcap"},
                                    {p.dropout > 0, " dropout"},
                                    {p.variable_lengths(), " variable"},
                                    {p.paged(), " paged"},
                                    {p.dbias.present, " dbias"}}) {
    if (there) text += name;
  }
  if (p.quantized_kv()) {
    const bool tokens = p.k_scale.strides[1] != 0 || p.v_scale.strides[1] != 0;
    text += fmt::format(" {}/{}{}", to_string(p.k_dtype), to_string(p.v_dtype),
                        tokens ? " tokens" : "");
  }
  return text;
}

}  // namespace fulmen::tuning

namespace fulmen {

std::string tuned_results_file(const std::string& chip) {
  const std::string folder = kernel_cache_folder();
  return folder.empty() ? "" : folder + "/tuned/" + tuning::file_name_of(chip);
}

std::vector<std::string> shipped_tuned_results() {
  std::vector<std::string> texts;
  for (const tuning::ShippedFile* file = tuning::kShippedFiles;
       file != tuning::kShippedFiles + tuning::kShippedFileCount; ++file) {
    texts.emplace_back(file->text);
  }
  return texts;
}

}  // namespace fulmen
