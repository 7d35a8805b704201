// Rules of clusters: workgroups that copy to each other's LDS. Each broken by one change of a
// kernel that keeps them all.
#include <gtest/gtest.h>

#include "emulator/emulated_kernel.h"

namespace fulmen::testing {
namespace {

// In each of two workgroups one wave sends 512 bytes to the other workgroup twice, and one reads
// what came from there to x.
constexpr const char* kExchange = R"(
constexpr int kFull = 4096, kEmpty = 4104, kMine = 0, kTheirs = 512;
const int rank = cluster_rank(), peer = 1 - rank;
if (thread_id() == 0) {
  mbarrier_init(kFull, 1);
  mbarrier_init(kEmpty, 1);
}
cluster_barrier();
if (wave_id() == 0) {
  for (int n = 0; n < 2; ++n) {
    mbarrier_wait(kEmpty, 1 - n);
    const unsigned value = 100 * rank + 10 * n;
    lds_store(kMine + 16 * lane_id(), Words<4>{{value, value, value, value}});
    lds_fence_for_matrices();
    wave_barrier();
    if (lane_id() == 0) cluster_copy(peer, kTheirs, kMine, 512, kFull);
    wave_barrier();
  }
} else {
  for (int n = 0; n < 2; ++n) {
    if (lane_id() == 0) mbarrier_arrive_expect(kFull, 512);
    mbarrier_wait(kFull, n);
    const auto words = lds_load<Words<4>>(kTheirs + 16 * lane_id());
    global_store(reinterpret_cast<unsigned*>(a.x) + 64 * rank + 32 * n + lane_id(), words.word[3] + static_cast<unsigned>(workgroup_id()));
    wave_barrier();
    if (lane_id() == 0) mbarrier_arrive_at(peer, kEmpty);
  }
}
cluster_barrier();
)";

KernelText exchange() {
  KernelText text = sm90_text(kExchange, 8192);
  text.cluster = 2;
  return text;
}

TEST(Clusters, WorkgroupsExchangeWhatTheyHave) {
  const DeviceArray x(1024);
  const Status status = run_text(exchange(), x.data(), 2);
  ASSERT_TRUE(status.ok()) << status.message();
  for (unsigned n = 0; n < 128; ++n) {
    const unsigned rank = n / 64, turn = n / 32 % 2;
    EXPECT_EQ(x.as<unsigned>()[n], 100 * (1 - rank) + 10 * turn + rank) << n;
  }
}

TEST(Clusters, AreWhole) {
  const DeviceArray x(1024);
  const Status status = run_text(exchange(), x.data(), 3);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("3 workgroups: the kernel takes multiples of 2"),
            std::string::npos)
      << status.message();
}

class ClusterRule : public ::testing::TestWithParam<Change> {};
TEST_P(ClusterRule, ReportsTheBrokenKernel) {
  const DeviceArray x(1024);
  expect_report(exchange(), GetParam(), x.data(), 2);
}

const Change kClusterRules[] = {
    {"SentWithoutAFence", "    lds_fence_for_matrices();\n", "", "fence"},
    {"OverwrittenByAnotherLane", "kMine, 512, kFull);",
     "kMine, 512, kFull);\n    lds_store(kMine + 16 * lane_id(), Words<4>{{1}});", "LDS race"},
    {"OverwrittenOnItsWay", "kMine, 512, kFull);\n    wave_barrier();",
     "kMine, 512, kFull);\n    wave_barrier();\n    lds_store(kMine + 16 * lane_id(), "
     "Words<4>{{1}});",
     "was overwritten before it arrived"},
    {"OverwrittenWhileRead", "    mbarrier_wait(kEmpty, 1 - n);\n", "", "LDS"},
    {"ReadBeforeItCame", "    mbarrier_wait(kFull, n);\n", "", "LDS"},
    {"TooFewBytes", "kMine, 512, kFull)", "kMine, 256, kFull)", "expects 512 bytes and 256 arrive"},
    {"TooManyBytes", "expect(kFull, 512)", "expect(kFull, 256)",
     "expects 256 bytes and 512 arrive"},
    {"ToItself", "mbarrier_arrive_at(peer, kEmpty)", "mbarrier_arrive(kFull)", "arrive"},
    {"NobodyWaits",
     "    mbarrier_wait(kFull, n);\n    const auto words = lds_load<Words<4>>(kTheirs + 16 * "
     "lane_id());\n",
     "    const Words<4> words{};\n", "arrive"},
    {"BeyondTheCluster", "mbarrier_arrive_at(peer, kEmpty)", "mbarrier_arrive_at(2, kEmpty)",
     "at 4104 of workgroup 2 of a cluster"},
    {"BeyondTheLds", "cluster_copy(peer, kTheirs", "cluster_copy(peer, 8192 - 256",
     "512 bytes at 7936 of workgroup"},
    {"ToOneThatHasEnded", "arrive_at(peer, kEmpty);\n  }\n}\ncluster_barrier();",
     "arrive_at(peer, kEmpty);\n  }\n}\n", "of the cluster, which has ended"},
    {"Misplaced", "cluster_copy(peer, kTheirs", "cluster_copy(peer, kTheirs + 8",
     "multiples of 16 are accepted"},
    {"BarrierOfOneWorkgroup", "cluster_barrier();\nif (wave_id()", "barrier();\nif (wave_id()",
     "workgroups have cluster_barrier"},
    {"NamedBarrier", "cluster_barrier();\nif (wave_id()",
     "cluster_barrier();\nnamed_barrier_arrive(1);\nif (wave_id()",
     "the emulator has none in a cluster"},
};
INSTANTIATE_TEST_SUITE_P(Each, ClusterRule, ::testing::ValuesIn(kClusterRules),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fulmen::testing
