// SIGINT and SIGTERM while a compiler runs; unusable folders for temporary files.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <csignal>

#include "program.h"

namespace fulmen::test {
namespace {

class Interrupted : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    for (const char* folder : {"bin", "tmp"}) std::filesystem::create_directory(path(folder));
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  }
  // The only program in PATH stands for a compiler. It, and the process that it starts, keep the
  // fifo open while they run.
  void write_compiler(const std::string& name) const {
    write_bytes("bin/" + name,
                "#!/bin/sh\ncase $1 in --version) echo 1;exit;; esac\n/bin/sh -c 'echo started >" +
                    path("fifo") + "; /bin/sleep 1000' 9>" + path("fifo") + "\n");
    std::filesystem::permissions(path("bin/" + name), std::filesystem::perms::owner_all);
  }
};

TEST_F(Interrupted, CompilersAndTheirFoldersEnd) {
  write_compiler("amdclang++");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const int fifo = ::open(path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ASSERT_GE(fifo, 0);
    ASSERT_EQ(::fcntl(fifo, F_SETFL, 0), 0);
    const int hold = ::open(path("fifo").c_str(), O_WRONLY | O_CLOEXEC);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::signal(signal, SIG_DFL);
      const int null = ::open("/dev/null", O_RDWR);
      for (int descriptor = 0; descriptor < 3; ++descriptor) ::dup2(null, descriptor);
      ::setenv("PATH", path("bin").c_str(), 1);
      ::setenv("TMPDIR", path("tmp").c_str(), 1);
      ::setenv("FULMEN_CACHE_BYTES", "0", 1);
      ::unsetenv("ROCM_PATH");
      ::execl(FULMEN_CLI, "fulmen", "compile", "--arch", "gfx1100", nullptr);
      ::_exit(127);
    }
    char byte = 0;
    ASSERT_EQ(::read(fifo, &byte, 1), 1);  // a compiler runs
    ::close(hold);
    EXPECT_FALSE(std::filesystem::is_empty(path("tmp")));
    ASSERT_EQ(::kill(child, signal), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_TRUE(std::filesystem::is_empty(path("tmp")));
    while (::read(fifo, &byte, 1) > 0) {  // its end: no process that could write is left
    }
    ::close(fifo);
  }
}

// An interrupted run prints what it has found.
TEST_F(Interrupted, VerifyTellsWhatItHasFound) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    const int file = ::open(path("said").c_str(), O_WRONLY | O_CREAT, 0600),
              null = ::open("/dev/null", O_RDWR);
    ::dup2(null, 0);
    ::dup2(file, 1);
    ::dup2(null, 2);
    ::execl(FULMEN_CLI, "fulmen", "verify", "--random", "1000000000", "--seed", "5", "--dtype",
            "fp32", "--kernel", "cpu.standard.plain", nullptr);
    ::_exit(127);
  }
  int status = 0;
  while (read_text(path("said")).find("problems, --seed 5") == std::string::npos) {
    if (::waitpid(child, &status, WNOHANG) != 0) break;  // it ended by itself: a failure, below
    ::usleep(10'000);
  }
  ::kill(child, SIGINT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  const std::string said = read_text(path("said"));
  EXPECT_NE(said.find("\nkernel "), std::string::npos) << "the table: " << said;
  EXPECT_NE(said.find("\nstopped by a signal: "), std::string::npos) << said;
  EXPECT_NE(said.find(" of 1000000000 problems, "), std::string::npos) << said;
  EXPECT_NE(said.find(" 0 failed, --seed 5\n"), std::string::npos) << said;
}

// A file system of this test's own, which takes root.
TEST_F(Interrupted, ATemporaryFolderThatNothingRunsFromIsSaid) {
  const std::vector<float> ones(64, 1.0F);
  write_array("x.npy", DType::fp32, {1, 4, 2, 8}, ones.data());
  constexpr int kNoMount = 77;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string tmp = path("tmp"), x = path("x.npy"), out = path("o.npy");
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", tmp.c_str(), "tmpfs", MS_NOEXEC, nullptr) != 0) {
      ::_exit(kNoMount);
    }
    ::setenv("TMPDIR", tmp.c_str(), 1);
    const int file = ::open(path(".stderr").c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(file, 2);
    ::execl(FULMEN_CLI, "fulmen", "run", "--device", "emulated:gfx1100", "--q", x.c_str(), "--k",
            x.c_str(), "--v", x.c_str(), "--out", out.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, "",
                        read_text(path(".stderr"))};
  if (outcome.exit_code == kNoMount) GTEST_SKIP() << "only root can mount a file system";
  if (outcome.err.find("device \"emulated") != std::string::npos)
    GTEST_SKIP() << outcome.err;  // built without
  expect_one_sentence(outcome, path("tmp") + ", which is mounted noexec: set TMPDIR");
  EXPECT_FALSE(std::filesystem::exists(path("o.npy")));
}

TEST_F(Interrupted, ATemporaryFolderIsNoOption) {
  std::filesystem::create_directory(path("-x"));
  write_bytes(
      "bin/amdclang++",
      "#!/bin/sh\ncase $1 in --version) echo 1;exit;; esac\nfor a in \"$@\"; do echo \"$a\" >>" +
          path("said") + "; done\nexit 1\n");
  std::filesystem::permissions(path("bin/amdclang++"), std::filesystem::perms::owner_all);
  const int status =
      std::system(("cd '" + folder_.string() + "' && FULMEN_CACHE_BYTES=0 TMPDIR=-x PATH='" +
                   path("bin") + "' '" FULMEN_CLI "' compile --arch gfx1100 >.stdout 2>.stderr")
                      .c_str());
  EXPECT_NE(status, 0);
  const std::string said = read_text(path("said"));
  EXPECT_NE(said.find("\n" + path("-x") + "/fulmen-"), std::string::npos) << said;
  EXPECT_EQ(said.find("\n-x/"), std::string::npos) << said;
}

}  // namespace
}  // namespace fulmen::test
