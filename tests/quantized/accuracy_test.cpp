// What quantized keys and values cost beside those that they were made of: the relative RMS error
// of the output on normal numbers, on numbers with outlier channels, and on a real encoder's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "support/random.h"

namespace fulmen::testing {
namespace {

// [batch, seqlen, heads, dim], all alike.
struct Inputs {
  int64_t batch, seqlen, heads, dim;
  std::vector<float> q, k, v;
};

Inputs normal_inputs(uint64_t seed, bool outliers) {
  Random random(seed);
  Inputs in{2, 256, 4, 64, {}, {}, {}};
  const auto count = static_cast<std::size_t>(in.batch * in.seqlen * in.heads * in.dim);
  for (std::vector<float>* x : {&in.q, &in.k, &in.v}) {
    for (std::size_t n = 0; n < count; ++n) x->push_back(random.normal());
  }
  // Three channels of K lie around 10, as in language models.
  for (std::size_t n = 0; outliers && n < count; ++n) {
    const auto channel = static_cast<int64_t>(n) % in.dim;
    if (channel == 3 || channel == 17 || channel == 40) in.k[n] += 10;
  }
  return in;
}

std::vector<float> npy_floats(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() < 10) return {};
  const std::size_t header = 10 + static_cast<unsigned char>(bytes[8]) +
                             256U * static_cast<std::size_t>(static_cast<unsigned char>(bytes[9]));
  std::vector<float> x((bytes.size() - header) / sizeof(float));
  std::memcpy(x.data(), bytes.data() + header, x.size() * sizeof(float));
  return x;
}

Inputs real_inputs() {
  const std::filesystem::path folder =
      std::filesystem::path(FULMEN_SOURCE_DIR) / "examples" / "data";
  return {2,
          44,
          6,
          32,
          npy_floats(folder / "q.npy"),
          npy_floats(folder / "k.npy"),
          npy_floats(folder / "v.npy")};
}

std::vector<double> exact(const AttentionTensors& tensors) {
  const Result<Problem> problem = make_problem(tensors, {});
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  const Problem::Shape shape = problem.value().out_shape();
  std::vector<double> out(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  EXPECT_TRUE(attention_reference(problem.value(), tensors, out.data(), nullptr).ok());
  return out;
}

// Relative RMS error of the output; -1 where something failed.
double error_of(const Inputs& in, DType format, bool channels) {
  const auto view = [&](const std::vector<float>& x) {
    return Tensor::bshd(const_cast<float*>(x.data()), DType::fp32, in.batch, in.seqlen, in.heads,
                        in.dim);
  };
  std::vector<float> out(in.q.size());
  AttentionTensors tensors{.q = view(in.q), .k = view(in.k), .v = view(in.v), .out = view(out)};
  const std::vector<double> expected = exact(tensors);

  const auto rows = static_cast<std::size_t>(in.batch * in.seqlen * in.heads);
  const std::size_t bytes = rows * static_cast<std::size_t>(row_elements(format, in.dim));
  std::vector<uint8_t> k(bytes), v(bytes);
  std::vector<float> k_scale(rows * static_cast<std::size_t>(in.dim)), v_scale(rows);
  const auto stored = [&](std::vector<uint8_t>& x) {
    return Tensor::bshd(x.data(), format, in.batch, in.seqlen, in.heads, in.dim);
  };
  tensors.k = stored(k);
  tensors.v = stored(v);
  if (block_bytes(format) == 0) {
    tensors.k_scale =
        channels ? Tensor::bshd(k_scale.data(), DType::fp32, in.batch, 1, in.heads, in.dim)
                 : Tensor::bshd(k_scale.data(), DType::fp32, in.batch, in.seqlen, in.heads, 1);
    tensors.v_scale = Tensor::bshd(v_scale.data(), DType::fp32, in.batch, in.seqlen, in.heads, 1);
  }
  for (const Status& status : {quantize_kv(view(in.k), tensors.k, tensors.k_scale),
                               quantize_kv(view(in.v), tensors.v, tensors.v_scale)}) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  const Status status = attention(tensors, {}, "cpu");
  EXPECT_TRUE(status.ok()) << status.message();
  double squares = 0, errors = 0;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    squares += expected[n] * expected[n];
    errors += (out[n] - expected[n]) * (out[n] - expected[n]);
  }
  return squares > 0 ? std::sqrt(errors / squares) : -1;
}

// Aims: int8 and q8_0 1 %, fp8_e4m3 3 %, q5 4 %, q4 8 %. Where a format's own roundings cost more
// than its aim, the bound is a tenth over what they cost, so that no kernel adds to it.
TEST(QuantizedAccuracy, BesideTheNumbersThatWereStored) {
  struct Bounds {
    DType format;
    double normal, outliers, real;
  };
  const Inputs normal = normal_inputs(1, false), outliers = normal_inputs(2, true),
               real = real_inputs();
  ASSERT_EQ(real.q.size(), 2U * 44 * 6 * 32);
  for (const Bounds& bounds : {Bounds{DType::int8, .01, .0125, .01},
                               {DType::fp8_e4m3, .04, .08, .03},
                               {DType::q8_0, .01, .027, .01},
                               {DType::q5_0, .068, .21, .045},
                               {DType::q5_1, .06, .135, .046},
                               {DType::q4_0, .135, .44, .08},
                               {DType::q4_1, .125, .28, .08}}) {
    const auto expect_below = [&](const char* name, const Inputs& in, bool channels, double most) {
      const double error = error_of(in, bounds.format, channels);
      EXPECT_GT(error, 0);
      EXPECT_LE(error, most) << name << ", " << to_string(bounds.format);
    };
    expect_below("normal", normal, false, bounds.normal);
    expect_below("outlier channels", outliers, true, bounds.outliers);
    expect_below("MiniLM", real, false, bounds.real);
  }
}

}  // namespace
}  // namespace fulmen::testing
