// Everything that can be wrong with a command: one sentence, exit 2, and no file created or changed.
#include <array>

#include "program.h"

namespace fulmen::test {
namespace {

class BadInputTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    const std::vector<float> zeros(64);
    write_array("x.npy", DType::fp32, {1, 4, 2, 8}, zeros.data());
    write_array("other_batch.npy", DType::fp32, {2, 4, 1, 8}, zeros.data());
    write_array("flat.npy", DType::fp32, {8, 8}, zeros.data());
    write_array("merged.npy", DType::fp32, {1, 4, 16}, zeros.data());
    write_array("half.npy", DType::fp16, {1, 4, 2, 8}, zeros.data());
    write_array("bits.npy", DType::bf16, {1, 4, 2, 8}, zeros.data());
    write_array("mask.npy", DType::boolean, {1, 4}, zeros.data());
    write_bytes("double.npy", npy_bytes(1, dict("<f8", "(1, 4, 2, 8)"), std::string(512, '\0')));
    write_bytes("fortran.npy", npy_bytes(2, dict("<f4", "(1, 4, 2, 8)", "True"), std::string(256, '\0')));
    write_bytes("short.npy", npy_bytes(3, dict("<f4", "(1, 4, 2, 8)"), std::string(100, '\0')));
    write_bytes("text.npy", "not an array");
    std::filesystem::create_directory(path("folder.npy"));
  }

