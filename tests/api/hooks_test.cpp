// What a program gives the library: a log, an allocator, backends that come and go; and what a
// failed call's Result does.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "c_views.h"
#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"
#include "small_call.h"

namespace fulmen {
namespace {

using testing::SmallCall;
using testing::views;

TEST(Status, IsTrueWhereTheCallSucceeded) {
  EXPECT_TRUE(static_cast<bool>(Status()));
  EXPECT_FALSE(static_cast<bool>(Status(StatusCode::internal, "")));
  const Result<bool> no(false);
  EXPECT_TRUE(static_cast<bool>(no)) << "there is a value, whatever it is";
  EXPECT_FALSE(*no);
  EXPECT_FALSE(static_cast<bool>(Result<bool>(Status(StatusCode::internal, ""))));
}

Result<std::vector<int>> three_numbers() { return std::vector<int>{1, 2, 3}; }

// Under AddressSanitizer a reference into the Result, whose lifetime has ended, would be an error.
TEST(Status, TheValueOfATemporaryLivesAsLongAsItsLoop) {
  int sum = 0;
  for (const int number : three_numbers().value()) sum += number;
  for (const int number : *three_numbers()) sum += number;
  EXPECT_EQ(sum, 12);
  static_assert(std::is_same_v<decltype(three_numbers().value()), std::vector<int>>);
}

TEST(StatusDeathTest, TheValueOfAFailedCallEndsTheProcessWithItsMessage) {
  SmallCall call;
  call.tensors.k.dtype = DType::bf16;
  Result<Problem> problem = make_problem(call.tensors, call.options);
  const Result<Problem>& same = problem;
  constexpr const char* kSaid =
      "fulmen: the value of a failed call was taken: invalid argument: k.dtype is bf16";
  EXPECT_DEATH(static_cast<void>(problem.value()), kSaid);
  EXPECT_DEATH(static_cast<void>(same.value()), kSaid);
  EXPECT_DEATH(static_cast<void>(std::move(problem).value()), kSaid);
  EXPECT_DEATH(static_cast<void>(problem->batch), kSaid);
  EXPECT_DEATH(static_cast<void>(same->batch), kSaid);
  EXPECT_DEATH(static_cast<void>(*same), kSaid);
}

// Lines of the log while it lives.
struct Log {
  Log() {
    set_log_callback(
        [](void* lines, const char* line) { static_cast<Log*>(lines)->lines.emplace_back(line); },
        this);
  }
  ~Log() { set_log_callback(nullptr, nullptr); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  std::vector<std::string> lines;
};

TEST(Hooks, TheLogGoesToTheProgram) {
  SmallCall call;
  call.options.kernel = "cpu.reference.double";
  ASSERT_EQ(setenv("FLASH_ATTENTION_DEBUG", "1", 1), 0);
  ::testing::internal::CaptureStderr();
  {
    const Log log;
    EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
    ASSERT_EQ(log.lines.size(), 1U);
    EXPECT_NE(log.lines[0].find("cpu.reference.double"), std::string::npos) << log.lines[0];
    EXPECT_EQ(log.lines[0].find('\n'), std::string::npos) << log.lines[0];
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");

  set_log_callback([](void*, const char*) { throw 1; }, nullptr);
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok())
      << "a log that throws is no failure";

  ::testing::internal::CaptureStderr();
  ASSERT_EQ(fulmen_set_log_callback(nullptr, nullptr), FULMEN_OK);
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("fulmen: "), 0U);
  unsetenv("FLASH_ATTENTION_DEBUG");
}

struct Counts {
  std::atomic<int> taken{0}, given_back{0}, shift{0};
  std::atomic<std::size_t> bytes{0}, alignment{0}, freed_bytes{0};
  std::atomic<bool> none{false};
  static void* allocate(void* context, std::size_t bytes, std::size_t alignment) {
    auto& counts = *static_cast<Counts*>(context);
    counts.bytes = bytes;
    counts.alignment = alignment;
    if (counts.none) return nullptr;
    ++counts.taken;
    return static_cast<char*>(std::aligned_alloc(64, (bytes + 2 * 64 - 1) / 64 * 64)) +
           counts.shift;
  }
  static void free(void* context, void* memory, std::size_t bytes) {
    auto& counts = *static_cast<Counts*>(context);
    ++counts.given_back;
    counts.freed_bytes = bytes;
    std::free(static_cast<char*>(memory) - counts.shift);
  }
};

// FLASH_ATTENTION_VERIFY: a line for each result that says how many elements were compared, and how
// near they came.
TEST(Hooks, VerifyingSaysPassed) {
  SmallCall call;
  call.with_gradients();
  call.options.kernel.clear();
  setenv("FLASH_ATTENTION_VERIFY", "1", 1);
  const Log log;
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
  EXPECT_TRUE(attention_backward(call.tensors, call.options, "cpu").ok());
  unsetenv("FLASH_ATTENTION_VERIFY");
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
  ASSERT_EQ(log.lines.size(), 2U) << "one for each pass, and none without the variable";
  const std::string out = std::to_string(call.out.size()) + " elements, worst error ";
  const std::size_t of_gradients =
      call.dq.size() + call.dk.size() + call.dv.size() + call.dbias.size() + call.dsinks.size();
  const std::string gradients = std::to_string(of_gradients) + " elements, worst error ";
  for (const std::string& part :
       {std::string("PASSED out of cpu."), std::string(" on cpu, fp32 b=2 "), out,
        std::string("mean error ")}) {
    EXPECT_NE(log.lines[0].find(part), std::string::npos) << part << " is not in: " << log.lines[0];
  }
  for (const std::string& part :
       {std::string("PASSED dq, dk, dv, dbias, dsinks of cpu."), gradients}) {
    EXPECT_NE(log.lines[1].find(part), std::string::npos) << part << " is not in: " << log.lines[1];
  }
}

// With FLASH_ATTENTION_DEBUG a call with options.verify prints the line, too.
TEST(Hooks, AVerifiedCallSaysSo) {
  SmallCall call;
  call.options.verify = true;
  setenv("FLASH_ATTENTION_DEBUG", "1", 1);
  const Log log;
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
  unsetenv("FLASH_ATTENTION_DEBUG");
  ASSERT_EQ(log.lines.size(), 2U);
  for (const char* part : {"PASSED out of cpu.", " on cpu, fp32 b=2 ", " elements, worst error ",
                           " is allowed there"}) {
    EXPECT_NE(log.lines[1].find(part), std::string::npos) << part << " is not in: " << log.lines[1];
  }
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
  EXPECT_EQ(log.lines.size(), 2U) << "without the variable nothing is said";
}

TEST(Hooks, WorkspacesComeFromTheAllocator) {
  SmallCall call;
  const auto made = plan(make_problem(call.tensors, call.options).value(), "cpu", call.options);
  ASSERT_GT(made->workspace_bytes(), 0U);
  Counts counts;
  ASSERT_TRUE(set_allocator({Counts::allocate, Counts::free, &counts}).ok());
  EXPECT_TRUE(made->run(nullptr, call.tensors, nullptr, 0).ok());
  EXPECT_EQ(counts.taken, 1);
  EXPECT_EQ(counts.given_back, 1);
  EXPECT_EQ(counts.bytes, made->workspace_bytes());
  EXPECT_EQ(counts.freed_bytes, made->workspace_bytes());
  EXPECT_EQ(counts.alignment, 64U);

  // A workspace that is given: nothing is allocated.
  std::vector<char> memory(made->workspace_bytes() + 64);
  char* const aligned =
      memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  EXPECT_TRUE(made->run(nullptr, call.tensors, aligned, made->workspace_bytes()).ok());
  EXPECT_EQ(counts.taken, 1);

  SmallCall refused;
  counts.none = true;
  EXPECT_EQ(made->run(nullptr, refused.tensors, nullptr, 0).code(), StatusCode::out_of_memory);
  counts.none = false;
  counts.shift = 4;
  const Status status = made->run(nullptr, refused.tensors, nullptr, 0);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("divisible by 64"), std::string::npos) << status.message();
  EXPECT_EQ(counts.taken, counts.given_back);
  EXPECT_TRUE(refused.untouched());

