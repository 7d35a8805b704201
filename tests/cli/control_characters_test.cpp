// Names that hold control characters cannot write to the terminal, and arrays may come through
// pipes.
#include "fulmen/printable.h"
#include "program.h"

namespace fulmen::test {
namespace {

class ControlCharacters : public ProgramTest {
 protected:
  static void expect_escaped(const Outcome& outcome) {
    expect_one_sentence(outcome, "\\x1b[2J");
    EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos) << outcome.err;
  }
};

TEST_F(ControlCharacters, AreEscapedInMessages) {
  const std::string bad = "a\x1b[2J\nb";
  expect_escaped(fulmen({"run", "--q", bad, "--k", bad, "--v", bad, "--out", "o.npy"}));
  write_bytes("descr.npy", npy_bytes(1, dict("<\x1b[2J", "(1, 4, 2, 8)"), ""));
  expect_escaped(fulmen(
      {"run", "--q", "descr.npy", "--k", "descr.npy", "--v", "descr.npy", "--out", "o.npy"}));
  write_bytes(bad, "not an array");
  expect_escaped(fulmen({"run", "--q", bad, "--k", bad, "--v", bad, "--out", "o.npy"}));
  expect_escaped(fulmen({"compile", "--arch", "gfx" + bad}));
  const std::vector<std::string> problem{"explain", "--seqlen-q", "4", "--heads",
                                         "1",       "--head-dim", "8"};
  for (const std::string option : {"--device", "--kernel", "--no-such-option"}) {
    std::vector<std::string> arguments = problem;
    arguments.insert(arguments.end(), {option, bad});
    expect_escaped(fulmen(arguments));
  }
}

TEST_F(ControlCharacters, Printable) {
  EXPECT_EQ(printable("q.npy \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "q.npy \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(printable(std::string_view("\0\t\n\x7F", 4)), "\\x00\\x09\\n\\x7f");
  EXPECT_EQ(printable("\xC2\x9B \x9B \xC0\xAF \xED\xA0\x80 \xE2\x82"),
            "\\xc2\\x9b \\x9b \\xc0\\xaf \\xed\\xa0\\x80 \\xe2\\x82");
}

TEST_F(ControlCharacters, ArraysMayComeThroughPipes) {
  const std::vector<float> ones(64, 1.0F);
  write_array("x.npy", DType::fp32, {1, 4, 2, 8}, ones.data());
  const auto piped = [&](const std::string& writer, const std::string& name) {
    const int status =
        std::system(("cd '" + folder_.string() + "' && " + writer + " | '" FULMEN_CLI "' run --q " +
                     name + " --k x.npy --v x.npy --out o.npy >.stdout 2>.stderr")
                        .c_str());
    return Outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(path(".stdout")),
                   read_text(path(".stderr"))};
  };
  for (const std::string name : {"-", "/dev/stdin"}) {
    std::filesystem::remove(path("o.npy"));
    const Outcome outcome = piped("cat x.npy", name);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(std::filesystem::exists(path("o.npy")));
  }
  expect_one_sentence(piped("head -c 200 x.npy", "-"),
                      "standard input: shape [1, 4, 2, 8] of '<f4' needs 256 bytes");
  expect_one_sentence(piped("cat x.npy x.npy", "-"), "the file has 256 and more");
}

}  // namespace
}  // namespace fulmen::test
