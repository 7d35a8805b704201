// The fake vendor libraries as tests see them. While this program runs, $ROCM_PATH, $CUDA_HOME and
// $FULMEN_CUDA_DRIVER_HOME name their folders, compiled code is kept in memory only, and no kernel
// is checked at its first use.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/compile/toolchains/compiler.h"
#include "gpu/driver.h"
#include "gpu_drivers/fake/fake_gpu.h"

namespace fulmen::testing {

// The state of a fake that the driver has opened already.
fake::State& fake_state(const std::string& file);

// Starts with an empty record; checks at the end that no rule of the interface was broken and
// nothing leaked.
class FakeGpuTest : public ::testing::Test {
 protected:
  FakeGpuTest(const gpu::Driver& driver, const std::string& file);
  void SetUp() override;
  void TearDown() override;

  // How often a call was made.
  int calls(const std::string& name) const;

  const gpu::Driver& driver;
  fake::State& state;
};

// The result of a Driver member when a call of the vendor's library fails, in one table for both
// drivers.
struct Failure {
  std::string call;
  Status (*use)(const gpu::Driver& driver, gpu::Module module);
};
const std::vector<Failure>& failures_of(const std::string& driver);

// Compiled for a device of the driver, or an empty one after a test failure.
gpu::CompiledCode compile_for(const gpu::Driver& driver, int device, const std::string& source,
                              int workgroup_size = 64);

// Runs driver_report in a process of its own, with variables ("NAME=value") set.
std::string report(const std::vector<std::string>& variables, const std::string& what);

}  // namespace fulmen::testing
