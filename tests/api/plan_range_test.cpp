// Plans for a range of batch sizes or of lengths, and runs with options of their own: the same bits
// as a plan of just that size.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "allocation_count.h"
#include "c_views.h"
#include "fulmen/fulmen.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace fulmen::testing {
namespace {

// A call of up to kMost boards or of a cache of up to kMost keys.
struct RangeCall {
  int64_t most_batch, seqlen_q, most_k, heads, kv_heads, dim;
  std::vector<float> q, k, v, bias, out, lse, expected, expected_lse;

  RangeCall(int64_t batch, int64_t queries, int64_t keys, int64_t q_heads, int64_t k_heads,
            int64_t head_dim)
      : most_batch(batch),
        seqlen_q(queries),
        most_k(keys),
        heads(q_heads),
        kv_heads(k_heads),
        dim(head_dim) {
    const auto n = [](int64_t size) { return static_cast<std::size_t>(size); };
    q.resize(n(most_batch * seqlen_q * heads * dim));
    k.resize(n(most_batch * most_k * kv_heads * dim));
    v.resize(k.size());
    bias.resize(n(most_batch * heads * seqlen_q * most_k));
    out.resize(q.size());
    lse.resize(n(most_batch * heads * seqlen_q));
    Random random(20);
    for (auto* values : {&q, &k, &v, &bias}) {
      for (float& x : *values) x = random.normal();
    }
  }

  // As a cache: k, v and bias have room for most_k.
  AttentionTensors at(int64_t batch, int64_t keys, bool with_bias = true) {
    AttentionTensors t;
    t.q = Tensor::bshd(q.data(), DType::fp32, batch, seqlen_q, heads, dim);
    t.k = Tensor::bshd(k.data(), DType::fp32, batch, most_k, kv_heads, dim);
    t.v = Tensor::bshd(v.data(), DType::fp32, batch, most_k, kv_heads, dim);
    t.k.shape[1] = t.v.shape[1] = keys;
    if (with_bias) t.bias = Tensor::bhqk(bias.data(), DType::fp32, batch, heads, seqlen_q, most_k);
    if (with_bias) t.bias.shape[3] = keys;
    t.out = Tensor::bshd(out.data(), DType::fp32, batch, seqlen_q, heads, dim);
    t.lse = Tensor::bhqk(lse.data(), DType::fp32, batch, heads, seqlen_q, 1);
    return t;
  }

  void poison() {
    out.assign(out.size(), 12345.0F);
    lse.assign(lse.size(), 12345.0F);
  }

