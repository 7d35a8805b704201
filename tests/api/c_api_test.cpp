// The C ABI gives what the C++ API gives, and grows without breaking callers.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "c_views.h"
#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"
#include "small_call.h"

namespace fulmen {
namespace {

using testing::SmallCall;
using testing::views;

TEST(CApi, GivesWhatCppGives) {
  SmallCall cpp, c;
  for (SmallCall* call : {&cpp, &c}) {
    call->with_everything();
    call->vary();
  }
  cpp.options.softmax_scale = 0.7F;
  cpp.options.softcap = 3.0F;
  cpp.options.causal = Causal::top_left;
  cpp.options.window_left = 2;
  ASSERT_TRUE(attention(cpp.tensors, cpp.options).ok());
  fulmen_options options;
  fulmen_options_init(&options);
  options.softmax_scale = 0.7F;
  options.softcap = 3.0F;
  options.causal = FULMEN_CAUSAL_TOP_LEFT;
  options.window_left = 2;
  const fulmen_tensors t = views(c);
  ASSERT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(cpp.out, c.out);
  EXPECT_EQ(cpp.lse, c.lse);
}

TEST(CApi, DefaultsFillNoMoreThanTheCallersStruct) {
  // A program built with an older header: its struct ends before the newest fields.
  constexpr std::size_t kOld = offsetof(fulmen_options, max_seqlen_q);
  std::vector<unsigned char> memory(sizeof(fulmen_options), 0xA5);
  fulmen_options_init_sized(reinterpret_cast<fulmen_options*>(memory.data()), kOld);
  fulmen_options options;
  fulmen_options_init(&options);
  options.struct_size = kOld;
  EXPECT_EQ(std::memcmp(memory.data(), &options, offsetof(fulmen_options, softcap)), 0);
  for (std::size_t n = kOld; n < memory.size(); ++n) ASSERT_EQ(memory[n], 0xA5) << n;

  // The fields that it lacks have their defaults.
  SmallCall call;
  call.vary();
  const fulmen_tensors t = views(call);
  EXPECT_EQ(fulmen_attention(&t, reinterpret_cast<const fulmen_options*>(memory.data()), "cpu"),
            FULMEN_OK)
      << fulmen_last_error();
  fulmen_options_init_sized(nullptr, kOld);
}

TEST(CApi, PlansRunAndExplain) {
  SmallCall call;
  call.vary();
  const fulmen_tensors t = views(call);
  fulmen_options options;
  fulmen_options_init(&options);
  options.kernel = "cpu.reference.double";
  fulmen_plan* plan = nullptr;
  ASSERT_EQ(fulmen_plan_create(&t, &options, nullptr, &plan), FULMEN_OK) << fulmen_last_error();
  fulmen_kernel_config config{};
  config.struct_size = sizeof config;
  ASSERT_EQ(fulmen_plan_config(plan, &config), FULMEN_OK);
  EXPECT_STREQ(config.kernel, "cpu.reference.double");
  EXPECT_NE(std::string(fulmen_plan_explain(plan)).find("forced by name"), std::string::npos);
  EXPECT_EQ(fulmen_plan_explain(plan), fulmen_plan_explain(plan));  // one text, as long as the plan
  EXPECT_STREQ(fulmen_plan_device(plan), "cpu");
  EXPECT_EQ(fulmen_plan_run(plan, nullptr, &t, nullptr, 0), FULMEN_OK) << fulmen_last_error();
  fulmen_verify_report report{};
  report.struct_size = sizeof report;
  EXPECT_EQ(fulmen_verify(&t, nullptr, &report), FULMEN_OK) << fulmen_last_error();
  EXPECT_TRUE(report.ok);
  EXPECT_GT(report.bound, 0);
  EXPECT_EQ(report.elements, static_cast<int64_t>(call.out.size()));
  EXPECT_LT(report.mean_error, 1e-6);
  call.out[5] += 1;
  EXPECT_EQ(fulmen_verify(&t, nullptr, &report), FULMEN_VERIFICATION_FAILED);
  EXPECT_NEAR(report.mean_error, 1.0 / static_cast<double>(call.out.size()), 1e-6);
  EXPECT_NE(std::string(fulmen_last_error()), "");
  fulmen_tensors without_values = t;
  without_values.v.data = nullptr;
  EXPECT_EQ(fulmen_verify(&without_values, nullptr, &report), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(fulmen_last_error(), "v.data is null: a pointer is needed");
  std::vector<double> reference(call.out.size());
  EXPECT_EQ(fulmen_reference(&without_values, nullptr, reference.data(), nullptr),
            FULMEN_INVALID_ARGUMENT);
  fulmen_tensors without_out = t;
  without_out.out.data = nullptr;
  EXPECT_EQ(fulmen_verify(&without_out, nullptr, &report), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_reference(&without_out, nullptr, reference.data(), nullptr), FULMEN_OK)
      << fulmen_last_error();
  fulmen_plan_destroy(plan);
  fulmen_plan_destroy(nullptr);
}

TEST(CApi, TuningIsTheKernelsParameters) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  fulmen_options options;
  fulmen_options_init(&options);
  EXPECT_EQ(options.tuning, nullptr);
  options.kernel = "cpu.prefill.scalar";
  options.tuning = "block_n=128,tiles_per_task=1";
  fulmen_plan* plan = nullptr;
  ASSERT_EQ(fulmen_plan_create(&t, &options, "cpu", &plan), FULMEN_OK) << fulmen_last_error();
  EXPECT_NE(std::string(fulmen_plan_explain(plan))
                .find("block_n=128 (option), tiles_per_task=1 (option)"),
            std::string::npos)
      << fulmen_plan_explain(plan);
  fulmen_plan_destroy(plan);
  options.tuning = "block_n=100";
  EXPECT_EQ(fulmen_plan_create(&t, &options, "cpu", &plan), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("cpu.prefill.scalar takes 64, 128 as block_n"),
            std::string::npos)
      << fulmen_last_error();
}

TEST(CApi, OnePlanServesManyThreads) {
  SmallCall shared;
  const fulmen_tensors shapes = views(shared);
  fulmen_options options;
  fulmen_options_init(&options);
  options.num_threads = 1;
  fulmen_plan* plan = nullptr;
  ASSERT_EQ(fulmen_plan_create(&shapes, &options, "cpu", &plan), FULMEN_OK) << fulmen_last_error();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      SmallCall call;
      const fulmen_tensors mine = views(call);
      wrong += fulmen_plan_run(plan, nullptr, &mine, nullptr, 0) == FULMEN_OK ? 0 : 1;
      wrong += std::strstr(fulmen_plan_explain(plan), "cpu.reference.double") != nullptr ? 0 : 1;
      for (const float x : call.out) wrong += x > 1.9999F && x < 2.0001F ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  fulmen_plan_destroy(plan);
}

TEST(CApi, ErrorsAreSentencesOfThisThread) {
  SmallCall call;
  fulmen_tensors t = views(call);
  t.k.dtype = FULMEN_BOOLEAN;
  EXPECT_EQ(fulmen_attention(&t, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("k.dtype is boolean"), std::string::npos);
  std::thread([] { EXPECT_STREQ(fulmen_last_error(), ""); }).join();
  EXPECT_STREQ(fulmen_status_name(FULMEN_INVALID_ARGUMENT), "invalid argument");
  t.k.dtype = FULMEN_BF16;
  EXPECT_EQ(fulmen_attention(&t, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(fulmen_last_error(),
               "k.dtype is bf16, q.dtype is fp32: q's dtype, int8, fp8 and the block formats are "
               "accepted");
  t = views(call);
  t.v_scale = fulmen_tensor_1d(call.q.data(), FULMEN_FP32, 3);
  EXPECT_EQ(fulmen_attention(&t, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("v_scale.shape is [1, 1, 1, 3]"),
            std::string::npos);
  EXPECT_EQ(fulmen_attention(nullptr, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_plan_create(&t, nullptr, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_plan_run(nullptr, nullptr, &t, nullptr, 0), FULMEN_INVALID_ARGUMENT);
  EXPECT_TRUE(call.untouched());
}

TEST(CApi, OlderCallersGetDefaults) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  fulmen_options options;
  fulmen_options_init(&options);
  options.num_threads = -7;  // past what this caller says it knows
  options.struct_size = offsetof(fulmen_options, num_threads);
  EXPECT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_OK) << fulmen_last_error();
  options.struct_size = sizeof options;
  EXPECT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_INVALID_ARGUMENT);
  options.struct_size = 0;
  EXPECT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_INVALID_ARGUMENT);
}

TEST(CApi, ListsDevicesAndCandidates) {
  int devices = 0;
  EXPECT_EQ(fulmen_visit_devices(
                [](void* n, const fulmen_device_info* d) {
                  *static_cast<int*>(n) += std::strlen(d->name) > 0;
                },
                &devices),
            FULMEN_OK);
  EXPECT_GE(devices, 1);
  SmallCall call;
  const fulmen_tensors t = views(call);
  std::vector<std::string> kernels;
  EXPECT_EQ(fulmen_visit_candidates(
                &t, nullptr, "cpu",
                [](void* list, const char* kernel, bool supported, const char* reason, double) {
                  static_cast<std::vector<std::string>*>(list)->emplace_back(kernel);
                  EXPECT_TRUE(supported || std::strlen(reason) > 0) << kernel;
                },
                &kernels),
            FULMEN_OK);
  EXPECT_GE(kernels.size(), 5U);
  EXPECT_EQ(fulmen_set_default_device("nowhere"), FULMEN_UNAVAILABLE);
  EXPECT_STREQ(fulmen_default_device(), "cpu");
}

TEST(CApi, ListsKernelsWithTheirLayouts) {
  std::vector<std::string> kernels;
  ASSERT_EQ(fulmen_visit_kernels(
                [](void* list, const char* backend, const char* kernel, const char* layout) {
                  if (std::string(backend) == "cpu")
                    static_cast<std::vector<std::string>*>(list)->emplace_back(kernel);
                  EXPECT_GT(std::strlen(layout), 0U) << kernel;
                },
                &kernels),
            FULMEN_OK);
  EXPECT_NE(std::find(kernels.begin(), kernels.end(), "cpu.reference.double"), kernels.end());
}

TEST(CApi, DescribesAProblem) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  const Problem problem = make_problem(call.tensors, call.options).value();
  fulmen_problem_info info{};
  EXPECT_EQ(fulmen_describe(&t, nullptr, &info), FULMEN_INVALID_ARGUMENT);  // no size
  info.struct_size = sizeof info;
  ASSERT_EQ(fulmen_describe(&t, nullptr, &info), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(info.hash, hash_value(problem));
  EXPECT_EQ(info.flops, problem.flops());
  EXPECT_EQ(info.bytes, problem.bytes());
  EXPECT_EQ(info.text, to_string(problem));
  fulmen_problem_info older{};
  older.struct_size = offsetof(fulmen_problem_info, flops);
  older.flops = -1;
  ASSERT_EQ(fulmen_describe(&t, nullptr, &older), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(older.hash, info.hash);
  EXPECT_EQ(older.flops, -1);
}

TEST(CApi, ReferenceIsTheOracle) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  std::vector<double> out(call.out.size()), lse(call.lse.size());
  ASSERT_EQ(fulmen_reference(&t, nullptr, out.data(), lse.data()), FULMEN_OK)
      << fulmen_last_error();
  for (const double x : out) EXPECT_NEAR(x, 2.0, 1e-12);
  EXPECT_TRUE(call.untouched());
}

TEST(CApi, OwnThreadPool) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  fulmen_options options;
  fulmen_options_init(&options);
  int calls = 0;
  options.num_threads = 3;
  options.parallel_for_context = &calls;
  options.parallel_for = [](void* context, int64_t count, void (*task)(void*, int64_t), void* arg) {
    ++*static_cast<int*>(context);
    for (int64_t i = count - 1; i >= 0; --i) task(arg, i);
  };
  ASSERT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_OK);
  EXPECT_EQ(calls, 1);
  for (const float x : call.out) EXPECT_NEAR(x, 2.0F, 1e-5F);
}

TEST(CApi, TakesAUsersBackend) {
  fulmen_backend backend{};
  backend.struct_size = sizeof backend;
  backend.name = "cuser";
  backend.kernel_name = "cuser.fill";
  backend.rank = 1;
  backend.supports = [](void*, const fulmen_tensors* shapes, const fulmen_options*, char* reason,
                        size_t size) {
    if (shapes->q.shape[3] == SmallCall::kDim) return true;
    std::strncpy(reason, "only head_dim 8", size);
    return false;
  };
  backend.run = [](void*, void*, const fulmen_tensors* t, const fulmen_options* options) {
    static_cast<float*>(t->out.data)[0] = options->softmax_scale;
    static_cast<float*>(t->out.data)[1] = static_cast<float>(options->num_threads);
    return static_cast<int>(options->causal == FULMEN_CAUSAL_TOP_LEFT ? FULMEN_UNAVAILABLE
                                                                      : FULMEN_OK);
  };
  ASSERT_EQ(fulmen_register_backend(&backend), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(fulmen_register_backend(&backend), FULMEN_INVALID_ARGUMENT);
  SmallCall call;
  call.options.softmax_scale = 0.25F;
  fulmen_tensors t = views(call);
  fulmen_options options;
  fulmen_options_init(&options);
  options.softmax_scale = 0.25F;
  options.num_threads = 3;
  EXPECT_EQ(fulmen_attention(&t, &options, "cuser"), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(call.out[0], 0.25F);
  EXPECT_EQ(call.out[1], 3.0F);
  options.causal = FULMEN_CAUSAL_TOP_LEFT;
  EXPECT_EQ(fulmen_attention(&t, &options, "cuser"), FULMEN_UNAVAILABLE);  // the backend's own code
  EXPECT_NE(std::string(fulmen_last_error()).find("cuser.fill"), std::string::npos);
  for (fulmen_tensor* tensor : {&t.q, &t.k, &t.v, &t.out}) tensor->shape[3] = 4;
  EXPECT_EQ(fulmen_attention(&t, &options, "cuser"), FULMEN_UNSUPPORTED);
  EXPECT_NE(std::string(fulmen_last_error()).find("only head_dim 8"), std::string::npos);
  backend.run = nullptr;
  EXPECT_EQ(fulmen_register_backend(&backend), FULMEN_INVALID_ARGUMENT);
}

// Memory that the host cannot use as it is: addresses are shifted.
class ShiftedBackend final : public Backend {
 public:
  static constexpr std::size_t kShift = std::size_t{1} << 50U;
  static std::byte* shifted(void* memory, bool to_device) {
    return to_device ? static_cast<std::byte*>(memory) + kShift
                     : static_cast<std::byte*>(memory) - kShift;
  }
  static bool is_ours(const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) >= kShift;
  }

  std::string_view name() const noexcept override { return "shifted"; }
  std::vector<DeviceInfo> devices() const override {
    return {{"shifted:0", "a test", "", true, ""},
            {"shifted:1", "a test", "", false, "there is only one"}};
  }
  const std::vector<const Kernel*>& kernels() const override { return none_; }
  bool uses_host_memory() const noexcept override { return false; }
  void* allocate(const std::string& device, std::size_t bytes) const noexcept override {
    if (bytes > (std::size_t{1} << 30U)) return nullptr;
    ++live;
    return shifted(Backend::allocate(device, bytes), true);
  }
  void free(const std::string& device, void* memory) const noexcept override {
    --live;
    Backend::free(device, shifted(memory, false));
  }
  Status copy(const std::string& /*device*/, void* to, const void* from,
              std::size_t bytes) const override {
    std::memcpy(is_ours(to) ? shifted(to, false) : to,
                is_ours(from) ? shifted(const_cast<void*>(from), false) : from, bytes);
    return {};
  }
  Status synchronize(const std::string& /*device*/, void* stream) const override {
    return stream == nullptr ? Status{} : Status{StatusCode::invalid_argument, "stream is unknown"};
  }
  mutable std::atomic<int> live{0};

 private:
  std::vector<const Kernel*> none_;
};

TEST(CApi, MemoryOfADevice) {
  const auto backend = std::make_shared<ShiftedBackend>();
  ASSERT_TRUE(register_backend(backend).ok());
  EXPECT_EQ(fulmen_visit_devices(
                [](void*, const fulmen_device_info* d) {
                  const bool known =
                      std::strcmp(d->name, "cpu") == 0 || std::strncmp(d->name, "shifted", 7) == 0;
                  EXPECT_TRUE(!known || d->host_memory == (d->name[0] == 'c')) << d->name;
                },
                nullptr),
            FULMEN_OK);
  const std::vector<int> there{1, 2, 3};
  for (const char* device : {"cpu", "shifted:0", "shifted", static_cast<const char*>(nullptr)}) {
    void* memory = nullptr;
    ASSERT_EQ(fulmen_device_allocate(device, sizeof(int) * 3, &memory), FULMEN_OK)
        << fulmen_last_error();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0U);
    std::vector<int> back(3);
    EXPECT_EQ(fulmen_device_copy(device, memory, there.data(), sizeof(int) * 3), FULMEN_OK)
        << fulmen_last_error();
    EXPECT_EQ(fulmen_device_synchronize(device, nullptr), FULMEN_OK) << fulmen_last_error();
    EXPECT_EQ(fulmen_device_copy(device, back.data(), memory, sizeof(int) * 3), FULMEN_OK)
        << fulmen_last_error();
    EXPECT_EQ(back, there);
    EXPECT_EQ(fulmen_device_copy(device, nullptr, nullptr, 0), FULMEN_OK) << fulmen_last_error();
    EXPECT_EQ(fulmen_device_copy(device, nullptr, memory, 4), FULMEN_INVALID_ARGUMENT);
    EXPECT_STREQ(fulmen_last_error(), "to is null: a pointer is needed");
    fulmen_device_free(device, memory);
    fulmen_device_free(device, nullptr);
    ASSERT_EQ(fulmen_device_allocate(device, 0, &memory), FULMEN_OK) << fulmen_last_error();
    EXPECT_NE(memory, nullptr);
    fulmen_device_free(device, memory);
  }
  EXPECT_EQ(backend->live, 0);
  void* memory = &memory;
  EXPECT_EQ(fulmen_device_allocate("shifted:0", std::size_t{1} << 40U, &memory),
            FULMEN_OUT_OF_MEMORY);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(fulmen_device_allocate("shifted:1", 4, &memory), FULMEN_UNAVAILABLE);
  EXPECT_NE(std::string(fulmen_last_error()).find("there is only one"), std::string::npos)
      << fulmen_last_error();
  EXPECT_EQ(fulmen_device_copy("nowhere", nullptr, nullptr, 0), FULMEN_UNAVAILABLE);
  EXPECT_EQ(fulmen_device_allocate("cpu", 4, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_device_synchronize("shifted:0", &memory), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(fulmen_last_error(), "stream is unknown");
}

TEST(CApi, FlashAttnForward) {
  constexpr std::size_t kElements = 2 * 6 * 3 * 16;
  const std::vector<uint16_t> q(kElements, 0x3800), k(kElements, 0x3C00),
      v(kElements, 0x4000);                      // 0.5, 1, 2
  std::vector<uint16_t> out(kElements, 0x7E00);  // NaN
  FlashAttnParams params{2, 6, 3, 16, true, 0.0F};
  ASSERT_EQ(flash_attn_forward(q.data(), k.data(), v.data(), out.data(), &params), FULMEN_OK)
      << fulmen_last_error();
  for (const uint16_t x : out) EXPECT_EQ(x, 0x4000);
  EXPECT_EQ(flash_attn_forward(q.data(), k.data(), v.data(), nullptr, &params),
            FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(flash_attn_forward(q.data(), k.data(), v.data(), out.data(), nullptr),
            FULMEN_INVALID_ARGUMENT);
  params.seq_len = SIZE_MAX;
  EXPECT_EQ(flash_attn_forward(q.data(), k.data(), v.data(), out.data(), &params),
            FULMEN_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace fulmen
