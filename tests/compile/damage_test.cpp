// Files that are damaged, cut off, somebody else's, or cannot be written: kernels are compiled
// again, and one line says so.
#include <sys/stat.h>
#include <unistd.h>

#include "fake_compiler.h"
#include "gpu/compile/cache/cache_folder.h"

namespace fulmen::test {
namespace {

gpu::CacheFile small_file() {
  gpu::CacheFile file;
  file.key[0] = 7;
  file.name = "forward bf16";
  file.arch = "gfx1100";
  file.compiled.code.assign(40, std::byte{0x55});
  file.compiled.log = "VGPRs: 12";
  return file;
}

TEST(CacheFile, IsReadAsItWasWritten) {
  const auto bytes = gpu::write_cache_file(small_file());
  const auto read = gpu::parse_cache_file(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().key, small_file().key);
  EXPECT_EQ(read.value().name, "forward bf16");
  EXPECT_EQ(read.value().arch, "gfx1100");
  EXPECT_EQ(read.value().compiled.code, small_file().compiled.code);
  EXPECT_EQ(read.value().compiled.log, "VGPRs: 12");
}

TEST(CacheFile, EveryFlippedBitIsSeen) {
  const auto bytes = gpu::write_cache_file(small_file());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = bytes;
      damaged[at] ^= std::byte{1} << bit;
      const auto read = gpu::parse_cache_file(damaged);
      ASSERT_FALSE(read.ok()) << "byte " << at << " bit " << bit;
      ASSERT_FALSE(read.status().message().empty());
    }
  }
}

TEST(CacheFile, EveryLengthButItsOwnIsSeen) {
  auto bytes = gpu::write_cache_file(small_file());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(gpu::parse_cache_file(std::span(bytes).first(length)).ok()) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(gpu::parse_cache_file(bytes).ok());
}

// A folder's largest file: as large as the file system takes, up to 8 TiB, without a block on the
// disk.
uintmax_t make_huge(const std::string& path) {
  for (uintmax_t bytes = uintmax_t{8} << 40U; bytes > gpu::kMaxCacheFileBytes; bytes /= 2) {
    if (::truncate(path.c_str(), static_cast<off_t>(bytes)) == 0) return bytes;
  }
  return 0;
}

