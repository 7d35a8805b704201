// What the tests of the families of fp32 by parts share.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gpu/gpu_devices.h"
#include "gpu/targets/chip.h"
#include "support/run_kernel.h"

namespace fulmen::testing {

class Fp32Test : public GpuTest {
 protected:
  // family: "prefill_fp32". backward: the pass of what spec_of() makes.
  Fp32Test(const char* family, bool backward) : family_(family), backward_(backward) {}
  void SetUp() override {
    GpuTest::SetUp();
    std::string storage;
    gpu::Chip chip{};
    if (!IsSkipped() && !chip_drawn()) GTEST_SKIP() << "fp32: every second chip, by the seed";
    if (IsSkipped() || !gpu::find_chip(device().substr(device().find(':') + 1), storage, chip))
      return;
    const bool has =
        backward_ ? chip.target->backward_fp32.has_value() : chip.target->prefill_fp32.has_value();
    if (!has && chip.target->extends == nullptr)
      GTEST_SKIP() << chip.target->name << " has no such tiles";
  }
  CaseSpec spec_of(int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k) const {
    CaseSpec s;
    s.backward = backward_;
    s.head_dim = s.head_dim_v = head_dim;
    s.seqlen_q = seqlen_q;
    s.seqlen_k = seqlen_k;
    return s;
  }
  // Runs this family's kernel, if it supports the case; returns true if it does.
  bool check(Case& c, std::size_t shift = 0) const {
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (kernel.find("." + std::string(family_) + ".") == std::string::npos) continue;
      EXPECT_TRUE(verified(c, kernel, {device(), shift})) << to_string(c.spec);
      return true;
    }
    return false;
  }
  bool check(const CaseSpec& s, Random& random, std::size_t shift = 0) const {
    Case c(s, random);
    c.make_inputs_read_only();
    return check(c, shift);
  }

 private:
  // These kernels take longest to emulate, and differ between chips by their tiles alone. Each test
  // runs on every second chip by its source, and on the others by their machine code. A long run
  // takes all, and so does a real GPU.
  static bool chip_drawn() {
    if (long_run() || !device().starts_with("emulated")) return true;
    const bool machine_code = device().starts_with("emulated-isa:");
    const std::vector<std::string> devices =
        machine_code ? machine_code_devices() : gpu_devices(Chips::one_of_each_target);
    const auto place = std::find(devices.begin(), devices.end(), device()) - devices.begin();
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return (std::hash<std::string>()(name.substr(0, name.find('/'))) + test_seed() +
            static_cast<std::size_t>(place) + (machine_code ? 1 : 0)) %
               2 ==
           0;
  }

  const char* family_;
  bool backward_;
};

}  // namespace fulmen::testing
