// Plans, the registry, and what they say.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "small_call.h"
#include "support/run_kernel.h"

namespace fulmen {
namespace {

using testing::SmallCall;

Problem problem_of(const SmallCall& call) {
  return make_problem(call.tensors, call.options).value();
}

TEST(Problem, EqualProblemsHashAlikeOthersDiffer) {
  SmallCall a, b;
  EXPECT_EQ(problem_of(a), problem_of(b));
  EXPECT_EQ(hash_value(problem_of(a)), hash_value(problem_of(b)));
  std::unordered_set<std::size_t> hashes{hash_value(problem_of(a))};
  b.options.causal = Causal::bottom_right;
  hashes.insert(hash_value(problem_of(b)));
  b.options.causal = Causal::top_left;
  hashes.insert(hash_value(problem_of(b)));
  b.options.window_left = 3;
  hashes.insert(hash_value(problem_of(b)));
  b.with_everything();
  hashes.insert(hash_value(problem_of(b)));
  EXPECT_EQ(hashes.size(), 5U);
  EXPECT_FALSE(problem_of(a) == problem_of(b));
}

TEST(Problem, IsAKeyOfUnorderedMaps) {
  SmallCall a, b;
  b.options.softcap = 2;
  std::unordered_map<Problem, int> seen{{problem_of(a), 1}, {problem_of(b), 2}};
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen.at(problem_of(SmallCall())), 1);
  EXPECT_EQ(std::hash<Problem>{}(problem_of(a)), hash_value(problem_of(a)));
}

TEST(Plan, RefusesAProblemOfNoCall) {
  const Result<Plan> made = plan(Problem{}, "cpu");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(made.status().message().find("make_problem"), std::string::npos)
      << made.status().message();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    Problem empty;
    empty.pass = pass;
    EXPECT_EQ(candidates(empty, "cpu").status().message(), made.status().message());
  }
}

TEST(Plan, RefusesANegativeNumberOfThreads) {
  SmallCall call;
  const Problem problem = problem_of(call);
  call.options.num_threads = -7;
  EXPECT_EQ(plan(problem, "cpu", call.options).status().message(),
            make_problem(call.tensors, call.options).status().message());
  EXPECT_NE(plan(problem, "cpu", call.options).status().message().find("num_threads is -7"),
            std::string::npos);
}

