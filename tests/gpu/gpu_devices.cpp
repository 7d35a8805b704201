#include "gpu/gpu_devices.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "plan/choose.h"
#include "plan/registry.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

// Whether the system knows a GPU of this backend. The libraries' own answer takes half a second,
// for HIP's compiler and a search for CUDA's, and each test is a process.
bool may_have_devices(const Backend& backend) {
  const auto has = [&](const char* name, const char* device) {
    return backend.name() == name &&
           (std::filesystem::exists(device) || std::filesystem::exists("/dev/dxg"));
  };
  return has("hip", "/dev/kfd") || has("cuda", "/dev/nvidiactl");
}

}  // namespace

std::vector<std::string> gpu_devices(Chips chips) {
  std::vector<std::string> names;
  for (const std::string& chip : test_chips(extends_none, chips))
    names.push_back("emulated:" + chip);
  for (const auto& backend : backends()) {
    if (!may_have_devices(*backend)) continue;
    const std::vector<DeviceInfo> all = backend->devices();
    const auto usable =
        std::find_if(all.begin(), all.end(), [](const DeviceInfo& d) { return d.usable; });
    if (usable != all.end()) names.push_back(usable->name);
  }
  return names;
}

std::vector<std::string> machine_code_devices() {
  std::vector<std::string> names;
  for (const std::string& chip : test_chips(is_amd, Chips::one_of_each_target))
    names.push_back("emulated-isa:" + chip);
  return names;
}

std::string why_unusable(const std::string& device) {
  const std::string name = device.substr(0, device.find(':'));
  std::string reason = "there is no device " + device;
  for (const auto& backend : backends()) {
    if (backend->name() != name) continue;
    for (const DeviceInfo& info : backend->devices()) {
      if (info.name == device && info.usable) return "";
      if (info.name == device || info.name == name) reason = info.reason;
    }
  }
  return reason;
}

std::string chosen_kernel(const Problem& problem, const std::string& device) {
  const auto backend = usable_backend_of(device);
  if (!backend.ok()) return backend.status().message();
  const Result<const Kernel*> best = kernel_for(problem, device, *backend.value(), "");
  return best.ok() ? std::string(best.value()->name()) : best.status().message();
}

uint64_t GpuTest::own_stream(uint64_t stream) {
  for (const char c : device()) stream = 31 * stream + static_cast<unsigned char>(c);
  return stream;
}

bool GpuTest::drawn(std::size_t of) const {
  const std::string emulated = "emulated:", name = device().substr(device().find(':') + 1);
  const std::size_t number = cases_++ + static_cast<std::size_t>(test_seed() % of);
  if (long_run() || !device().starts_with(emulated)) return true;
  std::size_t target = 0;
  for (const gpu::Target* t : gpu::targets()) {
    if (!extends_none(*t)) continue;
    const auto chip = std::find(t->test_chips.begin(), t->test_chips.end(), name);
    const bool is_named = chip != t->test_chips.end();
    const std::size_t place = is_named ? static_cast<std::size_t>(chip - t->test_chips.begin()) : 0;
    for (const gpu::ChipFacts& facts : t->chips) {
      if (facts.arch == name) return (number + target + place) % of == 0;
    }
    ++target;
  }
  return true;
}

bool GpuTest::runs_here(const std::string& kernel) {
  const std::string emulated = "emulated:";
  if (long_run() || !device().starts_with(emulated)) return true;
  if (kernel.ends_with(".portable"))
    return device() == "emulated:gfx942" || device() == "emulated:sm_80";
  const std::string chip = device().substr(emulated.size());
  for (const gpu::Target* t : gpu::targets()) {
    if (t->extends == nullptr ||
        std::find(t->test_chips.begin(), t->test_chips.end(), chip) == t->test_chips.end())
      continue;
    return kernel.ends_with("." + std::string(t->name));
  }
  return true;
}

int GpuTest::expect_all_verified(const CaseSpec& spec, Random& random, std::size_t shift) {
  if (!drawn()) return 1;
  Case c(spec, random);
  c.make_inputs_read_only();
  const std::vector<std::string> kernels = kernels_for(c.problem(), device());
  reference::Expected expected;
  for (const std::string& kernel : kernels) {
    if (!runs_here(kernel)) continue;
    EXPECT_TRUE(verified(c, kernel, {device(), shift}, &expected));
  }
  return static_cast<int>(kernels.size());
}

