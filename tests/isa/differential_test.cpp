// Random instructions, seeded: the emulator's results against a table that was written from AMD's
// ISA documents alone (manual.h), lane by lane, in waves with some lanes off.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "isa/machine.h"
#include "isa/random_steps.h"
#include "support/random.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

class IsaDifferential : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  }
  static manual::Family family() {
    return GetParam() == "gfx906"            ? manual::Family::gfx906
           : GetParam().starts_with("gfx9")  ? manual::Family::gfx9
           : GetParam().starts_with("gfx10") ? manual::Family::gfx10
           : GetParam().starts_with("gfx12") ? manual::Family::gfx12
                                             : manual::Family::gfx11;
  }

  // Whether the chip has an instruction, or an exchange, of its family.
  static bool has(std::string_view name) {
    const std::string& chip = GetParam();
    if (name == "v_mad_f32" || name == "v_mac_f32") return chip == "gfx908" || chip == "gfx90a";
    if (name == "v_lshl_add_u64") return chip == "gfx942";
    if (name == "v_dot2_f32_f16") return chip != "gfx1010";
    return !name.starts_with("row_newbcast") || chip != "gfx908";
  }

  // Numbers of all kinds: random bits, small integers, special values of fp32, and of fp16 in both
  // halves.
  static uint32_t draw(std::mt19937_64& random) {
    constexpr std::array<uint32_t, 14> kSpecial{
        0,           0x80000000U, 0x7F800000U, 0xFF800000U, 0x7FC00000U, 1,           0x807FFFFFU,
        0x7C00FC00U, 0x7E000001U, 0x03FF8001U, 0x3C003555U, 0x3F800000U, 0x7F7FFFFFU, 0x477FF000U};
    switch (random() % 4) {
      case 0:
        return kSpecial[random() % kSpecial.size()];
      case 1:
        return static_cast<uint32_t>(random() % 40);
      case 2:
        return manual::bits(
                   static_cast<double>(static_cast<int64_t>(random() % 2000000)) / 1000.0 - 1000.0,
                   manual::kSingle) &
               0xFFFFFFFFU;
      default:
        return static_cast<uint32_t>(random());
    }
  }

  // All NaNs count as equal. The manuals leave open which of two zeros is the median.
  static bool same(uint32_t a, uint32_t b, const Step& step) {
    if (a == b || (step.text.starts_with("v_med3") && (a | b) << 1U == 0)) return true;
    const auto nan = [](uint32_t x) { return (x & 0x7FFFFFFFU) > 0x7F800000U; };
    const auto half_nan = [](uint32_t x) { return (x & 0x7FFFU) > 0x7C00U; };
    if (step.type == 'f' && nan(a) && nan(b)) return true;
    if (step.type == 'h' || step.type == 'p') {
      const bool low = (a & 0xFFFFU) == (b & 0xFFFFU) || (half_nan(a) && half_nan(b));
      const bool high =
          a >> 16U == b >> 16U || (step.type == 'p' && half_nan(a >> 16U) && half_nan(b >> 16U));
      return low && high;
    }
    return step.approximate && (a ^ b) >> 31U == 0 && std::max(a, b) - std::min(a, b) <= 1;
  }

  // Runs the steps on both sides, from a new random state every few steps. whole_waves: with all
  // lanes on.
  static void compare(const std::vector<Step>& steps, std::mt19937_64& random, bool whole_waves) {
    std::vector<std::string> lines;
    for (const Step& step : steps) lines.push_back(step.text);
    const auto assembled = assemble(lines, GetParam());
    ASSERT_TRUE(assembled.ok()) << assembled.status().message();
    SCOPED_TRACE("FULMEN_TEST_SEED=" + std::to_string(test_seed()));
    Machine machine(assembled->program);
    State state;
    state.lanes = machine.size();
    int failures = 0;
    for (std::size_t n = 0; n < steps.size() && failures < 10; ++n) {
      if (n % 8 == 0) {
        for (auto& lanes : state.vectors)
          std::generate(lanes.begin(), lanes.end(), [&] { return draw(random); });
        std::generate(state.scalars.begin(), state.scalars.end(), [&] { return draw(random); });
        state.scc = random() % 2 == 0;
        state.exec = (whole_waves ? ~uint64_t{0} : random()) & machine.wave().all_lanes;
      }
      fill(machine, state);
      steps[n].apply(state);
      const std::string fault = machine.run(assembled->code[n]);
      ASSERT_EQ(fault, "") << steps[n].text;
      const std::string wrong = difference(machine, state, steps[n]);
      failures += wrong.empty() ? 0 : 1;
      EXPECT_EQ(wrong, "") << steps[n].text;
      for (int r = 0; r < kOperands; ++r) {  // both sides continue from one side's result
        for (int l = 0; l < state.lanes; ++l)
          state.vectors[static_cast<std::size_t>(r)][static_cast<std::size_t>(l)] =
              machine.vector(r, l);
      }
    }
  }

 private:
  static void fill(Machine& machine, const State& state) {
    for (int r = 0; r < kOperands; ++r) {
      for (int l = 0; l < state.lanes; ++l)
        machine.vector(r, l) =
            state.vectors[static_cast<std::size_t>(r)][static_cast<std::size_t>(l)];
    }
    gpu::isa::Wave& w = machine.wave();
    std::copy(state.scalars.begin(), state.scalars.end(), w.scalars.begin());
    w.scc = state.scc;
    w.scalars[gpu::kExecLow] = static_cast<uint32_t>(state.exec);
    w.scalars[gpu::kExecLow + 1] = static_cast<uint32_t>(state.exec >> 32U);
  }

  static std::string difference(Machine& machine, const State& state, const Step& step) {
    const auto hex = [](uint64_t x) {
      char text[24];
      std::snprintf(text, sizeof text, "%#lx", static_cast<unsigned long>(x));
      return std::string(text);
    };
    for (int r = 0; r < kOperands; ++r) {
      for (int l = 0; l < state.lanes; ++l) {
        const uint32_t table =
                           state.vectors[static_cast<std::size_t>(r)][static_cast<std::size_t>(l)],
                       mine = machine.vector(r, l);
        if (r == step.result ? same(table, mine, step) : table == mine) continue;
        return "v" + std::to_string(r) + " of lane " + std::to_string(l) + " is " + hex(mine) +
               ", by the manual " + hex(table);
      }
    }
    const gpu::isa::Wave& w = machine.wave();
    for (std::size_t r = 0; r < state.scalars.size(); ++r) {
      if (w.scalars[r] != state.scalars[r])
        return "s" + std::to_string(r) + " is " + hex(w.scalars[r]) + ", by the manual " +
               hex(state.scalars[r]);
    }
    if (w.scc != state.scc) return "SCC is " + std::to_string(w.scc);
    return w.exec() == state.exec ? "" : "EXEC is " + hex(w.exec());
  }
};