// A file's header alone can ask for such sizes.
TEST(Plan, OfNoQueriesNeedsNoMemoryForEachSequence) {
  SmallCall call;
  for (Tensor* tensor : std::initializer_list<Tensor*>{&call.tensors.q, &call.tensors.k,
                                                       &call.tensors.v, &call.tensors.out}) {
    *tensor = Tensor::bshd(nullptr, DType::fp32, int64_t{1} << 40, 0, 1, 8);
  }
  const Problem problem = make_problem(call.tensors, call.options).value();
  call.options.num_threads = 1;
  for (const std::string& kernel : testing::kernels_for(problem)) {
    call.options.kernel = kernel;
    const Result<Plan> made = plan(problem, "cpu", call.options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_LT(made->workspace_bytes(), std::size_t{1} << 30) << kernel;
    EXPECT_TRUE(made->run(nullptr, call.tensors, nullptr, 0).ok()) << kernel;
  }
}

TEST(Problem, CountsUsefulWork) {
  SmallCall call;  // 2 x 4 heads, 5 x 7 scores, dims 8 + 8, two flops a multiply-add
  EXPECT_DOUBLE_EQ(problem_of(call).flops(), 2.0 * 2 * 4 * 35 * 16);
  call.options.causal = Causal::bottom_right;  // rows see 3, 4, 5, 6, 7 keys
  EXPECT_DOUBLE_EQ(problem_of(call).flops(), 2.0 * 2 * 4 * 25 * 16);
  call.options.causal = Causal::top_left;  // 1 to 5
  EXPECT_DOUBLE_EQ(problem_of(call).flops(), 2.0 * 2 * 4 * 15 * 16);
  EXPECT_DOUBLE_EQ(problem_of(call).bytes(), 4.0 * 2 * 8 * (2 * 4 * 5 + 2 * 2 * 7));
}

TEST(Problem, CountsAnyBand) {
  for (const int64_t seqlen_q : {0, 1, 5, 9}) {
    for (const int64_t seqlen_k : {0, 1, 5, 8}) {
      for (const int64_t diagonal : {int64_t{0}, seqlen_k - seqlen_q}) {
        for (const int64_t left : {-1, 0, 2, 100}) {
          for (const int64_t right : {-1, 0, 3, 100}) {
            Problem p;
            p.batch = p.num_heads = p.num_kv_heads = p.head_dim = p.head_dim_v = 1;
            p.seqlen_q = seqlen_q;
            p.seqlen_k = seqlen_k;
            p.diagonal = diagonal;
            p.window_left = left;
            p.window_right = right;
            int pairs = 0;
            for (int64_t i = 0; i < seqlen_q; ++i) {
              for (int64_t j = 0; j < seqlen_k; ++j) {
                pairs += (left < 0 || j >= i + diagonal - left) &&
                                 (right < 0 || j <= i + diagonal + right)
                             ? 1
                             : 0;
              }
            }
            EXPECT_EQ(p.flops(), 4.0 * pairs) << to_string(p);
          }
        }
      }
    }
  }
}

TEST(Problem, CausalAndWindowMeet) {
  SmallCall call;
  call.options.causal = Causal::bottom_right;
  call.options.window_left = 1;
  call.options.window_right = 3;
  const Problem bottom = problem_of(call);
  EXPECT_EQ(bottom.window_left, 1);
  EXPECT_EQ(bottom.window_right, 0);
  EXPECT_EQ(bottom.diagonal, SmallCall::kSeqlenK - SmallCall::kSeqlenQ);
  call.options.causal = Causal::top_left;
  EXPECT_EQ(problem_of(call).diagonal, 0);
  call.options.causal = Causal::none;
  EXPECT_EQ(problem_of(call).diagonal, SmallCall::kSeqlenK - SmallCall::kSeqlenQ);
  EXPECT_EQ(problem_of(call).window_right, 3);
  call.options.window_left = call.options.window_right = INT64_MAX;
  EXPECT_EQ(problem_of(call).window_left, -1);
  EXPECT_EQ(problem_of(call).window_right, -1);
}

TEST(Problem, BroadcastDimsAreDescribedOneWay) {
  SmallCall ones, zeros;
  ones.tensors.bias =
      Tensor::bhqk(ones.bias.data(), DType::fp32, 1, 1, SmallCall::kSeqlenQ, SmallCall::kSeqlenK);
  zeros.tensors.bias = {zeros.bias.data(), DType::fp32, {2, 4, 5, 7}, {0, 0, 7, 1}};
  EXPECT_EQ(problem_of(ones), problem_of(zeros));
  EXPECT_EQ(hash_value(problem_of(ones)), hash_value(problem_of(zeros)));
}

TEST(Plan, ExplainsEveryCandidate) {
  const SmallCall call;
  const auto made = plan(problem_of(call));
  ASSERT_TRUE(made.ok());
  const std::string text = made->explain();
  const auto all = candidates(problem_of(call));
  ASSERT_TRUE(all.ok());
  EXPECT_GE(all.value().size(), 5U);
  for (const Candidate& c : all.value()) {
    EXPECT_NE(text.find(c.kernel), std::string::npos) << c.kernel;
    if (!c.support.yes) {
      EXPECT_FALSE(c.support.reason.empty()) << c.kernel;
      EXPECT_NE(text.find(c.support.reason), std::string::npos) << c.kernel;
    }
  }
  EXPECT_EQ(text.find(made->config().kernel), 0U);
}

TEST(Plan, RunsTheKernelThatIsForced) {
  const SmallCall base;
  const auto all = candidates(problem_of(base));
  ASSERT_TRUE(all.ok());
  for (const Candidate& c : all.value()) {
    SmallCall call;
    call.options.kernel = c.kernel;
    const auto made = plan(problem_of(call), "cpu", call.options);
    ASSERT_EQ(made.ok(), c.support.yes) << c.kernel;
    if (!made.ok()) continue;
    EXPECT_EQ(made->config().kernel, c.kernel);
    EXPECT_TRUE(made->run(nullptr, call.tensors, nullptr, 0).ok());
    // The mean of equal values.
    for (const float x : call.out) EXPECT_NEAR(x, 2.0F, 1e-5F) << c.kernel;
  }
}

// The bound holds however long the sequences and few the KV heads are, although keys are split.
TEST(Plan, BackwardWorkspaceIsInProportionToTheInputs) {
  constexpr int64_t kDim = 64;
  constexpr double kThread = 8e6;  // scratch, whatever the lengths
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const auto& [heads, kv_heads] :
         {std::pair<int64_t, int64_t>{1, 1}, {8, 8}, {32, 8}, {64, 1}}) {
      for (const int64_t seqlen : {8192, 131072}) {
        AttentionTensors t;
        t.q = t.out = t.dout = t.dq = Tensor::bshd(nullptr, dtype, 1, seqlen, heads, kDim);
        t.k = t.v = t.dk = t.dv = Tensor::bshd(nullptr, dtype, 1, seqlen, kv_heads, kDim);
        t.lse = Tensor::bhqk(nullptr, DType::fp32, 1, heads, seqlen, 1);
        AttentionOptions options;
        options.num_threads = 1;
        const Result<Problem> problem = make_backward_problem(t, options);
        ASSERT_TRUE(problem.ok()) << problem.status().message();
        const Result<Plan> made = plan(problem.value(), "cpu", options);
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_LE(static_cast<double>(made->workspace_bytes()), 4 * problem->bytes() + kThread)
            << made->explain();
        EXPECT_GT(made->config().num_splits, 1) << made->explain();
      }
    }
  }
}

