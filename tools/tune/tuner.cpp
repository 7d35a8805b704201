#include "tools/tune/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fulmen::tools {
namespace {

constexpr int kSamples = 5;           // a round, of a candidate and the default alternately
constexpr int kLastSamples = 15;      // in the last round, of two candidates
constexpr double kMostSpread = 0.05;  // a larger spread is measured again
constexpr int kMostRepeats = 3;
constexpr double kLeastGain = 0.01;        // a smaller one is not called a gain
constexpr double kPreparationShare = 0.6;  // the share of the time for compiling and verifying

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class Search {
 public:
  Search(TuneDevice& device, const TuneLimits& limits,
         const std::function<void(const std::string&)>& report)
      : device_(device), limits_(limits), report_(report), start_(device.now()) {}

  Result<TuneOutcome> run(const std::vector<std::string>& configurations) {
    std::vector<std::size_t> right;
    for (const std::string& configuration : configurations) {
      const std::size_t tried = outcome_.candidates.size();
      if (tried >= limits_.max_candidates ||
          (tried > 0 && elapsed() > kPreparationShare * limits_.seconds))
        break;
      report_(fmt::format("verify {} ({} of {})", configuration, tried + 1,
                          std::min(configurations.size(), limits_.max_candidates)));
      TuneCandidate& candidate = outcome_.candidates.emplace_back();
      candidate.configuration = configuration;
      Status status = device_.prepare(configuration);
      if (status.ok()) status = device_.verify(configuration);
      if (!status.ok() && tried == 0) return status;
      if (status.ok()) {
        right.push_back(tried);
      } else {
        give_up(candidate, status.message());
      }
    }
    outcome_.untried = configurations.size() - outcome_.candidates.size();
    if (limits_.timed) find_fastest(std::move(right));
    return std::move(outcome_);
  }

 private:
  double elapsed() const { return device_.now() - start_; }

  void give_up(TuneCandidate& candidate, const std::string& why) {
    candidate.problem = why;
    device_.drop(candidate.configuration);
  }

  // Successive halving: every round times each remaining candidate alternately with the default and
  // drops the slower half.
  void find_fastest(std::vector<std::size_t> right) {
    std::erase(right, std::size_t{0});
    while (!right.empty()) {
      const bool last = right.size() == 1;
      std::vector<std::pair<double, std::size_t>> ratios;
      for (const std::size_t i : right) {
        if (!ratios.empty() && elapsed() > limits_.seconds) break;
        TuneCandidate& candidate = outcome_.candidates[i];
        report_(fmt::format("time {} ({} left)", candidate.configuration, right.size()));
        if (measure(candidate, last ? kLastSamples : kSamples)) {
          ratios.emplace_back(
              candidate.statistics.median / outcome_.candidates[0].statistics.median, i);
        }
      }
      if (last) {
        if (!ratios.empty()) decide(ratios.front().second);
        return;
      }
      std::sort(ratios.begin(), ratios.end());
      // When the time is over, only the best of this round is measured once more.
      const std::size_t keep = elapsed() > limits_.seconds ? 1 : (ratios.size() + 1) / 2;
      right.clear();
      for (std::size_t n = 0; n < ratios.size(); ++n) {
        if (n < keep) {
          right.push_back(ratios[n].second);
        } else {
          device_.drop(outcome_.candidates[ratios[n].second].configuration);
        }
      }
    }
    // Nothing but the default is right: its time is still of interest.
    if (!outcome_.candidates[0].timed) measure(outcome_.candidates[0], kSamples);
  }

  // Takes samples of the candidate and of the default alternately, so that what slows the machine
  // slows both. A spread that is too wide is measured again, and the narrowest is kept. False: a
  // run failed.
  bool measure(TuneCandidate& candidate, int samples) {
    TuneCandidate& usual = outcome_.candidates[0];
    double narrowest = 0;
    for (int repeat = 0; repeat < kMostRepeats; ++repeat) {
      std::vector<double> own, others;
      for (int n = 0; n < samples; ++n) {
        if (&candidate != &usual) {
          const Result<double> other = device_.time(usual.configuration);
          if (other.ok()) others.push_back(other.value());
        }
        const Result<double> one = device_.time(candidate.configuration);
        if (!one.ok()) {
          give_up(candidate, one.status().message());
          return false;
        }
        own.push_back(one.value());
      }
      if (&candidate != &usual && others.empty()) return false;
      const TuneStatistics mine = statistics_of(own),
                           usuals = others.empty() ? mine : statistics_of(others);
      const double spread = std::max(mine.spread(), usuals.spread());
      if (repeat == 0 || spread < narrowest) {
        narrowest = spread;
        candidate.statistics = mine;
        usual.statistics = usuals;
      }
      candidate.timed = usual.timed = true;
      if (narrowest <= kMostSpread || elapsed() > limits_.seconds) break;
    }
    ++candidate.rounds;
    return true;
  }

  // A winner beats the default by more than both vary.
  void decide(std::size_t best) {
    const TuneStatistics& mine = outcome_.candidates[best].statistics;
    const TuneStatistics& usual = outcome_.candidates[0].statistics;
    outcome_.noise = std::max(kLeastGain, mine.spread() + usual.spread());
    const double gain = 1 - mine.median / usual.median;
    if (gain <= outcome_.noise) return;
    outcome_.winner = best;
    outcome_.gain = gain;
  }

  TuneDevice& device_;
  const TuneLimits& limits_;
  const std::function<void(const std::string&)>& report_;
  double start_;
  TuneOutcome outcome_;
};

std::vector<std::string> parts_of(const std::string& configuration) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= configuration.size();) {
    const std::size_t end = std::min(configuration.find(',', at), configuration.size());
    parts.push_back(configuration.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

TuneStatistics statistics_of(std::vector<double> seconds) {
  TuneStatistics s;
  const auto count = static_cast<double>(seconds.size());
  s.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  s.min = *std::min_element(seconds.begin(), seconds.end());
  s.max = *std::max_element(seconds.begin(), seconds.end());
  double squares = 0;
  for (const double one : seconds) squares += (one - s.mean) * (one - s.mean);
  s.deviation = seconds.size() > 1 ? std::sqrt(squares / (count - 1)) : 0;
  s.median = median_of(std::move(seconds));
  return s;
}

std::vector<std::string> nearest_first(const std::vector<std::string>& configurations) {
  if (configurations.empty()) return {};
  const std::vector<std::string> usual = parts_of(configurations.front());
  std::vector<std::pair<int, std::size_t>> order;
  for (std::size_t n = 0; n < configurations.size(); ++n) {
    const std::vector<std::string> parts = parts_of(configurations[n]);
    int differing = 0;
    for (std::size_t i = 0; i < parts.size(); ++i)
      differing += i < usual.size() && parts[i] == usual[i] ? 0 : 1;
    order.emplace_back(differing, n);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::string> sorted;
  for (const auto& [differing, n] : order) sorted.push_back(configurations[n]);
  return sorted;
}

Result<TuneOutcome> tune(const std::vector<std::string>& configurations, TuneDevice& device,
                         const TuneLimits& limits,
                         const std::function<void(const std::string&)>& report) {
  if (configurations.empty())
    return Status(StatusCode::invalid_argument, "there is no configuration to tune");
  return Search(device, limits, report).run(configurations);
}

}  // namespace fulmen::tools
