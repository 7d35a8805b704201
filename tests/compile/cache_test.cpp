// What the cache keeps, finds again, and refuses. Memory hits cannot be switched off: tests that
// want the disk use forget().
#include <sys/stat.h>
#include <unistd.h>

#include "fake_compiler.h"
#include "fulmen/fulmen_c.h"
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
  const auto none =
      gpu::cached_compile(nullptr, {StatusCode::unavailable, "no compiler here"}, request());
  EXPECT_NE(none.status().message().find("no compiler here"), std::string::npos)
      << none.status().message();
}

// The disk keeps the reason why machine code was refused, so that another process need not compile
// it again.
TEST_F(CacheTest, RefusalsOfMachineCodeAreKept) {
  gpu::CompileRequest wrong = request();
  wrong.source = "wrong " + wrong.source;
  const auto refused_after = [&](int calls) {
    const FakeCompiler compiler;
    const auto code = compile(compiler, wrong);
    const bool as_it_was = code.status().code() == StatusCode::verification_failed &&
                           code.status().message() == "fake: breaks a rule";
    return as_it_was && compiler.calls == calls ? 0 : 1;
  };
  EXPECT_EQ(in_child([&] { return refused_after(1); }), 0);
  EXPECT_EQ(refused_after(0), 0) << "by the disk";
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(refused_after(0), 0) << "by memory";
  EXPECT_EQ(in_child([&] { return refused_after(0); }), 0);
  // A prebuilt kernel is still used: the user vouches for it.
  ::setenv("FULMEN_KERNEL_PATH", (root_ + "/prebuilt").c_str(), 1);
  gpu::CompiledCode right;
  right.code.resize(3);
  ASSERT_TRUE(gpu::write_prebuilt(root_ + "/prebuilt", wrong, right).ok());
  EXPECT_TRUE(compile(FakeCompiler(), wrong).ok());
  ::unsetenv("FULMEN_KERNEL_PATH");
  // Nothing is known about another compiler's code.
  const FakeCompiler newer("2");
  EXPECT_FALSE(compile(newer, wrong).ok());
  EXPECT_EQ(newer.calls, 1);
  const auto entries = gpu::list_cache();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].name, "refused kernel ");
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
  EXPECT_EQ(kernel_cache_folder(), folder_);
  ::unsetenv("FULMEN_CACHE_DIR");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(kernel_cache_folder(), "/x/fulmen");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ(kernel_cache_folder(), "/home/me/.cache/fulmen");
  ::unsetenv("HOME");
  EXPECT_EQ(kernel_cache_folder(), "");
  EXPECT_TRUE(gpu::list_cache().empty());
  EXPECT_EQ(gpu::clear_cache().value(), 0);
  const FakeCompiler compiler;
  EXPECT_TRUE(compile(compiler, request()).ok());
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_F(CacheTest, ObserverSeesCompilationsOnly) {
  std::vector<std::string> seen;
  const auto note = [](void* context, const char* kernel, const char* arch, bool done,
                       double seconds) {
    static_cast<std::vector<std::string>*>(context)->push_back(std::string(kernel) + arch +
                                                               (done ? " done" : " begins"));
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
  ::testing::internal::CaptureStderr();
  const auto found =
      gpu::cached_compile(nullptr, {StatusCode::unavailable, "no compiler"}, request());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "fulmen: FULMEN_KERNEL_PATH names " + root_ + "/absent, which is no folder\n");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(text_of(found.value()), text_of(code.value()));
  // They are also preferred to compiling, whatever the compiler.
  const FakeCompiler newer("2");
  ASSERT_TRUE(compile(newer, request()).ok());
  EXPECT_EQ(newer.calls, 0);
  EXPECT_TRUE(files().empty());
  EXPECT_FALSE(
      gpu::cached_compile(nullptr, {StatusCode::unavailable, "no compiler"}, request("other"))
          .ok());
}