  // A workspace that the program keeps is allocated by the hook, too.
  counts.shift = 0;
  const int taken = counts.taken;
  {
    Result<Workspace> kept = Workspace::make(made.value());
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    EXPECT_EQ(counts.taken, taken + 1);
    EXPECT_EQ(kept->bytes(), made->workspace_bytes());
    const Workspace moved = std::move(kept).value();
    EXPECT_TRUE(made->run(nullptr, call.tensors, moved.data(), moved.bytes()).ok());
    EXPECT_EQ(counts.taken, taken + 1) << "runs take none of their own";
  }
  EXPECT_EQ(counts.taken, counts.given_back);
  counts.none = true;
  EXPECT_EQ(Workspace::make(made.value()).status().code(), StatusCode::out_of_memory);
  counts.none = false;

  fulmen_allocator half{};
  half.struct_size = sizeof half;
  half.allocate = Counts::allocate;
  EXPECT_EQ(fulmen_set_allocator(&half), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(fulmen_last_error(),
               "allocator.free is null: both functions or neither are accepted");
  ASSERT_EQ(fulmen_set_allocator(nullptr), FULMEN_OK);
  const int before = counts.taken;
  EXPECT_TRUE(made->run(nullptr, call.tensors, nullptr, 0).ok());
  EXPECT_EQ(counts.taken, before);
}

// Counts how it is asked for memory and waited for.
class StreamBackend final : public Backend {
 public:
  std::string_view name() const noexcept override { return "streams"; }
  std::vector<DeviceInfo> devices() const override {
    return {{"streams:0", "a test", "", true, ""}};
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }
  bool uses_host_memory() const noexcept override { return false; }
  void* allocate_in_stream(const std::string& device, void* stream,
                           std::size_t bytes) const noexcept override {
    allocated_in = stream;
    return allocate(device, bytes);
  }
  void free_in_stream(const std::string& device, void* stream,
                      void* memory) const noexcept override {
    freed_in = stream;
    free(device, memory);
  }
  bool is_capturing(const std::string& /*device*/, void* stream) const noexcept override {
    return captured == stream;
  }
  Status synchronize(const std::string& /*device*/, void* /*stream*/) const override {
    ++waits;
    return {};
  }
  void* captured = &waits;  // the stream that is
  mutable int waits = 0;
  mutable void *allocated_in = nullptr, *freed_in = nullptr, *ran_in = nullptr;

