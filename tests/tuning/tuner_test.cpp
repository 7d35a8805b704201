// The search on a device whose times are a known function.
#include "tools/tune/tuner.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace fulmen::tools {
namespace {

class FakeDevice final : public TuneDevice {
 public:
  std::map<std::string, double> seconds;
  std::set<std::string> does_not_compile, wrong, fails_later;
  double noise = 0;  // of each third sample, upwards: the default's and the candidates' alternate
  std::vector<std::string> steps;

  Status prepare(const std::string& c) override {
    clock_ += 1;
    return does_not_compile.contains(c) ? Status{StatusCode::unavailable, "it does not compile"}
                                        : Status{};
  }
  Status verify(const std::string& c) override {
    clock_ += 1;
    verified_.insert(c);
    return wrong.contains(c) ? Status{StatusCode::verification_failed, "wrong results"} : Status{};
  }
  Result<double> time(const std::string& c) override {
    EXPECT_TRUE(verified_.contains(c)) << c << " is timed before it is verified";
    EXPECT_FALSE(dropped_.contains(c)) << c << " is timed after it was dropped";
    steps.push_back(c);
    clock_ += seconds.at(c);
    if (fails_later.contains(c)) return Status(StatusCode::unavailable, "the launch failed");
    return seconds.at(c) * (++samples_ % 3 == 0 ? 1 + noise : 1);
  }
  void drop(const std::string& c) override { dropped_.insert(c); }
  double now() const override { return clock_; }

 private:
  double clock_ = 0;
  int samples_ = 0;
  std::set<std::string> verified_, dropped_;
};

std::vector<std::string> names_of(const FakeDevice& device) {
  std::vector<std::string> names;
  for (const auto& [name, seconds] : device.seconds) names.push_back(name);
  return names;
}

TuneOutcome outcome_of(FakeDevice& device, const TuneLimits& limits = {.seconds = 1e6}) {
  Result<TuneOutcome> outcome = tune(names_of(device), device, limits, [](const std::string&) {});
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return std::move(outcome).value();
}

FakeDevice twenty() {
  FakeDevice device;
  for (int n = 0; n < 20; ++n)
    device.seconds["c" + std::to_string(10 + n)] = 1 + 0.01 * ((n * 7 + 3) % 20);
  return device;
}

TEST(Tuner, FindsTheOptimum) {
  FakeDevice device = twenty();
  device.seconds["c10"] = 1.5;
  device.seconds["c23"] = 0.7;
  const TuneOutcome outcome = outcome_of(device);
  EXPECT_EQ(outcome.candidates[outcome.winner].configuration, "c23");
  EXPECT_NEAR(outcome.gain, 1 - 0.7 / 1.5, 1e-9);
  EXPECT_EQ(outcome.untried, 0U);
}

TEST(Tuner, TimesCandidatesInTurnWithTheDefault) {
  FakeDevice device = twenty();
  outcome_of(device);
  for (std::size_t n = 0; n + 1 < device.steps.size(); n += 2) {
    EXPECT_EQ(device.steps[n], "c10");
    EXPECT_NE(device.steps[n + 1], "c10");
  }
}

TEST(Tuner, LeavesOutWhatDoesNotCompileIsWrongOrFails) {
  FakeDevice device = twenty();
  device.seconds["c11"] = 0.1;
  device.seconds["c12"] = 0.2;
  device.seconds["c13"] = 0.3;
  device.seconds["c14"] = 0.5;
  device.does_not_compile = {"c11"};
  device.wrong = {"c12"};
  device.fails_later = {"c13"};
  const TuneOutcome outcome = outcome_of(device);
  EXPECT_EQ(outcome.candidates[outcome.winner].configuration, "c14");
  EXPECT_EQ(outcome.candidates[1].problem, "it does not compile");
  EXPECT_EQ(outcome.candidates[2].problem, "wrong results");
  EXPECT_EQ(outcome.candidates[3].problem, "the launch failed");
  EXPECT_FALSE(outcome.candidates[1].timed || outcome.candidates[2].timed);
}

TEST(Tuner, AWinnerBeatsTheNoise) {
  FakeDevice device;
  device.seconds = {{"a", 1.0}, {"b", 0.995}};
  EXPECT_EQ(outcome_of(device).winner, 0U) << "half a percent is nothing";
  FakeDevice noisy;
  noisy.seconds = {{"a", 1.0}, {"b", 0.9}};
  noisy.noise = 0.4;
  const TuneOutcome outcome = outcome_of(noisy);
  EXPECT_EQ(outcome.winner, 0U);
  EXPECT_GT(outcome.noise, 0.1);
  FakeDevice clear;
  clear.seconds = {{"a", 1.0}, {"b", 0.9}};
  EXPECT_EQ(outcome_of(clear).winner, 1U);
}

TEST(Tuner, AWideSpreadIsMeasuredAgain) {
  FakeDevice quiet, noisy;
  quiet.seconds = noisy.seconds = {{"a", 1.0}, {"b", 0.5}, {"c", 0.6}};
  noisy.noise = 0.5;
  outcome_of(quiet);
  outcome_of(noisy);
  EXPECT_GT(noisy.steps.size(), quiet.steps.size());
}

TEST(Tuner, TheDefaultMustBeRight) {
  FakeDevice device = twenty();
  device.wrong = {"c10"};
  const Result<TuneOutcome> outcome = tune(names_of(device), device, {}, [](const std::string&) {});
  EXPECT_EQ(outcome.status().code(), StatusCode::verification_failed);
  EXPECT_TRUE(device.steps.empty());
}

TEST(Tuner, KeepsToItsTime) {
  FakeDevice device = twenty();
  device.noise = 0.5;
  const TuneOutcome outcome = outcome_of(device, {.seconds = 20});
  EXPECT_GT(outcome.untried, 0U);
  // The time may run out within a candidate, and the best is measured once more: no measurement is
  // repeated for its spread.
  EXPECT_LT(device.now(), 20 + 2 * (5 + 15) * 1.2);
  EXPECT_TRUE(outcome.candidates.front().timed);
  FakeDevice few = twenty();
  EXPECT_EQ(outcome_of(few, {.seconds = 1e6, .max_candidates = 5}).candidates.size(), 5U);
}

TEST(Tuner, NothingIsTimedWhereTimesMeanNothing) {
  FakeDevice device = twenty();
  const TuneOutcome outcome =
      outcome_of(device, {.seconds = 1e6, .max_candidates = 64, .timed = false});
  EXPECT_TRUE(device.steps.empty());
  EXPECT_EQ(outcome.winner, 0U);
}

TEST(Tuner, StatisticsAreThoseOfTheSamples) {
  const TuneStatistics s = statistics_of({3, 1, 2, 4});
  EXPECT_DOUBLE_EQ(s.mean, 2.5);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.min, 1);
  EXPECT_DOUBLE_EQ(s.max, 4);
  EXPECT_NEAR(s.deviation, 1.2909944487, 1e-9);
}

TEST(Tuner, NeighboursOfTheDefaultComeFirst) {
  EXPECT_EQ(nearest_first({"a=1,b=1", "a=2,b=2", "a=1,b=2"}),
            (std::vector<std::string>{"a=1,b=1", "a=1,b=2", "a=2,b=2"}));
}

}  // namespace
}  // namespace fulmen::tools
