// The finding of `fulmen doctor` about one precondition.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fulmen::tools {

enum class FindingVerdict : int { pass, warn, fail };
const char* to_string(FindingVerdict verdict) noexcept;

struct Finding {
  std::string id;  // "amd.driver": the same on every machine
  FindingVerdict verdict = FindingVerdict::pass;
  std::string seen;  // what was found
  std::string mend;  // the command or sentence that mends it; empty where nothing has to be
};

struct Findings {
  std::vector<Finding> list;
  void pass(std::string id, std::string seen) {
    list.push_back({std::move(id), FindingVerdict::pass, std::move(seen), ""});
  }
  void warn(std::string id, std::string seen, std::string mend) {
    list.push_back({std::move(id), FindingVerdict::warn, std::move(seen), std::move(mend)});
  }
  void fail(std::string id, std::string seen, std::string mend) {
    list.push_back({std::move(id), FindingVerdict::fail, std::move(seen), std::move(mend)});
  }
};

struct SystemFacts;

void check_amd(const SystemFacts& facts, Findings& findings);
void check_nvidia(const SystemFacts& facts, Findings& findings);
void check_cpu(const SystemFacts& facts, Findings& findings);
void check_folders(const SystemFacts& facts, Findings& findings);
void check_device_choice(const SystemFacts& facts, Findings& findings);
// Runs all checks, in this order.
std::vector<Finding> examine(const SystemFacts& facts);

}  // namespace fulmen::tools
