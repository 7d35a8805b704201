// Many threads and many processes at one cache, and its bound.
#include <algorithm>
#include <vector>

#include "fake_compiler.h"
#include "gpu/compile/cache/cache_folder.h"

namespace fulmen::test {
namespace {

constexpr int kThreads = 8;
constexpr int kKernels = 4;

TEST_F(CacheTest, ThreadsCompileEachKernelOnce) {
  const FakeCompiler compiler("1", 20);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kKernels; ++i) {
        const auto what = request(std::to_string((i + t) % kKernels));
        const auto compiled = compile(compiler, what);
        if (!compiled.ok() || text_of(compiled.value()) != "1gfx1100" + what.source) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(compiler.calls, kKernels);
  EXPECT_EQ(files().size(), static_cast<std::size_t>(kKernels));
}

// A child does not wait for the thread of its parent that compiles.
TEST_F(CacheTest, AForkedChildCompilesWhatAnotherThreadIsCompiling) {
  class WaitingCompiler final : public gpu::Compiler {
   public:
    std::string_view name() const noexcept override { return "fake"; }
    std::string identity(std::string_view /*arch*/) const override { return "fake 1"; }
    Result<gpu::CompiledCode> compile(const gpu::CompileRequest& /*request*/) const override {
      begun = true;
      while (!may_end) std::this_thread::yield();
      return gpu::CompiledCode{{}, "late"};
    }
    mutable std::atomic<bool> begun = false;
    std::atomic<bool> may_end = false;
  };
  WaitingCompiler slow;
  gpu::CompileRequest what = request("slow");
  std::thread other([&] { EXPECT_TRUE(gpu::cached_compile(&slow, {}, what).ok()); });
  while (!slow.begun) std::this_thread::yield();
  EXPECT_EQ(in_child([&] {
              ::alarm(20);
              const FakeCompiler quick("1");
              const auto compiled = compile(quick, what);
              return compiled.ok() && text_of(compiled.value()) == "1gfx1100" + what.source
                         ? quick.calls.load()
                         : 0;
            }),
            1);
  slow.may_end = true;
  other.join();
}

TEST_F(CacheTest, ThreadsThatFailDoNotBlockEachOther) {
  const FakeCompiler compiler("1", 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      gpu::CompileRequest bad = request();
      bad.source = "bad";
      EXPECT_FALSE(compile(compiler, bad).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler.calls, kThreads);
}

// Processes write, read, clear and bound the same folder. Every one gets the right code, whatever
// the others do.
TEST_F(CacheTest, ProcessesAtOnce) {
  ::setenv("FULMEN_CACHE_BYTES", "2000", 1);
  ::testing::internal::CaptureStderr();
  std::vector<pid_t> children;
  for (int p = 0; p < 6; ++p) {
    children.push_back(start_child([p] {
      for (int round = 0; round < 60; ++round) {
        // A compiler of another version each round would miss memory; the same three versions meet
        // in all processes.
        const FakeCompiler compiler(std::to_string(round % 3));
        const auto what = request(std::to_string(round % 7));
        const auto compiled = compile(compiler, what);
        if (!compiled.ok() ||
            text_of(compiled.value()) != std::to_string(round % 3) + "gfx1100" + what.source)
          return 1;
        if (p == 0 && round % 10 == 9 && !gpu::clear_cache().ok()) return 2;
        if (p == 1) gpu::list_cache();
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(exit_code(child), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  for (const auto& file : files()) EXPECT_EQ(file.extension(), ".kernel") << file;
}

TEST_F(CacheTest, TheLeastRecentlyUsedGoFirst) {
  // Another process has nothing of this one's in memory, and the reverse.
  ASSERT_EQ(in_child([] {
              const FakeCompiler compiler;
              for (const char* what : {"a", "b", "c"}) (void)compile(compiler, request(what));
              return compiler.calls.load();
            }),
            3);
  const auto entries = gpu::list_cache();
  ASSERT_EQ(entries.size(), 3U);
  const auto now = std::filesystem::file_time_type::clock::now();
  for (std::size_t i = 0; i < 3; ++i) {
    std::filesystem::last_write_time(entries[i].file,
                                     now - std::chrono::hours(3 - static_cast<int>(i)));
  }
  // "a" is the oldest; using it makes it the newest.
  const FakeCompiler compiler;
  ASSERT_TRUE(compile(compiler, request("a")).ok());
  EXPECT_EQ(compiler.calls, 0);
  std::size_t bytes = 0;
  for (const auto& entry : entries) bytes += entry.bytes;
  gpu::bound_kernels(folder_, bytes);
  EXPECT_EQ(gpu::list_cache().size(), 3U);
  gpu::bound_kernels(folder_, bytes - 1);
  std::vector<std::string> left;
  for (const auto& entry : gpu::list_cache()) left.push_back(entry.name);
  EXPECT_EQ(left, (std::vector<std::string>{"kernel a", "kernel c"}));
}

TEST_F(CacheTest, TheBoundHoldsAfterEachCompilation) {
  ::setenv("FULMEN_CACHE_BYTES", "1000", 1);
  const FakeCompiler compiler;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(compile(compiler, request(std::to_string(i))).ok());
  std::size_t bytes = 0;
  for (const auto& entry : gpu::list_cache()) bytes += entry.bytes;
  EXPECT_LE(bytes, 1000U);
  EXPECT_GT(bytes, 0U);
  ::setenv("FULMEN_CACHE_BYTES", "0", 1);  // no disk
  gpu::clear_cache().value();
  ASSERT_TRUE(compile(compiler, request("unkept")).ok());
  EXPECT_TRUE(files().empty());
}

TEST_F(CacheTest, HalfWrittenFilesOfEndedProcessesGo) {
  const FakeCompiler compiler;
  ASSERT_TRUE(compile(compiler, request()).ok());
  write(folder_ + "/.kernel-abcdef", "old");
  write(folder_ + "/.kernel-ghijkl", "new");
  std::filesystem::last_write_time(
      folder_ + "/.kernel-abcdef",
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  gpu::bound_kernels(folder_, 1 << 20);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/.kernel-abcdef"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/.kernel-ghijkl"));
}

}  // namespace
}  // namespace fulmen::test
