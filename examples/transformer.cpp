// A causal layer of a language model: 2 sequences of 128 tokens, 8 query heads on 2 KV heads.
#include <fulmen/fulmen.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> q(2 * 128 * 8 * 64, 0.5F), k(2 * 128 * 2 * 64, 0.5F);
  std::vector<float> v(k.size(), 2.0F), out(q.size());
  const auto view = [](std::vector<float>& data, int heads) {  // [batch, seqlen, heads, head_dim]
    return fulmen::Tensor::bshd(data.data(), fulmen::DType::fp32, 2, 128, heads, 64);
  };
  fulmen::AttentionOptions options;
  options.causal = fulmen::Causal::bottom_right;
  const fulmen::Status status = fulmen::attention(
      {.q = view(q, 8), .k = view(k, 2), .v = view(v, 2), .out = view(out, 8)}, options);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("%g\n", out[0]);  // 2: the mean of values that are all 2
}