 private:
  class Run final : public Runner {
   public:
    explicit Run(const StreamBackend& backend) : backend_(backend) {}
    const KernelConfig& config() const noexcept override { return config_; }
    std::size_t workspace_bytes() const noexcept override { return 64; }
    Status run(void* stream, const AttentionTensors& /*tensors*/,
               void* /*workspace*/) const override {
      backend_.ran_in = stream;
      return {};
    }

   private:
    const StreamBackend& backend_;
    KernelConfig config_{.kernel = "streams.run"};
  };
  class Any final : public Kernel {
   public:
    Any(const StreamBackend& backend, Pass pass) : backend_(backend), pass_(pass) {}
    std::string_view name() const noexcept override {
      return pass_ == Pass::forward ? "streams.run" : "streams.run.backward";
    }
    Pass pass() const noexcept override { return pass_; }
    bool variable_lengths() const noexcept override { return true; }
    Support supports(const Problem& /*problem*/, const std::string& /*device*/) const override {
      return {};
    }
    double rank(const Problem& /*problem*/) const override { return 1; }
    Result<std::unique_ptr<Runner>> prepare(const Problem& /*problem*/,
                                            const std::string& /*device*/,
                                            const AttentionOptions& /*options*/) const override {
      return std::unique_ptr<Runner>(std::make_unique<Run>(backend_));
    }