TEST_F(CacheTest, AHugeFileIsReplaced) {
  ASSERT_EQ(in_child([] { return compile(FakeCompiler(), request()).ok() ? 0 : 1; }), 0);
  ASSERT_EQ(files().size(), 1U);
  const std::string path = files().front(), whole = read(path);
  ASSERT_GT(make_huge(path), gpu::kMaxCacheFileBytes);
  EXPECT_EQ(in_child([&] {
              const FakeCompiler other;
              const auto again = compile(other, request());
              return again.ok() && other.calls == 1 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(std::filesystem::file_size(path), whole.size());
  EXPECT_EQ(read(path), whole);
}

// No request would replace it: it would exceed the folder's bound and evict the others.
TEST_F(CacheTest, AHugeFilePushesNobodyOut) {
  const FakeCompiler compiler;
  ASSERT_TRUE(compile(compiler, request("a")).ok());
  const std::string huge = folder_ + "/" + std::string(32, '0') + ".kernel";
  write(huge, "x");
  ASSERT_GT(make_huge(huge), gpu::kMaxCacheFileBytes);
  ASSERT_TRUE(compile(compiler, request("b")).ok());
  EXPECT_FALSE(std::filesystem::exists(huge));
  EXPECT_EQ(files().size(), 2U);
}

// The lengths in a header add up, but no kernel is so large.
TEST(CacheFile, ACeilingStandsAboveTheHeader) {
  auto bytes = gpu::write_cache_file(small_file());
  const uint64_t more = uint64_t{1} << 31U;
  const std::size_t code_length = 16 + 32 + 2 * 4;
  bytes[code_length + 3] = std::byte{0x80};
  const auto header = gpu::parse_cache_header(bytes, bytes.size() + more);
  ASSERT_FALSE(header.ok());
  EXPECT_NE(header.status().message().find("larger than any kernel"), std::string::npos)
      << header.status().message();
}

TEST(CacheFile, LongNamesAreCut) {
  gpu::CacheFile file = small_file();
  file.name.assign(100000, 'x');
  const auto read = gpu::parse_cache_file(gpu::write_cache_file(file));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().name.size(), 1024U);
}

// In a file that replaces the entry of a request, which is then asked for by another process (a
// fork: its memory has nothing).
class DamagedEntry : public CacheTest {
 protected:
  void SetUp() override {
    CacheTest::SetUp();
    // A process of its own fills the folder.
    EXPECT_EQ(run([] { return compile(FakeCompiler(), request()).ok() ? 0 : 1; }), 0);
    ASSERT_EQ(files().size(), 1U);
    entry_ = files()[0];
    good_ = read(entry_);
  }
  // Runs a function in a process of its own: its exit code, and what it said on stderr in errors_.
  template <class Function>
  int run(Function function) {
    ::testing::internal::CaptureStderr();
    const int code = in_child(function);
    errors_ = ::testing::internal::GetCapturedStderr();
    return code;
  }
  // How often the compiler was needed; 100 and more are failures.
  int compilations() {
    return run([] {
      const FakeCompiler compiler;
      const auto compiled = compile(compiler, request());
      if (!compiled.ok() || text_of(compiled.value()) != "1gfx1100" + request().source) return 100;
      return compiler.calls.load();
    });
  }
  void expect_rebuilt(const char* why) {
    EXPECT_EQ(compilations(), 1) << why;
    EXPECT_NE(errors_.find(why), std::string::npos) << errors_;
    EXPECT_NE(errors_.find(entry_.string()), std::string::npos) << errors_;
    EXPECT_EQ(std::count(errors_.begin(), errors_.end(), '\n'), 1) << errors_;
    EXPECT_EQ(compilations(), 0) << "the rebuilt file serves";
    EXPECT_EQ(errors_, "");
  }
  std::filesystem::path entry_;
  std::string good_, errors_;
};

TEST_F(DamagedEntry, AGoodOneServesWithoutAWord) {
  EXPECT_EQ(compilations(), 0);
  EXPECT_EQ(errors_, "");
}
TEST_F(DamagedEntry, FlippedByte) {
  std::string bytes = good_;
  bytes[bytes.size() / 2] ^= 1;
  write(entry_, bytes);
  expect_rebuilt("checksum");
}
TEST_F(DamagedEntry, CutOff) {
  write(entry_, good_.substr(0, good_.size() - 5));
  expect_rebuilt("length");
}
TEST_F(DamagedEntry, Empty) {
  write(entry_, "");
  expect_rebuilt("no kernel of this version");
}
TEST_F(DamagedEntry, AnotherKernelUnderThisName) {
  gpu::CacheFile other = small_file();
  const auto bytes = gpu::write_cache_file(other);
  write(entry_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  expect_rebuilt("belongs to another kernel");
}
TEST_F(DamagedEntry, OthersMayWriteIt) {
  ASSERT_EQ(::chmod(entry_.c_str(), 0622), 0);
  expect_rebuilt("others can write it");
}
TEST_F(DamagedEntry, AnotherUsersFile) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(entry_.c_str(), 12345, 12345), 0);
  expect_rebuilt("another user's file");
}
TEST_F(DamagedEntry, ALinkOrAPipe) {
  const std::string elsewhere = root_ + "/elsewhere";
  write(elsewhere, good_);
  std::filesystem::remove(entry_);
  std::filesystem::create_symlink(elsewhere, entry_);
  expect_rebuilt("");
  EXPECT_FALSE(std::filesystem::is_symlink(entry_));
  std::filesystem::remove(entry_);
  ASSERT_EQ(::mkfifo(entry_.c_str(), 0600), 0);
  expect_rebuilt("no regular file");
}

TEST_F(DamagedEntry, FoldersThatCannotBeWrittenMeanMemoryOnly) {
  const std::string file = root_ + "/file";
  write(file, "");
  for (const std::string& folder : {file + "/cache", std::string("/proc/nowhere"), file}) {
    ::setenv("FULMEN_CACHE_DIR", folder.c_str(), 1);
    EXPECT_EQ(run([] {
                const FakeCompiler compiler;
                for (int i = 0; i < 3; ++i) {
                  for (const char* what : {"a", "b"}) {
                    if (!compile(compiler, request(what)).ok()) return 100;
                  }
                }
                return compiler.calls.load();
              }),
              2)
        << folder;
    EXPECT_NE(errors_.find("kept in memory only"), std::string::npos) << errors_;
    EXPECT_EQ(std::count(errors_.begin(), errors_.end(), '\n'), 1) << errors_;
  }
}

TEST_F(DamagedEntry, AFullDiskMeansMemoryOnly) {
  EXPECT_EQ(run([] {
              limit_file_size(1000);  // what is said on stderr is shorter
              const FakeCompiler compiler;
              const auto large = request(std::string(2000, 'x'));
              if (!compile(compiler, large).ok() || !compile(compiler, large).ok()) return 100;
              return compiler.calls.load();
            }),
            1);
  EXPECT_NE(errors_.find("kept in memory only"), std::string::npos) << errors_;
  EXPECT_EQ(files().size(), 1U) << "nothing half-written is left";
}

TEST_F(DamagedEntry, PrebuiltDamageIsPassedOver) {
  const std::string prebuilt = root_ + "/prebuilt";
  ASSERT_TRUE(
      gpu::write_prebuilt(prebuilt, request(), FakeCompiler("other").compile(request()).value())
          .ok());
  const std::filesystem::path file = std::filesystem::directory_iterator(prebuilt)->path();
  write(file, read(file) + "x");
  ::setenv("FULMEN_KERNEL_PATH", prebuilt.c_str(), 1);
  EXPECT_EQ(compilations(), 0) << "the user's own cache serves";
  EXPECT_NE(errors_.find("passed over"), std::string::npos) << errors_;
}

}  // namespace
}  // namespace fulmen::test
