// Empty tensors may be at null, for every kernel, the reference and a KV cache. UBSan sees an
// offset that is added to null.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"

namespace fulmen {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8;

// Which size is 0.
struct Empty {
  const char* name;
  int64_t batch, seqlen_q, seqlen_k;
};
constexpr Empty kEmpty[] = {
    {"batch", 0, 3, 5}, {"queries", 2, 0, 5}, {"keys", 2, 3, 0}, {"all", 0, 0, 0}};

struct NullCall {
  std::vector<float> memory = std::vector<float>(4096, 0.5F);
  AttentionTensors tensors;

  NullCall(const Empty& e, DType dtype, bool backward) {
    AttentionTensors& t = tensors;
    t.q = Tensor::bshd(nullptr, dtype, e.batch, e.seqlen_q, kHeads, kDim);
    t.k = t.v = Tensor::bshd(nullptr, dtype, e.batch, e.seqlen_k, kKvHeads, kDim);
    t.out = t.q;
    t.bias = Tensor::bhqk(nullptr, dtype, e.batch, kHeads, e.seqlen_q, e.seqlen_k);
    t.keep_mask = Tensor::bhqk(nullptr, DType::boolean, e.batch, kHeads, e.seqlen_q, e.seqlen_k);
    t.alibi_slopes = t.sinks = Tensor::vector(nullptr, DType::fp32, kHeads);
    t.lse = Tensor::bhqk(nullptr, DType::fp32, e.batch, kHeads, e.seqlen_q, 1);
    if (backward) {
      t.dout = t.out;
      t.dlse = t.lse;
      t.dq = t.q;
      t.dk = t.k;
      t.dv = t.v;
      t.dbias = t.bias;
      t.dsinks = t.sinks;
    }
    // Each tensor with elements has memory of its own.
    float* next = memory.data();
    for (Tensor* one : std::initializer_list<Tensor*>{
             &t.q, &t.k, &t.v, &t.out, &t.bias, &t.keep_mask, &t.alibi_slopes, &t.sinks, &t.lse,
             &t.dout, &t.dlse, &t.dq, &t.dk, &t.dv, &t.dbias, &t.dsinks}) {
      const int64_t count = one->shape[0] * one->shape[1] * one->shape[2] * one->shape[3];
      if (count == 0) continue;
      one->data = next;
      next += count;
      // Without keys the forward pass gives 0, and the sink as the lse, 0.5 here.
      if (backward && one == &t.out) std::fill(next - count, next, 0.0F);
    }
  }
};

TEST(EmptyTensors, MayBeAtNullForEveryKernel) {
  int runs = 0;
  for (const Empty& empty : kEmpty) {
    for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
      for (const bool backward : {false, true}) {
        NullCall call(empty, dtype, backward);
        const auto problem =
            backward ? make_backward_problem(call.tensors, {}) : make_problem(call.tensors, {});
        ASSERT_TRUE(problem.ok()) << empty.name << ": " << problem.status().message();
        const auto all = candidates(problem.value(), "cpu");
        ASSERT_TRUE(all.ok());
        for (const Candidate& candidate : all.value()) {
          if (!candidate.support.yes) continue;
          AttentionOptions options;
          options.kernel = candidate.kernel;
          options.verify = true;
          const auto made = plan(problem.value(), "cpu", options);
          ASSERT_TRUE(made.ok()) << made.status().message();
          const Status status = made->run(nullptr, call.tensors, nullptr, 0);
          EXPECT_TRUE(status.ok())
              << candidate.kernel << ", no " << empty.name << ": " << status.message();
          ++runs;
        }
        std::vector<double> out(1024), lse(256), dq(1024), dk(1024), dv(1024), dbias(1024),
            dsinks(kHeads);
        const Status reference =
            backward ? attention_backward_reference(
                           problem.value(), call.tensors,
                           {dq.data(), dk.data(), dv.data(), dbias.data(), dsinks.data()})
                     : attention_reference(problem.value(), call.tensors, out.data(), lse.data());
        EXPECT_TRUE(reference.ok()) << reference.message();
      }
    }
  }
  EXPECT_GT(runs, 24) << "an oracle and a kernel at least for each";
}

TEST(EmptyTensors, MayBeAtNullForAKvCache) {
  for (const int64_t batch : {0, 2}) {
    std::vector<float> cache(2 * 6 * kKvHeads * kDim);
    std::vector<int> used(2);
    KvCacheTensors t;
    t.k_cache =
        Tensor::bshd(batch > 0 ? cache.data() : nullptr, DType::fp32, batch, 3, kKvHeads, kDim);
    t.v_cache = Tensor::bshd(batch > 0 ? cache.data() + 3 * 2 * kKvHeads * kDim : nullptr,
                             DType::fp32, batch, 3, kKvHeads, kDim);
    t.seqlens_k = Tensor::vector(batch > 0 ? used.data() : nullptr, DType::int32, batch);
    t.k_new = t.v_new =
        Tensor::bshd(nullptr, DType::fp32, batch, batch > 0 ? 0 : 2, kKvHeads, kDim);
    const Status status = append_kv(t, {}, "cpu");
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace fulmen
