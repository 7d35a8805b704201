// Plans on devices with memory of their own: workspaces, what is refused and why, the one-line
// call, the C ABI.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "fulmen/fulmen_c.h"
#include "gpu/gpu_devices.h"
#include "gpu/launch/family.h"
#include "gpu/shipped.h"
#include "gpu/targets/chip.h"
#include "plan/registry.h"
#include "support/device_copy.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuPlan : public GpuTest {};

CaseSpec small_spec(int64_t seqlen_q, int64_t seqlen_k) {
  CaseSpec s;
  s.dtype = DType::bf16;
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim = s.head_dim_v = 64;
  return s;
}

Problem make_problem_of(const CaseSpec& spec) {
  Random random(7505);
  return Case(spec, random).problem();
}

// A plan that splits the keys, and so needs a workspace.
constexpr int64_t kSplitKeys = 2000;

TEST_P(GpuPlan, RefusesHostMemory) {
  Random random(7500);
  const Case c(small_spec(20, 50), random);
  const Result<Plan> planned = plan(c.problem(), device());
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const Status status = planned->run(nullptr, c.tensors, nullptr, 0);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("q.data is"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("memory of " + device() + " is needed"), std::string::npos)
      << status.message();
  const auto there = DeviceCopy::make(device(), c.tensors, 0);
  ASSERT_TRUE(there.ok()) << there.status().message();
  AttentionTensors mixed = there.value()->tensors();
  mixed.out.data = c.tensors.out.data;
  EXPECT_NE(planned->run(nullptr, mixed, nullptr, 0).message().find("out.data is"),
            std::string::npos);
}

TEST_P(GpuPlan, TakesItsWorkspaceOrAllocatesOne) {
  Random random(7510);
  Case c(small_spec(1, kSplitKeys), random);
  const Result<Plan> planned = plan(c.problem(), device());
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  ASSERT_GT(planned->workspace_bytes(), 0U) << planned->explain();
  const auto there = DeviceCopy::make(device(), c.tensors, 0);
  ASSERT_TRUE(there.ok()) << there.status().message();
  const AttentionTensors& tensors = there.value()->tensors();
  const std::size_t bytes = planned->workspace_bytes();
  const Result<void*> workspace = there.value()->make_workspace(bytes + 64);
  ASSERT_TRUE(workspace.ok()) << workspace.status().message();

  const Status small = planned->run(nullptr, tensors, workspace.value(), bytes - 1);
  EXPECT_EQ(small.code(), StatusCode::invalid_argument);
  EXPECT_NE(small.message().find("workspace_bytes is " + std::to_string(bytes - 1)),
            std::string::npos)
      << small.message();
  const Status odd =
      planned->run(nullptr, tensors, static_cast<std::byte*>(workspace.value()) + 4, bytes);
  EXPECT_NE(odd.message().find("an address divisible by 64 is needed"), std::string::npos)
      << odd.message();
  alignas(64) static std::byte host[64];
  const Status of_host = planned->run(nullptr, tensors, host, bytes);
  EXPECT_NE(of_host.message().find("workspace is"), std::string::npos) << of_host.message();

  std::vector<float> out;
  for (void* given : {workspace.value(), static_cast<void*>(nullptr)}) {
    c.poison_outputs();
    const Status status = planned->run(nullptr, tensors, given, given != nullptr ? bytes : 0);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(backend_of(device())->synchronize(device(), nullptr).ok());
    ASSERT_TRUE(there.value()->download().ok());
    EXPECT_EQ(there.value()->damage(), "");
    const VerifyReport report = verify_result(c.problem(), c.tensors);
    EXPECT_TRUE(report.ok) << report.message;
    if (given != nullptr) out = c.out_values();
  }
  EXPECT_EQ(out, c.out_values());
}

TEST_P(GpuPlan, OneCallWaitsForItsResult) {
  Random random(7520);
  Case c(small_spec(30, 60), random);
  const auto there = DeviceCopy::make(device(), c.tensors, 0);
  ASSERT_TRUE(there.ok()) << there.status().message();
  const Status status = attention(there.value()->tensors(), c.options, device());
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(there.value()->download().ok());
  EXPECT_TRUE(verify_result(c.problem(), c.tensors).ok);
  EXPECT_EQ(there.value()->damage(), "");
}

TEST_P(GpuPlan, VerifiesItself) {
  Random random(7530);
  Case c(small_spec(30, 60), random);
  AttentionOptions options = c.options;
  options.verify = true;
  const Result<Plan> planned = plan(c.problem(), device(), options);
  ASSERT_TRUE(planned.ok());
  const Status status = run_kernel(c, planned->config().kernel, options, Where{device()});
  EXPECT_TRUE(status.ok()) << status.message();
}

