// A worker that ends, fails, crashes or hangs.
#include "tools/tune/supervised.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <vector>

namespace fulmen::tools {
namespace {

struct Heard {
  WorkerEnd end;
  std::vector<std::string> messages;
};

Heard run(const std::function<void(const Teller&)>& work) {
  Heard heard;
  heard.end =
      run_supervised(work, [&](const std::string& message) { heard.messages.push_back(message); });
  return heard;
}

TEST(Supervised, EveryMessageArrives) {
  const Heard heard = run([](const Teller& teller) {
    teller.begin("one", 60);
    teller.tell("first");
    teller.tell(std::string(100000, 'x') + "\nend");
  });
  EXPECT_TRUE(heard.end.done) << heard.end.why;
  ASSERT_EQ(heard.messages.size(), 2U);
  EXPECT_EQ(heard.messages[0], "first");
  EXPECT_EQ(heard.messages[1], std::string(100000, 'x') + " end");
}

TEST(Supervised, AHangEndsAtItsLimit) {
  const Heard heard = run([](const Teller& teller) {
    teller.tell("before");
    teller.begin("time block_m=64", 0.2);
    for (;;) ::pause();
  });
  EXPECT_FALSE(heard.end.done);
  EXPECT_EQ(heard.end.step, "time block_m=64");
  EXPECT_EQ(heard.end.why, "it ran for more than 0.2 s");
  EXPECT_EQ(heard.messages, std::vector<std::string>{"before"});
}

TEST(Supervised, ACrashIsToldWithItsStep) {
  const Heard heard = run([](const Teller& teller) {
    teller.begin("verify waves=8", 60);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_FALSE(heard.end.done);
  EXPECT_EQ(heard.end.step, "verify waves=8");
  EXPECT_NE(heard.end.why.find("signal 9"), std::string::npos) << heard.end.why;
}

TEST(Supervised, AnExceptionIsAMessage) {
  const Heard heard = run([](const Teller&) { throw std::runtime_error("no memory for it"); });
  EXPECT_FALSE(heard.end.done);
  EXPECT_EQ(heard.messages, std::vector<std::string>{"error no memory for it"});
}

}  // namespace
}  // namespace fulmen::tools
