// Everything that can be wrong with a command: one sentence, exit 2, and no file created or
// changed.
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
    write_array("scale.npy", DType::fp32, {1}, zeros.data());
    write_array("bits.npy", DType::bf16, {1, 4, 2, 8}, zeros.data());
    write_array("mask.npy", DType::boolean, {1, 4}, zeros.data());
    write_array("wrong_rows.npy", DType::fp32, {1, 2, 5}, zeros.data());
    write_bytes("double.npy", npy_bytes(1, dict("<f8", "(1, 4, 2, 8)"), std::string(512, '\0')));
    write_bytes("fortran.npy",
                npy_bytes(2, dict("<f4", "(1, 4, 2, 8)", "True"), std::string(256, '\0')));
    write_bytes("short.npy", npy_bytes(3, dict("<f4", "(1, 4, 2, 8)"), std::string(100, '\0')));
    write_bytes("text.npy", "not an array");
    std::filesystem::create_directory(path("folder.npy"));
  }

  // Runs with out.npy and lse.npy as outputs, new or existing, and checks the folder afterwards.
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
  static std::vector<std::string> inputs(const std::string& q, const std::string& k,
                                         const std::string& v) {
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
  expect_refused(
      {"--layout", "interleaved", "--q", "merged.npy", "--k", "merged.npy", "--v", "merged.npy"},
      "--heads");
  expect_refused({"--layout", "interleaved", "--heads", "5", "--q", "merged.npy", "--k",
                  "merged.npy", "--v", "merged.npy"},
                 "multiple of 5");
  expect_refused(good_inputs({"--bias", "merged.npy"}), "bias");
  expect_refused(good_inputs({"--keep", "x.npy"}), "not bool");
  expect_refused(good_inputs({"--alibi", "merged.npy"}), "--alibi");
  expect_refused(good_inputs({"--sinks", "flat.npy"}), "--sinks");
}

TEST_F(BadInputTest, Types) {
  expect_refused(inputs("x.npy", "half.npy", "x.npy"), "fp16");
  expect_refused(
      inputs("x.npy", "half.npy", "half.npy"),
      "k.dtype is fp16, q.dtype is fp32: q's dtype, int8, fp8 and the block formats are");
  expect_refused(inputs("bits.npy", "bits.npy", "bits.npy"), "--bf16");
  expect_refused(inputs("mask.npy", "x.npy", "x.npy"), "bool");
  expect_refused({"--dtype", "bf16", "--q", "half.npy", "--k", "half.npy", "--v", "half.npy"},
                 "converts from fp32 only");
  expect_refused(good_inputs({"--bias", "mask.npy"}), "--keep");
  // uint16 is bf16 everywhere: --bf16 would not help where that is not taken.
  expect_refused(good_inputs({"--bf16", "--sinks", "bits.npy"}),
                 "--sinks (bits.npy): bf16 [1, 4, 2, 8] is not fp32 [head]");
  expect_refused(good_inputs({"--keep", "bits.npy"}),
                 "--keep (bits.npy): dtype bf16 is not bool or uint8");
  expect_refused(good_inputs({"--seqlens-k", "bits.npy"}),
                 "--seqlens-k (bits.npy): bf16 [1, 4, 2, 8] is not int32");
}

TEST_F(BadInputTest, Options) {
  expect_refused(good_inputs({"--dtype", "fp64"}), "--dtype");
  expect_refused(good_inputs({"--layout", "sbhd"}), "--layout");
  expect_refused(good_inputs({"--causal=upper"}), "--causal upper");
  expect_refused(good_inputs({"--window", "3"}), "--window 3");
  expect_refused(good_inputs({"--window", "-2,0"}), "--window -2,0");
  expect_refused(good_inputs({"--window", "1,2,3"}), "--window 1,2,3");
  expect_refused(good_inputs({"--scale", "big"}), "--scale: 'big' is given, a finite number");
  expect_refused(good_inputs({"--scale", "inf"}), "scale");
  expect_refused(good_inputs({"--softcap", "-1"}), "softcap");
  expect_refused(good_inputs({"--score-mod", "score +"}), "score_mod, line 1, column 8: the end");
  expect_refused(good_inputs({"--mask-mod", "q"}), "mask_mod gives a bool");
  expect_refused(good_inputs({"--heads", "0"}), "--heads");
  expect_refused(good_inputs({"--threads", "-1"}), "--threads");
  expect_refused(good_inputs({"--device", "abacus:0"}), "abacus:0");
  expect_refused(good_inputs({"--kernel", "cpu.prefill.abacus"}), "cpu.prefill.abacus");
  expect_refused(good_inputs({"--frob"}), "--frob");
  expect_refused(good_inputs({"--causal", "upper"}),
                 "--causal upper: bottom-right, top-left and none");
}

