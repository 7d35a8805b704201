// Each rule that the emulator checks: a kernel that breaks it is reported with its source lines,
// its correct twin runs.
#include <gtest/gtest.h>

#include "emulator/emulated_kernel.h"

namespace fulmen::testing {
namespace {

struct Rule {
  const char* name;
  const char* broken;
  const char* report;  // what the message must hold
  const char* correct;
  const char* arch = "gfx1100";
};

class Detector : public ::testing::TestWithParam<Rule> {};

TEST_P(Detector, ReportsTheBrokenKernelOnly) {
  const Rule& rule = GetParam();
  const DeviceArray x(64 * sizeof(float));
  KernelText text{.arch = rule.arch, .body = rule.broken, .workgroup_size = 64};
  const Status broken = run_text(text, x.data());
  EXPECT_EQ(broken.code(), StatusCode::internal) << broken.message();
  EXPECT_NE(broken.message().find(rule.report), std::string::npos) << broken.message();
  const std::size_t position = broken.message().find("kernel.h:");
  EXPECT_NE(position, std::string::npos) << "no source position: " << broken.message();
  if (broken.message().find("LDS race") != std::string::npos) {
    EXPECT_NE(broken.message().find("kernel.h:", position + 1), std::string::npos)
        << "one position: " << broken.message();
  }
  text.body = rule.correct;
  const Status correct = run_text(text, x.data());
  EXPECT_TRUE(correct.ok()) << correct.message();
  // State that an error leaves behind does not reach the next launch.
  EXPECT_TRUE(run_text(text, x.data(), 3).ok());
}

const Rule kRules[] = {
    {"ReadAfterWrite",
     "lds_store(4 * thread_id(), 1.0F);\nlds_load<float>(4 * (63 - thread_id()));", "reads bytes",
     "lds_store(4 * thread_id(), 1.0F);\nbarrier();\nlds_load<float>(4 * (63 - thread_id()));"},
    {"WriteAfterRead",
     "lds_store(4 * thread_id(), 1.0F);\nbarrier();\nlds_load<float>(0);\nif (thread_id() == 5) "
     "lds_store(0, 2.0F);",
     "LDS race: lane 5 writes",
     "lds_store(4 * thread_id(), 1.0F);\nbarrier();\nlds_load<float>(0);\nbarrier();\nif "
     "(thread_id() == 5) lds_store(0, 2.0F);"},
    {"WriteAfterWrite", "lds_store(0, 1.0F);", "LDS race: lane 1 writes bytes 0 to 3",
     "if (thread_id() == 0) lds_store(0, 1.0F);"},
    {"WaveBarrierOfAnotherWave",
     "lds_store(4 * thread_id(), 1.0F);\nbarrier();\nlds_store(4 * thread_id(), "
     "2.0F);\nwave_barrier();\n"
     "lds_load<float>(4 * (63 - thread_id()));",
     "LDS race: lane 32 writes",
     "lds_store(4 * thread_id(), 1.0F);\nwave_barrier();\nlds_load<float>(4 * (thread_id() ^ "
     "31));"},
    {"WriteAfterReadInAWave",
     "lds_store(4 * thread_id(), 1.0F);\nwave_barrier();\nlds_load<float>(4 * (thread_id() ^ "
     "31));\n"
     "lds_store(4 * thread_id(), 2.0F);",
     "LDS race: lane",
     "lds_store(4 * thread_id(), 1.0F);\nwave_barrier();\nlds_load<float>(4 * (thread_id() ^ "
     "31));\nwave_barrier();\n"
     "lds_store(4 * thread_id(), 2.0F);"},
    {"Uninitialised", "lds_load<float>(4 * thread_id());", "uninitialised LDS",
     "lds_store(4 * thread_id(), 0.0F);\nlds_load<float>(4 * thread_id());"},
    {"LdsBounds", "lds_store(8 * thread_id(), 0.0F);", "LDS out of range: lane 32",
     "lds_store(4 * thread_id(), 0.0F);"},
    {"LdsAlignment", "lds_store(4 * thread_id() + 2, 0.0F);", "misaligned LDS access",
     "lds_store(4 * thread_id(), 0.0F);"},
    {"LdsHalves", "lds_store(2 * (thread_id() / 2), static_cast<unsigned short>(1));",
     "LDS race: lane 1 writes", "lds_store(2 * thread_id(), static_cast<unsigned short>(1));"},
    {"LdsHalfRead",
     "lds_store(2 * thread_id(), static_cast<unsigned short>(1));\nlds_load<float>(4 * "
     "(thread_id() / 2));",
     "LDS race",
     "lds_store(2 * thread_id(), static_cast<unsigned short>(1));\nbarrier();\nlds_load<float>(4 * "
     "(thread_id() / 2));"},
    {"GlobalRead", "global_load(a.x + thread_id() + 1);",
     "global memory out of bounds: lane 63 reads 4 bytes", "global_load(a.x + thread_id());"},
    {"GlobalWrite", "global_store(a.x - 1 + thread_id(), 0.0F);",
     "global memory out of bounds: lane 0 writes 4 bytes",
     "global_store(a.x + thread_id(), 0.0F);"},
    {"GlobalAdd", "if (thread_id() < 16) global_add<4>(a.x + 4 * thread_id(), Words<4>{});",
     "global memory out of bounds: lane 15 adds to 16 bytes",
     "if (thread_id() < 16) global_add<0>(a.x + 4 * thread_id(), Words<4>{});"},
    {"GlobalAlignment", "global_load(reinterpret_cast<const Words<2>*>(a.x + 1));",
     "misaligned global memory: lane 0 reads 8 bytes",
     "global_load(reinterpret_cast<const Words<2>*>(a.x + "
     "2));\nglobal_load_unaligned<Words<2>>(a.x + 1);\n"
     "global_store_unaligned(a.x + 1, Words<2>{});"},
    {"GlobalUnalignedWrite", "global_store_unaligned(a.x + 63, Words<2>{});",
     "global memory out of bounds: lane 0 writes 2 bytes",
     "global_store_unaligned(a.x + 62, Words<2>{});"},
    {"GlobalAddAlignment", "global_add<1>(a.x, Words<4>{});",
     "misaligned global memory: lane 0 adds to 16 bytes", "global_add<8>(a.x, Words<4>{});"},
    {"GlobalAddInt64",
     "if (thread_id() < 32) global_add_int64(reinterpret_cast<Int64*>(a.x) + thread_id() + 1, 1);",
     "global memory out of bounds: lane 31 adds to 8 bytes",
     "if (thread_id() < 32) global_add_int64(reinterpret_cast<Int64*>(a.x) + thread_id(), 1);"},
    {"GlobalAddInt64Alignment", "global_add_int64(reinterpret_cast<Int64*>(a.x + 1), 1);",
     "misaligned global memory: lane 0 adds to 8 bytes",
     "global_add_int64(reinterpret_cast<Int64*>(a.x), 1);"},
    {"LdsAlignmentOfNvidia", "lds_store(24 * thread_id() % 48, Words<4>{});",
     "misaligned LDS access: lane 1 writes 16 bytes at offset 24",
     "if (thread_id() < 16) lds_store(16 * thread_id(), Words<4>{});", "sm_80"},
    {"HandedOverTooEarly",
     "if (wave_id() == 0) {\nnamed_barrier_arrive(1);\nlds_store(4 * lane_id(), 1.0F);\n} else "
     "{\nnamed_barrier_sync(1);\nlds_load<float>(4 * "
     "lane_id());\n}",
     "LDS race: lane 32 reads",
     "if (wave_id() == 0) {\nlds_store(4 * lane_id(), 1.0F);\nnamed_barrier_arrive(1);\n} else "
     "{\nnamed_barrier_sync(1);\nlds_load<float>(4 * "
     "lane_id());\n}",
     "sm_80"},
    {"HandedOverAndChanged",
     "if (wave_id() == 0) {\nlds_store(4 * lane_id(), "
     "1.0F);\nnamed_barrier_arrive(1);\nlds_store(4 * lane_id(), 2.0F);\n} else {\n"
     "named_barrier_sync(1);\nlds_load<float>(4 * lane_id());\n}",
     "LDS race: lane 32 reads",
     "if (wave_id() == 0) {\nlds_store(4 * lane_id(), 1.0F);\nnamed_barrier_arrive(1);\n} else "
     "{\nnamed_barrier_sync(1);\nlds_load<float>(4 * "
     "lane_id());\n}\n"
     "barrier();\nif (wave_id() == 0) lds_store(4 * lane_id(), 2.0F);",
     "sm_80"},
    {"SyncWithoutArrival",
     "if (wave_id() == 0) named_barrier_arrive(1);\nif (wave_id() == 1) named_barrier_sync(2);",
     "at which no wave has arrived",
     "if (wave_id() == 0) named_barrier_arrive(2);\nif (wave_id() == 1) named_barrier_sync(2);",
     "sm_80"},
    {"ArrivedTwice", "if (wave_id() == 0) {\nnamed_barrier_arrive(1);\nnamed_barrier_arrive(1);\n}",
     "no wave has synchronised",
     "for (int n = 0; n < 2; ++n) {\nif (wave_id() == 0) {\nnamed_barrier_arrive(1);\n} else "
     "{\nnamed_barrier_sync(1);\n}\nbarrier();\n}",
     "sm_80"},
    {"DivergentBarrier", "if (wave_id() == 0) {\nbarrier();\n} else {\nbarrier();\n}",
     "divergent barrier", "barrier();"},
    {"EndedLane", "if (wave_id() == 0) return;\nbarrier();", "has ended",
     "barrier();\nif (wave_id() == 0) return;"},
    {"LanesDisagree",
     "if (lane_id() < 16) {\nshuffle_xor(1.0F, 1);\n} else {\nshuffle_xor(1.0F, 1);\n}",
     "lanes disagree", "shuffle_xor(1.0F, 1);"},
    {"LaneMissing", "if (lane_id() != 3) shuffle_xor(1.0F, 1);", "lanes disagree",
     "shuffle_xor(1.0F, 1);"},
    {"WaveIdOfSomeLanes", "if (lane_id() < 2) wave_id();", "lanes disagree", "wave_id();"},
    {"BroadcastOfSomeLanes", "if (lane_id() < 2) broadcast(1);", "lanes disagree", "broadcast(1);"},
};
INSTANTIATE_TEST_SUITE_P(Rules, Detector, ::testing::ValuesIn(kRules),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AsyncCopy, ArrivesAtTheWaitAndNotBefore) {
  const DeviceArray x(64 * 16);
  KernelText text{
      .arch = "sm_80",
      .body =
          "copy_async_16(16 * thread_id(), a.x + 4 * thread_id(), true);\ncopy_commit();\n"
          "lds_load<Words<4>>(16 * thread_id());",
      .headers = "#include \"targets/sm80/emulated.h\"\n",
      .workgroup_size = 64,
      .lds_bytes = 64 * 16};
  const Status early = run_text(text, x.data());
  EXPECT_NE(early.message().find("has not arrived"), std::string::npos) << early.message();
  text.body.replace(text.body.find("lds_load"), 0, "copy_wait<0>();\n");
  EXPECT_TRUE(run_text(text, x.data()).ok());

  // Another wave's wait does not count, and after a lane's own wait another lane needs a barrier.
  KernelText read = text;
  read.body.replace(read.body.find("copy_wait"), std::string::npos,
                    "if (wave_id() == 1) copy_wait<0>();\nbarrier();\nlds_load<Words<4>>(16 * "
                    "(thread_id() ^ 32));");
  EXPECT_NE(run_text(read, x.data()).message().find("has not arrived"), std::string::npos);
  read.body.replace(read.body.find("if (wave_id() == 1) "), 20, "");
  EXPECT_TRUE(run_text(read, x.data()).ok());
  read.body.replace(read.body.find("barrier();\n"), 11, "");
  EXPECT_NE(run_text(read, x.data()).message().find("lane 0 reads"), std::string::npos);

  KernelText odd = text;
  odd.body.replace(odd.body.find("a.x + 4"), 7, "a.x + 2 + 4");
  EXPECT_NE(
      run_text(odd, x.data()).message().find("misaligned global memory: lane 0 copies 16 bytes"),
      std::string::npos);

  // A copy over what another lane still reads is an error from the copy's issue on, even if a
  // barrier lies before the wait.
  text.body =
      "lds_store(16 * thread_id(), Words<4>{});\nbarrier();\nlds_load<Words<4>>(16 * ((thread_id() "
      "+ 1) % 64));\n"
      "copy_async_16(16 * thread_id(), a.x + 4 * thread_id(), "
      "true);\ncopy_commit();\nbarrier();\ncopy_wait<0>();";
  const Status overwritten = run_text(text, x.data());
  EXPECT_NE(overwritten.message().find("LDS race"), std::string::npos) << overwritten.message();
  text.body.replace(text.body.find("copy_async"), 0, "barrier();\n");
  EXPECT_TRUE(run_text(text, x.data()).ok());
}

// Operands of zeros: sums that begin with 1 become 0 when the product is done, which is at the
// wait.
TEST(WarpgroupProduct, IsDoneAtTheWaitAndNotBefore) {
  const DeviceArray x(128 * sizeof(float));
  KernelText text{
      .arch = "sm_90a",
      .body =
          "for (int n = 0; n < 8; ++n) lds_store(16 * (thread_id() + 128 * n), Words<4>{});\n"
          "lds_fence_for_matrices();\nbarrier();\n"
          "float d[4][8];\nfor (auto& tile : d) {\nfor (float& e : tile) e = 1.0F;\n}\n"
          "const LdsMatrix m = LdsMatrix::of(0, 64);\n"
          "wgmma_fence();\nwgmma<Half, false, false>(d, m, m, false);\nwgmma_commit();\n"
          "wgmma_wait<1>();\nwgmma_wait<0>();\nglobal_store(a.x + thread_id(), d[3][7]);",
      .headers = "#include \"targets/sm90/target.h\"\n",
      .workgroup_size = 128,
      .lds_bytes = 64 * 256};
  Status status = run_text(text, x.data());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(x.as<float>()[77], 0.0F);
  KernelText early = text;
  early.body.replace(early.body.find("wgmma_wait<0>();\n"), 17, "");
  early.body += "\nwgmma_wait<0>();";
  status = run_text(early, x.data());
  EXPECT_NE(status.message().find("sums of a product before its wait: lane 0 writes"),
            std::string::npos)
      << status.message();

  // Data that lanes wrote, or copied, must be fenced for the matrix unit; a barrier is not enough.
  const std::string fence = "lds_fence_for_matrices();\n", commit = "wgmma_commit();\n";
  KernelText broken = text;
  broken.body.replace(broken.body.find(fence), fence.size(), "");
  EXPECT_NE(run_text(broken, x.data()).message().find("LDS without a fence: a matrix unit reads"),
            std::string::npos);
  // A fence between the product's issue and the wait is too late.
  broken.body.insert(broken.body.find(commit), fence + "barrier();\n");
  EXPECT_NE(run_text(broken, x.data()).message().find("LDS without a fence: a matrix unit reads"),
            std::string::npos);
  // Operands must not be overwritten before the wait.
  broken = text;
  broken.body.insert(broken.body.find(commit) + commit.size(),
                     "lds_store(16 * ((thread_id() + 1) % 128), Words<4>{});\n");
  EXPECT_NE(run_text(broken, x.data()).message().find("LDS race"), std::string::npos);
}

// Accesses after a lane's arrival are not ordered before those of lanes that have completed the
// wait.
TEST(Meeting, OrdersWhatWasDoneBeforeItsFirstHalf) {
  const DeviceArray x(4);
  const std::string store = "lds_store(4 * thread_id(), 1.0F);\n",
                    arrive = "warpgroup_barrier_arrive<2>(0, wave_id() / 4);\n",
                    rest =
                        "warpgroup_barrier_wait<2>(0, wave_id() / 4);\nlds_load<float>(4 * "
                        "((thread_id() + 128) % 256));";
  KernelText text{.arch = "sm_90a",
                  .body = store + arrive + rest,
                  .headers = "#include \"targets/sm90/target.h\"\n",
                  .workgroup_size = 256,
                  .lds_bytes = 1024};
  const Status status = run_text(text, x.data());
  EXPECT_TRUE(status.ok()) << status.message();
  text.body = store + arrive + store + rest;
  EXPECT_NE(run_text(text, x.data()).message().find("LDS race"), std::string::npos);
}

TEST(Wmma, HalvesMustHoldTheSame) {
  const DeviceArray x(4);
  KernelText text{.arch = "gfx1100",
                  .body =
                      "float d[8] = {};\nWords<8> w{};\nw.word[0] = "
                      "lane_id();\nwmma_f32_16x16x16<Half>(d, w, w);",
                  .headers = "#include \"targets/gfx11/emulated.h\"\n"};
  EXPECT_NE(run_text(text, x.data()).message().find("hold different operands"), std::string::npos);
  text.body.replace(text.body.find("lane_id()"), 9, "lane_id() % 16");
  const Status status = run_text(text, x.data());
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace fulmen::testing