// All calls that a program in C or Python needs: memory, copies, plan, run, wait.
TEST_P(GpuPlan, RunsThroughTheCAbi) {
  Random random(7540);
  CaseSpec spec = small_spec(1, kSplitKeys);
  spec.lse = false;
  Case c(spec, random);
  fulmen_tensors tensors;
  fulmen_tensors_init(&tensors);
  struct Mirror {
    fulmen_tensor& view;
    const Tensor& host;
    std::size_t bytes;
  };
  std::vector<Mirror> mirrors;
  for (const auto& [view, host] :
       {std::pair<fulmen_tensor*, const Tensor*>{&tensors.q, &c.tensors.q},
        {&tensors.k, &c.tensors.k},
        {&tensors.v, &c.tensors.v},
        {&tensors.out, &c.tensors.out}}) {
    view->dtype = static_cast<int32_t>(host->dtype);
    std::copy(host->shape.begin(), host->shape.end(), view->shape);
    std::copy(host->strides.begin(), host->strides.end(), view->strides);
    const int64_t elements = host->shape[0] * host->shape[1] * host->shape[2] * host->shape[3];
    mirrors.push_back({*view, *host, static_cast<std::size_t>(elements * size_of(host->dtype))});
  }
  const std::string name = device();
  for (const Mirror& m : mirrors) {
    ASSERT_EQ(fulmen_device_allocate(name.c_str(), m.bytes, &m.view.data), FULMEN_OK)
        << fulmen_last_error();
    ASSERT_EQ(fulmen_device_copy(name.c_str(), m.view.data, m.host.data, m.bytes), FULMEN_OK)
        << fulmen_last_error();
  }
  fulmen_plan* plan = nullptr;
  ASSERT_EQ(fulmen_plan_create(&tensors, nullptr, name.c_str(), &plan), FULMEN_OK)
      << fulmen_last_error();
  EXPECT_EQ(fulmen_plan_device(plan), name);
  const std::size_t bytes = fulmen_plan_workspace_bytes(plan);
  EXPECT_GT(bytes, 0U);
  void* workspace = nullptr;
  ASSERT_EQ(fulmen_device_allocate(name.c_str(), bytes, &workspace), FULMEN_OK)
      << fulmen_last_error();
  EXPECT_EQ(fulmen_plan_run(plan, nullptr, &tensors, workspace, bytes), FULMEN_OK)
      << fulmen_last_error();
  EXPECT_EQ(fulmen_device_synchronize(name.c_str(), nullptr), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(
      fulmen_device_copy(name.c_str(), c.tensors.out.data, tensors.out.data, mirrors.back().bytes),
      FULMEN_OK);
  const VerifyReport report = verify_result(c.problem(), c.tensors);
  EXPECT_TRUE(report.ok) << report.message;
  fulmen_plan_destroy(plan);
  fulmen_device_free(name.c_str(), workspace);
  for (const Mirror& m : mirrors) fulmen_device_free(name.c_str(), m.view.data);
}

INSTANTIATE_TEST_SUITE_P(On, GpuPlan, ::testing::ValuesIn(gpu_devices()), test_name);

// NVIDIA's chips differ in LDS: 99 KiB a workgroup, 163 or 227. All have a tile shape for every
// head_dim.
TEST(GpuTiles, FitEveryChipsLds) {
  Random random(7560);
  for (const char* chip : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    for (const int64_t head_dim : {64, 96, 128, 192, 256}) {
      CaseSpec s = small_spec(300, 300);
      s.head_dim = s.head_dim_v = head_dim;
      const Case c(s, random);
      const std::vector<std::string> kernels =
          kernels_for(c.problem(), std::string("emulated:") + chip);
      EXPECT_NE(std::find(kernels.begin(), kernels.end(), "emulated.prefill.sm80"), kernels.end())
          << chip << ", head_dim " << head_dim;
    }
  }
}

TEST(GpuTargets, OneTargetsChipsHaveTheSameKernels) {
  const auto preludes = [](std::string_view arch) {
    std::string storage;
    gpu::Chip chip{};
    EXPECT_TRUE(gpu::find_chip(arch, storage, chip));
    std::vector<std::string> texts;
    for (const gpu::Specialisation& s : gpu::shipped_kernels(chip, true))
      texts.push_back(std::string(s.entry) + prelude(s));
    return texts;
  };
  for (const gpu::Target* target : gpu::targets()) {
    const std::vector<std::string> kernels = preludes(target->test_chips.front());
    EXPECT_GT(kernels.size(), 50U) << target->name;
    for (const std::string_view chip : target->test_chips)
      EXPECT_EQ(kernels, preludes(chip)) << chip;
  }
}

TEST(GpuTargets, TestChipsAreTheTargets) {
  for (const gpu::Target* target : gpu::targets()) {
    EXPECT_FALSE(target->test_chips.empty()) << target->name;
    for (const std::string_view arch : target->test_chips) {
      std::string storage;
      gpu::Chip chip{};
      ASSERT_TRUE(gpu::find_chip(arch, storage, chip)) << arch;
      EXPECT_EQ(chip.target->name, target->name) << arch;
      EXPECT_EQ(chip.vendor, target->vendor) << arch;
    }
  }
}

// A new target begins with some families: each of the others says that it has no tiles there.
TEST(GpuTargets, FamiliesWithoutTilesSaySo) {
  static constexpr gpu::Target kFresh{.name = "gfx99",
                                      .vendor = gpu::Vendor::amd,
                                      .mma_k = 16,
                                      .transposed_values = true,
                                      .decode = gpu::DecodeTiles{.min_split_keys = 512}};
  static const auto& families =
      *new auto(gpu::make_families(std::array<const gpu::Target*, 1>{&kFresh}));
  std::map<std::string, std::string> reasons;
  Problem problem = make_problem_of(small_spec(1, 300));
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    problem.pass = pass;
    for (const gpu::Family* family : families) {
      if (family->pass() != pass || family->target().is_portable()) continue;
      reasons[std::string(family->name())] = family->serves(problem, gpu::chips().front()).reason;
    }
  }
  const std::string none = "it has no tile shapes for gfx99";
  EXPECT_EQ(reasons, (std::map<std::string, std::string>{{"backward", none},
                                                         {"backward_fp32", none},
                                                         {"decode", ""},
                                                         {"decode_latent", none},
                                                         {"prefill", none},
                                                         {"prefill_fp32", none},
                                                         {"prefill_e4m3", none},
                                                         {"prefill_int8", none},
                                                         {"short", none},
                                                         {"short_backward", none}}));
}

