// The mean of two values, which attention over two equal keys gives exactly.
#include <fulmen/fulmen.h>

#include <cstdio>

int main() {
  float q = 1, k[2] = {1, 1}, v[2] = {2, 3}, out = 0;
  const auto row = [](float* data, int rows) {
    return fulmen::Tensor::bshd(data, fulmen::DType::fp32, 1, rows, 1, 1);
  };
  const fulmen::Status status =
      fulmen::attention({.q = row(&q, 1), .k = row(k, 2), .v = row(v, 2), .out = row(&out, 1)});
  std::printf("fulmen %s: %g\n", fulmen::version(), out);
  return status.ok() && out == 2.5F ? 0 : 1;
}
