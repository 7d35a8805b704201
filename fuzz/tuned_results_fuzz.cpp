// Any bytes given as a file of tuned results are refused with a sentence, or are complete entries;
// and JSON that this reader takes, another one takes, too. The same holds for files that `fulmen
// tune --import` reads.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/tune/report.h"
#include "tuning/json.h"
#include "tuning/results.h"
#include "tuning/space.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = fulmen::tuning::parse_json(text);
  if (json.ok()) {
    // This reader does not check that bytes above 127 are UTF-8.
    bool plain = true;
    for (const char c : text) plain = plain && static_cast<unsigned char>(c) < 0x80;
    if (plain && !nlohmann::json::accept(text)) std::abort();
  } else if (json.status().message().empty()) {
    std::abort();
  }
  const auto exported = fulmen::tools::parse_export(std::string(text), "in.json");
  if (!exported.ok() && exported.status().message().empty()) std::abort();
  const auto results = fulmen::tuning::parse_results(text, "sm_90a");
  if (!results.ok()) {
    if (results.status().message().empty()) std::abort();
    return 0;
  }
  for (const auto& result : results.value()) {
    if (result.kernel.empty() || result.configuration.empty() || result.build.empty()) std::abort();
    const auto asked = fulmen::tuning::parse_tuning(result.configuration, "a configuration", "own");
    if (!asked.ok() && asked.status().message().empty()) std::abort();
  }
  return 0;
}
