#include <cstdio>

#include "fulmen/fulmen.h"

int main() {
  // Both keys score the same, so the output is the mean of the two values.
  float q[1] = {0}, k[2] = {1, 1}, v[2] = {2, 3}, out[1] = {0};
  using fulmen::DType, fulmen::Tensor;
  const fulmen::Status status =
      fulmen::attention({.q = Tensor::bshd(q, DType::fp32, 1, 1, 1, 1),
                         .k = Tensor::bshd(k, DType::fp32, 1, 2, 1, 1),
                         .v = Tensor::bshd(v, DType::fp32, 1, 2, 1, 1),
                         .out = Tensor::bshd(out, DType::fp32, 1, 1, 1, 1)});
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("%s %g\n", fulmen::version(), out[0]);
}
