// No data is lost: a command replaces only files that it was told to replace, and leaves no partial
// output.
#include <climits>
#include <csignal>

#include "program.h"

namespace fulmen::test {
namespace {

class OutputTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    const std::vector<float> ones(64, 1.0F);
    for (const char* name : {"q.npy", "k.npy", "v.npy"})
      write_array(name, DType::fp32, {1, 4, 2, 8}, ones.data());
  }
  Outcome run(std::vector<std::string> more) const {
    more.insert(more.begin(), {"run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy"});
    return fulmen(more);
  }
};

TEST_F(OutputTest, InputsAreNotReplaced) {
  const std::string before = read_text(path("q.npy"));
  std::filesystem::create_symlink("k.npy", path("link.npy"));
  expect_one_sentence(run({"--out", "q.npy"}), "--out q.npy: --q reads it");
  expect_one_sentence(run({"--out", path("v.npy")}), "--v reads it");
  expect_one_sentence(run({"--out", "o.npy", "--lse", "./k.npy"}), "--lse ./k.npy: --k reads it");
  expect_one_sentence(run({"--out", "link.npy"}), "--out link.npy: --k reads it");
  expect_one_sentence(run({"--backward", "--dout", "q.npy", "--dq", "dq.npy", "--dk", "./q.npy"}),
                      "--dk ./q.npy: --q reads it");
  for (const char* report : {"--json", "--csv"}) {
    expect_one_sentence(fulmen({"bench", "--suite", "real", "--data", ".", report, "q.npy"}),
                        "q.npy: --data . reads it");
  }
  EXPECT_EQ(read_text(path("q.npy")), before);
  EXPECT_EQ(files(), (std::vector<std::string>{"k.npy", "link.npy", "q.npy", "v.npy"}));
}

