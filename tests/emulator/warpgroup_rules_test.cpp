// Rules of Hopper's warpgroups and of programmatic dependent launch: each broken by one change of a
// kernel that keeps them all.
#include <gtest/gtest.h>

#include "emulator/emulated_kernel.h"

namespace fulmen::testing {
namespace {

KernelText text_of(const std::string& body, int workgroup_size) {
  return {.arch = "sm_90a",
          .body = body,
          .headers = "#include \"targets/sm90/target.h\"\n",
          .workgroup_size = workgroup_size,
          .lds_bytes = 64 * 256};
}

void expect_only_report(const char* body, const Change& change, int workgroup_size) {
  const DeviceArray x(static_cast<std::size_t>(workgroup_size) * sizeof(float));
  const Status kept = run_text(text_of(body, workgroup_size), x.data(), 2);
  EXPECT_TRUE(kept.ok()) << kept.message();
  const std::string message = expect_report(text_of(body, workgroup_size), change, x.data());
  EXPECT_NE(message.find("kernel.h:"), std::string::npos) << "no source position: " << message;
}

// Two products, one after the other, with a's rows in registers.
constexpr const char* kProducts = R"(
for (int n = 0; n < 8; ++n) lds_store(16 * (thread_id() + 128 * n), Words<4>{});
lds_fence_for_matrices();
barrier();
LdsMatrix m = LdsMatrix::of(0, 64);
float d[4][8];
for (auto& tile : d) {
  for (float& e : tile) e = thread_id();
}
Words<4> rows{};
wgmma_fence();
wgmma<Half, false>(d, rows, m, true);
wgmma<Half, false>(d, rows, m, true);
wgmma_commit();  // 1
wgmma_wait<0>();
wgmma_hold(d);
for (auto& tile : d) {
  for (float& e : tile) e += 1;
}
rows.word[0] = thread_id();
wgmma_fence();  // again
wgmma<Half, false>(d, rows, m, true);
wgmma_commit();  // 2
wgmma_wait<0>();  // 2
wgmma_hold(d);
global_store(a.x + thread_id(), d[3][7]);
)";

class WarpgroupRule : public ::testing::TestWithParam<Change> {};
TEST_P(WarpgroupRule, ReportsTheBrokenKernelOnly) {
  expect_only_report(kProducts, GetParam(), 128);
}

const Change kWarpgroupRules[] = {
    {"NoFence", "wgmma_fence();\n", "", "wgmma without a fence: lane 0 begins one"},
    {"NoFenceAfterAWait", "wgmma_fence();  // again\n", "",
     "wgmma without a fence: lane 0 begins one"},
    {"SumsAfterTheFence", "wgmma_fence();  // again\n", "wgmma_fence();\nd[1][2] = 5;\n",
     "sums at kernel.h:"},
    {"RowsAfterTheFence", "wgmma_fence();  // again\n", "wgmma_fence();\nrows.word[3] = 5;\n",
     "operand in registers at kernel.h:"},
    {"SumsBetweenProducts", "wgmma_commit();  // 1\n",
     "d[1][2] = 5;\nwgmma<Half, false>(d, rows, m, true);\nwgmma_commit();\n",
     "sums were written since the product at"},
    {"SumsBeforeTheWait", "wgmma_commit();  // 2\n", "wgmma_commit();\nd[1][2] = 5;\n",
     "sums were written before its wait"},
    {"RowsBeforeTheWait", "wgmma_commit();  // 2\n", "wgmma_commit();\nrows.word[3] = 5;\n",
     "operand in registers was written before its wait"},
    {"HeldBeforeTheWait", "wgmma_wait<0>();  // 2\n", "wgmma_hold(d);\nwgmma_wait<0>();\n",
     "sums of a product before its wait"},
    {"OfAGroupThatIsNotWaitedFor", "wgmma_wait<0>();  // 2\n", "wgmma_wait<1>();\n",
     "sums of a product before its wait"},
    {"NotInAGroup", "wgmma_commit();  // 2\n", "", "sums of a product before its wait"},
    {"StoredBeforeTheWait", "wgmma_wait<0>();  // 2\n",
     "global_store(a.x + thread_id(), d[0][0] * 2);\nwgmma_wait<0>();\n",
     "sums of a product before its wait: lane 0 writes"},
    {"ExchangedBeforeTheWait", "wgmma_wait<0>();  // 2\n",
     "shuffle_xor(d[0][0], 1);\nwgmma_wait<0>();\n",
     "sums of a product before its wait: lane 0 gives"},
    {"EndsBeforeTheWait", "wgmma_wait<0>();  // 2\n", "return;\n",
     "ends before the wait for its wgmma"},
    {"AWaveIsMissing", "wgmma_wait<0>();  // 2\n",
     "if (wave_id() == 2) return;\nwgmma_wait<0>();\n",
     "lane 64 ends before the wait for its wgmma"},
    {"AWaveHasNoProduct", "wgmma_fence();  // again\n",
     "if (wave_id() == 2) return;\nwgmma_fence();\n", "lane 64 never came"},
    {"OneWaveHasOneMore", "wgmma_fence();  // again\n",
     "if (wave_id() == 3) wgmma_fence();\nwgmma_fence();\n",
     "warpgroup disagrees: lane 0 is at wgmma"},
    {"TwoPlaces", "wgmma_fence();  // again\n",
     "if (wave_id() == 1) {\nwgmma_fence();\n} else {\nwgmma_fence();\n}\n",
     "warpgroup disagrees: lane 0 is at wgmma_fence"},
    {"OtherOperands", "wgmma_fence();  // again\n",
     "m = m.further(1024 * wave_id());\nwgmma_fence();\n", "with other operands"},
    {"NoFenceOfLds", "lds_fence_for_matrices();\nbarrier();\n", "barrier();\n",
     "LDS without a fence: a matrix unit reads"},
};
INSTANTIATE_TEST_SUITE_P(Products, WarpgroupRule, ::testing::ValuesIn(kWarpgroupRules),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WarpgroupProduct, NeedsFourWaves) {
  const DeviceArray x(128 * sizeof(float));
  KernelText text = text_of("wgmma_fence();\nglobal_store(a.x + thread_id(), 1.0F);", 96);
  EXPECT_NE(run_text(text, x.data()).message().find("fewer than four waves"), std::string::npos);
  text.workgroup_size = 128;
  EXPECT_TRUE(run_text(text, x.data()).ok());
}

// 384 lanes have 168 registers each, 504 in three.
constexpr const char* kRegisters = R"(
if (wave_id() < 4) {
  setmaxnreg_dec<40>();
} else {
  setmaxnreg_inc<232>();
}
barrier();
global_store(a.x + thread_id(), 1.0F);
)";
class RegisterRule : public ::testing::TestWithParam<Change> {};
TEST_P(RegisterRule, ReportsTheBrokenKernelOnly) {
  expect_only_report(kRegisters, GetParam(), 384);
}

