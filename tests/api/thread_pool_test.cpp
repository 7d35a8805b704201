// A caller's parallel_for that breaks its contract gives an error, not a crash, and no two threads
// use one worker's scratch.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "api/small_call.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

using Task = void (*)(void* arg, int64_t index);
using Run = void (*)(void* context, int64_t count, Task task, void* arg);

struct BadPool {
  const char* name;
  Run run;
  const char* said;
};

class BadPools : public ::testing::TestWithParam<BadPool> {};

TEST_P(BadPools, IsSaid) {
  SmallCall call;
  call.with_gradients();
  call.options.num_threads = 3;
  call.options.parallel_for = {GetParam().run, nullptr};
  const std::vector<std::string> forward =
      testing::kernels_for(make_problem(call.tensors, call.options).value());
  ASSERT_FALSE(forward.empty());
  for (const std::string& kernel : forward) {
    call.options.kernel = kernel;
    const Status status = attention(call.tensors, call.options, "cpu");
    EXPECT_EQ(status.code(), StatusCode::internal) << kernel << ": " << status.message();
    EXPECT_NE(status.message().find(GetParam().said), std::string::npos)
        << kernel << ": " << status.message();
  }
  call.options.kernel.clear();
  const Status status = attention_backward(call.tensors, call.options, "cpu");
  EXPECT_EQ(status.code(), StatusCode::internal) << status.message();
  EXPECT_NE(status.message().find(GetParam().said), std::string::npos) << status.message();
}

void run_all(int64_t count, Task task, void* arg) {
  for (int64_t i = 0; i < count; ++i) task(arg, i);
}

INSTANTIATE_TEST_SUITE_P(
    Pools, BadPools,
    ::testing::Values(
        BadPool{"Throws",
                [](void*, int64_t, Task, void*) { throw std::runtime_error("the pool is closed"); },
                "the pool is closed"},
        BadPool{"ThrowsANumber", [](void*, int64_t, Task, void*) { throw 7; },
                "parallel_for threw something that is no std::exception"},
        BadPool{"ThrowsAsWithoutMemory",
                [](void*, int64_t, Task, void*) { throw std::bad_alloc(); },
                "parallel_for threw: "},
        BadPool{"RunsNothing", [](void*, int64_t, Task, void*) {},
                "parallel_for returned after 0 of"},
        BadPool{"RunsOneTwice",
                [](void*, int64_t count, Task task, void* arg) {
                  run_all(count, task, arg);
                  task(arg, 0);
                },
                "parallel_for ran index 0: "},
        BadPool{"RunsOneTooMany",
                [](void*, int64_t count, Task task, void* arg) { run_all(count + 1, task, arg); },
                "parallel_for ran index "},
        BadPool{"RunsANegativeOne",
                [](void*, int64_t count, Task task, void* arg) {
                  task(arg, -1);
                  run_all(count, task, arg);
                },
                "parallel_for ran index -1: "}),
    [](const auto& info) { return info.param.name; });

// The reference beside a call, and alone, runs where the call does.
TEST(ThreadCount, OfTheReferenceIsTheCallers) {
  SmallCall call;
  call.vary();
  call.with_gradients();
  call.options.kernel.clear();
  int calls = 0;
  call.options.num_threads = 2;
  call.options.parallel_for = {[](void* context, int64_t count, Task task, void* arg) {
                                 ++*static_cast<int*>(context);
                                 EXPECT_LE(count, 2);
                                 run_all(count, task, arg);
                               },
                               &calls};
  const auto calls_of = [&](const auto& body) {
    calls = 0;
    body();
    return calls;
  };
  const auto forward = [&] { ASSERT_TRUE(attention(call.tensors, call.options, "cpu").ok()); };
  const auto backward = [&] {
    ASSERT_TRUE(attention_backward(call.tensors, call.options, "cpu").ok());
  };
  const int alone = calls_of(forward), gradients_alone = calls_of(backward);
  call.options.verify = true;
  EXPECT_GT(calls_of(forward), alone);
  EXPECT_GT(calls_of(backward), gradients_alone);
  const Problem problem = make_problem(call.tensors, call.options).value();
  const Problem gradients = make_backward_problem(call.tensors, call.options).value();
  std::vector<double> out(call.out.size());
  EXPECT_GT(
      calls_of([&] {
        EXPECT_TRUE(
            attention_reference(problem, call.tensors, out.data(), nullptr, call.options).ok());
      }),
      0);
  EXPECT_GT(calls_of([&] { EXPECT_TRUE(verify_result(gradients, call.tensors, call.options).ok); }),
            0);

  call.options.parallel_for = {
      [](void*, int64_t, Task, void*) { throw std::runtime_error("the pool is closed"); }, nullptr};
  const Status reference =
      attention_reference(problem, call.tensors, out.data(), nullptr, call.options);
  EXPECT_EQ(reference.code(), StatusCode::internal);
  EXPECT_NE(reference.message().find("the pool is closed"), std::string::npos)
      << reference.message();
  EXPECT_NE(verify_result(problem, call.tensors, call.options).message.find("the pool is closed"),
            std::string::npos);
  EXPECT_EQ(attention_backward_reference(gradients, call.tensors, {}, call.options).code(),
            StatusCode::internal);
  call.options.parallel_for = {[](void*, int64_t, Task, void*) { throw std::bad_alloc(); },
                               nullptr};
  EXPECT_NE(verify_result(problem, call.tensors, call.options).message.find("parallel_for threw"),
            std::string::npos);
  // The parallel_for fails after the kernel: the result is right, but unchecked.
  call.options.parallel_for = {[](void* context, int64_t count, Task task, void* arg) {
                                 if (--*static_cast<int*>(context) < 0)
                                   throw std::runtime_error("the pool is closed");
                                 run_all(count, task, arg);
                               },
                               &calls};
  calls = alone;
  const Status status = attention(call.tensors, call.options, "cpu");
  EXPECT_EQ(status.code(), StatusCode::internal) << status.message();
  call.options.num_threads = -1;
  EXPECT_EQ(attention_backward_reference(gradients, call.tensors, {}, call.options).code(),
            StatusCode::invalid_argument);
}

// Each worker has scratch of its own, so fewer workers are used than a huge num_threads asks for.
TEST(ThreadCount, IsBounded) {
  SmallCall call;
  call.options.num_threads = 2'000'000'000;
  const Result<Plan> made =
      plan(make_problem(call.tensors, call.options).value(), "cpu", call.options);
  ASSERT_TRUE(made.ok());
  EXPECT_LE(made->workspace_bytes(), std::size_t{1} << 30U);
  call.options.parallel_for = {
      [](void*, int64_t count, Task task, void* arg) { run_all(count, task, arg); }, nullptr};
  EXPECT_TRUE(attention(call.tensors, call.options, "cpu").ok());
}

}  // namespace
}  // namespace fulmen::testing