// Neither a file named "-" nor results among the messages.
TEST_F(OutputTest, TheStandardOutputIsNoFile) {
  const std::vector<std::string> before = files();
  const std::string words = "cannot write '-': results go to files, not to the standard output";
  for (const char* option : {"--out", "--lse"}) {
    std::vector<std::string> call{option, "-"};
    if (std::string(option) != "--out") call.insert(call.end(), {"--out", "o.npy"});
    expect_one_sentence(run(call), words);
  }
  expect_one_sentence(run({"--backward", "--dout", "q.npy", "--dq", "-"}), words);
  for (const char* option : {"--json", "--csv", "--html"})
    expect_one_sentence(fulmen({"bench", option, "-"}), words);
  expect_one_sentence(fulmen({"tune", "--export", "-"}), words);
  expect_one_sentence(fulmen({"compile", "--arch", "gfx1100", "--out", "folder", "--pack", "-"}),
                      words);
  expect_one_sentence(fulmen({"compile", "--arch", "gfx1100", "--out", "-"}),
                      "--out -: a folder is needed");
  EXPECT_EQ(files(), before);
  EXPECT_EQ(run({"--out", "./-"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(path("-")));
}

TEST_F(OutputTest, TheStandardInputIsReadOnce) {
  const std::string words = " are both -, the standard input, which can be read once";
  expect_one_sentence(fulmen({"run", "--q", "-", "--k", "-", "--v", "v.npy", "--out", "o.npy"}),
                      "--q and --k" + words);
  expect_one_sentence(run({"--bias", "-", "--keep", "-", "--out", "o.npy"}),
                      "--bias and --keep" + words);
  expect_one_sentence(run({"--seqlens-k", "-", "--keep", "-", "--out", "o.npy"}), words);
  expect_one_sentence(run({"--backward", "--dout", "-", "--dlse", "-", "--dq", "dq.npy"}),
                      "--dout and --dlse" + words);
  expect_one_sentence(fulmen({"explain", "--q", "-", "--k", "k.npy", "--v", "-"}),
                      "--q and --v" + words);
}

TEST_F(OutputTest, TwoNamesOfOneFileAreOne) {
  std::filesystem::create_directory(path("folder"));
  std::filesystem::create_symlink("later.npy", path("link.npy"));
  const std::vector<std::string> before = files();
  expect_one_sentence(run({"--out", "o.npy", "--lse", "./o.npy"}),
                      "--out and --lse are both ./o.npy");
  expect_one_sentence(run({"--out", "folder/../o.npy", "--lse", path("o.npy")}),
                      "--out and --lse are both");
  expect_one_sentence(run({"--out", "link.npy", "--lse", "later.npy"}),
                      "--out and --lse are both later.npy");
  expect_one_sentence(fulmen({"bench", "--json", "rows", "--csv", "./rows"}),
                      "--json and --csv are both ./rows");
  EXPECT_EQ(files(), before);
}

TEST_F(OutputTest, LinksStayLinks) {
  std::filesystem::create_symlink("later.npy", path("link.npy"));
  for (int time = 0; time < 2; ++time) {  // to a new file, and to an existing one
    ASSERT_EQ(run({"--out", "link.npy"}).exit_code, 0);
    EXPECT_TRUE(std::filesystem::is_symlink(path("link.npy")));
    EXPECT_TRUE(std::filesystem::is_regular_file(path("later.npy")));
  }
}

TEST_F(OutputTest, NamesMayBeAsLongAsTheFileSystemTakes) {
  const std::string name = std::string(NAME_MAX - 4, 'o') + ".npy";
  const Outcome outcome = run({"--out", name});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(files(), (std::vector<std::string>{"k.npy", name, "q.npy", "v.npy"}));
  expect_one_sentence(run({"--out", "o" + name}), "cannot write 'oooo");
}

TEST_F(OutputTest, FullStandardOutputIsAnError) {
  for (const std::string command :
       {"devices", "cache dir", "explain --seqlen-q 4 --heads 1 --head-dim 8", "--version",
        "--help", "run --q q.npy --k k.npy --v v.npy --out o.npy",
        "bench --suite boards --dtype bf16 --seconds 1e-6 --max-gb 0.002 --max-standard 0 --json "
        "bench.json --csv bench.csv"}) {
    const int status = std::system(
        ("cd '" + folder_.string() + "' && '" FULMEN_CLI "' " + command + " >/dev/full 2>.stderr")
            .c_str());
    const Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, "",
                          read_text(path(".stderr"))};
    expect_one_sentence(outcome, "cannot write");
  }
  // A command that fails leaves no output.
  for (const char* output : {"o.npy", "bench.json", "bench.csv"})
    EXPECT_FALSE(std::filesystem::exists(path(output))) << output;
}

// The exit status reports the failure where no sentence can be written.
TEST_F(OutputTest, StandardErrorThatIsClosedOrFull) {
  for (const std::string redirected :
       {"run --q q.npy 2>&-", "run --q q.npy 2>/dev/full", "devices >&- 2>&-"}) {
    const int status =
        std::system(("cd '" + folder_.string() + "' && '" FULMEN_CLI "' " + redirected).c_str());
    ASSERT_TRUE(WIFEXITED(status)) << redirected;
    EXPECT_EQ(WEXITSTATUS(status), 2) << redirected;
  }
}

// 8 or 16 KiB, by the shell: less than the result.
TEST_F(OutputTest, FileBeyondTheLimitOfSizeIsAnError) {
  const std::vector<float> rows(8192, 0.5F);
  for (const char* name : {"bq.npy", "bk.npy", "bv.npy"})
    write_array(name, DType::fp32, {1, 64, 2, 64}, rows.data());
  const std::vector<std::string> before = files();
  const int status = std::system(("cd '" + folder_.string() +
                                  "' && (ulimit -f 16; '" FULMEN_CLI
                                  "' run --q bq.npy --k bk.npy --v bv.npy --out big.npy 2>.stderr)")
                                     .c_str());
  const Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, "",
                        read_text(path(".stderr"))};
  expect_one_sentence(outcome, "cannot write 'big.npy'");
  std::filesystem::remove(path(".stderr"));
  EXPECT_EQ(files(), before);
}

TEST_F(OutputTest, SignalsLeaveNoTemporaryFile) {
  const std::vector<std::string> before = files();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::signal(signal, SIG_DFL);
      auto kept = tools::OutputFile::create(path("a.npy"));
      auto file = tools::OutputFile::create(path("b.npy"));
      const bool written =
          kept.ok() && file.ok() && kept->commit().ok() && files().size() == before.size() + 2;
      if (written) ::raise(signal);
      ::_exit(1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    std::filesystem::remove(path("a.npy"));
    EXPECT_EQ(files(), before);
  }
}

}  // namespace
}  // namespace fulmen::test
