// A plan is made once and run often: here one token after the other attends a cache of keys and
// values that grows, causally.
#include <fulmen/fulmen.h>

#include <cstdio>
#include <vector>

int main() {
  constexpr int kCache = 4096, kHeads = 32, kKvHeads = 8, kDepth = 128;
  std::vector<float> q(kHeads * kDepth, 1.0F), k(kCache * kKvHeads * kDepth, 1.0F),
      v(k.size(), 3.0F), out(q.size()), lse(kHeads);
  const auto view = [](std::vector<float>& data, int seqlen, int heads) {
    return fulmen::Tensor::bshd(data.data(), fulmen::DType::fp32, 1, seqlen, heads, kDepth);
  };
  fulmen::AttentionTensors tensors{.q = view(q, 1, kHeads),
                                   .k = view(k, kCache, kKvHeads),
                                   .v = view(v, kCache, kKvHeads),
                                   .out = view(out, 1, kHeads)};
  tensors.lse = fulmen::Tensor::bhqk(lse.data(), fulmen::DType::fp32, 1, kHeads, 1, 1);

  fulmen::AttentionOptions options;
  options.causal = fulmen::Causal::bottom_right;
  options.vary_seqlen_k = true;  // kCache is the most keys that the plan takes
  const auto problem = fulmen::make_problem(tensors, options);
  if (!problem.ok()) return std::fprintf(stderr, "%s\n", problem.status().message().c_str()), 1;
  const auto plan = fulmen::plan(problem.value(), "cpu", options);
  if (!plan.ok()) return std::fprintf(stderr, "%s\n", plan.status().message().c_str()), 1;

  const auto workspace = fulmen::Workspace::make(plan.value());
  if (!workspace.ok()) return std::fprintf(stderr, "%s\n", workspace.status().message().c_str()), 1;
  for (int keys = kCache - 2; keys <= kCache; ++keys) {
    tensors.k.shape[1] = tensors.v.shape[1] = keys;
    const fulmen::Status status =
        plan->run(nullptr, tensors, workspace->data(), workspace->bytes());
    if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  }
  std::printf("%g %.3f\n", out[0], lse[0]);  // 3 19.631: sqrt(128) + log(4096)
}