const Change kRegisterRules[] = {
    {"TooMany", "setmaxnreg_inc<232>", "setmaxnreg_inc<240>",
     "lanes have 66560, it began with 64512 of 168 each"},
    {"NobodyGives", "setmaxnreg_dec<40>();", "", "lanes have 80896, it began with 64512"},
    {"OneWaveGives", "wave_id() < 4", "wave_id() < 3",
     "warpgroup disagrees: lane 0 is at setmaxnreg_dec"},
    {"NoMultipleOf8", "setmaxnreg_dec<40>", "setmaxnreg_dec<44>",
     "multiples of 8 from 24 to 256 are accepted"},
    {"NotFewer", "setmaxnreg_dec<40>", "setmaxnreg_dec<176>",
     "lane 0 has 168 registers, 176 are no fewer"},
    {"NotMore", "setmaxnreg_inc<232>", "setmaxnreg_inc<160>",
     "lane 128 has 168 registers, 160 are no more"},
};
INSTANTIATE_TEST_SUITE_P(Registers, RegisterRule, ::testing::ValuesIn(kRegisterRules),
                         [](const auto& info) { return std::string(info.param.name); });

// Launch::programmatic_launch: a lane may neither access memory nor end before
// grid_dependency_wait().
TEST(EarlyLaunch, WaitsBeforeItTouchesMemory) {
  const DeviceArray x(64 * sizeof(float));
  const std::string wait = "grid_dependency_wait();\n";
  for (const auto& [body, report] :
       {std::pair<std::string, std::string>{"global_load(a.x);\n", "lane 0 reads 4 bytes"},
        {"global_store(a.x + thread_id(), 1.0F);\n", "lane 0 writes 4 bytes"},
        {"if (thread_id() == 3) copy_async_16(0, a.x, true);\n", "lane 3 copies 16 bytes"},
        {"if (thread_id() == 5) return;\n", "lane 5 ends"}}) {
    KernelText text = text_of(body + wait, 64);
    EXPECT_TRUE(run_text(text, x.data()).ok());
    text.programmatic_launch = true;
    const Status broken = run_text(text, x.data());
    EXPECT_NE(broken.message().find("early launch: " + report), std::string::npos)
        << broken.message();
    text.body = wait + body;
    const Status kept = run_text(text, x.data());
    EXPECT_TRUE(kept.ok()) << kept.message();
  }
}

}  // namespace
}  // namespace fulmen::testing
