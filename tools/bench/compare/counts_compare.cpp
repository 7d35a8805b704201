#include "tools/bench/compare/counts_compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "fulmen/printable.h"

namespace fulmen::tools {
namespace {

using nlohmann::json;

constexpr double kMostChange = 0.02;
constexpr std::array kCountVerdicts{"the same", "fewer", "MORE", "NOT IN B", "only in B"};
constexpr std::array<std::string_view, 9> kClasses{"matrix", "vector",       "transcendental",
                                                   "scalar", "scalar_loads", "lds",
                                                   "global", "scratch",      "waits"};
constexpr std::size_t kScratch = 7;

struct Launch {
  std::string kernel;
  std::array<int64_t, kClasses.size()> counts{};
  int64_t all = 0;
};
using Key = std::pair<std::string, int64_t>;  // chip and problem, the launch's number
struct Counts {
  std::vector<Key> order;
  std::map<Key, Launch> launches;
};

Result<Counts> read_counts(const std::string& text, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    return Status{StatusCode::invalid_argument,
                  fmt::format("{}: it is no file of `fulmen counts --json`: {}", printable(name),
                              printable(why))};
  };
  constexpr int64_t kMost = int64_t{1} << 53;
  Counts counts;
  try {
    const json rows = json::parse(text);
    if (!rows.is_array()) return refuse("a list of launches is expected");
    for (const json& row : rows) {
      const auto arch = row.at("arch").get<std::string>();
      const Key key{arch + ' ' + row.at("problem").get<std::string>(),
                    row.at("launch").get<int64_t>()};
      Launch launch{arch + ' ' + row.at("kernel").get<std::string>()};
      for (std::size_t n = 0; n < kClasses.size(); ++n) {
        const json& count = row.at(std::string(kClasses[n]));
        if (!count.is_number_unsigned() || count.get<uint64_t>() > kMost) {
          return refuse(fmt::format("{} of {} is {}: a count is expected", kClasses[n],
                                    launch.kernel, count.dump()));
        }
        launch.counts[n] = count.get<int64_t>();
        launch.all += launch.counts[n];
      }
      if (!counts.launches.emplace(key, launch).second)
        return refuse("it has a launch twice: " + launch.kernel);
      counts.order.push_back(key);
    }
  } catch (const json::exception& error) {
    return refuse(error.what());
  }
  return counts;
}

ComparedCounts compared(const Launch& a, const Launch& b) {
  ComparedCounts row{b.kernel, a.all, b.all};
  const double change = static_cast<double>(b.all - a.all);
  const bool spills = a.counts[kScratch] == 0 && b.counts[kScratch] > 0;
  std::size_t most = kScratch;
  for (std::size_t n = 0; n < kClasses.size() && !spills; ++n) {
    if (std::abs(b.counts[n] - a.counts[n]) > std::abs(b.counts[most] - a.counts[most])) most = n;
  }
  if (a.counts[most] != b.counts[most])
    row.changed = fmt::format("{} {} -> {}", kClasses[most], a.counts[most], b.counts[most]);
  if (spills || change > kMostChange * static_cast<double>(a.all)) {
    row.verdict = CountVerdict::more;
  } else if (change < -kMostChange * static_cast<double>(a.all)) {
    row.verdict = CountVerdict::fewer;
  }
  return row;
}

std::string ratio_of(const ComparedCounts& row) {
  return row.a > 0 && row.b > 0
             ? fmt::format("{:.3f}", static_cast<double>(row.b) / static_cast<double>(row.a))
             : "-";
}

}  // namespace

bool are_counts(const std::string& text) {
  const json rows = json::parse(text, nullptr, false);
  return rows.is_array() && !rows.empty() && rows.front().is_object() &&
         rows.front().contains("launch");
}

Result<std::vector<ComparedCounts>> compare_counts(const std::string& a, const std::string& name_a,
                                                   const std::string& b,
                                                   const std::string& name_b) {
  const Result<Counts> first = read_counts(a, name_a), second = read_counts(b, name_b);
  if (!first.ok()) return first.status();
  if (!second.ok()) return second.status();
  std::vector<ComparedCounts> rows;
  for (const Key& key : first->order) {
    const Launch& launch = first->launches.at(key);
    const auto other = second->launches.find(key);
    rows.push_back(other != second->launches.end()
                       ? compared(launch, other->second)
                       : ComparedCounts{launch.kernel, launch.all, 0, "", CountVerdict::missing});
  }
  for (const Key& key : second->order) {
    if (first->launches.contains(key)) continue;
    const Launch& launch = second->launches.at(key);
    rows.push_back({launch.kernel, 0, launch.all, "", CountVerdict::added});
  }
  return rows;
}

std::string counts_table(const std::vector<ComparedCounts>& rows) {
  std::size_t width = 6;
  for (const ComparedCounts& row : rows) width = std::max(width, row.kernel.size());
  std::string text = fmt::format("{:{}} {:>10} {:>10} {:>7}  {:9}  changed most\n", "launch", width,
                                 "A", "B", "B / A", "B has");
  std::array<int, kCountVerdicts.size()> numbers{};
  for (const ComparedCounts& row : rows) {
    ++numbers[static_cast<std::size_t>(row.verdict)];
    text += fmt::format("{:{}} {:>10} {:>10} {:>7}  {:9}  {}\n", printable(row.kernel), width,
                        row.a, row.b, ratio_of(row),
                        kCountVerdicts[static_cast<std::size_t>(row.verdict)], row.changed);
  }
  text += fmt::format("{} launches", rows.size());
  for (std::size_t n = 0; n < kCountVerdicts.size(); ++n) {
    if (numbers[n] > 0) text += fmt::format(", {} {}", numbers[n], kCountVerdicts[n]);
  }
  const auto count = [&](CountVerdict verdict) {
    return numbers[static_cast<std::size_t>(verdict)];
  };
  if (count(CountVerdict::fewer) + count(CountVerdict::added) > 0)
    text += ": B is worth keeping in A's place";
  return text;
}

Status counts_status(const std::vector<ComparedCounts>& rows) {
  std::vector<std::string> faults;
  for (const ComparedCounts& row : rows) {
    if (row.verdict == CountVerdict::more) {
      faults.push_back(fmt::format("{} executes {} times the instructions ({})",
                                   printable(row.kernel), ratio_of(row), row.changed));
    }
    if (row.verdict == CountVerdict::missing)
      faults.push_back(printable(row.kernel) + " is missing");
  }
  if (faults.empty()) return {};
  return {StatusCode::verification_failed, fmt::format("{}", fmt::join(faults, "; "))};
}

}  // namespace fulmen::tools
