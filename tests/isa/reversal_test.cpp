// Without our fix for v_permlanex16 clang moves the exchange of a row's sum under a branch again.
// The check of machine code refuses that decode kernel, and the emulator reports it, each without
// the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "gpu/drivers/isa/driver.h"
#include "isa/altered_compiler.h"
#include "support/run_kernel.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

class IsaReversal : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const Status status = gpu::isa_driver().available(); !status.ok())
      GTEST_SKIP() << status.message();
  }

  // The message of a decode call with the altered source. Both halves of the fix are removed:
  // keep_here(), which keeps the instruction in place, and fetch-inactive, which makes its place
  // harmless.
  static std::string decode(const std::string& check, const char* fetch_inactive) {
    const AlteredCompiler compiler(
        "permlanex16 unmended, " + std::string(fetch_inactive),
        R"(s/keep_here(__builtin_amdgcn_permlanex16(x, x, 0x76543210U, 0xfedcba98U, true, true))/__builtin_amdgcn_permlanex16(x, x, 0x76543210U, 0xfedcba98U, )" +
            std::string(fetch_inactive) + ", true)/",
        "");
    if (!compiler.found()) return "no clang";
    ::setenv("FULMEN_AMD_CHECK", check.c_str(), 1);
    // No other test of this program has kernels of these head dims.
    CaseSpec s;
    s.dtype = DType::bf16;
    s.num_heads = 2;
    s.head_dim = fetch_inactive == std::string("false") ? (check == "0" ? 96 : 80)
                                                        : (check == "0" ? 112 : 48);
    s.head_dim_v = s.head_dim;
    s.seqlen_k = 300;
    Random random(2122);
    Case c(s, random);
    const std::string device = "emulated-isa:" + GetParam();
    std::string said = "no decode kernel";
    for (const std::string& kernel : kernels_for(c.problem(), device)) {
      if (kernel.find(".decode.") == std::string::npos || kernel.ends_with(".portable")) continue;
      const auto result = verified(c, kernel, {device});
      said = result ? "" : result.message();
    }
    ::unsetenv("FULMEN_AMD_CHECK");
    EXPECT_TRUE(compiler.changed_a_source())
        << "the source has no longer what this test takes back";
    return said;
  }
};

TEST_P(IsaReversal, TheCheckOfMachineCodeRefusesIt) {
  const std::string said = decode("1", "false");
  EXPECT_NE(said.find("v_permlanex16_b32"), std::string::npos) << said;
  EXPECT_NE(said.find("reads other lanes where these may be off"), std::string::npos) << said;
}

TEST_P(IsaReversal, TheEmulatorReportsIt) {
  const std::string said = decode("0", "false");
  EXPECT_NE(said.find("v_permlanex16_b32"), std::string::npos) << said;
  EXPECT_NE(said.find("which is off"), std::string::npos) << said;
}

// Half of the fix is enough.
TEST_P(IsaReversal, FetchingInactiveLanesMendsItAlone) { EXPECT_EQ(decode("1", "true"), ""); }

INSTANTIATE_TEST_SUITE_P(Chips, IsaReversal, ::testing::ValuesIn(test_chips(is_rdna)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::testing