  // The result of a plan for just these sizes and options.
  void run_exact(const AttentionTensors& t, const AttentionOptions& options) {
    poison();
    const Result<Problem> problem = make_problem(t, options);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Result<Plan> made = plan(problem.value(), "cpu", options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Status status = made->run(nullptr, t, nullptr, 0);
    ASSERT_TRUE(status.ok()) << status.message();
    expected = out;
    expected_lse = lse;
    poison();
  }
  void expect_same_bits() const { EXPECT_TRUE(out == expected && lse == expected_lse); }
};

Result<Plan> ranged(const AttentionTensors& largest, AttentionOptions options, bool batch,
                    bool keys) {
  options.vary_batch = batch;
  options.vary_seqlen_k = keys;
  const Result<Problem> problem = make_problem(largest, options);
  return problem.ok() ? plan(problem.value(), "cpu", options) : problem.status();
}

TEST(PlanRange, EveryBatchHasTheBitsOfItsOwnPlan) {
  RangeCall call(9, 64, 64, 3, 3, 32);
  const Result<Plan> made = ranged(call.at(9, 64), {}, true, false);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const GuardedBuffer workspace((made->workspace_bytes() + 63) / 64 * 64);
  for (int64_t batch = 0; batch <= 9; ++batch) {
    SCOPED_TRACE(batch);
    const AttentionTensors t = call.at(batch, 64);
    call.run_exact(t, {});
    const int64_t before = allocations();
    const Status status = made->run(nullptr, t, workspace.data(), made->workspace_bytes());
    const int64_t after = allocations();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(after, before) << "allocations";
    call.expect_same_bits();
  }
}

TEST(PlanRange, ABatchThatIsNotOutermostIsTaken) {
  RangeCall call(5, 16, 16, 2, 1, 8);
  const auto sequence_first = [&](int64_t batch) {
    AttentionTensors t = call.at(batch, 16, false);
    for (Tensor* tensor : std::initializer_list<Tensor*>{&t.q, &t.k, &t.v, &t.out}) {
      const int64_t row = tensor->shape[2] * tensor->shape[3];
      tensor->strides = {row, batch * row, tensor->shape[3], 1};
    }
    return t;
  };
  const Result<Plan> made = ranged(sequence_first(5), {}, true, false);
  ASSERT_TRUE(made.ok()) << made.status().message();
  for (const int64_t batch : {2, 5, 3, 2}) {
    call.run_exact(sequence_first(batch), {});
    const Status status = made->run(nullptr, sequence_first(batch), nullptr, 0);
    ASSERT_TRUE(status.ok()) << status.message();
    call.expect_same_bits();
  }
}

TEST(PlanRange, EveryLengthHasTheBitsOfItsOwnPlan) {
  for (const int64_t seqlen_q : {1, 5}) {
    for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
      RangeCall call(2, seqlen_q, 300, 4, 2, 16);
      AttentionOptions options;
      options.causal = causal;
      const Result<Plan> made = ranged(call.at(2, 300), options, false, true);
      ASSERT_TRUE(made.ok()) << made.status().message();
      for (const int64_t keys : {0, 1, 2, 5, 17, 64, 127, 128, 129, 255, 299, 300}) {
        SCOPED_TRACE(keys);
        call.run_exact(call.at(2, keys), options);
        for (int again = 0; again < 2; ++again) {
          call.poison();
          const Status status = made->run(nullptr, call.at(2, keys), nullptr, 0);
          ASSERT_TRUE(status.ok()) << status.message();
          call.expect_same_bits();
        }
      }
    }
  }
}

// A kernel that splits the keys only where the batch is one.
class OddRunner final : public Runner {
 public:
  explicit OddRunner(std::size_t bytes) : bytes_(bytes) {}
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override { return bytes_; }
  Status run(void* /*stream*/, const AttentionTensors& /*tensors*/,
             void* /*workspace*/) const override {
    return {};
  }

