// FATTN_*_D<head_dim>: mapped to what a kernel has, or refused.
#include <gtest/gtest.h>

#include <cstdlib>

#include "fulmen/fulmen.h"
#include "tuning/sources.h"

namespace fulmen::tuning {
namespace {

class OldNames : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NTHREADS", "OCCUPANCY", "NBATCH_FA", "NBATCH_K2", "NBATCH_V2", "NBATCH_COMBINE", "NSTAGES"}) {
      ::unsetenv(variable(name).c_str());
    }
  }
  static std::string variable(const std::string& name, int head_dim = 40) {
    return "FATTN_" + name + "_D" + std::to_string(head_dim);
  }
  static void set(const std::string& name, const std::string& value) { ::setenv(variable(name).c_str(), value.c_str(), 1); }
  static Problem problem() {
    const Tensor q = Tensor::bshd(nullptr, DType::bf16, 1, 512, 2, 40);
    return make_problem({.q = q, .k = q, .v = q, .out = q}, {}).value();
  }
  static Space space() {
    Space space;
    space.parameters = {
        {"block_n", 32, {16, 32, 64}}, {"waves", 4, {1, 2, 4, 8}}, {"buffers", 2, {1, 2}}, {"min_waves", 1, {1, 2, 3}}};
    space.takes = [](std::span<const int>) { return Support{}; };
    space.wave_size = 32;
    return space;
  }
  static Result<Choice> chosen() {
    std::vector<std::string> notes;
    const Result<std::vector<Asked>> asked = asked_by_old_names(problem(), space(), notes);
    if (!asked.ok()) return asked.status();
    Result<Choice> choice = choose("hip.prefill.gfx11", space(), asked.value());
    if (choice.ok()) choice->notes = notes;
    return choice;
  }
};

TEST_F(OldNames, AreMappedAndBothNamesAreTold) {
  set("NTHREADS", "256");
  set("OCCUPANCY", "2");
  set("NBATCH_FA", "64");
  set("NSTAGES", "1");
  const Result<Choice> choice = chosen();
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(choice->values, (Values{64, 8, 1, 2}));
  EXPECT_EQ(choice->parameters[1].name, "waves");
  EXPECT_EQ(choice->parameters[1].source, "environment, FATTN_NTHREADS_D40=256");
}

TEST_F(OldNames, TakeTheNearestLegalValue) {
  set("OCCUPANCY", "8");
  set("NSTAGES", "0");
  set("NBATCH_FA", "128");
  const Result<Choice> choice = chosen();
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(choice->values, (Values{64, 4, 1, 3}));
}

TEST_F(OldNames, AreRefusedWithTheReasonAndTheLegalValues) {
  set("NTHREADS", "100");
  EXPECT_EQ(chosen().status().message(),
            "FATTN_NTHREADS_D40 is \"100\": a workgroup has a whole number of waves of 32 lanes, 32, 64, 128, 256 are accepted");
  set("NTHREADS", "many");
  EXPECT_EQ(chosen().status().message(), "FATTN_NTHREADS_D40 is \"many\": a number is accepted");
  set("NTHREADS", "128");
  set("NBATCH_K2", "64");
  EXPECT_EQ(chosen().status().message(), "FATTN_NBATCH_K2_D40 is \"64\": a tile is not wider than head_dim, up to 20 is accepted");
}

TEST_F(OldNames, WhatNothingHereIsLikeIsNoted) {
  set("NBATCH_V2", "20");
  set("NBATCH_COMBINE", "32");
  const Result<Choice> choice = chosen();
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  ASSERT_EQ(choice->notes.size(), 2U);
  EXPECT_EQ(choice->notes[0], "FATTN_NBATCH_V2_D40=20 changes nothing: V's tiles have all dims of their rows here");
}

// A kernel whose tiles nobody can choose runs as ever, whatever is asked of others.
TEST_F(OldNames, AKernelWithoutParametersIsPlanned) {
  const Result<Choice> choice = choose("hip.short.gfx11", Space{}, {});
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(configurations(Space{}).size(), 1U);
  set("NSTAGES", "2");
  AttentionOptions options;
  options.kernel = "emulated.prefill.portable";
  const Result<Plan> planned = plan(problem(), "emulated:gfx1100", options);
  ASSERT_TRUE(planned.ok() || planned.status().code() == StatusCode::unavailable) << planned.status().message();
}

TEST_F(OldNames, AreOfOneHeadDim) {
  ::setenv(variable("NTHREADS", 41).c_str(), "256", 1);
  EXPECT_EQ(chosen()->values, space().usual());
  ::unsetenv(variable("NTHREADS", 41).c_str());
}

TEST_F(OldNames, APlanNamesThem) {
  set("NTHREADS", "256");
  AttentionOptions options;
  options.kernel = "cpu.prefill.scalar";
  const Tensor q = Tensor::bshd(nullptr, DType::fp32, 1, 512, 2, 40);
  const Result<Problem> p = make_problem({.q = q, .k = q, .v = q, .out = q}, {});
  const Result<Plan> planned = plan(p.value(), "cpu", options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_NE(planned->explain().find("FATTN_NTHREADS_D40=256 changes nothing: the kernel has no waves"), std::string::npos)
      << planned->explain();
}

}  // namespace
}  // namespace fulmen::tuning
