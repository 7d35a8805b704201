// Mistakes of a C program: sizes, calls from callbacks and after main.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "api/c_views.h"
#include "api/small_call.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::testing {
namespace {

TEST(CMistakes, SizesThatNoStructHas) {
  SmallCall call;
  fulmen_tensors t = views(call);
  t.struct_size = sizeof t - 4;  // half of the last stride
  EXPECT_EQ(fulmen_attention(&t, nullptr, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error())
                .find("tensors.struct_size is " + std::to_string(sizeof t - 4)),
            std::string::npos);
  t.struct_size = 12;  // half of q.data
  EXPECT_EQ(fulmen_attention(&t, nullptr, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("tensors.struct_size is 12"), std::string::npos)
      << fulmen_last_error();
  EXPECT_TRUE(call.untouched());

  t = views(call);
  fulmen_plan* plan = nullptr;
  ASSERT_EQ(fulmen_plan_create(&t, nullptr, "cpu", &plan), FULMEN_OK);
  fulmen_kernel_config config{};
  config.struct_size = 12;  // half of a pointer
  EXPECT_EQ(fulmen_plan_config(plan, &config), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(config.kernel, nullptr);
  fulmen_plan_destroy(plan);
}

TEST(CMistakes, ZeroedOptionsAreNotTheDefaults) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  fulmen_options options{};
  options.struct_size = sizeof options;
  options.causal = FULMEN_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("fulmen_options_init"), std::string::npos)
      << fulmen_last_error();
  EXPECT_TRUE(call.untouched());
}

// A mistake of the call, not of the result.
TEST(CMistakes, VerifyingWithTablesAndPointersThatAreWrong) {
  SmallCall call;
  fulmen_tensors t = views(call);
  std::vector<int32_t> used{SmallCall::kSeqlenK, SmallCall::kSeqlenK + 1};
  t.seqlens_k = fulmen_tensor_1d(used.data(), FULMEN_INT32, SmallCall::kBatch);
  fulmen_verify_report report{};
  report.struct_size = sizeof report;
  EXPECT_EQ(fulmen_verify(&t, nullptr, &report), FULMEN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fulmen_last_error()).find("seqlens_k[1] is 8"), std::string::npos)
      << fulmen_last_error();

  t = views(call);
  t.k.data = reinterpret_cast<char*>(call.k.data()) + 1;
  std::vector<double> out(call.out.size());
  for (const int code :
       {fulmen_verify(&t, nullptr, &report), fulmen_reference(&t, nullptr, out.data(), nullptr)}) {
    EXPECT_EQ(code, FULMEN_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fulmen_last_error()).find("k.data is 0x"), std::string::npos)
        << fulmen_last_error();
  }
}

// A size that rounds up to little.
// Cleaning up before the sentence is printed is usual.
TEST(CMistakes, CallsWithoutAStatusKeepTheMessage) {
  SmallCall call;
  fulmen_tensors t = views(call);
  fulmen_plan* plan = nullptr;
  ASSERT_EQ(fulmen_plan_create(&t, nullptr, "cpu", &plan), FULMEN_OK);
  void* memory = nullptr;
  ASSERT_EQ(fulmen_device_allocate("cpu", 64, &memory), FULMEN_OK);
  EXPECT_NE(fulmen_attention(&t, nullptr, "abacus"), FULMEN_OK);
  const std::string message = fulmen_last_error();
  ASSERT_NE(message.find("abacus"), std::string::npos) << message;
  EXPECT_STRNE(fulmen_plan_explain(plan), "");
  EXPECT_STREQ(fulmen_plan_explain(nullptr), "");
  EXPECT_STREQ(fulmen_default_device(), "cpu");
  fulmen_device_free("cpu", memory);
  fulmen_plan_destroy(plan);
  EXPECT_EQ(fulmen_last_error(), message);
}

TEST(CMistakes, AllMemoryAtOnce) {
  for (const char* device : {"cpu", "emulated:gfx1100"}) {
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 62}) {
      int ours = 0;
      void* memory = &ours;
      const int code = fulmen_device_allocate(device, bytes, &memory);
      if (code == FULMEN_UNAVAILABLE) continue;  // no emulator in this build
      EXPECT_EQ(code, FULMEN_OUT_OF_MEMORY) << device << " " << bytes;
      EXPECT_EQ(memory, nullptr);
    }
  }
}

TEST(CMistakes, NoMessageAfterASuccessWhoseCallbackFailed) {
  const auto visit = [](void*, const fulmen_device_info*) {
    fulmen_attention(nullptr, nullptr, nullptr);
  };
  ASSERT_EQ(fulmen_visit_devices(visit, nullptr), FULMEN_OK);
  EXPECT_STREQ(fulmen_last_error(), "");
}

// Calls from a static destructor, when the thread's own objects are gone. Made before main, so
// destroyed after all of Fulmen's.
struct CallsAfterMain {
  bool armed = false;
  ~CallsAfterMain() {
    if (!armed) return;
    const std::string longer(4000, 'x');  // more than the string of before had room for
    if (fulmen_attention(nullptr, nullptr, nullptr) != FULMEN_INVALID_ARGUMENT) std::_Exit(1);
    if (fulmen_set_default_device(longer.c_str()) != FULMEN_UNAVAILABLE) std::_Exit(2);
    if (std::string(fulmen_last_error()).find(longer) == std::string::npos) std::_Exit(3);
    SmallCall call;
    const fulmen_tensors t = views(call);
    if (fulmen_attention(&t, nullptr, "cpu") != FULMEN_OK || *fulmen_last_error() != '\0')
      std::_Exit(4);
    fulmen_problem_info info{};
    info.struct_size = sizeof info;
    if (fulmen_describe(&t, nullptr, &info) != FULMEN_OK || std::string(info.text).empty())
      std::_Exit(5);
    std::string features;
    fulmen_visit_devices(
        [](void* all, const fulmen_device_info* d) {
          *static_cast<std::string*>(all) += d->features;
        },
        &features);
    std::_Exit(features.find("scalar") != std::string::npos ||
                       features.find("neon") != std::string::npos
                   ? 42
                   : 6);
  }
} calls_after_main;

TEST(CMistakesDeathTest, CallsAfterMain) {
  EXPECT_EXIT(
      {
        SmallCall call;
        const fulmen_tensors t = views(call);
        const std::string name(200, 'x');
        bool as_ever = fulmen_attention(&t, nullptr, "cpu") == FULMEN_OK;
        as_ever = as_ever && fulmen_attention(&t, nullptr, name.c_str()) == FULMEN_UNAVAILABLE;
        calls_after_main.armed = as_ever;
        std::exit(0);
      },
      ::testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace fulmen::testing