constexpr int kRounds = 6;  // every instruction so often, with other operands

TEST_P(IsaDifferential, VectorInstructions) {
  std::mt19937_64 random(test_seed() + 2121);
  Generator generator(family(), random);
  std::vector<Step> steps;
  for (int round = 0; round < kRounds; ++round) {
    for (const manual::VectorRow& row : manual::vector_rows()) {
      const std::string name = generator.name(row.name);
      if (!name.empty() && has(name)) steps.push_back(generator.vector_step(row));
    }
  }
  std::shuffle(steps.begin(), steps.end(), random);
  compare(steps, random, false);
}

TEST_P(IsaDifferential, ScalarInstructions) {
  std::mt19937_64 random(test_seed() + 2122);
  Generator generator(family(), random);
  std::vector<Step> steps;
  for (int round = 0; round < 4 * kRounds; ++round) {
    for (const manual::ScalarRow& row : manual::scalar_rows()) {
      if (!generator.name(row.name).empty()) steps.push_back(generator.scalar_step(row));
    }
  }
  std::shuffle(steps.begin(), steps.end(), random);
  compare(steps, random, false);
}

TEST_P(IsaDifferential, ExchangesOfLanes) {
  std::mt19937_64 random(test_seed() + 2123);
  Generator generator(family(), random);
  const std::set<std::string> exchanged{"v_add_f32", "v_mov_b32", "v_and_b32", "v_lshlrev_b32",
                                        "v_fmac_f32"};
  std::vector<Step> whole, fetching;
  for (int round = 0; round < kRounds; ++round) {
    for (const manual::VectorRow& row : manual::vector_rows()) {
      if (!exchanged.contains(generator.name(row.name))) continue;
      for (const Exchange& exchange : generator.exchanges()) {
        if (!has(exchange.text)) continue;
        whole.push_back(generator.exchange_step(row, exchange, false));
        if (!generator.is_gfx9()) fetching.push_back(generator.exchange_step(row, exchange, true));
      }
    }
  }
  compare(whole, random, true);
  if (!fetching.empty()) compare(fetching, random, false);
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaDifferential,
                         ::testing::ValuesIn(test_chips(is_amd, Chips::one_of_each_target)),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Portable, IsaDifferential, ::testing::ValuesIn(portable_test_chips()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::testing
