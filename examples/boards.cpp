// 64 chess boards of 64 squares, 24 heads of depth 32, interleaved in memory: [board, square, head * depth].
#include <fulmen/fulmen.h>

#include <cstdio>
#include <vector>

int main() {
  constexpr int kBoards = 64, kSquares = 64, kHeads = 24, kDepth = 32;
  std::vector<float> q(kBoards * kSquares * kHeads * kDepth, 0.5F), k = q, v(q.size(), 2.0F), out(q.size());
  const auto view = [](std::vector<float>& data) {
    return fulmen::Tensor::bshd(data.data(), fulmen::DType::fp32, kBoards, kSquares, kHeads, kDepth);
  };
  const fulmen::Status status = fulmen::attention({.q = view(q), .k = view(k), .v = view(v), .out = view(out)});
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("%g\n", out[0]);  // 2: the mean of values that are all 2
}
