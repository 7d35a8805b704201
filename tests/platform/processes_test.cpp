// Programs: this one, started by itself, whose arguments and exit code are known.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "runtime/environment.h"
#include "runtime/platform/files.h"
#include "runtime/platform/libraries.h"
#include "runtime/platform/system.h"
#include "runtime/platform/threads.h"
#include "runtime/run_program.h"

namespace fulmen::testing {
namespace {

// The file of this program.
std::string own_program() {
  return platform::library_that_holds(reinterpret_cast<const void*>(&own_program));
}

TEST(Processes, ReadItsOutputAndPassArgumentsAsTheyAre) {
  for (const std::string argument :
       {"plain", "two words", "a \"quote\"", "back\\slash\\", "\\\""}) {
    const Result<std::string> output =
        run_program({own_program(), "--gtest_filter=" + argument, "--gtest_color=no"});
    ASSERT_TRUE(output.ok()) << output.status().message();
    // googletest repeats its filter.
    EXPECT_NE(output->find("filter = " + argument), std::string::npos) << *output;
  }
}

TEST(Processes, DISABLED_Fails) { FAIL() << "for the next test"; }

TEST(Processes, TellTheExitCode) {
  const Result<std::string> output =
      run_program({own_program(), "--gtest_filter=Processes.DISABLED_Fails",
                   "--gtest_also_run_disabled_tests"});
  EXPECT_EQ(output.status().code(), StatusCode::internal);
  EXPECT_NE(output.status().message().find("failed (exit code 1)"), std::string::npos)
      << output.status().message();
}

TEST(Processes, DISABLED_Sees) { std::puts(environment("FULMEN_TEST_VARIABLE").c_str()); }

TEST(Processes, InheritTheEnvironment) {
  platform::set_environment_variable("FULMEN_TEST_VARIABLE", "a value: Größe");
  EXPECT_EQ(environment("FULMEN_TEST_VARIABLE"), "a value: Größe");
  EXPECT_TRUE(environment_has({"FULMEN_TEST_"}));
  const Result<std::string> output = run_program(
      {own_program(), "--gtest_filter=Processes.DISABLED_Sees", "--gtest_also_run_disabled_tests"});
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_NE(output->find("a value: Größe"), std::string::npos) << *output;
  platform::set_environment_variable("FULMEN_TEST_VARIABLE", nullptr);
  EXPECT_EQ(environment("FULMEN_TEST_VARIABLE"), "");
  EXPECT_FALSE(environment_has({"FULMEN_TEST_VARIABLE"}));
}

TEST(Processes, ThatAreNotThereAreSaid) {
  EXPECT_EQ(find_program("fulmen-no-such-program"), "");
  const Result<std::string> output = run_program({own_program() + "-none"});
  EXPECT_EQ(output.status().code(), StatusCode::unavailable);
  EXPECT_NE(output.status().message().find("cannot be started"), std::string::npos)
      << output.status().message();
}

TEST(Threads, AreWokenWhenANumberChanges) {
  std::atomic<int> number{0};
  platform::Thread thread{};
  ASSERT_TRUE(platform::start_thread(
      thread,
      [](void* argument) -> void* {
        auto& waited = *static_cast<std::atomic<int>*>(argument);
        while (waited.load() == 0) platform::wait_while(waited, 0);
        waited = 2;
        return nullptr;
      },
      &number));
  platform::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(number, 0);
  number = 1;
  platform::wake_all(number);
  platform::join_thread(thread);
  EXPECT_EQ(number, 2);
  EXPECT_GE(platform::usable_processors(), 1);
}

}  // namespace
}  // namespace fulmen::testing