// Few rows or narrow heads get whole rows of scores, the others tiles of keys, of a size that the
// rows fill.
TEST(GpuChoice, OfShortKernelsAndTilesByTheRowsThereAre) {
  Random random(7590);
  const auto chosen = [&](const char* device, int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim,
                          int64_t batch) {
    CaseSpec s = small_spec(seqlen_q, seqlen_k);
    s.batch = batch;
    s.head_dim = s.head_dim_v = head_dim;
    return chosen_kernel(Case(s, random).problem(), device);
  };
  for (const char* device : {"emulated:sm_80", "emulated:sm_90a"}) {
    if (const std::string why = why_unusable(device); !why.empty()) GTEST_SKIP() << why;
    EXPECT_EQ(chosen(device, 96, 96, 32, 40), "emulated.short.sm80");
    EXPECT_EQ(chosen(device, 16, 100, 64, 40), "emulated.short.sm80");
  }
  // The TMA's kernels take little work, and heads that share many keys.
  EXPECT_EQ(chosen("emulated:sm_80", 128, 128, 64, 2), "emulated.short.sm80");
  EXPECT_EQ(chosen("emulated:sm_90a", 128, 128, 64, 2), "emulated.prefill_tma.sm90");
  EXPECT_EQ(chosen("emulated:sm_80", 16, 128, 64, 40), "emulated.short.sm80");
  EXPECT_EQ(chosen("emulated:sm_90a", 16, 128, 64, 40), "emulated.decode_tma.sm90");
  EXPECT_EQ(chosen("emulated:sm_90a", 32, 1024, 64, 40), "emulated.decode_tma.sm90");
  EXPECT_EQ(chosen("emulated:sm_90a", 33, 1024, 64, 40), "emulated.prefill_tma.sm90");
  EXPECT_EQ(chosen("emulated:sm_80", 128, 128, 128, 40), "emulated.prefill.sm80");
  EXPECT_EQ(chosen("emulated:sm_90a", 128, 128, 128, 40), "emulated.prefill_tma.sm90");
  EXPECT_EQ(chosen("emulated:sm_80", 128, 128, 64, 40), "emulated.prefill.sm80");
  EXPECT_EQ(chosen("emulated:sm_90a", 128, 128, 64, 40), "emulated.prefill_tma.sm90");
  EXPECT_EQ(chosen("emulated:sm_90a", 256, 256, 128, 2), "emulated.prefill_tma.sm90");
  EXPECT_EQ(chosen("emulated:sm_90a", 320, 320, 128, 2), "emulated.prefill_tma.sm90");
}

