// What the cache keeps, finds again, and refuses. Memory hits cannot be switched off: tests that want the disk use forget().
#include <sys/stat.h>
#include <unistd.h>

#include "fake_compiler.h"
#include "gpu/compile/cache/cache_folder.h"

namespace fulmen::test {
namespace {

TEST_F(CacheTest, SecondCallComesFromMemory) {
  const FakeCompiler compiler;
  const auto first = compile(compiler, request());
  ASSERT_TRUE(first.ok()) << first.status().message();
  std::filesystem::remove_all(folder_);
  const auto second = compile(compiler, request());
  EXPECT_EQ(compiler.calls, 1);
  EXPECT_EQ(text_of(second.value()), text_of(first.value()));
  EXPECT_EQ(second.value().log, "log of kernel ");
}

TEST_F(CacheTest, SourceArchOptionsAndCompilerMakeTheKeyAndTheNameDoesNot) {
  const FakeCompiler compiler, newer("2");
  gpu::CompileRequest other = request();
  ASSERT_TRUE(compile(compiler, other).ok());
  other.name = "other name";
  ASSERT_TRUE(compile(compiler, other).ok());
  EXPECT_EQ(compiler.calls, 1);
  other.arch = "gfx1101";
  ASSERT_TRUE(compile(compiler, other).ok());
  other.workgroup_size = 128;
  ASSERT_TRUE(compile(compiler, other).ok());
  other.source += " ";
  ASSERT_TRUE(compile(compiler, other).ok());
  EXPECT_EQ(compiler.calls, 4);
  ASSERT_TRUE(compile(newer, other).ok());
  EXPECT_EQ(newer.calls, 1);
  EXPECT_EQ(files().size(), 5U);
}

TEST_F(CacheTest, FailuresAreNotKept) {
  const FakeCompiler compiler;
  gpu::CompileRequest bad = request();
  bad.source = "bad";
  EXPECT_EQ(compile(compiler, bad).status().message(), "fake: does not compile");
  EXPECT_FALSE(compile(compiler, bad).ok());
  EXPECT_EQ(compiler.calls, 2);
  EXPECT_TRUE(files().empty());
  const auto none = gpu::cached_compile(nullptr, {StatusCode::unavailable, "no compiler here"}, request());
  EXPECT_NE(none.status().message().find("no compiler here"), std::string::npos) << none.status().message();
}

TEST_F(CacheTest, FilesAndFolderAreForTheOwnerAlone) {
  folder_ = root_ + "/a/b/cache";
  ::setenv("FULMEN_CACHE_DIR", folder_.c_str(), 1);
  const FakeCompiler compiler;
  ASSERT_TRUE(compile(compiler, request()).ok());
  ASSERT_EQ(files().size(), 1U);
  struct stat info{};
  ASSERT_EQ(::stat(files()[0].c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  for (const char* folder : {"/a", "/a/b", "/a/b/cache"}) {
    ASSERT_EQ(::stat((root_ + folder).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700) << folder;
  }
}

TEST_F(CacheTest, ListAndClear) {
  const FakeCompiler compiler;
  ASSERT_TRUE(compile(compiler, request("b")).ok());
  ASSERT_TRUE(compile(compiler, request("a")).ok());
  write(folder_ + "/notes.txt", "the user's");
  write(folder_ + "/0123456789abcdef0123456789abcdef.kernel", "damaged");
  const auto entries = gpu::list_cache();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "kernel a");
  EXPECT_EQ(entries[1].name, "kernel b");
  EXPECT_EQ(entries[0].arch, "gfx1100");
  EXPECT_EQ(entries[0].bytes, std::filesystem::file_size(entries[0].file));
  EXPECT_NEAR(static_cast<double>(entries[0].last_used), static_cast<double>(::time(nullptr)), 60);
  const auto cleared = gpu::clear_cache();
  ASSERT_TRUE(cleared.ok());
  EXPECT_EQ(cleared.value(), 3);
  ASSERT_EQ(files().size(), 1U);
  EXPECT_EQ(files()[0].filename(), "notes.txt");
}

TEST_F(CacheTest, DirectoryComesFromTheEnvironment) {
  EXPECT_EQ(gpu::cache_directory(), folder_);
  ::unsetenv("FULMEN_CACHE_DIR");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(gpu::cache_directory(), "/x/fulmen");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ(gpu::cache_directory(), "/home/me/.cache/fulmen");
  ::unsetenv("HOME");
  EXPECT_EQ(gpu::cache_directory(), "");
  EXPECT_TRUE(gpu::list_cache().empty());
  EXPECT_EQ(gpu::clear_cache().value(), 0);
  const FakeCompiler compiler;
  EXPECT_TRUE(compile(compiler, request()).ok());
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_F(CacheTest, ObserverSeesCompilationsOnly) {
  std::vector<std::string> seen;
  const auto note = [](void* context, const char* kernel, const char* arch, bool done, double seconds) {
    static_cast<std::vector<std::string>*>(context)->push_back(std::string(kernel) + arch + (done ? " done" : " begins"));
    EXPECT_EQ(done, seconds > 0);
  };
  set_compile_observer(note, &seen);
  const FakeCompiler compiler;
  ASSERT_TRUE(compile(compiler, request()).ok());
  ASSERT_TRUE(compile(compiler, request()).ok());
  EXPECT_EQ(seen, (std::vector<std::string>{"kernel gfx1100 begins", "kernel gfx1100 done"}));
}

TEST_F(CacheTest, PrebuiltKernelsNeedNoCompilerAndNoOwner) {
  const FakeCompiler compiler;
  const auto code = compiler.compile(request());
  const std::string prebuilt = root_ + "/prebuilt";
  const mode_t mask = ::umask(0022);
  ASSERT_TRUE(gpu::write_prebuilt(prebuilt, request(), code.value()).ok());
  ::umask(mask);
  struct stat info{};
  ASSERT_EQ(::stat(prebuilt.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755) << "made for others to read";
  ASSERT_EQ(::stat(gpu::list_kernels(prebuilt)[0].file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644);
  ASSERT_EQ(::chmod(gpu::list_kernels(prebuilt)[0].file.c_str(), 0666), 0);
  ::setenv("FULMEN_KERNEL_PATH", (root_ + "/absent::" + prebuilt).c_str(), 1);
  testing::internal::CaptureStderr();
  const auto found = gpu::cached_compile(nullptr, {StatusCode::unavailable, "no compiler"}, request());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fulmen: FULMEN_KERNEL_PATH names " + root_ + "/absent, which is no folder\n");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(text_of(found.value()), text_of(code.value()));
  // They are also preferred to compiling, whatever the compiler.
  const FakeCompiler newer("2");
  ASSERT_TRUE(compile(newer, request()).ok());
  EXPECT_EQ(newer.calls, 0);
  EXPECT_TRUE(files().empty());
  EXPECT_FALSE(gpu::cached_compile(nullptr, {StatusCode::unavailable, "no compiler"}, request("other")).ok());
}

}  // namespace
}  // namespace fulmen::test
