// The GPUs that tests run on: emulated chips of every target, and what the machine has.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "support/attention_case.h"
#include "support/test_chips.h"

namespace fulmen::testing {

// "emulated:gfx1100", ... and the first usable device of each vendor.
// A target's chips have the same kernels (GpuTargets.OneTargetsChipsHaveTheSameKernels): what takes
// long runs on one of them.
std::vector<std::string> gpu_devices(Chips chips = Chips::all);
// "emulated-isa:gfx1100", ...: an AMD chip of each target, whose machine code is executed.
std::vector<std::string> machine_code_devices();
// "" where the device can be used, else why not.
std::string why_unusable(const std::string& device);

// The kernel that plan() would take, of which nothing is compiled, or why there is none.
std::string chosen_kernel(const Problem& problem, const std::string& device);

// A test of one device; skipped, with the reason, where it cannot be used.
class GpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(GetParam()); !why.empty()) GTEST_SKIP() << why;
    const std::string chip = GetParam().substr(GetParam().find(':') + 1);
    if (const std::string why = why_not_drawn(chip); !why.empty()) GTEST_SKIP() << why;
  }
  static std::string device() { return GetParam(); }
  // A random stream for each device, so that each runs other cases.
  static uint64_t own_stream(uint64_t stream);
  // Returns true if this device takes the test's next case: one of every `of` cases, by the seed;
  // the other targets take the others. Most of a case's time is its kernels' compilation. A long
  // run takes all, and so does a real GPU.
  bool drawn(std::size_t of = 6) const;
  // Returns false for kernels that several emulated chips have and another one of them runs: those
  // of a target that this device's target extends, and portable ones but for one chip of each wave
  // size. A long run takes all, and so does a real GPU.
  static bool runs_here(const std::string& kernel);
  // Runs each kernel that supports the case and runs_here(), where it is drawn; how many supported
  // it, 1 where it is not drawn. shift: see Where.
  int expect_all_verified(const CaseSpec& spec, Random& random, std::size_t shift = 0);
  // A query whose LSE is -inf has a dq of 0 from every kernel, whatever its dout holds; that may
  // reach dk and dv alone. A causal mask makes such queries, more than 10 by the case's lengths,
  // and the bias one.
  void expect_no_gradient_without_keys(CaseSpec spec, Random& random) const;

 private:
  mutable std::size_t cases_ = 0;  // that the test had so far
};

// A test of one family's kernels.
class FamilyTest : public GpuTest {
 protected:
  FamilyTest(const char* family, bool backward, Precision precision = Precision::exact)
      : family_(family), backward_(backward), precision_(precision) {}
  // Of the device: "sm90".
  virtual std::string target() const = 0;
  // "cuda.prefill_wgmma.sm90" on cuda:0.
  std::string kernel() const {
    return device().substr(0, device().find(':')) + "." + family_ + "." + target();
  }
  // One sequence, one head.
  CaseSpec spec_of(DType dtype, int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k,
                   Random& random) const;
  void check(const CaseSpec& spec, Random& random, std::size_t shift = 0) const;
  // Expects that another kernel is chosen, and that explain() has these words.
  void expect_reason(const CaseSpec& spec, const std::string& words, Random& random) const;
  // Dropout in a window: blocks of random numbers lie on a grid, and bands begin anywhere. One of
  // 64 or 128 dims.
  CaseSpec dropout_in_band(int64_t seqlen_q, int64_t seqlen_k, Random& random) const;

 private:
  const char* family_;
  bool backward_;
  Precision precision_;
};

// Emulated chips with warpgroup products, and the machine's NVIDIA GPU.
std::vector<std::string> hopper_devices();

// A test of a family for these devices; skipped where the GPU is no Hopper.
class HopperTest : public FamilyTest {
 protected:
  using FamilyTest::FamilyTest;
  void SetUp() override;
  std::string target() const override { return "sm90"; }
};

// 1 to 90 queries, 1 to 160 keys, 1 to 6 heads: emulated chips take their time.
CaseSpec small_spec(DType dtype, int64_t head_dim, Random& random);
CaseSpec limited(CaseSpec spec);

// "emulated:gfx1100" as a test's name.
std::string test_name(const ::testing::TestParamInfo<std::string>& info);

}  // namespace fulmen::testing
