// `fulmen run` and explain on sequences of different lengths and paged keys, whose tables are int32
// files.
#include <vector>

#include "program.h"

namespace fulmen::test {
namespace {

constexpr int64_t kBatch = 2, kQueries = 3, kKeys = 8, kHeads = 4, kDim = 16, kPage = 4;

class SequencesTest : public ProgramTest {
 protected:
  void write_ints(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<int>& values) const {
    write_array(name, DType::int32, shape, values.data());
  }
  void write_operands() const {
    write_array("q.npy", DType::fp32, {kBatch, kQueries, kHeads, kDim},
                numbers(kBatch * kQueries * kHeads * kDim, 1).data());
    const std::vector<float> k = numbers(kBatch * kKeys * kHeads * kDim, 2),
                             v = numbers(kBatch * kKeys * kHeads * kDim, 3);
    write_array("k.npy", DType::fp32, {kBatch, kKeys, kHeads, kDim}, k.data());
    write_array("v.npy", DType::fp32, {kBatch, kKeys, kHeads, kDim}, v.data());
    // The same rows in pages, in another order.
    const std::vector<int> order{2, 0, 3, 1};
    constexpr int64_t kPageFloats = kPage * kHeads * kDim;
    std::vector<float> paged_k(k.size()), paged_v(v.size());
    for (int64_t page = 0; page < 4; ++page) {
      const auto to = order[static_cast<std::size_t>(page)] * kPageFloats;
      std::copy_n(k.begin() + page * kPageFloats, kPageFloats, paged_k.begin() + to);
      std::copy_n(v.begin() + page * kPageFloats, kPageFloats, paged_v.begin() + to);
    }
    write_array("paged_k.npy", DType::fp32, {4, kPage, kHeads, kDim}, paged_k.data());
    write_array("paged_v.npy", DType::fp32, {4, kPage, kHeads, kDim}, paged_v.data());
    write_ints("table.npy", {2, 2}, order);
    write_ints("used.npy", {2}, {7, 3});
  }
  std::string output(const std::string& name) const { return read_text(path(name)); }
};

TEST_F(SequencesTest, PagesGiveWhatPaddedRowsGive) {
  write_operands();
  Outcome outcome = fulmen({"run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--seqlens-k",
                            "used.npy", "--causal", "--verify", "--kernel", "cpu.prefill.scalar",
                            "--out", "padded.npy", "--lse", "padded_lse.npy"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  outcome =
      fulmen({"run", "--q", "q.npy", "--k", "paged_k.npy", "--v", "paged_v.npy", "--seqlens-k",
              "used.npy", "--block-table", "table.npy", "--causal", "--verify", "--kernel",
              "cpu.prefill.scalar", "--out", "paged.npy", "--lse", "paged_lse.npy"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_FALSE(output("padded.npy").empty());
  EXPECT_EQ(output("padded.npy"), output("paged.npy"));
  EXPECT_EQ(output("padded_lse.npy"), output("paged_lse.npy"));
}

// Queries, keys and gradients of packed sequences; the longest is found in the files.
TEST_F(SequencesTest, PackedForwardAndBackward) {
  write_array("q.npy", DType::fp32, {1, 10, kHeads, kDim}, numbers(10 * kHeads * kDim, 1).data());
  write_array("k.npy", DType::fp32, {1, 15, kHeads, kDim}, numbers(15 * kHeads * kDim, 2).data());
  write_array("v.npy", DType::fp32, {1, 15, kHeads, kDim}, numbers(15 * kHeads * kDim, 3).data());
  write_array("dout.npy", DType::fp32, {1, 10, kHeads, kDim},
              numbers(10 * kHeads * kDim, 4).data());
  write_ints("cu_q.npy", {4}, {1, 6, 6, 9});
  write_ints("cu_k.npy", {4}, {0, 7, 9, 15});
  const std::vector<std::string> packed{
      "--q",   "q.npy",          "--k",      "k.npy",          "--v",
      "v.npy", "--cu-seqlens-q", "cu_q.npy", "--cu-seqlens-k", "cu_k.npy"};
  std::vector<std::string> arguments{"run",   "--backward", "--dout",  "dout.npy",
                                     "--out", "out.npy",    "--dq",    "dq.npy",
                                     "--dk",  "dk.npy",     "--verify"};
  arguments.insert(arguments.end(), packed.begin(), packed.end());
  Outcome outcome = fulmen(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto out = tools::read_npy(path("out.npy"), false);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->shape, (std::vector<int64_t>{1, 10, kHeads, kDim}));
  const auto* floats = static_cast<const float*>(out->data.data());
  for (int64_t n = 0; n < kHeads * kDim; ++n) {
    EXPECT_EQ(floats[n], 0.0F) << "a row that belongs to no sequence";
    EXPECT_NE(floats[kHeads * kDim + n], 0.0F);
    EXPECT_EQ(floats[9 * kHeads * kDim + n], 0.0F);
  }
  arguments = {"explain"};
  arguments.insert(arguments.end(), packed.begin(), packed.end());
  outcome = fulmen(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("b=3 sq=5 sk=7"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("packed_q=10 packed_k=15"), std::string::npos) << outcome.out;
}

TEST_F(SequencesTest, BadTablesAreRefused) {
  write_operands();
  const auto refused = [&](const std::vector<std::string>& more, const std::string& said) {
    std::vector<std::string> arguments{"run", "--q",   "q.npy", "--k",    "k.npy",
                                       "--v", "v.npy", "--out", "out.npy"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_one_sentence(fulmen(arguments), said);
  };
  refused({"--seqlens-k", "q.npy"},
          "--seqlens-k (q.npy): fp32 [2, 3, 4, 16] is not int32 with one dim");
  refused({"--block-table", "used.npy"},
          "--block-table (used.npy): int32 [2] is not int32 [batch, max_pages]");
  write_ints("used.npy", {2}, {7, 9});
  refused({"--seqlens-k", "used.npy"}, "seqlens_k[1] is 9");
  refused({"--cu-seqlens-q", "used.npy"},
          "q.shape is [2, 3, 4, 16]: with cu_seqlens_q it is packed");
  refused({"--bias", "used.npy"}, "used.npy");
}

}  // namespace
}  // namespace fulmen::test