TEST_F(BadInputTest, Numbers) {
  expect_refused(good_inputs({"--threads", "2147483648"}),
                 "--threads: '2147483648' is given, a whole number from 0 to 2147483647");
  expect_refused(good_inputs({"--threads", "1.5"}), "--threads: '1.5' is given");
  expect_refused(good_inputs({"--heads", "0x2"}), "--heads: '0x2' is given, a whole number from 1");
  expect_refused(good_inputs({"--dropout-seed", "18446744073709551616"}),
                 "--dropout-seed: '18446744073709551616' is given");
  expect_refused(good_inputs({"--scale", "0.5x"}), "--scale: '0.5x' is given, a finite number");
  expect_refused(good_inputs({"--softcap", "nan"}), "--softcap: 'nan' is given, a finite number");
  expect_refused(good_inputs({"--softcap", "1e-60"}),
                 "--softcap: '1e-60' is given, which is 0 in fp32");
  expect_refused(good_inputs({"--scale", "1e60"}), "--scale: '1e60' is given, a finite number");
  expect_refused(good_inputs({"--dropout", "nan"}), "--dropout: 'nan' is given, a finite number");
  expect_one_sentence(fulmen({"verify", "--seed", "-1"}),
                      "--seed: '-1' is given, a whole number from 0");
  expect_one_sentence(fulmen({"bench", "--seconds", "nan"}),
                      "--seconds: 'nan' is given, a number above 0");
  expect_one_sentence(fulmen({"bench", "--max-gb", "1e30"}),
                      "--max-gb: '1e30' is given, a number above 0, up to 1e+09");
  // Leading zeros make no octal number: it takes more threads than OpenMP's own to see, so by the
  // plan.
  EXPECT_NE(fulmen({"explain", "--seqlen-q", "512", "--heads", "8", "--head-dim", "64", "--threads",
                    "010"})
                .out.find("num_threads=10"),
            std::string::npos);
}

TEST_F(BadInputTest, EmptyValues) {
  // A script's unset variable: a mask that is not there would change the result without a word.
  for (const std::string option :
       {"--bias", "--keep", "--scale", "--threads", "--device", "--kernel", "--window"}) {
    expect_refused(good_inputs({option, ""}), option + ": an empty value is given");
    expect_refused(good_inputs({option + "="}), option + ": an empty value is given");
  }
}

TEST_F(BadInputTest, Backward) {
  // Without --out and --lse, which expect_refused() would add: here they may be the mistake.
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> arguments{"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::vector<std::string> before = files();
    expect_one_sentence(fulmen(arguments), part);
    EXPECT_EQ(files(), before);
  };
  refused({"--out", "o.npy", "--dq", "dq.npy"},
          "--dq dq.npy: it is of the backward pass, --backward is needed");
  refused({"--out", "o.npy", "--dout", "x.npy"}, "--dout x.npy: it is of the backward pass");
  refused({"--backward", "--dq", "dq.npy"}, "--backward needs --dout");
  refused({"--backward", "--dout", "x.npy"},
          "--backward needs one of --dq, --dk, --dv, --dbias and --dsinks");
  const std::vector<std::string> good{"--backward", "--dout", "x.npy", "--dq", "dq.npy"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), good.begin(), good.end());
    return more;
  };
  refused(with({"--forward-out", "x.npy"}), "--forward-out is given alone");
  refused(with({"--forward-lse", "lse.npy"}), "--forward-lse is given alone");
  refused(with({"--forward-out", "x.npy", "--forward-lse", "flat.npy"}),
          "--forward-lse (flat.npy): fp32 [8, 8] is not fp32 [batch");
  refused(with({"--forward-out", "x.npy", "--forward-lse", "l.npy", "--lse", "m.npy"}),
          "--lse would write what --forward-out");
  refused(with({"--dlse", "half.npy"}), "--dlse (half.npy): fp16 [1, 4, 2, 8] is not fp32");
  refused(with({"--dlse", "wrong_rows.npy"}), "dlse.shape is [1, 2, 5, 1]");
  refused(with({"--dbias", "db.npy"}), "--dbias db.npy: without --bias");
  refused(with({"--dsinks", "ds.npy"}), "--dsinks ds.npy: without --sinks");
  refused(with({"--dk", "dq.npy"}), "--dq and --dk are both dq.npy");
  refused(with({"--out", "dq.npy"}), "--out and --dq are both dq.npy");
  refused(with({"--dropout", "1"}), "dropout is 1:");
  refused(with({"--dropout", "-0.5"}), "dropout is -0.5:");
  refused(with({"--dropout-seed", "-3"}), "--dropout-seed");
  refused(with({"--kernel", "cpu.reference.double"}), "it computes the forward pass");
  refused({"--backward", "--dout", "half.npy", "--dq", "dq.npy"}, "dout.dtype is fp16");
  refused({"--backward", "--dout", "other_batch.npy", "--dq", "dq.npy"}, "2 were asked for");
  refused({"--backward", "--dout", "none.npy", "--dq", "dq.npy"}, "none.npy: No such file");
  refused({"--backward", "--kernel", "cpu.reference.backward", "--dout", "x.npy", "--dq", "dq.npy",
           "--dk", "missing/dk.npy"},
          "missing/dk.npy");
}

