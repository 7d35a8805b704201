// A compiler that counts its calls, and a cache folder of the test's own.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "fulmen/compile.h"
#include "gpu/compile/cache/cache.h"

namespace fulmen::test {

class FakeCompiler final : public gpu::Compiler {
 public:
  explicit FakeCompiler(std::string version = "1", int milliseconds = 0)
      : version_(std::move(version)), milliseconds_(milliseconds) {}
  std::string_view name() const noexcept override { return "fake"; }
  std::string identity(std::string_view /*arch*/) const override { return "fake " + version_; }
  Result<gpu::CompiledCode> compile(const gpu::CompileRequest& request) const override {
    ++calls;
    if (milliseconds_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    if (request.source == "bad") return Status{StatusCode::unavailable, "fake: does not compile"};
    if (request.source.starts_with("wrong"))
      return Status{StatusCode::verification_failed, "fake: breaks a rule"};
    const std::string code = version_ + request.arch + request.source;
    gpu::CompiledCode compiled;
    compiled.code.resize(code.size());
    std::memcpy(compiled.code.data(), code.data(), code.size());
    compiled.log = "log of " + request.name;
    return compiled;
  }
  mutable std::atomic<int> calls = 0;

 private:
  std::string version_;
  int milliseconds_;
};

// Runs a function in a process of its own, whose memory has no kernels that were compiled after its
// start.
template <class Function>
pid_t start_child(Function function) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(function());
  return child;
}
inline int exit_code(pid_t child) {
  int state = 0;
  return ::waitpid(child, &state, 0) == child && WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}
template <class Function>
int in_child(Function function) {
  return exit_code(start_child(function));
}

// Simulates a full disk: writing more to a file fails.
inline void limit_file_size(rlim_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

inline std::string text_of(const gpu::CompiledCode& compiled) {
  return {reinterpret_cast<const char*>(compiled.code.data()), compiled.code.size()};
}

class CacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "fulmen_cache_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    folder_ = pattern + "/cache";
    ::setenv("FULMEN_CACHE_DIR", folder_.c_str(), 1);
    ::unsetenv("FULMEN_CACHE_BYTES");
    ::unsetenv("FULMEN_KERNEL_PATH");
  }
  void TearDown() override {
    set_compile_observer(nullptr, nullptr);
    std::filesystem::remove_all(root_);
  }

  // Sources differ from test to test, so that one test's kernels in memory are no hits in another.
  static gpu::CompileRequest request(const std::string& what = "") {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return {"kernel " + what, std::string(test->name()) + what, "gfx1100", 64};
  }
  static Result<gpu::CompiledCode> compile(const FakeCompiler& compiler,
                                           const gpu::CompileRequest& request) {
    return gpu::cached_compile(&compiler, {}, request);
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    if (!std::filesystem::exists(folder_)) return found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.push_back(entry.path());
    return found;
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void write(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  std::string root_, folder_;
};

}  // namespace fulmen::test
