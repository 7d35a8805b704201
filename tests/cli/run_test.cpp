// `fulmen run` on real input and in every layout and dtype.
#include <cmath>
#include <cstring>

#include "program.h"
#include "tools/tensors/float_conversion.h"

namespace fulmen::test {
namespace {

using tools::NpyArray;
using tools::read_npy;

class RunTest : public ProgramTest {
 protected:
  NpyArray load(const std::string& path, bool bf16 = false) const {
    Result<NpyArray> array = read_npy(path, bf16);
    EXPECT_TRUE(array.ok()) << array.status().message();
    return array.ok() ? std::move(array).value() : NpyArray{};
  }
  static double largest_difference(const NpyArray& a, const NpyArray& b) {
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(a.dtype, DType::fp32);
    EXPECT_EQ(b.dtype, DType::fp32);
    double worst = 0;
    for (std::size_t i = 0; i < a.element_count(); ++i) {
      const double difference = std::fabs(double{floats(a)[i]} - double{floats(b)[i]});
      worst = difference <= worst ? worst : difference;  // NaN counts
    }
    return worst;
  }
  static const float* floats(const NpyArray& array) {
    return static_cast<const float*>(array.data.data());
  }
  // The example's inputs and more.
  Outcome run_example(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"run"};
    for (const std::string& argument : example_inputs()) arguments.push_back(argument);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return fulmen(arguments);
  }
  // The example's tensor [batch, seqlen, head, dim], heads before the sequence.
  void write_heads_first(const std::string& name) const {
    const NpyArray from = load(example(name));
    const auto& s = from.shape;
    std::vector<float> to(from.element_count());
    for (int64_t b = 0; b < s[0]; ++b) {
      for (int64_t i = 0; i < s[1]; ++i) {
        for (int64_t h = 0; h < s[2]; ++h) {
          std::memcpy(&to[static_cast<std::size_t>(((b * s[2] + h) * s[1] + i) * s[3])],
                      floats(from) + ((b * s[1] + i) * s[2] + h) * s[3],
                      static_cast<std::size_t>(s[3]) * sizeof(float));
        }
      }
    }
    write_array(name, DType::fp32, {s[0], s[2], s[1], s[3]}, to.data());
  }
};

TEST_F(RunTest, RealInputGivesTheExactOutput) {
  const Outcome outcome = run_example({"--out", "out.npy", "--lse", "lse.npy"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("cpu."), std::string::npos) << "the kernel is named: " << outcome.out;
  EXPECT_LT(largest_difference(load(path("out.npy")), load(example("out.npy"))), 2e-6);
  // The values are up to 97.
  EXPECT_LT(largest_difference(load(path("lse.npy")), load(example("lse.npy"))), 5e-5);
  EXPECT_EQ(files(), (std::vector<std::string>{"lse.npy", "out.npy"}));
}

TEST_F(RunTest, VerifyAndForcedKernel) {
  const Outcome outcome = run_example(
      {"--out", "out.npy", "--verify", "--kernel", "cpu.standard.plain", "--threads", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("cpu.standard.plain"), std::string::npos) << outcome.out;
  EXPECT_LT(largest_difference(load(path("out.npy")), load(example("out.npy"))), 1e-5);
}

TEST_F(RunTest, ProductsInEightBits) {
  for (const char* precision : {"int8", "fp8"}) {
    const Outcome outcome = run_example({"--out", "out.npy", "--verify", "--precision", precision});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_GT(largest_difference(load(path("out.npy")), load(example("out.npy"))), 1e-3)
        << precision << ": nothing was rounded";
  }
  const Outcome refused = run_example({"--out", "out.npy", "--precision", "int4"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("--precision: int4 not in {exact,int8,fp8}"), std::string::npos)
      << refused.err;
}

TEST_F(RunTest, BfloatOutputIsUint16AndReadsBack) {
  const Outcome outcome = run_example({"--out", "out.npy", "--dtype", "bf16"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(read_text(path("out.npy")).find("'<u2'"), std::string::npos);
  const NpyArray bf16 = load(path("out.npy"), true);
  const NpyArray exact = load(example("out.npy"));
  ASSERT_EQ(bf16.shape, exact.shape);
  double worst = 0;
  for (std::size_t i = 0; i < exact.element_count(); ++i) {
    const uint32_t bits = uint32_t{static_cast<const uint16_t*>(bf16.data.data())[i]} << 16;
    worst =
        std::max(worst, std::fabs(double{std::bit_cast<float>(bits)} - double{floats(exact)[i]}));
  }
  EXPECT_LT(worst, 0.1);  // inputs lose 16 bits; scores reach 97
  EXPECT_GT(worst, 1e-6) << "computed in fp32, not bf16";
}

TEST_F(RunTest, LayoutsAgree) {
  ASSERT_EQ(run_example({"--out", "bshd.npy"}).exit_code, 0);
  for (const char* name : {"q.npy", "k.npy", "v.npy"}) write_heads_first(name);
  const Outcome bhsd = fulmen({"run", "--layout", "bhsd", "--q", "q.npy", "--k", "k.npy", "--v",
                               "v.npy", "--keep", example("keep.npy"), "--out", "out.npy"});
  ASSERT_EQ(bhsd.exit_code, 0) << bhsd.err;
  const NpyArray expected = load(path("bshd.npy"));
  const NpyArray heads_first = load(path("out.npy"));
  const auto& s = expected.shape;
  ASSERT_EQ(heads_first.shape, (std::vector<int64_t>{s[0], s[2], s[1], s[3]}));
  for (int64_t h = 0; h < s[2]; ++h) {
    for (int64_t i = 0; i < s[1]; ++i) {
      ASSERT_NEAR(floats(heads_first)[(h * s[1] + i) * s[3]],
                  floats(expected)[(i * s[2] + h) * s[3]], 1e-6)
          << h << ' ' << i;
    }
  }
  // Interleaved files are the same bytes with the last two sizes merged.
  for (const char* name : {"q.npy", "k.npy", "v.npy"}) {
    const NpyArray array = load(example(name));
    write_array(name, DType::fp32, {s[0], s[1], s[2] * s[3]}, array.data.data());
  }
  const Outcome interleaved =
      fulmen({"run", "--layout", "interleaved", "--heads", "6", "--q", "q.npy", "--k", "k.npy",
              "--v", "v.npy", "--keep", example("keep.npy"), "--out", "out.npy"});
  ASSERT_EQ(interleaved.exit_code, 0) << interleaved.err;
  const NpyArray merged = load(path("out.npy"));
  EXPECT_EQ(merged.shape, (std::vector<int64_t>{s[0], s[1], s[2] * s[3]}));
  EXPECT_EQ(std::memcmp(merged.data.data(), expected.data.data(),
                        expected.element_count() * sizeof(float)),
            0);
}

// One query and two keys by hand: weights 1/(1+e) and e/(1+e), or changed by an option.
TEST_F(RunTest, EveryOptionReachesTheComputation) {
  const float q[] = {1}, k[] = {0, 1}, v[] = {0, 1}, bias[] = {1, 0}, slope[] = {1}, sink[] = {1};
  const uint8_t keep[] = {1, 0};
  write_array("q.npy", DType::fp32, {1, 1, 1, 1}, q);
  write_array("k.npy", DType::fp32, {1, 2, 1, 1}, k);
  write_array("v.npy", DType::fp32, {1, 2, 1, 1}, v);
  write_array("bias.npy", DType::fp32, {1, 2}, bias);
  write_array("slope.npy", DType::fp32, {1}, slope);
  write_array("sink.npy", DType::fp32, {1}, sink);
  write_array("keep.npy", DType::boolean, {1, 2}, keep);
  const double e = std::exp(1.0);
  struct Case {
    std::vector<std::string> options;
    double expected;
  };
  for (const auto& [options, expected] :
       {Case{{}, e / (1 + e)}, Case{{"--scale", "-1"}, 1 / (1 + e)},
        Case{{"--bias", "bias.npy"}, 0.5}, Case{{"--keep", "keep.npy"}, 0},
        Case{{"--alibi", "slope.npy"}, e / (1 / e + e)},
        Case{{"--sinks", "sink.npy"}, e / (1 + 2 * e)},
        Case{{"--softcap", "0.5"}, 1 / (1 + std::exp(-0.5 * std::tanh(2.0)))},
        Case{{"--score-mod", "score + 2.0 * k"}, 1 / (1 + std::exp(-3.0))},
        Case{{"--mask-mod", "k < 1"}, 0}, Case{{"--causal=top-left"}, 0},
        Case{{"--causal"}, e / (1 + e)}, Case{{"--window", "0,-1"}, 1},
        Case{{"--window", "-1,0"}, e / (1 + e)}}) {
    std::vector<std::string> arguments{"run", "--q",   "q.npy", "--k",    "k.npy",
                                       "--v", "v.npy", "--out", "out.npy"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = fulmen(arguments);
    const std::string what = options.empty() ? "no option" : options.front();
    ASSERT_EQ(outcome.exit_code, 0) << what << ": " << outcome.err;
    EXPECT_NEAR(floats(load(path("out.npy")))[0], expected, 1e-6) << what;
  }
}

}  // namespace
}  // namespace fulmen::test
