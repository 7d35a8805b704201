// The chips that tests run on, of the table of targets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/targets/portable.h"
#include "gpu/targets/target.h"
#include "support/random.h"

namespace fulmen::testing {

// A chip of each target, or all that its file names. Targets that extend another have its kernels,
// too, and lists of their own.
enum class Chips { all, one_of_each_target };

inline std::vector<std::string> test_chips(bool (*asked)(const gpu::Target&),
                                           Chips chips = Chips::all) {
  std::vector<std::string> names;
  for (const gpu::Target* target : gpu::targets()) {
    if (!asked(*target)) continue;
    const auto list = target->test_chips.first(chips == Chips::all ? target->test_chips.size() : 1);
    names.insert(names.end(), list.begin(), list.end());
  }
  return names;
}

// AMD's without matrix instructions.
inline std::vector<std::string> portable_test_chips() {
  return {gpu::kPortable.test_chips.begin(), gpu::kPortable.test_chips.end()};
}

inline bool is_amd(const gpu::Target& target) { return target.vendor == gpu::Vendor::amd; }
// RDNA's waves have 32 lanes, CDNA's 64.
inline bool is_rdna(const gpu::Target& target) {
  return is_amd(target) && target.chips.front().wave_size == 32;
}
inline bool extends_none(const gpu::Target& target) { return target.extends == nullptr; }
inline bool has_warpgroups(const gpu::Target& target) { return target.panel_columns > 0; }

// Why the running test is left out for this emulated chip; empty: it is not. By the seed each test
// is drawn in one of eight of ./dev test's runs. Where a target's kernels are another one's, it is
// drawn in other runs as well, in one of five.
inline std::string why_not_drawn(const std::string& chip) {
  constexpr std::size_t kRuns = 8, kRunsOfAlike = 5;
  std::vector<std::string> chips = portable_test_chips();
  for (const gpu::Target* target : gpu::targets()) {
    for (const gpu::ChipFacts& facts : target->chips) chips.emplace_back(facts.arch);
    if (long_run() || target->like == nullptr || target->chips.front().arch != chip) continue;
    return is_drawn(sampled_run() ? kRuns : kRunsOfAlike)
               ? ""
               : "left to other runs: kernels of " + std::string(target->like->name);
  }
  const bool emulated = std::find(chips.begin(), chips.end(), chip) != chips.end();
  return emulated ? left_to_other_runs(kRuns) : "";
}

// A test of one chip, where it is drawn.
class ChipTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_drawn(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace fulmen::testing
