// Environment variables: read in one place, ignored in set-user-ID programs, read again after a
// refusal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "gpu/compile/toolchains/compiler.h"
#include "reference/standard/blas.h"
#include "runtime/run_program.h"

namespace fulmen::test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Environment, IsReadInOnePlace) {
  // The extension module sees the C ABI alone, so it asks secure_getenv itself.
  const std::pair<const char*, std::regex> rules[] = {
      {"/src", std::regex(R"(\b(secure_)?getenv\s*\(|temp_directory_path)")},
      {"/bindings/python/src", std::regex(R"(\bgetenv\s*\()")}};
  int files = 0;
  for (const auto& [folder, reads] : rules) {
    for (const auto& entry :
         fs::recursive_directory_iterator(std::string(FULMEN_SOURCE_DIR) + folder)) {
      const fs::path& path = entry.path();
      if ((path.extension() != ".cpp" && path.extension() != ".h") ||
          path.filename() == "environment.cpp" ||
          path.generic_string().ends_with("/platform/posix/system.cpp") ||  // which it asks
          path.generic_string().ends_with("/platform/windows.cpp"))         // has no secure_getenv
        continue;
      ++files;
      const std::string text = text_of(path);
      // The expression takes its time: for files that have one of its words.
      const bool may_read = text.find("getenv") != std::string::npos ||
                            text.find("temp_directory_path") != std::string::npos;
      EXPECT_FALSE(may_read && std::regex_search(text, reads))
          << path << ": environment() of runtime/environment.h is needed";
    }
  }
  EXPECT_GT(files, 100);
}

TEST(Environment, ARefusalIsNotRemembered) {
  ::setenv("FULMEN_HOST_CXX", "/nonexistent/c++", 1);
  const Result<const gpu::Compiler*> refused = gpu::host_compiler();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::unavailable);
  EXPECT_NE(refused.status().message().find("FULMEN_HOST_CXX is \"/nonexistent/c++\""),
            std::string::npos);
  EXPECT_EQ(refused.status().message().find("set FULMEN_HOST_CXX"), std::string::npos)
      << refused.status().message();
  ::unsetenv("FULMEN_HOST_CXX");
  const Result<const gpu::Compiler*> found = gpu::host_compiler();
  EXPECT_EQ(found.ok(), !find_program("c++").empty()) << found.status().message();

  ::setenv("FULMEN_BLAS", "/nonexistent/libblas.so", 1);
  const Result<reference::Sgemm> none = reference::find_sgemm();
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("FULMEN_BLAS is \"/nonexistent/libblas.so\""),
            std::string::npos);
  ::unsetenv("FULMEN_BLAS");
  const Result<reference::Sgemm> blas = reference::find_sgemm();
  EXPECT_EQ(blas.status().message().find("/nonexistent"), std::string::npos)
      << blas.status().message();
}

// This program, owned by root and started by the user nobody (RunsAsSetUserId), prints what it
// found.
TEST(Environment, DISABLED_Finds) {
  const Result<reference::Sgemm> blas = reference::find_sgemm();
  const Result<const gpu::Compiler*> compiler = gpu::host_compiler();
  const TemporaryDirectory folder;
  std::printf("blas %s\ncompiler %s\nfolder %s\n",
              blas.ok() ? "found" : blas.status().message().c_str(),
              compiler.ok() ? "found" : compiler.status().message().c_str(), folder.path().c_str());
}

TEST(Environment, IsVoidInSetUserIdPrograms) {
  std::string pattern = ::testing::TempDir() + "fulmen_setuid_XXXXXX";
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  struct Remove {
    fs::path folder;
    ~Remove() { fs::remove_all(folder); }
  } const remove{folder};
  struct statvfs disk{};
  ASSERT_EQ(::statvfs(folder.c_str(), &disk), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a program root's";
  if ((disk.f_flag & ST_NOSUID) != 0 || ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0)
    GTEST_SKIP() << "set-user-ID is void here";
  fs::permissions(folder, fs::perms(0777));
  fs::create_directory(folder / "bin");
  for (const char* name : {"program", "setuid"}) fs::copy_file("/proc/self/exe", folder / name);
  ASSERT_EQ(::chmod((folder / "program").c_str(), 0755), 0);
  ASSERT_EQ(::chmod((folder / "setuid").c_str(), 04755), 0);
  std::ofstream(folder / "evil.so") << "a stranger's library";
  for (const char* name : {"c++", "g++", "clang++", "evil"}) {
    std::ofstream(folder / "bin" / name)
        << "#!/bin/sh\necho ran >>" << (folder / "ran").string() << "\n";
    fs::permissions(folder / "bin" / name, fs::perms(0755));
  }
  // What the program prints for the user nobody, and whether a program of that user's PATH ran.
  const auto said_by = [&](const char* program) {
    fs::remove(folder / "ran");
    const fs::path output = folder / "output";
    const pid_t child = ::fork();
    if (child == 0) {
      const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      ::dup2(file, 1);
      ::setenv("FULMEN_BLAS", (folder / "evil.so").c_str(), 1);
      ::setenv("FULMEN_HOST_CXX", (folder / "bin/evil").c_str(), 1);
      ::setenv("TMPDIR", folder.c_str(), 1);
      ::setenv("PATH", ((folder / "bin").string() + ":/usr/bin:/bin").c_str(), 1);
      constexpr unsigned kNobody = 65534;
      if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(126);
      ::execl((folder / program).c_str(), program, "--gtest_also_run_disabled_tests",
              "--gtest_filter=Environment.DISABLED_Finds", nullptr);
      ::_exit(127);
    }
    int state = 0;
    EXPECT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
    return text_of(output);
  };
  const std::string plain = said_by("program");
  EXPECT_NE(plain.find("evil.so"), std::string::npos) << plain;
  EXPECT_NE(plain.find("folder " + folder.string()), std::string::npos) << plain;
  EXPECT_TRUE(fs::exists(folder / "ran"));
  const std::string trusted = said_by("setuid");
  EXPECT_NE(trusted.find("blas "), std::string::npos) << trusted;
  EXPECT_EQ(trusted.find("evil"), std::string::npos) << trusted;
  EXPECT_NE(trusted.find("folder /tmp/fulmen-"), std::string::npos) << trusted;
  EXPECT_FALSE(fs::exists(folder / "ran"));
}

}  // namespace
}  // namespace fulmen::test
