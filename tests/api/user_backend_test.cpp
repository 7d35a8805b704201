// Backends of users that throw or return nonsense: the call fails with a sentence, and other
// backends still work.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/small_call.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::testing {
namespace {

enum class Mood { good, throws_in_devices, throws_in_supports, throws_in_synchronize };
Mood mood = Mood::good;

class IdleRunner final : public Runner {
 public:
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override { return 4096; }
  Status run(void* /*stream*/, const AttentionTensors& /*tensors*/,
             void* /*workspace*/) const override {
    return {};
  }

 private:
  KernelConfig config_{.kernel = "moody.kernel"};
};

class MoodyKernel final : public Kernel {
 public:
  MoodyKernel(std::string name, double rank) : name_(std::move(name)), rank_(rank) {}
  std::string_view name() const noexcept override { return name_; }
  Support supports(const Problem& /*problem*/, const std::string& /*device*/) const override {
    if (mood == Mood::throws_in_supports) throw std::runtime_error("no mood");
    return {};
  }
  double rank(const Problem& /*problem*/) const override { return rank_; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& /*problem*/, const std::string& /*device*/,
                                          const AttentionOptions& /*options*/) const override {
    return std::unique_ptr<Runner>(std::make_unique<IdleRunner>());
  }

 private:
  std::string name_;
  double rank_;
};

class MoodyBackend final : public Backend {
 public:
  MoodyBackend(std::string name, std::string second)
      : name_(std::move(name)), second_(std::move(second), 1) {}
  std::string_view name() const noexcept override { return name_; }
  std::vector<DeviceInfo> devices() const override {
    if (mood == Mood::throws_in_devices) throw std::runtime_error("no mood");
    return {{name_, "", "", true, ""}};
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }
  Status synchronize(const std::string& /*device*/, void* /*stream*/) const override {
    if (mood == Mood::throws_in_synchronize) throw std::runtime_error("no mood");
    return {};
  }
  Status append_kv(const std::string& /*device*/, void* /*stream*/,
                   const KvCacheProblem& /*problem*/, const KvCacheTensors& /*tensors*/,
                   const KvCacheOptions& /*options*/) const override {
    throw 7;  // NOLINT(hicpp-exception-baseclass): a user's code may throw anything
  }

 private:
  std::string name_;
  MoodyKernel first_{name_ + ".first", 2}, second_;
  std::vector<const Kernel*> kernels_{&first_, &second_};
};

void register_moody() {
  static const Status kDone =
      register_backend(std::make_shared<MoodyBackend>("moody", "moody.second"));
  ASSERT_TRUE(kDone.ok()) << kDone.message();
  mood = Mood::good;
}

TEST(UserBackend, ThatThrowsWhileItListsDevicesHidesNoOther) {
  register_moody();
  mood = Mood::throws_in_devices;
  bool cpu = false, said = false;
  for (const DeviceInfo& device : devices()) {
    cpu = cpu || (device.name == "cpu" && device.usable);
    said = said || (device.name == "moody" && !device.usable &&
                    device.reason.find("no mood") != std::string::npos);
  }
  EXPECT_TRUE(cpu);
  EXPECT_TRUE(said);
  EXPECT_EQ(fulmen_visit_devices([](void*, const fulmen_device_info*) {}, nullptr), FULMEN_OK)
      << fulmen_last_error();
  SmallCall call;
  const Status status = attention(call.tensors, call.options, "moody");
  EXPECT_EQ(status.code(), StatusCode::unavailable);
  EXPECT_NE(status.message().find("no mood"), std::string::npos) << status.message();
  EXPECT_EQ(attention(call.tensors, call.options, "nowhere").code(), StatusCode::unavailable);
  // A reason why none of a backend's devices can be used applies to each device.
  const Status third = attention(call.tensors, call.options, "moody:3");
  EXPECT_NE(third.message().find("device \"moody:3\" cannot be used: "), std::string::npos)
      << third.message();
  EXPECT_NE(third.message().find("no mood"), std::string::npos) << third.message();
  mood = Mood::good;
  for (const char* none : {"moody:3", "cpu:0"}) {
    const Status status = attention(call.tensors, call.options, none);
    EXPECT_NE(status.message().find("there is no such device"), std::string::npos)
        << status.message();
  }
}

TEST(UserBackend, ThatThrowsLater) {
  register_moody();
  SmallCall call;
  const Result<Plan> made = plan(make_problem(call.tensors, call.options).value(), "moody");
  ASSERT_TRUE(made.ok()) << made.status().message();
  mood = Mood::throws_in_supports;
  EXPECT_NE(made->explain().find("not moody.second: it threw"), std::string::npos)
      << made->explain();
  mood = Mood::throws_in_synchronize;
  const Status status = attention(call.tensors, call.options, "moody");
  EXPECT_EQ(status.code(), StatusCode::internal);
  EXPECT_NE(status.message().find("waiting for device moody failed: no mood"), std::string::npos)
      << status.message();
  mood = Mood::good;
  std::vector<float> k(call.k.size()), v(call.k.size());
  std::vector<int> used(SmallCall::kBatch, 0);
  KvCacheTensors cache;
  cache.k_cache = call.tensors.k;
  cache.k_cache.data = k.data();
  cache.v_cache = call.tensors.k;
  cache.v_cache.data = v.data();
  cache.k_new = call.tensors.k;
  cache.v_new = call.tensors.v;
  cache.seqlens_k = {used.data(), DType::int32, {1, 1, 1, SmallCall::kBatch}, {0, 0, 0, 1}};
  EXPECT_EQ(append_kv(cache, {}, "moody").code(), StatusCode::internal);
}

TEST(UserBackend, NamesAndNumbersThatAreNone) {
  const Status nameless = register_backend(std::make_shared<MoodyBackend>("nameless", ""));
  EXPECT_EQ(nameless.code(), StatusCode::invalid_argument);
  EXPECT_NE(nameless.message().find("kernel of backend \"nameless\""), std::string::npos)
      << nameless.message();
  fulmen_backend backend{};
  backend.struct_size = sizeof backend;
  backend.name = "numbers";
  backend.kernel_name = "numbers.kernel";
  backend.run = [](void*, void*, const fulmen_tensors*, const fulmen_options*) { return 0; };
  backend.rank = std::nan("");
  EXPECT_EQ(fulmen_register_backend(&backend), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("backend.rank is nan"), std::string::npos)
      << fulmen_last_error();
  backend.rank = 1;
  backend.features = 12;
  EXPECT_EQ(fulmen_register_backend(&backend), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("backend.features is 12"), std::string::npos)
      << fulmen_last_error();
}

// The message names the real mistake: a workspace that is too small may end just before a tensor.
TEST(UserBackend, WorkspaceTooSmallBesideATensor) {
  register_moody();
  SmallCall call;
  const Result<Plan> made = plan(make_problem(call.tensors, call.options).value(), "moody");
  ASSERT_TRUE(made.ok());
  alignas(64) static char memory[8192];
  call.tensors.q.data = memory + 64;
  const Status status = made->run(nullptr, call.tensors, memory, 64);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("workspace_bytes is 64: at least 4096"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace fulmen::testing
