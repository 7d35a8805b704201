// Kernels of a plan are compiled at once.
#include "gpu/compile/at_once.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "fake_compiler.h"
#include "runtime/compile_time.h"

namespace fulmen::test {
namespace {

class AtOnceTest : public CacheTest {};

TEST_F(AtOnceTest, CompilesBesideOneAnother) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one processor";
  struct Running {
    int now = 0, most = 0;
    double seconds = 0;
  } running;
  set_compile_observer(  // one call at a time
      [](void* context, const char*, const char*, bool done, double seconds) {
        auto& r = *static_cast<Running*>(context);
        r.now += done ? -1 : 1;
        r.most = std::max(r.most, r.now);
        if (done) r.seconds += seconds;
      },
      &running);
  const FakeCompiler compiler("1", 100);
  std::vector<std::string> code(4);
  const CompileTime before = compile_time();
  gpu::at_once(code.size(), [&](std::size_t n) {
    const auto made = compile(compiler, request("at once " + std::to_string(n)));
    code[n] = made.ok() ? text_of(made.value()) : made.status().message();
  });
  set_compile_observer(nullptr, nullptr);
  EXPECT_EQ(compiler.calls, 4);
  EXPECT_GE(running.most, 2);
  for (std::size_t n = 0; n < code.size(); ++n)
    EXPECT_TRUE(code[n].ends_with("at once " + std::to_string(n))) << code[n];
  // What this thread waited for.
  EXPECT_EQ(compile_time().kernels - before.kernels, 4);
  const double seconds = compile_time().seconds - before.seconds;
  EXPECT_GE(seconds, 0.1);
  EXPECT_LT(seconds, running.seconds);
}

TEST_F(AtOnceTest, WhatIsThrownIsThrownHere) {
  std::atomic<int> done = 0;
  const auto work = [&](std::size_t n) {
    if (n == 5) throw std::runtime_error("five");
    ++done;
  };
  EXPECT_THROW(gpu::at_once(8, work), std::runtime_error);
  EXPECT_GE(done, 5);
  gpu::at_once(0, work);
}

}  // namespace
}  // namespace fulmen::test
