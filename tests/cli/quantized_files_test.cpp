// `fulmen run` on files of keys and values in 8 bits and less: bytes without a header.
#include <vector>

#include "fulmen/fulmen.h"
#include "program.h"

namespace fulmen::test {
namespace {

constexpr int64_t kB = 2, kQ = 3, kK = 9, kH = 4, kKvHeads = 2, kD = 64;

class QuantizedFilesTest : public ProgramTest {
 protected:
  // k or v as a file in a format, and as one of the numbers that it holds.
  void write_keys(const std::string& name, DType format, int64_t seed) const {
    std::vector<float> x = numbers(kB * kK * kKvHeads * kD, seed);
    std::string bytes(static_cast<std::size_t>(kB * kK * kKvHeads * row_elements(format, kD)), 0);
    std::vector<float> scales(kB * kK * kKvHeads);
    const Tensor plain = Tensor::bshd(x.data(), DType::fp32, kB, kK, kKvHeads, kD),
                 stored = Tensor::bshd(bytes.data(), format, kB, kK, kKvHeads, kD);
    Tensor scale;
    if (block_bytes(format) == 0)
      scale = Tensor::bshd(scales.data(), DType::fp32, kB, kK, kKvHeads, 1);
    ASSERT_TRUE(quantize_kv(plain, stored, scale).ok());
    ASSERT_TRUE(dequantize_kv(stored, scale, plain).ok());
    write_bytes(name + ".bin", bytes);
    write_array(name + "_scale.npy", DType::fp32, {kB, kK, kKvHeads, 1}, scales.data());
    write_array(name + ".npy", DType::fp32, {kB, kK, kKvHeads, kD}, x.data());
  }
};

TEST_F(QuantizedFilesTest, GiveWhatTheirNumbersGive) {
  write_array("q.npy", DType::fp32, {kB, kQ, kH, kD}, numbers(kB * kQ * kH * kD, 1).data());
  write_keys("k", DType::int8, 2);
  write_keys("v", DType::q4_0, 3);
  Outcome outcome = fulmen({"run", "--q", "q.npy", "--k", "k.bin", "--v", "v.bin", "--kv-heads",
                            "2", "--k-format", "int8", "--k-scale", "k_scale.npy", "--v-format",
                            "q4_0", "--verify", "--out", "stored.npy"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  outcome = fulmen({"run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "plain.npy"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto stored = tools::read_npy(path("stored.npy"), false),
             plain = tools::read_npy(path("plain.npy"), false);
  ASSERT_TRUE(stored.ok() && plain.ok());
  ASSERT_EQ(stored->shape, plain->shape);
  for (std::size_t i = 0; i < stored->element_count(); ++i) {
    EXPECT_NEAR(static_cast<const float*>(stored->data.data())[i],
                static_cast<const float*>(plain->data.data())[i], 1e-5)
        << i;
  }
}

TEST_F(QuantizedFilesTest, RefusalsNameTheFile) {
  write_array("q.npy", DType::fp32, {kB, kQ, kH, kD}, numbers(kB * kQ * kH * kD, 1).data());
  write_keys("k", DType::q8_0, 2);
  const std::vector<std::string> files{"run",   "--q",   "q.npy",   "--k",        "k.bin", "--v",
                                       "k.bin", "--out", "out.npy", "--kv-heads", "2"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), files.begin(), files.end());
    return fulmen(more);
  };
  Outcome outcome = run({"--k-format", "q5_0", "--v-format", "q8_0"});
  EXPECT_NE(outcome.exit_code, 0) << outcome.out;
  EXPECT_NE(outcome.err.find("--k (k.bin): has 2448 bytes, no multiple of 176"), std::string::npos)
      << outcome.err;
  // Sizes whose product is 2^64, and one that is 0.
  write_array("narrow.npy", DType::fp32, {1, 1, 4, 8}, numbers(32, 1).data());
  outcome =
      fulmen({"run", "--q", "narrow.npy", "--k", "k.bin", "--v", "k.bin", "--k-format", "int8",
              "--v-format", "int8", "--kv-heads", "2305843009213693952", "--out", "out.npy"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("--k (k.bin): has 2448 bytes, no multiple of 2^63 and more (batch 1 x "
                             "2305843009213693952 heads x rows of 8 bytes"),
            std::string::npos)
      << outcome.err;
  write_array("none.npy", DType::fp32, {0, kQ, kH, kD}, numbers(1, 1).data());
  outcome = fulmen({"run", "--q", "none.npy", "--k", "k.bin", "--v", "k.bin", "--k-format", "int8",
                    "--v-format", "int8", "--out", "out.npy"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("its size does not say seqlen_k"), std::string::npos) << outcome.err;
  outcome = run({"--k-format", "q9"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("--k-format"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace fulmen::test
