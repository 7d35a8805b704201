// Requested configurations against the legal ones.
#include "tuning/space.h"

#include <gtest/gtest.h>

namespace fulmen::tuning {
namespace {

// Rows determine the number of waves where a wave has 16 rows.
Space small_space() {
  Space space;
  space.parameters = {
      {"block_m", 64, {16, 32, 64, 128}}, {"waves", 4, {1, 2, 4, 8}}, {"buffers", 2, {1, 2}}};
  space.takes = [](std::span<const int> v) {
    return v[0] == 16 * v[1] ? Support{} : Support::no("a wave has 16 rows");
  };
  return space;
}

Result<Choice> choose_text(const std::string& text) {
  const Result<std::vector<Asked>> asked = parse_tuning(text, "options.tuning", "option");
  return asked.ok() ? choose("a.kernel", small_space(), asked.value())
                    : Result<Choice>(asked.status());
}

TEST(TuningSpace, EveryLegalConfigurationIsListedOnceTheUsualOneFirst) {
  const Space space = small_space();
  const std::vector<Values> all = configurations(space);
  EXPECT_EQ(all.size(), 8U);
  EXPECT_EQ(all.front(), space.usual());
  for (const Values& values : all) EXPECT_TRUE(space.takes(values).yes) << to_text(space, values);
}

TEST(TuningSpace, OthersFitThemselvesToWhatIsAsked) {
  const Result<Choice> choice = choose_text("block_m=128");
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(choice->values, (Values{128, 8, 2}));
  EXPECT_EQ(choice->parameters[0].source, "option");
  EXPECT_EQ(choice->parameters[1].source, "fitted");
  EXPECT_EQ(choice->parameters[2].source, "default");
}

TEST(TuningSpace, WhatIsNotLegalIsRefusedWithWhatIs) {
  const auto message = [](const std::string& text) { return choose_text(text).status().message(); };
  EXPECT_EQ(message("waves=3"),
            "waves=3 (option): a.kernel takes 1, 2, 4, 8 as waves for this problem");
  EXPECT_EQ(message("block_m=64,waves=8"),
            "block_m=64 (option), waves=8 (option): a.kernel does not run this problem with that: "
            "a wave has 16 rows; it would with "
            "block_m: 128; waves: 4");
  EXPECT_EQ(message("rows=1"),
            "rows=1 (option): a.kernel has no such parameter; it has block_m, waves, buffers");
  for (const char* text : {"", "block_m", "block_m=", "=4", "block_m=4x", "block_m=-1",
                           "block_m=64,", "block_m=-99999999999"}) {
    EXPECT_NE(message(text).find("name=number"), std::string::npos) << text;
  }
  EXPECT_EQ(message("waves=4,block_m=99999999999"),
            "options.tuning is \"waves=4,block_m=99999999999\": block_m is a number from 0 to "
            "2147483647");
  EXPECT_NE(message("waves=4,waves=4").find("waves is there twice"), std::string::npos);
}

TEST(TuningSpace, TheNearestLegalValueServesOldNames) {
  Asked far{"waves", 32, "environment", true, true};
  const Result<Choice> choice = choose("a.kernel", small_space(), {far});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->values, (Values{128, 8, 2}));
}

TEST(TuningSpace, TunedResultsGiveWayToOptions) {
  const Asked rows{"block_m", 128, "own", false, true}, waves{"waves", 8, "own", false, true};
  const Result<Choice> own = choose("a.kernel", small_space(), {rows, waves});
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->values, (Values{128, 8, 2}));
  EXPECT_EQ(own->parameters[1].source, "own");
  const Result<Choice> both =
      choose("a.kernel", small_space(), {rows, waves, {"block_m", 16, "option"}});
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->values, (Values{16, 1, 2}));
  EXPECT_EQ(both->parameters[0].source, "option");
  EXPECT_EQ(both->parameters[1].source, "fitted");
}

TEST(TuningSpace, TheEnvironmentMayNameWhatAKernelDoesNotHave) {
  const Result<Choice> choice =
      choose("a.kernel", small_space(), {{"rows", 1, "environment", true, false}});
  ASSERT_TRUE(choice.ok());
  ASSERT_EQ(choice->notes.size(), 1U);
  EXPECT_NE(choice->notes[0].find("no such parameter"), std::string::npos);
}

}  // namespace
}  // namespace fulmen::tuning