// Rows that fill an NVIDIA chip of four multiprocessors once: larger workgroups, and no split of
// the keys.
TEST(GpuChoice, OfDecodesWavesByTheRowsThereAre) {
  const auto expect = [](const std::string& device, int64_t batch, int64_t dim,
                         const std::string& choice) {
    Random random(7540);
    CaseSpec spec = small_spec(1, 700);
    spec.batch = batch;
    spec.head_dim = spec.head_dim_v = dim;
    Case c(spec, random);
    const Result<Plan> planned = plan(c.problem(), device);
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_NE(planned->config().kernel.find("decode"), std::string::npos)
        << planned->config().kernel;
    EXPECT_NE(planned->explain().find(choice), std::string::npos) << planned->explain();
    EXPECT_TRUE(verified(c, planned->config().kernel, {device}));
  };
  expect("emulated:sm_80", 2, 128, "waves=8 (default), block_n=16 (default), num_splits=1 ");
  expect("emulated:sm_80", 4, 64, "waves=8 (default), block_n=16 (default), num_splits=1 ");
  // 256 keys a split at least.
  expect("emulated:sm_80", 1, 128, "waves=4 (default), block_n=16 (default), num_splits=2 ");
  expect("emulated:gfx1100", 2, 128, "waves=4 (default), block_n=16 (default), num_splits=1 ");
}

TEST(GpuReasons, OtherTargetsSayWhyTheyDoNotRun) {
  if (const std::string why = why_unusable("emulated:gfx1100"); !why.empty()) GTEST_SKIP() << why;
  Random random(7600);
  const Case c(small_spec(200, 200), random);
  const Result<Plan> planned = plan(c.problem(), "emulated:gfx1100");
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->config().kernel, "emulated.prefill.gfx11");
  EXPECT_NE(planned->explain().find(
                "not emulated.prefill.gfx12: gfx1100 has the matrix instructions of gfx11"),
            std::string::npos)
      << planned->explain();
  EXPECT_NE(
      planned->explain().find("not emulated.short.gfx11: seqlen_k is 200, at most 128 are served"),
      std::string::npos);
}

TEST(GpuReasons, UnusableDevicesSayWhatIsMissing) {
  for (const DeviceInfo& device : devices())
    EXPECT_NE(device.usable, !device.reason.empty()) << device.name;
}

// A write outside the tensors must be found, by the emulator or by guards.
class CarelessBackend final : public Backend {
 public:
  std::string_view name() const noexcept override { return "careless"; }
  std::vector<DeviceInfo> devices() const override {
    return {{"careless", "a test", "", true, ""}};
  }
  const std::vector<const Kernel*>& kernels() const override { return none_; }
  bool uses_host_memory() const noexcept override { return false; }

 private:
  std::vector<const Kernel*> none_;
};

TEST(DeviceCopies, SeeWhatIsWrittenAroundThemAndIntoInputs) {
  ASSERT_TRUE(register_backend(std::make_shared<CarelessBackend>()).ok());
  Random random(7700);
  Case c(small_spec(5, 7), random);
  const auto there = DeviceCopy::make("careless", c.tensors, 1);
  ASSERT_TRUE(there.ok()) << there.status().message();
  const AttentionTensors& t = there.value()->tensors();
  const Result<void*> workspace = there.value()->make_workspace(100);
  ASSERT_TRUE(workspace.ok());
  std::memset(workspace.value(), 0, 100);
  const int64_t out_bytes = 5 * 4 * 64 * 2;
  std::memset(t.out.data, 0, static_cast<std::size_t>(out_bytes));
  EXPECT_EQ(there.value()->damage(), "");
  const auto expect_seen = [&](void* data, int64_t at, const std::string& what) {
    std::byte& byte = static_cast<std::byte*>(data)[at];
    byte ^= std::byte{1};
    EXPECT_EQ(there.value()->damage().find(what), 0U) << there.value()->damage();
    byte ^= std::byte{1};
  };
  expect_seen(t.out.data, out_bytes, "byte " + std::to_string(out_bytes) + " of out");
  expect_seen(t.out.data, -1, "byte -1 of out");
  expect_seen(t.q.data, 3, "byte 3 of q");
  expect_seen(t.lse.data, -4, "byte -4 of lse");
  expect_seen(workspace.value(), 100, "byte 100 of workspace");
  EXPECT_EQ(there.value()->damage(), "");
}

}  // namespace
}  // namespace fulmen::testing