// The files of a folder one after another, as `fulmen compile --pack` writes them.
std::string pack_of(const std::string& folder) {
  std::string pack;
  for (const gpu::CacheEntry& entry : gpu::list_kernels(folder)) {
    std::ifstream file(entry.file, std::ios::binary);
    pack.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return pack;
}

TEST_F(CacheTest, APackInMemoryServesWithoutACompiler) {
  const FakeCompiler compiler;
  const std::string prebuilt = root_ + "/prebuilt";
  for (const char* what : {"a", "b"}) {
    ASSERT_TRUE(
        gpu::write_prebuilt(prebuilt, request(what), compiler.compile(request(what)).value()).ok());
  }
  const Status none{StatusCode::unavailable, "no compiler"};
  EXPECT_FALSE(gpu::cached_compile(nullptr, none, request("a")).ok());
  std::string pack = pack_of(prebuilt);

  // A pack is taken as a whole or not at all.
  pack.back() = static_cast<char>(pack.back() ^ 1);
  const Result<int> damaged = add_prebuilt_kernels(pack.data(), pack.size());
  EXPECT_EQ(damaged.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(damaged.status().message().find("its checksum is wrong"), std::string::npos)
      << damaged.status().message();
  EXPECT_NE(damaged.status().message().find("at byte "), std::string::npos)
      << damaged.status().message();
  pack.back() = static_cast<char>(pack.back() ^ 1);
  for (const std::size_t bytes :
       {pack.size() - 1, pack.size() / 3, std::size_t{1}, std::size_t{0}}) {
    EXPECT_FALSE(add_prebuilt_kernels(pack.data(), bytes).ok()) << bytes;
  }
  EXPECT_FALSE(add_prebuilt_kernels(nullptr, 5).ok());
  EXPECT_EQ(add_prebuilt_kernels((pack + "x").data(), pack.size() + 1).status().message(),
            "pack: at byte " + std::to_string(pack.size()) +
                ": no kernel of this version; what `fulmen compile --pack` wrote is accepted");
  EXPECT_FALSE(gpu::cached_compile(nullptr, none, request("a")).ok());

  const Result<int> added = add_prebuilt_kernels(pack.data(), pack.size());
  ASSERT_TRUE(added.ok()) << added.status().message();
  EXPECT_EQ(added.value(), 2);
  pack.assign(pack.size(), '?');  // it was copied
  for (const char* what : {"a", "b"}) {
    const auto found = gpu::cached_compile(nullptr, none, request(what));
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(text_of(found.value()), text_of(compiler.compile(request(what)).value()));
  }
  EXPECT_FALSE(gpu::cached_compile(nullptr, none, request("other")).ok());
}

TEST_F(CacheTest, APathOfPrebuiltKernelsIsAFolderOrAPack) {
  const FakeCompiler compiler;
  const Status none{StatusCode::unavailable, "no compiler"};
  const std::string folder = root_ + "/folder", file = root_ + "/one.pack";
  ASSERT_TRUE(
      gpu::write_prebuilt(folder, request("folder"), compiler.compile(request("folder")).value())
          .ok());
  ASSERT_TRUE(gpu::write_prebuilt(root_ + "/other", request("pack"),
                                  compiler.compile(request("pack")).value())
                  .ok());
  write(file, pack_of(root_ + "/other"));
  for (const auto& [path, what] : {std::pair{folder, "folder"}, std::pair{file, "pack"}}) {
    EXPECT_FALSE(gpu::cached_compile(nullptr, none, request(what)).ok());
    EXPECT_EQ(fulmen_add_prebuilt_path(path.c_str()), FULMEN_OK) << fulmen_last_error();
    EXPECT_TRUE(gpu::cached_compile(nullptr, none, request(what)).ok());
  }
  const std::string pack = pack_of(folder);
  EXPECT_EQ(fulmen_add_prebuilt_pack(pack.data(), pack.size()), FULMEN_OK) << fulmen_last_error();

  write(root_ + "/text", "text");
  for (const auto& [path, said] : {std::pair{root_ + "/absent", "path is "},
                                   std::pair{root_ + "/text", "no kernel of this version"}}) {
    EXPECT_EQ(fulmen_add_prebuilt_path(path.c_str()), FULMEN_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fulmen_last_error()).find(said), std::string::npos)
        << fulmen_last_error();
    EXPECT_NE(std::string(fulmen_last_error()).find(path), std::string::npos)
        << fulmen_last_error();
  }
  EXPECT_EQ(fulmen_add_prebuilt_path(nullptr), FULMEN_INVALID_ARGUMENT);
  EXPECT_EQ(fulmen_add_prebuilt_pack(nullptr, 8), FULMEN_INVALID_ARGUMENT);
}

// Says which kernels it was asked for, and adds one pack.
struct Source {
  std::string chip, pack;
  std::vector<std::string> asked;

  static bool ask(void* context, const char* arch, const char* kernel) {
    auto& self = *static_cast<Source*>(context);
    if (kernel == nullptr) return arch == self.chip;
    self.asked.emplace_back(kernel);
    return add_prebuilt_kernels(self.pack.data(), self.pack.size()).ok();
  }
};

TEST_F(CacheTest, ASourceOfPrebuiltKernelsIsAskedForWhatIsMissing) {
  const FakeCompiler compiler;
  const Status none{StatusCode::unavailable, "no compiler"};
  const std::string folder = root_ + "/of_a_source";
  for (const char* what : {"first of a source", "second of a source"}) {
    ASSERT_TRUE(
        gpu::write_prebuilt(folder, request(what), compiler.compile(request(what)).value()).ok());
  }
  Source source{request("").arch, pack_of(folder), {}};
  set_prebuilt_source(Source::ask, &source);
  EXPECT_TRUE(gpu::source_has_prebuilt(source.chip));
  EXPECT_TRUE(gpu::cached_compile(nullptr, none, request("first of a source")).ok());
  EXPECT_EQ(source.asked, std::vector{request("first of a source").name});
  EXPECT_TRUE(gpu::cached_compile(nullptr, none, request("second of a source")).ok());
  EXPECT_EQ(source.asked.size(), 1U) << "the second kernel came with the first one's pack";
  EXPECT_FALSE(gpu::cached_compile(nullptr, none, request("in no pack")).ok());
  EXPECT_EQ(source.asked.size(), 2U);
  fulmen_set_prebuilt_source(nullptr, nullptr);
  EXPECT_FALSE(gpu::cached_compile(nullptr, none, request("in no pack, again")).ok());
  EXPECT_EQ(source.asked.size(), 2U);
}

}  // namespace
}  // namespace fulmen::test
