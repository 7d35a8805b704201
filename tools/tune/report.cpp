#include "tools/tune/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fulmen/printable.h"

namespace fulmen::tools {
namespace {

constexpr std::size_t kBest = 8;

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.3f} ms", seconds * 1e3) : fmt::format("{:.3f} s", seconds);
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + "\"";
}

}  // namespace

std::string table_of(const TunedProblem& t, bool all) {
  std::string text = fmt::format("{}: {} on {}\n", t.name, t.identity.kernel, t.device);
  std::vector<std::pair<double, std::size_t>> order;
  std::size_t out = 0;
  for (std::size_t i = 0; i < t.outcome.candidates.size(); ++i) {
    const TuneCandidate& c = t.outcome.candidates[i];
    if (!c.problem.empty()) {
      ++out;
    } else if (c.timed) {
      order.emplace_back(c.statistics.median, i);
    }
  }
  std::sort(order.begin(), order.end());
  if (!order.empty()) {
    text += fmt::format("  {:>11} {:>11} {:>11} {:>11} {:>7}  {}\n", "median", "mean", "max", "min",
                        "spread", "configuration");
  }
  for (std::size_t n = 0; n < order.size() && (all || n < kBest); ++n) {
    const TuneCandidate& c = t.outcome.candidates[order[n].second];
    const TuneStatistics& s = c.statistics;
    const char* mark = order[n].second == 0                  ? "  (default)"
                       : order[n].second == t.outcome.winner ? "  (winner)"
                                                             : "";
    text += fmt::format("  {:>11} {:>11} {:>11} {:>11} {:>5.1f} %  {}{}\n", seconds_text(s.median),
                        seconds_text(s.mean), seconds_text(s.max), seconds_text(s.min),
                        100 * s.spread(), c.configuration, mark);
  }
  for (const TuneCandidate& c : t.outcome.candidates) {
    if (!c.problem.empty())
      text += fmt::format("  left out: {}: {}\n", c.configuration, printable(c.problem));
  }
  text += fmt::format("  {} candidates, {} right, {} left out, {} not tried",
                      t.outcome.candidates.size(), t.outcome.candidates.size() - out, out,
                      t.outcome.untried);
  return text;
}

std::string summary_of(const std::vector<TunedProblem>& tuned, bool emulated) {
  std::string text;
  for (const TunedProblem& t : tuned) {
    const TuneOutcome& o = t.outcome;
    text += text.empty() ? "" : "\n";
    if (emulated) {
      text += fmt::format("{}: every configuration that is not left out above gave right results",
                          t.name);
    } else if (o.winner == 0) {
      text += fmt::format("{}: the default stays: nothing was faster by more than {:.1f} %", t.name,
                          100 * std::max(o.noise, 0.01));
    } else {
      text += fmt::format("{}: {:.1f} % less time (noise {:.1f} %) with {}", t.name, 100 * o.gain,
                          100 * o.noise, o.candidates[o.winner].configuration);
    }
  }
  return text.empty() ? "nothing was tuned" : text;
}

std::string tuned_json(const std::vector<TunedProblem>& tuned) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const TunedProblem& t : tuned) all.push_back(nlohmann::ordered_json::parse(tuned_text(t)));
  return all.dump(1) + "\n";
}

std::string tuned_csv(const std::vector<TunedProblem>& tuned) {
  std::string text =
      "problem,device,chip,kernel,configuration,winner,problem_with_it,rounds,mean_s,median_s,max_"
      "s,min_s,deviation_s\n";
  for (const TunedProblem& t : tuned) {
    for (std::size_t i = 0; i < t.outcome.candidates.size(); ++i) {
      const TuneCandidate& c = t.outcome.candidates[i];
      const TuneStatistics& s = c.statistics;
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", quoted(t.name),
                          quoted(t.device), quoted(t.identity.chip), t.identity.kernel,
                          quoted(c.configuration), i == t.outcome.winner ? 1 : 0, quoted(c.problem),
                          c.rounds, s.mean, s.median, s.max, s.min, s.deviation);
    }
  }
  return text;
}

Result<std::vector<std::vector<TuneRecord>>> parse_export(const std::string& text,
                                                          const std::string& path) {
  std::vector<std::vector<TuneRecord>> chips;
  try {
    nlohmann::json files = nlohmann::json::parse(text);
    // A chip's file as it is: data/tuned/sm_90a.json.
    if (files.is_object()) files = nlohmann::json::array({std::move(files)});
    if (!files.is_array()) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("{}: a chip's file of results, or what --export wrote, is accepted",
                                printable(path)));
    }
    for (const nlohmann::json& file : files) {
      Result<std::vector<TuneRecord>> records = parse_records(file.dump(), path);
      if (!records.ok()) return records.status();
      if (!records->empty()) chips.push_back(std::move(records).value());
    }
  } catch (const nlohmann::json::exception& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: {}", printable(path), printable(error.what())));
  }
  return chips;
}

}  // namespace fulmen::tools
