// An AMD kernel that a person can read: a loop with exp2 and LDS.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/compile/toolchains/compiler.h"
#include "support/test_chips.h"

namespace fulmen::test {

inline const std::vector<std::string> kAmdArchs = testing::test_chips(testing::is_amd);

inline gpu::CompileRequest tiny_request(const std::string& arch) {
  return {"tiny", R"(
extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 64))) void fulmen_kernel(float* p) {
  static __attribute__((shared)) float lds[128];
  const unsigned id = __builtin_amdgcn_workitem_id_x();
  float sum = p[id];
#pragma nounroll
  for (unsigned i = 0; i < 100; ++i) {
    lds[id] = __builtin_amdgcn_exp2f(sum);
    __builtin_amdgcn_s_barrier();
    sum += lds[(id + i) % 64];
  }
  p[id] = sum;
}
)",
          arch, 64};
}

inline gpu::CompiledCode compile_tiny(const std::string& arch) {
  const auto compiler = gpu::offline_clang_compiler();
  EXPECT_TRUE(compiler.ok()) << compiler.status().message();
  if (!compiler.ok()) return {};
  auto compiled = compiler.value()->compile(tiny_request(arch));
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  return compiled.ok() ? std::move(compiled).value() : gpu::CompiledCode{};
}

}  // namespace fulmen::test