  // Runs with out.npy and lse.npy as outputs, fresh or already there, and looks at the folder afterwards.
  void expect_refused(std::vector<std::string> arguments, const std::string& part) const {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), {"--out", "out.npy", "--lse", "lse.npy"});
    const std::vector<std::string> before = files();
    expect_one_sentence(fulmen(arguments), part);
    EXPECT_EQ(files(), before);
    write_bytes("out.npy", "old");
    write_bytes("lse.npy", "old");
    expect_one_sentence(fulmen(arguments), part);
    EXPECT_EQ(read_text(path("out.npy")), "old");
    EXPECT_EQ(read_text(path("lse.npy")), "old");
    std::filesystem::remove(path("out.npy"));
    std::filesystem::remove(path("lse.npy"));
    EXPECT_EQ(files(), before);
  }
  static std::vector<std::string> inputs(const std::string& q, const std::string& k, const std::string& v) {
    return {"--q", q, "--k", k, "--v", v};
  }
  static std::vector<std::string> good_inputs(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = inputs("x.npy", "x.npy", "x.npy");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(BadInputTest, Files) {
  expect_refused(inputs("none.npy", "x.npy", "x.npy"), "none.npy: No such file");
  expect_refused(inputs("x.npy", "folder.npy", "x.npy"), "folder.npy: ");
  expect_refused(inputs("x.npy", "x.npy", "text.npy"), "text.npy: not a .npy file");
  expect_refused(inputs("double.npy", "x.npy", "x.npy"), "astype(numpy.float32)");
  expect_refused(inputs("fortran.npy", "x.npy", "x.npy"), "ascontiguousarray");
  expect_refused(inputs("short.npy", "x.npy", "x.npy"), "needs 256 bytes");
  expect_refused({"--q", "x.npy", "--k", "x.npy"}, "--q, --k and --v");
}

TEST_F(BadInputTest, Shapes) {
  expect_refused(inputs("x.npy", "other_batch.npy", "x.npy"), "shape");
  expect_refused(inputs("flat.npy", "x.npy", "x.npy"), "[8, 8] is not [batch, seqlen, head, dim]");
  expect_refused(good_inputs({"--heads", "3"}), "2 heads");
  expect_refused({"--layout", "interleaved", "--q", "merged.npy", "--k", "merged.npy", "--v", "merged.npy"}, "--heads");
  expect_refused({"--layout", "interleaved", "--heads", "5", "--q", "merged.npy", "--k", "merged.npy", "--v", "merged.npy"},
                 "multiple of 5");
  expect_refused(good_inputs({"--bias", "merged.npy"}), "bias");
  expect_refused(good_inputs({"--keep", "x.npy"}), "not bool");
  expect_refused(good_inputs({"--alibi", "merged.npy"}), "--alibi");
  expect_refused(good_inputs({"--sinks", "flat.npy"}), "--sinks");
}

TEST_F(BadInputTest, Types) {
  expect_refused(inputs("x.npy", "half.npy", "x.npy"), "fp16");
  expect_refused(inputs("bits.npy", "bits.npy", "bits.npy"), "--bf16");
  expect_refused(inputs("mask.npy", "x.npy", "x.npy"), "bool");
  expect_refused({"--dtype", "bf16", "--q", "half.npy", "--k", "half.npy", "--v", "half.npy"}, "converts from fp32 only");
  expect_refused(good_inputs({"--bias", "mask.npy"}), "--keep");
}

TEST_F(BadInputTest, Options) {
  expect_refused(good_inputs({"--dtype", "fp64"}), "--dtype");
  expect_refused(good_inputs({"--layout", "sbhd"}), "--layout");
  expect_refused(good_inputs({"--causal=upper"}), "--causal=upper");
  expect_refused(good_inputs({"--window", "3"}), "--window 3");
  expect_refused(good_inputs({"--window", "-2,0"}), "--window -2,0");
  expect_refused(good_inputs({"--window", "1,2,3"}), "--window 1,2,3");
  expect_refused(good_inputs({"--scale", "big"}), "--scale");
  expect_refused(good_inputs({"--scale", "inf"}), "scale");
  expect_refused(good_inputs({"--softcap", "-1"}), "softcap");
  expect_refused(good_inputs({"--heads", "0"}), "--heads");
  expect_refused(good_inputs({"--threads", "-1"}), "--threads");
  expect_refused(good_inputs({"--device", "abacus:0"}), "abacus:0");
  expect_refused(good_inputs({"--kernel", "cpu.prefill.abacus"}), "cpu.prefill.abacus");
  expect_refused(good_inputs({"--frob"}), "--frob");
}

TEST_F(BadInputTest, OutputThatCannotBeWritten) {
  const std::vector<std::string> before = files();
  for (const std::string out : {"missing/out.npy", "folder.npy"}) {
    expect_one_sentence(fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", out}), out);
    // The first output is not left behind when the second cannot be written.
    expect_one_sentence(fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", "out.npy", "--lse", out}), out);
  }
  expect_one_sentence(fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy"}), "--out");
  expect_one_sentence(fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", "o.npy", "--lse", "o.npy"}), "both");
  EXPECT_EQ(files(), before);
}

TEST_F(BadInputTest, Subcommands) {
  expect_one_sentence(fulmen({}), "subcommand");
  expect_one_sentence(fulmen({"frob"}), "frob");
  expect_one_sentence(fulmen({"explain"}), "--seqlen-q");
  expect_one_sentence(fulmen({"explain", "--seqlen-q", "64", "--heads", "8", "--kv-heads", "3", "--head-dim", "64"}), "3");
  expect_one_sentence(fulmen({"explain", "--seqlen-q", "64", "--heads", "8", "--head-dim", "257"}), "257");
  expect_one_sentence(fulmen({"verify", "--grid", "huge"}), "--grid");
  expect_one_sentence(fulmen({"verify", "--kernel", "cpu.prefill.abacus"}), "cpu.prefill.abacus");
  expect_one_sentence(fulmen({"verify", "--device", "abacus:0"}), "abacus:0");
  expect_one_sentence(fulmen({"bench", "--suite", "chess"}), "--suite");
  expect_one_sentence(fulmen({"bench", "--dtype", "fp8"}), "--dtype");
  expect_one_sentence(fulmen({"bench", "--json", "missing/b.json"}), "missing/b.json");
  EXPECT_EQ(fulmen({"--help"}).exit_code, 0);
  EXPECT_EQ(fulmen({"run", "--help"}).exit_code, 0);
  EXPECT_EQ(fulmen({"--version"}).out.rfind("fulmen ", 0), 0U);
}

}  // namespace
}  // namespace fulmen::test
