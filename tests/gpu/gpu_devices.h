// The GPUs that tests run on: emulated chips of every target, and what the machine has.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fulmen/fulmen.h"

namespace fulmen::testing {

// "emulated:gfx1100", ... and the first usable device of each vendor.
std::vector<std::string> gpu_devices();
// "" where the device can be used, else why not.
std::string why_unusable(const std::string& device);

// A test of one device; skipped, with the reason, where it cannot be used.
class GpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  static std::string device() { return GetParam(); }
};

// "emulated:gfx1100" as a test's name.
std::string test_name(const ::testing::TestParamInfo<std::string>& info);

}  // namespace fulmen::testing