 private:
  KernelConfig config_{.kernel = "odd.kernel"};
  std::size_t bytes_;
};
class OddKernel final : public Kernel {
 public:
  static constexpr std::size_t kMost = 1 << 20;
  std::string_view name() const noexcept override { return "odd.kernel"; }
  Support supports(const Problem& /*problem*/, const std::string& /*device*/) const override {
    return {};
  }
  double rank(const Problem& /*problem*/) const override { return 1; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& p, const std::string& /*device*/,
                                          const AttentionOptions& /*options*/) const override {
    return std::unique_ptr<Runner>(
        std::make_unique<OddRunner>(p.batch == 43 && p.seqlen_k == 100 ? kMost : 64));
  }
};
class OddBackend final : public Backend {
 public:
  std::string_view name() const noexcept override { return "odd"; }
  std::vector<DeviceInfo> devices() const override { return {{"odd", "", "", true, ""}}; }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  OddKernel kernel_;
  std::vector<const Kernel*> kernels_{&kernel_};
};

TEST(PlanRange, WorkspaceIsEnoughForEveryBatchOfMostKeys) {
  ASSERT_TRUE(register_backend(std::make_shared<OddBackend>()).ok());
  RangeCall call(64, 1, 100, 2, 2, 8);
  for (const bool keys : {false, true}) {
    AttentionOptions options;
    options.vary_batch = true;
    options.vary_seqlen_k = keys;
    const Result<Problem> problem = make_problem(call.at(64, 100), options);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Result<Plan> made = plan(problem.value(), "odd", options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_GE(made->workspace_bytes(), OddKernel::kMost) << keys;
  }
}

TEST(PlanRange, PagedBatchesOfAnySize) {
  RangeCall call(6, 1, 32, 2, 2, 8);
  std::vector<int> lengths{5, 32, 0, 17, 8, 31}, table(6 * 4);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int>(i);
  const auto paged = [&](int64_t batch) {
    AttentionTensors t = call.at(batch, 32, false);
    t.k = Tensor::bshd(call.k.data(), DType::fp32, 24, 8, 2, 8);
    t.v = Tensor::bshd(call.v.data(), DType::fp32, 24, 8, 2, 8);
    t.seqlens_k = {lengths.data(), DType::int32, {1, 1, 1, batch}, {0, 0, 0, 1}};
    t.block_table = {table.data(), DType::int32, {1, 1, batch, 4}, {0, 0, 4, 1}};
    return t;
  };
  const Result<Plan> made = ranged(paged(6), {}, true, false);
  ASSERT_TRUE(made.ok()) << made.status().message();
  for (int64_t batch = 0; batch <= 6; ++batch) {
    call.run_exact(paged(batch), {});
    const Status status = made->run(nullptr, paged(batch), nullptr, 0);
    ASSERT_TRUE(status.ok()) << status.message();
    call.expect_same_bits();
  }
}

TEST(PlanRange, ACacheWithRoomForMoreKeysThanTheLongestSequence) {
  RangeCall call(4, 3, 20, 2, 2, 8);
  std::vector<float> pages(static_cast<std::size_t>(4 * 3 * 8 * 2 * 8), 0.5F);
  for (std::size_t i = 0; i < pages.size(); i += 3) pages[i] = -1.0F;
  std::vector<int> lengths{5, 20, 0, 17}, table(4 * 3);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int>(i);
  const auto paged = [&](int64_t batch) {
    AttentionTensors t = call.at(batch, 20);  // with a bias of 20 keys
    t.k = t.v = Tensor::bshd(pages.data(), DType::fp32, 12, 8, 2, 8);
    t.seqlens_k = {lengths.data(), DType::int32, {1, 1, 1, batch}, {0, 0, 0, 1}};
    t.block_table = {table.data(), DType::int32, {1, 1, batch, 3}, {0, 0, 3, 1}};
    return t;
  };
  AttentionOptions options;
  options.max_seqlen_k = 20;  // of 24
  const Result<Plan> made = ranged(paged(4), options, true, false);
  ASSERT_TRUE(made.ok()) << made.status().message();
  for (int64_t batch = 0; batch <= 4; ++batch) {
    call.run_exact(paged(batch), options);
    const Status status = made->run(nullptr, paged(batch), nullptr, 0);
    ASSERT_TRUE(status.ok()) << status.message();
    call.expect_same_bits();
  }
}

TEST(PlanRange, WhatDoesNotVaryIsRefusedByName) {
  RangeCall call(4, 8, 32, 2, 1, 8);
  const Result<Plan> made = ranged(call.at(3, 24), {}, true, true);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto refusal = [&](const AttentionTensors& t) {
    return made->run(nullptr, t, nullptr, 0).message();
  };
  call.poison();
  const std::vector<float> before = call.out;
  EXPECT_EQ(refusal(call.at(4, 24)),
            "q.shape is [4, 8, 2, 8]: batch is 4; this plan was made for 0 to 3");
  EXPECT_EQ(refusal(call.at(3, 25)),
            "k.shape is [3, 25, 1, 8]: seqlen_k is 25; this plan was made for 0 to 24");
  EXPECT_EQ(refusal(call.at(3, 24, false)), "bias is missing; this plan was made with it");
  AttentionTensors t = call.at(3, 24);
  t.q.shape[1] = t.out.shape[1] = t.lse.shape[2] = t.bias.shape[2] = 7;
  EXPECT_EQ(refusal(t), "q.shape is [3, 7, 2, 8]: seqlen_q is 7; this plan was made for 8");
  t = call.at(3, 24);
  t.bias.dtype = DType::bf16;
  EXPECT_EQ(refusal(t), "bias.dtype is bf16; this plan was made for fp32");
  t = call.at(3, 24);
  t.k.strides[3] = 2;
  EXPECT_NE(refusal(t).find("k.strides is "), std::string::npos) << refusal(t);
  t = call.at(3, 24);
  t.sinks = {call.q.data(), DType::fp32, {1, 1, 1, 2}, {0, 0, 0, 1}};
  EXPECT_EQ(refusal(t), "sinks is given; this plan was made without it");
  EXPECT_EQ(call.out, before);
  // Both may be less.
  call.run_exact(call.at(2, 23), {});
  const Status status = made->run(nullptr, call.at(2, 23), nullptr, 0);
  ASSERT_TRUE(status.ok()) << status.message();
  call.expect_same_bits();
}

TEST(PlanRange, GradientsOfAnyBatch) {
  RangeCall call(4, 12, 12, 2, 2, 8);
  std::vector<float> dq(call.q.size()), dk(call.k.size()), dv(call.v.size()), dout = call.q;
  const auto at = [&](int64_t batch) {
    AttentionTensors t = call.at(batch, 12);
    t.dout = t.out;
    t.dout.data = dout.data();
    t.dq = t.q;
    t.dq.data = dq.data();
    t.dk = t.k;
    t.dk.data = dk.data();
    t.dv = t.v;
    t.dv.data = dv.data();
    return t;
  };
  AttentionOptions options;
  options.vary_batch = true;
  const Result<Plan> made = plan(make_backward_problem(at(4), options).value(), "cpu", options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  for (int64_t batch = 0; batch <= 4; ++batch) {
    const AttentionTensors t = at(batch);
    ASSERT_TRUE(attention(t, {}, "cpu").ok());
    ASSERT_TRUE(attention_backward(t, {}, "cpu").ok());
    const auto wanted = std::vector{dq, dk, dv};
    for (auto* gradient : {&dq, &dk, &dv}) {
      std::fill_n(gradient->begin(), static_cast<std::size_t>(batch * 12 * 2 * 8), 12345.0F);
    }
    const Status status = made->run(nullptr, t, nullptr, 0);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE((wanted == std::vector{dq, dk, dv})) << batch;
  }
}

TEST(PlanRange, ThreadsShareOne) {
  const Result<Plan> made = [] {
    RangeCall call(3, 4, 64, 2, 2, 8);
    return ranged(call.at(3, 64), {.num_threads = 1}, true, true);
  }();
  ASSERT_TRUE(made.ok()) << made.status().message();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      RangeCall call(3, 4, 64, 2, 2, 8);
      for (int64_t keys = 1; keys <= 64; keys += 7) {
        for (int64_t batch = 0; batch <= 3; ++batch) {
          call.run_exact(call.at(batch, keys), {.num_threads = 1});
          const bool ok = made->run(nullptr, call.at(batch, keys), nullptr, 0).ok();
          if (!ok || call.out != call.expected) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(PlanRange, ExplainNamesTheKernelOfEachSize) {
  RangeCall call(64, 1, 512, 2, 2, 16);
  const Result<Plan> batches = ranged(call.at(64, 512, false), {}, true, false);
  ASSERT_TRUE(batches.ok());
  EXPECT_NE(batches->explain().find("; batch 1 to 64: cpu."), std::string::npos)
      << batches->explain();
  const Result<Plan> lengths = ranged(call.at(64, 512, false), {}, false, true);
  ASSERT_TRUE(lengths.ok());
  EXPECT_NE(lengths->explain().find("; seqlen_k 1"), std::string::npos) << lengths->explain();
  // Each size's own plan says the same.
  for (const int64_t keys : {1, 100, 512}) {
    const Result<Plan> exact = lengths->at(call.at(64, keys, false));
    ASSERT_TRUE(exact.ok()) << exact.status().message();
    EXPECT_EQ(exact->problem().seqlen_k, keys);
    EXPECT_NE(lengths->explain().find(exact->config().kernel), std::string::npos)
        << exact->config().kernel;
  }
  EXPECT_FALSE(lengths->at(call.at(63, 512, false)).ok());
}

TEST(RunOptions, TheBitsOfAPlanWithThem) {
  RangeCall call(2, 40, 70, 2, 1, 8);
  const Result<Plan> made = plan(make_problem(call.at(2, 70), {}).value(), "cpu");
  ASSERT_TRUE(made.ok());
  struct Change {
    RunOptions run;
    AttentionOptions plan;
  };
  for (const Change& change :
       {Change{{.softmax_scale = 0.7F}, {.softmax_scale = 0.7F}},
        Change{{.softcap = 3.0F}, {.softcap = 3.0F}},
        Change{{.window_left = 9}, {.window_left = 9}},
        Change{{.window_left = 9, .window_right = 0},
               {.causal = Causal::bottom_right, .window_left = 9}},
        Change{{.softmax_scale = 0.7F}, {.softmax_scale = 0.7F}}, Change{}}) {
    call.run_exact(call.at(2, 70), change.plan);
    const Status status = made->run(nullptr, call.at(2, 70), nullptr, 0, change.run);
    ASSERT_TRUE(status.ok()) << status.message();
    call.expect_same_bits();
  }
}

TEST(RunOptions, BadOnesAreRefused) {
  RangeCall call(2, 4, 7, 2, 1, 8);
  const Result<Plan> made = plan(make_problem(call.at(2, 7), {}).value(), "cpu");
  ASSERT_TRUE(made.ok());
  call.poison();
  const auto refusal = [&](const RunOptions& options) {
    return made->run(nullptr, call.at(2, 7), nullptr, 0, options).message();
  };
  EXPECT_EQ(refusal({.window_left = -2}), "window_left is -2: -1 (unlimited) or above is accepted");
  EXPECT_EQ(refusal({.softcap = -1.0F}).find("softcap is -1: "), 0U);
  EXPECT_EQ(refusal({.softmax_scale = 2e18F}).find("softmax_scale is 2e+18: "), 0U);
  EXPECT_EQ(call.out[0], 12345.0F);
  // A run of other sizes is refused with options, too.
  EXPECT_EQ(made->run(nullptr, call.at(1, 7), nullptr, 0, {.softcap = 2.0F}).message(),
            "q.shape is [1, 4, 2, 8]; this plan was made for [2, 4, 2, 8]");
}

TEST(PlanRangeC, BatchesAndOptions) {
  RangeCall call(4, 8, 16, 2, 2, 8);
  const fulmen_tensors largest = views(call.at(4, 16));
  fulmen_options options;
  fulmen_options_init(&options);
  options.vary_batch = true;
  fulmen_plan* made = nullptr;
  ASSERT_EQ(fulmen_plan_create(&largest, &options, "cpu", &made), FULMEN_OK) << fulmen_last_error();
  fulmen_run_options run;
  fulmen_run_options_init(&run);
  run.softcap = 5.0F;
  for (const int64_t batch : {0, 1, 3, 4}) {
    const fulmen_tensors t = views(call.at(batch, 16));
    call.run_exact(call.at(batch, 16), {});
    EXPECT_EQ(fulmen_plan_run(made, nullptr, &t, nullptr, 0), FULMEN_OK) << fulmen_last_error();
    call.expect_same_bits();
    call.run_exact(call.at(batch, 16), {.softcap = 5.0F});
    EXPECT_EQ(fulmen_plan_run_with(made, nullptr, &t, &run, nullptr, 0), FULMEN_OK)
        << fulmen_last_error();
    call.expect_same_bits();
    fulmen_plan* exact = nullptr;
    ASSERT_EQ(fulmen_plan_at(made, &t, nullptr, &exact), FULMEN_OK) << fulmen_last_error();
    EXPECT_NE(std::string(fulmen_plan_explain(exact)).find(" b=" + std::to_string(batch) + " "),
              std::string::npos);
    fulmen_plan_destroy(exact);
  }
  const fulmen_tensors t = views(call.at(4, 16));
  run.window_left = -7;
  EXPECT_EQ(fulmen_plan_run_with(made, nullptr, &t, &run, nullptr, 0), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_plan_at(made, &t, nullptr, nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_STREQ(fulmen_last_error(), "exact is null: a pointer is needed");
  fulmen_plan_destroy(made);
}

}  // namespace
}  // namespace fulmen::testing
