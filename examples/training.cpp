// Training: the forward pass keeps the log-sum-exp, the backward pass turns the loss's gradient by
// the output into those by the inputs.
#include <fulmen/fulmen.h>

#include <cstdio>
#include <vector>

int main() {
  constexpr int kBoards = 64, kSquares = 64, kHeads = 24, kDepth = 32;
  std::vector<float> q(kBoards * kSquares * kHeads * kDepth, 0.5F), k = q, v(q.size(), 2.0F),
                                                                    out(q.size());
  std::vector<float> bias(kHeads * kSquares * kSquares), lse(kBoards * kHeads * kSquares);
  std::vector<float> dout(q.size(), 1.0F), dq(q.size()), dk(q.size()), dv(q.size()),
      dbias(bias.size());
  const auto view = [](std::vector<float>& data) {
    return fulmen::Tensor::bshd(data.data(), fulmen::DType::fp32, kBoards, kSquares, kHeads,
                                kDepth);
  };
  fulmen::AttentionTensors t{.q = view(q), .k = view(k), .v = view(v), .out = view(out)};
  t.bias = fulmen::Tensor::bhqk(bias.data(), fulmen::DType::fp32, 1, kHeads, kSquares,
                                kSquares);  // the same for all boards
  t.lse = fulmen::Tensor::bhqk(lse.data(), fulmen::DType::fp32, kBoards, kHeads, kSquares, 1);
  fulmen::Status status = fulmen::attention(t);

  t.dout = view(dout), t.dq = view(dq), t.dk = view(dk),
  t.dv = view(dv);  // one without data would not be computed
  t.dbias = fulmen::Tensor::bhqk(dbias.data(), fulmen::DType::fp32, 1, kHeads, kSquares,
                                 kSquares);  // the sum over the boards
  if (status.ok()) status = fulmen::attention_backward(t);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("%.4g\n", dv[0]);  // 1: a 64th of the gradient of each of 64 outputs
}