   private:
    const StreamBackend& backend_;
    Pass pass_;
  };
  Any forward_{*this, Pass::forward}, backward_{*this, Pass::backward};
  std::vector<const Kernel*> kernels_{&forward_, &backward_};
};

TEST(Streams, ACallInAStreamDoesNotWait) {
  SmallCall call;
  call.with_gradients();
  call.options.kernel.clear();
  const auto backend = std::make_shared<StreamBackend>();
  ASSERT_TRUE(register_backend(backend).ok());
  int stream = 0;
  for (const auto one_call : {attention, attention_backward}) {
    backend->allocated_in = backend->freed_in = nullptr;
    backend->waits = 0;
    EXPECT_TRUE(one_call(call.tensors, call.options, "streams", nullptr).ok());
    EXPECT_EQ(backend->waits, 1);
    EXPECT_EQ(backend->ran_in, nullptr);
    EXPECT_EQ(backend->freed_in, nullptr);
    EXPECT_TRUE(one_call(call.tensors, call.options, "streams", &stream).ok());
    EXPECT_EQ(backend->waits, 1) << "no wait";
    EXPECT_EQ(backend->ran_in, &stream);
    EXPECT_EQ(backend->allocated_in, &stream);
    EXPECT_EQ(backend->freed_in, &stream) << "the stream gives the workspace back";
  }
  const fulmen_tensors t = views(call);
  backend->waits = 0;
  EXPECT_EQ(fulmen_attention_in_stream(&t, nullptr, "streams:0", &stream), FULMEN_OK)
      << fulmen_last_error();
  EXPECT_EQ(fulmen_attention_backward_in_stream(&t, nullptr, "streams:0", &stream), FULMEN_OK)
      << fulmen_last_error();
  EXPECT_EQ(backend->waits, 0);
  EXPECT_EQ(fulmen_attention(&t, nullptr, "streams:0"), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(backend->waits, 1);
  EXPECT_TRUE(unregister_backend("streams").ok());
}

// A capture cannot be waited for: calls that must wait are refused before anything is launched.
TEST(Streams, AChecksWaitIsRefusedWhileTheStreamIsCaptured) {
  SmallCall call;
  std::vector<int> used{3, 7};
  const auto backend = std::make_shared<StreamBackend>();
  ASSERT_TRUE(register_backend(backend).ok());
  int stream = 0;
  backend->captured = &stream;
  EXPECT_TRUE(attention(call.tensors, call.options, "streams", &stream).ok()) << "nothing waits";
  backend->ran_in = nullptr;
  call.options.validate = true;
  EXPECT_TRUE(attention(call.tensors, call.options, "streams", &stream).ok())
      << "there are no lengths to check";
  backend->ran_in = nullptr;

  setenv("FLASH_ATTENTION_VERIFY", "1", 1);
  const Status verifying = attention(call.tensors, call.options, "streams", &stream);
  unsetenv("FLASH_ATTENTION_VERIFY");
  EXPECT_EQ(verifying.code(), StatusCode::invalid_argument);
  for (const char* part :
       {"stream 0x", "device streams", "being captured", "verify (FLASH_ATTENTION_VERIFY)"}) {
    EXPECT_NE(verifying.message().find(part), std::string::npos)
        << part << " is not in: " << verifying.message();
  }
  call.tensors.seqlens_k = Tensor::vector(used.data(), DType::int32, 2);
  const Status validating = attention(call.tensors, call.options, "streams", &stream);
  EXPECT_EQ(validating.code(), StatusCode::invalid_argument);
  EXPECT_NE(validating.message().find("validate (FLASH_ATTENTION_VALIDATE)"), std::string::npos)
      << validating.message();

  KvCacheTensors cache;
  cache.k_cache = call.tensors.k;
  cache.v_cache = call.tensors.v;
  cache.seqlens_k = call.tensors.seqlens_k;
  cache.k_new = cache.v_new =
      Tensor::bshd(call.q.data(), DType::fp32, 2, 1, SmallCall::kKvHeads, SmallCall::kDim);
  const Status appending = append_kv(cache, {.validate = true}, "streams", &stream);
  EXPECT_NE(appending.message().find("being captured"), std::string::npos) << appending.message();

  EXPECT_EQ(backend->ran_in, nullptr);
  EXPECT_EQ(backend->waits, 0);
  int other = 0;
  EXPECT_TRUE(attention(call.tensors, call.options, "streams", &other).ok())
      << "another stream is not captured";
  EXPECT_TRUE(unregister_backend("streams").ok());
}

TEST(Unregister, PlansThatExistStayValid) {
  SmallCall call;
  auto backend = std::make_shared<StreamBackend>();
  const std::weak_ptr<StreamBackend> alive = backend;
  ASSERT_TRUE(register_backend(std::move(backend)).ok());
  ASSERT_TRUE(set_default_device("streams:0").ok());
  {
    const auto made = plan(make_problem(call.tensors, call.options).value());
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->device(), "streams:0");
    ASSERT_EQ(fulmen_unregister_backend("streams"), FULMEN_OK) << fulmen_last_error();
    EXPECT_EQ(default_device(), "cpu") << "forgotten with its backend";
    EXPECT_EQ(attention(call.tensors, call.options, "streams").code(), StatusCode::unavailable);
    int stream = 0;
    EXPECT_TRUE(made->run(&stream, call.tensors, nullptr, 0).ok());
    EXPECT_NE(made->explain(), "");
    EXPECT_FALSE(alive.expired());
  }
  EXPECT_TRUE(alive.expired()) << "the last plan kept it";
  ASSERT_TRUE(register_backend(std::make_shared<StreamBackend>()).ok()) << "its names are free";
  EXPECT_TRUE(unregister_backend("streams").ok());

  EXPECT_EQ(fulmen_unregister_backend("streams"), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(fulmen_last_error(),
               "backend name is \"streams\": no backend of that name is registered");
  EXPECT_EQ(fulmen_unregister_backend("cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(
      fulmen_last_error(),
      "backend name is \"cpu\": one that a program registered is accepted, this one is built in");
  EXPECT_EQ(fulmen_unregister_backend(nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
}

}  // namespace
}  // namespace fulmen