TEST_F(BadInputTest, OutputThatCannotBeWritten) {
  const std::vector<std::string> before = files();
  for (const std::string out : {"missing/out.npy", "folder.npy"}) {
    expect_one_sentence(
        fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", out}), out);
    // The first output is not left behind when the second cannot be written.
    expect_one_sentence(fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out",
                                "out.npy", "--lse", out}),
                        out);
  }
  expect_one_sentence(fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy"}), "--out");
  expect_one_sentence(fulmen({"run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out",
                              "o.npy", "--lse", "o.npy"}),
                      "both");
  EXPECT_EQ(files(), before);
}

TEST_F(BadInputTest, Subcommands) {
  expect_one_sentence(fulmen({}), "subcommand");
  expect_one_sentence(fulmen({"frob"}), "frob");
  expect_one_sentence(fulmen({"explain"}), "--seqlen-q");
  expect_one_sentence(fulmen({"explain", "--seqlen-q", "64", "--heads", "8", "--kv-heads", "3",
                              "--head-dim", "64"}),
                      "3");
  expect_one_sentence(fulmen({"explain", "--seqlen-q", "64", "--heads", "8", "--head-dim", "577"}),
                      "577");
  const std::vector<std::string> numbers{"explain", "--seqlen-q", "4", "--heads",
                                         "1",       "--head-dim", "8"};
  const auto with = [](std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  expect_one_sentence(fulmen(with(numbers, {"--bias", "b.npy"})),
                      "--bias: it goes with a problem given by files");
  expect_one_sentence(fulmen(with(numbers, {"--cu-seqlens-q", "b.npy"})),
                      "--cu-seqlens-q: it goes with a problem given by files");
  expect_one_sentence(fulmen(with(numbers, {"--gradients", "dq"})),
                      "--gradients: it is of the backward pass");
  expect_one_sentence(fulmen(with({"explain"}, good_inputs({"--batch", "2"}))),
                      "--batch: the problem is given by files");
  expect_one_sentence(fulmen(with(numbers, {"--bias-dtype", "fp16"})),
                      "--bias-dtype: it goes with --bias-shape");
  expect_one_sentence(fulmen(with(numbers, {"--bias-shape", "1,1,4,-4"})),
                      "--bias-shape: '-4' is given, a whole number from 0");
  // Refused before anything is printed or measured.
  for (const char* command : {"bench", "verify"}) {
    const Outcome outcome = fulmen({command, "--device", "abacus"});
    expect_one_sentence(outcome, "device is \"abacus\": there is no such device here");
    EXPECT_EQ(outcome.out, "");
  }
  expect_one_sentence(fulmen({"devices", "bench"}), "bench");
  expect_one_sentence(fulmen({"bench", "--repeat", "0"}),
                      "not an argument of this command: --repeat 0");
  expect_one_sentence(fulmen({"verify", "--grid", "huge"}), "--grid");
  expect_one_sentence(fulmen({"verify", "--precision", "int4"}), "--precision: int4");
  expect_one_sentence(fulmen({"verify", "--backward", "--precision", "int8"}), "--precision int8");
  expect_one_sentence(fulmen({"verify", "--kernel", "cpu.prefill.abacus"}), "cpu.prefill.abacus");
  expect_one_sentence(fulmen({"verify", "--backward", "--kernel", "cpu.backward.abacus"}),
                      "cpu.backward.abacus");
  expect_one_sentence(fulmen({"explain", "--backward", "--gradients", "dz"}), "--gradients");
  expect_one_sentence(fulmen({"explain", "--backward", "--gradients", "dbias", "--seqlen-q", "4",
                              "--heads", "1", "--head-dim", "8"}),
                      "--gradients dbias");
  expect_one_sentence(fulmen({"verify", "--device", "abacus:0"}), "abacus:0");
  // The message suggests the name that was meant, and its list is short.
  const Outcome device = fulmen({"verify", "--device", "cpuu"});
  expect_one_sentence(device, "did you mean \"cpu\"? Known are \"cpu\", ");
  EXPECT_LT(device.err.size(), 400U) << device.err;
  const Outcome kernel = fulmen({"verify", "--kernel", "cpu.standard.plan"});
  expect_one_sentence(kernel, "did you mean \"cpu.standard.plain\"? Known are ");
  EXPECT_LT(kernel.err.size(), 400U) << kernel.err;
  expect_one_sentence(fulmen({"bench", "--suite", "chess"}), "--suite");
  expect_one_sentence(fulmen({"bench", "--dtype", "fp8"}), "--dtype");
  expect_one_sentence(fulmen({"bench", "--json", "missing/b.json"}), "missing/b.json");
  const Outcome misnamed = fulmen({"bench", "--kernel", "cpu.prefill.abacus"});
  expect_one_sentence(misnamed, "--kernel cpu.prefill.abacus: cpu has no kernel of that name");
  EXPECT_EQ(misnamed.out, "") << "nothing is measured first";
  EXPECT_EQ(fulmen({"--help"}).exit_code, 0);
  EXPECT_EQ(fulmen({"run", "--help"}).exit_code, 0);
  EXPECT_EQ(fulmen({"--version"}).out.rfind("fulmen ", 0), 0U);
}

}  // namespace
}  // namespace fulmen::test