void GpuTest::expect_no_gradient_without_keys(CaseSpec spec, Random& random) const {
  ASSERT_GT(spec.seqlen_q - spec.seqlen_k, 10);
  spec.causal = Causal::bottom_right;
  spec.bias_dtype = DType::fp32;
  spec.bias_broadcast = {};
  spec.gradients[3] = false;
  for (const bool by_bias : {false, true}) {
    spec.bias = by_bias;
    Case c(spec, random);
    const int64_t query = by_bias ? spec.seqlen_q - 10 : 3;
    for (int64_t h = 0; h < spec.num_heads; ++h) {
      for (int64_t j = 0; by_bias && j < spec.seqlen_k; ++j)
        Case::set(c.tensors.bias, {0, h, query, j}, -HUGE_VALF);
      Case::set(c.tensors.lse, {0, h, query, 0}, -HUGE_VALF);
      for (int64_t d = 0; d < spec.head_dim_v; ++d) {
        Case::set(c.tensors.out, {0, query, h, d}, 0);
        Case::set(c.tensors.dout, {0, query, h, d}, d % 2 == 0 ? NAN : HUGE_VALF);
      }
    }
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      if (!runs_here(kernel) || !drawn(2)) continue;
      const Status status = run_kernel(c, kernel, Where{device()});
      ASSERT_TRUE(status.ok()) << status.message();
      int wrong = 0;
      for (int64_t h = 0; h < spec.num_heads; ++h) {
        for (int64_t d = 0; d < spec.head_dim; ++d) {
          if (Case::get(c.tensors.dq, {0, query, h, d}) != 0) ++wrong;
          if (!std::isfinite(Case::get(c.tensors.dq, {0, query - 1, h, d}))) ++wrong;
        }
      }
      EXPECT_EQ(wrong, 0) << kernel << (by_bias ? ", by bias" : "");
    }
  }
}

std::vector<std::string> hopper_devices() {
  std::vector<std::string> names;
  for (const std::string& chip : test_chips(has_warpgroups)) names.push_back("emulated:" + chip);
  for (const std::string& name : gpu_devices()) {
    if (name.starts_with("cuda")) names.push_back(name);
  }
  return names;
}

void HopperTest::SetUp() {
  GpuTest::SetUp();
  if (IsSkipped()) return;
  Random random(7590);
  const Case c(spec_of(DType::bf16, 64, 70, 70, random), random);
  const std::vector<std::string> kernels = kernels_for(c.problem(), device());
  const auto for_hopper = [](const std::string& name) { return name.ends_with(".sm90"); };
  if (std::any_of(kernels.begin(), kernels.end(), for_hopper)) return;
  ASSERT_TRUE(device().starts_with("cuda"));
  GTEST_SKIP() << device() << " has no wgmma";
}

CaseSpec FamilyTest::spec_of(DType dtype, int64_t head_dim, int64_t seqlen_q, int64_t seqlen_k,
                             Random& random) const {
  CaseSpec s = small_spec(dtype, head_dim, random);
  s.backward = backward_;
  s.precision = precision_;
  s.batch = s.num_heads = s.num_kv_heads = 1;
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  return s;
}

CaseSpec FamilyTest::dropout_in_band(int64_t seqlen_q, int64_t seqlen_k, Random& random) const {
  CaseSpec s = spec_of(random.pick({DType::bf16, DType::fp16}), random.pick({64, 128}), seqlen_q,
                       seqlen_k, random);
  s.dropout = 0.3F;
  s.nan_in_masked = true;
  s.window_left = random.between(0, 90);
  s.window_right = random.between(0, 30);
  return s;
}

void FamilyTest::check(const CaseSpec& spec, Random& random, std::size_t shift) const {
  if (!drawn(3)) return;
  Case c(spec, random);
  // All packed sequences may be drawn empty: of these the TMA has nothing to read. And dims may be
  // drawn for which these kernels have no tiles.
  const bool too_wide = std::max(spec.head_dim, spec.head_dim_v) > 256 && !spec.values_in_keys;
  if (!c.has_rows() || too_wide) return;
  EXPECT_TRUE(verified(c, kernel(), {device(), shift})) << to_string(spec);
}

void FamilyTest::expect_reason(const CaseSpec& spec, const std::string& words,
                               Random& random) const {
  const Case c(spec, random);
  const Result<Plan> planned = plan(c.problem(), device(), c.options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_NE(planned->config().kernel, kernel());
  EXPECT_NE(planned->explain().find(words), std::string::npos) << planned->explain();
}

CaseSpec small_spec(DType dtype, int64_t head_dim, Random& random) {
  CaseSpec s;
  s.dtype = dtype;
  s.batch = random.between(1, 2);
  s.num_kv_heads = random.between(1, 2);
  s.num_heads = s.num_kv_heads * random.between(1, 3);
  s.head_dim = s.head_dim_v = head_dim;
  s.seqlen_q = random.between(1, 90);
  s.seqlen_k = random.between(1, 160);
  return s;
}

CaseSpec limited(CaseSpec s) {
  s.seqlen_q = std::min<int64_t>(s.seqlen_q, 100);
  s.num_kv_heads = std::min<int64_t>(s.num_kv_heads, 2);
  s.num_heads = s.num_kv_heads * std::min<int64_t>(s.num_heads / s.num_kv_heads, 3);
  return s;
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

}  // namespace fulmen::testing
