// The hardware probes, run on emulated chips: the answers are those of the documents, and a probe
// that cannot run there says so.
#include <algorithm>
#include <map>

#include "fulmen/probe.h"
#include "gpu/gpu_devices.h"

namespace fulmen::testing {
namespace {

constexpr const char* kNames[] = {"buffer_range", "inactive_lanes", "subnormals", "unaligned",
                                  "start_order"};

class Probes : public GpuTest {};

TEST_P(Probes, AreAnsweredAsExpectedOrSayWhyNot) {
  const Result<std::vector<HardwareProbe>> probes = probe_hardware(device());
  ASSERT_TRUE(probes.ok()) << probes.status().message();
  ASSERT_EQ(probes->size(), std::size(kNames));
  for (std::size_t n = 0; n < probes->size(); ++n) {
    const HardwareProbe& probe = (*probes)[n];
    EXPECT_EQ(probe.name, kNames[n]);
    EXPECT_FALSE(probe.decides.empty());
    EXPECT_FALSE(probe.found.empty());
    EXPECT_TRUE(probe.as_expected || !probe.probed) << probe.name << ": " << probe.found;
    const bool amd = device().find("gfx") != std::string::npos,
               machine_code = device().starts_with("emulated-isa");
    const bool rdna = device().find("gfx1") != std::string::npos;
    const std::map<std::string, bool> expected{{"buffer_range", amd},
                                               {"inactive_lanes", rdna && machine_code},
                                               {"subnormals", true},
                                               {"unaligned", amd}};
    if (const auto found = expected.find(probe.name); found != expected.end()) {
      EXPECT_EQ(probe.probed, found->second) << probe.name << ": " << probe.found;
    }
    if (probe.name == "start_order" && !machine_code) {
      EXPECT_EQ(probe.found,
                "of 16 workgroups none starts farther than 0 from its place; in 100 % wave 0 "
                "starts first");
    }
  }
  const Result<MatrixRate> rate = matrix_rate(device());
  ASSERT_FALSE(rate.ok());
  EXPECT_EQ(rate.status().message(), device() + ": an emulated device has no speed");
}

INSTANTIATE_TEST_SUITE_P(Emulated, Probes,
                         ::testing::Values("emulated:gfx1100", "emulated:gfx942", "emulated:sm_80"),
                         test_name);
INSTANTIATE_TEST_SUITE_P(MachineCode, Probes, ::testing::ValuesIn(machine_code_devices()),
                         test_name);

TEST(ProbesOfOthers, AreNotAsked) {
  const Result<std::vector<HardwareProbe>> probes = probe_hardware("cpu");
  ASSERT_TRUE(probes.ok()) << probes.status().message();
  for (const HardwareProbe& probe : *probes) {
    EXPECT_FALSE(probe.probed);
    EXPECT_EQ(probe.found, "no GPU: nothing there relies on it");
  }
  EXPECT_EQ(matrix_rate("cpu").status().message(), "cpu: no GPU");
  EXPECT_FALSE(probe_hardware("nowhere:0").ok());
}

}  // namespace
}  // namespace fulmen::testing
