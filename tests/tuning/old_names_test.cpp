// FATTN_*_D<head_dim>: mapped to what a kernel has, or refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/fulmen.h"
#include "gpu/launch/family.h"
#include "gpu/targets/chip.h"
#include "tuning/sources.h"

namespace fulmen::tuning {
namespace {

class OldNames : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NTHREADS", "OCCUPANCY", "NBATCH_FA", "NBATCH_K2", "NBATCH_V2",
                             "NBATCH_COMBINE", "NSTAGES"}) {
      ::unsetenv(variable(name).c_str());
    }
  }
  static std::string variable(const std::string& name, int head_dim = 40) {
    return "FATTN_" + name + "_D" + std::to_string(head_dim);
  }
  static void set(const std::string& name, const std::string& value) {
    ::setenv(variable(name).c_str(), value.c_str(), 1);
  }
  static Problem problem() {
    const Tensor q = Tensor::bshd(nullptr, DType::bf16, 1, 512, 2, 40),
                 v = Tensor::bshd(nullptr, DType::bf16, 1, 512, 2, 72);
    return make_problem({.q = q, .k = q, .v = v, .out = v}, {}).value();
  }
  static Space space() {
    Space space;
    space.parameters = {{"block_n", 32, {16, 32, 64}},
                        {"waves", 4, {1, 2, 4, 8}},
                        {"buffers", 2, {1, 2}},
                        {"min_waves", 1, {1, 2, 3}}};
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
            "FATTN_NTHREADS_D40 is \"100\": a workgroup has a whole number of waves of 32 lanes, "
            "32, 64, 128, 256 are accepted");
  set("NTHREADS", "many");
  for (const char* wrong : {"many", "0", "-1", "4294967296", "64 "}) {
    for (const char* name : {"NTHREADS", "NBATCH_K2"}) {
      set(name, wrong);
      EXPECT_EQ(chosen().status().message(), variable(name) + " is \"" + wrong +
                                                 "\": a number from 1 to 2147483647 is accepted");
      ::unsetenv(variable(name).c_str());
    }
  }
}

TEST_F(OldNames, WhatNothingHereIsLikeIsNoted) {
  set("NBATCH_V2", "20");
  set("NBATCH_COMBINE", "32");
  const Result<Choice> choice = chosen();
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  ASSERT_EQ(choice->notes.size(), 2U);
  EXPECT_EQ(choice->notes[0],
            "FATTN_NBATCH_V2_D40=20 changes nothing: V's tiles have all dims of their rows here, "
            "36 pairs");
}

// A row of the guide's table: chips, threads (and those of head_dim 32), occupancy, keys, K2 and
// V2, stages.
struct StartingPoint {
  std::string chips;
  std::vector<std::pair<std::string, std::string>> values;
};

std::vector<StartingPoint> documented_starting_points() {
  std::ifstream guide(FULMEN_SOURCE_DIR "/docs/guide/tuning.md");
  std::vector<StartingPoint> points;
  bool inside = false;
  for (std::string line; std::getline(guide, line);) {
    if (line.starts_with("| chips |")) inside = true;
    if (!inside || !line.starts_with("| ") || line.starts_with("| chips |")) continue;
    std::istringstream row(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(row, cell, '|');)
      cells.push_back(cell.substr(std::min(cell.find_first_not_of(' '), cell.size())));
    const auto number = [&](std::size_t n) { return std::to_string(std::stoi(cells.at(n))); };
    points.push_back({cells.at(1),
                      {{"NTHREADS", number(2)},
                       {"OCCUPANCY", number(3)},
                       {"NBATCH_FA", number(4)},
                       {"NBATCH_K2", number(5)},
                       {"NBATCH_V2", number(5)},
                       {"NBATCH_COMBINE", number(5)},
                       {"NSTAGES", number(6)}}});
    if (const std::size_t other = cells.at(2).find('('); other != std::string::npos) {
      points.push_back(points.back());
      points.back().values.front().second =
          std::to_string(std::stoi(cells.at(2).substr(other + 1)));
    }
  }
  return points;
}

// For every family of every chip and every head_dim each variable is used, or the notes say that it
// changes nothing.
TEST_F(OldNames, DocumentedStartingPointsAreAccepted) {
  const std::vector<StartingPoint> points = documented_starting_points();
  ASSERT_EQ(points.size(), 4U);
  int accepted = 0;
  for (const std::string& arch : {std::string("gfx1100"), std::string("gfx1151"),
                                  std::string("gfx942"), std::string("sm_80")}) {
    std::string storage;
    gpu::Chip chip{};
    ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
    for (const int dim : {8, 16, 32, 40, 64, 80, 96, 128, 192, 256}) {
      for (const auto& [queries, keys] : {std::pair{512, 512}, {1, 4096}, {64, 64}}) {
        const Tensor q = Tensor::bshd(nullptr, DType::bf16, 1, queries, 2, dim),
                     k = Tensor::bshd(nullptr, DType::bf16, 1, keys, 2, dim);
        const Problem p = make_problem({.q = q, .k = k, .v = k, .out = q}, {}).value();
        for (const gpu::Family* family : gpu::families()) {
          if (!chip.runs(family->target()) || family->pass() != Pass::forward ||
              !family->serves(p, chip).yes)
            continue;
          const Space space = family->space(p, chip, 60);
          for (const StartingPoint& point : points) {
            SCOPED_TRACE(arch + " " + std::string(family->name()) + " head_dim " +
                         std::to_string(dim) + ", " + point.chips);
            for (const auto& [name, value] : point.values)
              ::setenv(variable(name, dim).c_str(), value.c_str(), 1);
            std::vector<std::string> notes;
            const auto asked = asked_by_old_names(p, space, notes);
            for (const auto& [name, value] : point.values) ::unsetenv(variable(name, dim).c_str());
            ASSERT_TRUE(asked.ok()) << asked.status().message();
            EXPECT_EQ(asked->size() + notes.size(), point.values.size())
                << "each is taken, or noted";
            const Result<Choice> choice =
                choose("emulated." + std::string(family->name()), space, asked.value());
            ASSERT_TRUE(choice.ok()) << choice.status().message();
            EXPECT_TRUE(choice->values == space.usual() || space.takes(choice->values).yes);
            ++accepted;
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 1000);
}

// A kernel without tuning parameters runs as usual, whatever is asked of others.
TEST_F(OldNames, AKernelWithoutParametersIsPlanned) {
  const Result<Choice> choice = choose("hip.short.gfx11", Space{}, {});
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(configurations(Space{}).size(), 1U);
  set("NSTAGES", "2");
  AttentionOptions options;
  options.kernel = "emulated.prefill.portable";
  const Result<Plan> planned = plan(problem(), "emulated:gfx1100", options);
  ASSERT_TRUE(planned.ok() || planned.status().code() == StatusCode::unavailable)
      << planned.status().message();
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
  EXPECT_NE(
      planned->explain().find("FATTN_NTHREADS_D40=256 changes nothing: the kernel has no waves"),
      std::string::npos)
      << planned->explain();
}

}  // namespace
}  // namespace fulmen::tuning
