// 64 chess boards: 64 squares, 24 heads of depth 32, interleaved: [board, square, head * depth].
#include <fulmen/fulmen.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> q(64 * 64 * 24 * 32, 0.5F), k = q, v(q.size(), 2.0F), out(q.size());
  const auto view = [](std::vector<float>& data) {  // boards, squares, heads, depth
    return fulmen::Tensor::bshd(data.data(), fulmen::DType::fp32, 64, 64, 24, 32);
  };
  const fulmen::Status status =
      fulmen::attention({.q = view(q), .k = view(k), .v = view(v), .out = view(out)});
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("%g\n", out[0]);  // 2: the mean of values that are all 2
}