TEST(Plan, ServesManyThreadsAtOnce) {
  SmallCall base;
  base.options.num_threads = 1;
  const auto made = plan(problem_of(base), "cpu", base.options);
  ASSERT_TRUE(made.ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        SmallCall call;
        if (!made->run(nullptr, call.tensors, nullptr, 0).ok()) ++wrong;
        for (const float x : call.out) wrong += x > 1.9999F && x < 2.0001F ? 0 : 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Plan, LogsOneLineWhenAsked) {
  const SmallCall call;
  ::setenv("FLASH_ATTENTION_DEBUG", "1", 1);
  ::testing::internal::CaptureStderr();
  const auto made = plan(problem_of(call));
  const std::string log = ::testing::internal::GetCapturedStderr();
  ::unsetenv("FLASH_ATTENTION_DEBUG");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  EXPECT_NE(log.find(made->config().kernel), std::string::npos);
  EXPECT_NE(log.find("not cpu.reference.double"), std::string::npos);
}

// A user's backend whose one kernel writes a constant: right for SmallCall when the constant is 2.
class ConstantRunner final : public Runner {
 public:
  ConstantRunner(const Problem& problem, float value) : problem_(problem), value_(value) {
    config_.kernel = "constant";
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override { return kScratch; }
  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    if (reinterpret_cast<std::uintptr_t>(workspace) % 64 != 0)
      return {StatusCode::internal, "misaligned workspace"};
    std::memset(workspace, 1, kScratch);  // for AddressSanitizer
    auto* out = static_cast<float*>(tensors.out.data);
    for (int64_t i = 0;
         i < problem_.batch * problem_.seqlen_q * problem_.num_heads * problem_.head_dim_v; ++i)
      out[i] = value_;
    return {};
  }

 private:
  static constexpr std::size_t kScratch = 100;
  Problem problem_;
  KernelConfig config_;
  float value_;
};

class ConstantKernel final : public Kernel {
 public:
  ConstantKernel(std::string name, float value) : name_(std::move(name)), value_(value) {}
  std::string_view name() const noexcept override { return name_; }
  Support supports(const Problem& problem, const std::string& /*device*/) const override {
    return problem.dtype == DType::fp32 ? Support{} : Support::no("only fp32 constants");
  }
  double rank(const Problem& /*problem*/) const override { return 1; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& /*options*/) const override {
    return std::unique_ptr<Runner>(std::make_unique<ConstantRunner>(problem, value_));
  }

 private:
  std::string name_;
  float value_;
};

class ConstantBackend final : public Backend {
 public:
  ConstantBackend(std::string name, float value)
      : name_(std::move(name)), kernel_(name_ + ".constant", value), kernels_{&kernel_} {}
  std::string_view name() const noexcept override { return name_; }
  std::vector<DeviceInfo> devices() const override {
    return {{name_ + ":0", "a constant", "", true, ""},
            {name_ + ":1", "broken", "", false, "it is unplugged: plug it in"}};
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  std::string name_;
  ConstantKernel kernel_;
  std::vector<const Kernel*> kernels_;
};

TEST(Registry, TakesAUsersBackend) {
  ASSERT_TRUE(register_backend(std::make_shared<ConstantBackend>("constant", 2.0F)).ok());
  EXPECT_FALSE(register_backend(std::make_shared<ConstantBackend>("constant", 3.0F)).ok());
  EXPECT_FALSE(register_backend(nullptr).ok());
  SmallCall call;
  EXPECT_TRUE(attention(call.tensors, call.options, "constant:0").ok());
  EXPECT_EQ(call.out[7], 2.0F);
  const Status unplugged = attention(call.tensors, call.options, "constant:1");
  EXPECT_EQ(unplugged.code(), StatusCode::unavailable);
  EXPECT_NE(unplugged.message().find("plug it in"), std::string::npos);
  for (Tensor* tensor : std::initializer_list<Tensor*>{&call.tensors.q, &call.tensors.k,
                                                       &call.tensors.v, &call.tensors.out})
    tensor->dtype = DType::bf16;
  const Status refused = attention(call.tensors, call.options, "constant:0");
  EXPECT_EQ(refused.code(), StatusCode::unsupported);
  EXPECT_NE(refused.message().find("only fp32 constants"), std::string::npos);
}

TEST(Registry, VerificationCatchesAWrongBackend) {
  ASSERT_TRUE(register_backend(std::make_shared<ConstantBackend>("wrong", 2.5F)).ok());
  SmallCall call;
  EXPECT_TRUE(attention(call.tensors, call.options, "wrong:0").ok());
  call.options.verify = true;
  const Status status = attention(call.tensors, call.options, "wrong:0");
  EXPECT_EQ(status.code(), StatusCode::verification_failed);
  EXPECT_NE(status.message().find("2.5"), std::string::npos) << status.message();
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
  call.options.verify = false;
  ::setenv("FLASH_ATTENTION_VERIFY", "1", 1);
  std::string said;
  set_log_callback([](void* text, const char* line) { *static_cast<std::string*>(text) += line; },
                   &said);
  EXPECT_EQ(attention(call.tensors, call.options, "wrong:0").code(),
            StatusCode::verification_failed);
  set_log_callback(nullptr, nullptr);
  ::unsetenv("FLASH_ATTENTION_VERIFY");
  EXPECT_NE(said.find("FAILED out of "), std::string::npos) << said;
  EXPECT_EQ(said.find("PASSED"), std::string::npos) << said;
}

// One device that does not work, and twice the same kernel.
class BrokenBackend final : public Backend {
 public:
  explicit BrokenBackend(int kernels) : kernel_("broken.kernel", 0), kernels_(kernels, &kernel_) {}
  std::string_view name() const noexcept override { return "broken"; }
  std::vector<DeviceInfo> devices() const override {
    return {{"broken:0", "", "", false, "libbroken.so.1 was not found"}};
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  ConstantKernel kernel_;
  std::vector<const Kernel*> kernels_;
};

TEST(Registry, BackendWithoutAWorkingDeviceSaysWhy) {
  const Status twice = register_backend(std::make_shared<BrokenBackend>(2));
  EXPECT_EQ(twice.code(), StatusCode::invalid_argument);
  EXPECT_NE(twice.message().find("\"broken.kernel\" is taken"), std::string::npos)
      << twice.message();
  ASSERT_TRUE(register_backend(std::make_shared<BrokenBackend>(1)).ok());
  SmallCall call;
  for (const char* device : {"broken", "broken:0"}) {
    const Status status = attention(call.tensors, call.options, device);
    EXPECT_EQ(status.code(), StatusCode::unavailable);
    EXPECT_NE(status.message().find("libbroken.so.1 was not found"), std::string::npos)
        << status.message();
    EXPECT_FALSE(set_default_device(device).ok());
  }
  EXPECT_TRUE(call.untouched());
}

TEST(Registry, CallsWithoutADeviceTakeTheDefault) {
  ASSERT_TRUE(register_backend(std::make_shared<ConstantBackend>("standing", 4.0F)).ok());
  SmallCall call;
  // Its first device that works.
  EXPECT_TRUE(attention(call.tensors, call.options, "standing").ok());
  EXPECT_EQ(call.out[0], 4.0F);
  ::setenv("FULMEN_DEVICE", "standing:0", 1);
  const auto made = plan(problem_of(call));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->device(), "standing:0");
  EXPECT_EQ(candidates(problem_of(call)).value().size(), 1U);
  ::setenv("FULMEN_DEVICE", "standing:7", 1);
  const Status status = attention(call.tensors);
  ::unsetenv("FULMEN_DEVICE");
  EXPECT_EQ(status.code(), StatusCode::unavailable);
  EXPECT_NE(status.message().find("\"standing:7\" (FULMEN_DEVICE): there is no such"),
            std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("\"standing:1\" (not usable)"), std::string::npos)
      << status.message();
}

TEST(Registry, GrowsWhileThreadsPlan) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong, t] {
      SmallCall call;
      call.options.num_threads = 1;
      for (int i = 0; i < 10; ++i) {
        const std::string name = "grown" + std::to_string(t) + "-" + std::to_string(i);
        wrong += register_backend(std::make_shared<ConstantBackend>(name, 2.0F)).ok() ? 0 : 1;
        wrong += attention(call.tensors, call.options, name + ":0").ok() ? 0 : 1;
        const auto made = plan(problem_of(call), "cpu", call.options);
        wrong += made.ok() && !made->explain().empty() && default_device() == "cpu" &&
                         devices().size() > 1
                     ? 0
                     : 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Registry, DefaultDevice) {
  EXPECT_EQ(default_device(), "cpu");
  ::setenv("FULMEN_DEVICE", "elsewhere", 1);
  EXPECT_EQ(default_device(), "elsewhere");
  EXPECT_FALSE(set_default_device("nowhere").ok());
  EXPECT_TRUE(set_default_device("cpu").ok());
  EXPECT_EQ(default_device(), "cpu");
  EXPECT_TRUE(set_default_device("").ok());
  EXPECT_EQ(default_device(), "elsewhere");
  ::unsetenv("FULMEN_DEVICE");
}

TEST(Version, IsSemantic) {
  int major = -1, minor = -1, patch = -1;
  EXPECT_EQ(std::sscanf(version(), "%d.%d.%d", &major, &minor, &patch), 3);
}

}  // namespace
}  // namespace fulmen
