// Files as caches use them, on every system: replaced while they are read, locked, private, with
// long names and names of any letters.
#include "runtime/platform/files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "fulmen/read_file.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/compile/cache/cache_folder.h"
#include "platform/own_folder.h"
#include "runtime/path_list.h"
#include "runtime/platform/system.h"

namespace fulmen::testing {
namespace {

using platform::File;
using platform::Links;

std::error_code write(const std::string& path, const std::string& text) {
  std::error_code error;
  std::string temporary = path + "XXXXXX";
  File file = File::create(temporary, error);
  if (!error) error = file.write(std::as_bytes(std::span(text)));
  if (!error) error = file.close();
  return error ? error : platform::replace_file(temporary, path);
}

std::string text_of(const std::string& path) {
  const auto text = read_regular_file(path, 1000, FileTrust::own);
  return text.ok() && *text ? **text : "unreadable: " + text.status().message();
}

TEST(Files, ListsOfFoldersAreTheSystems) {
  const bool windows = platform::kThisSystem == platform::System::windows;
  EXPECT_EQ(listed_folders(windows ? "C:/a;;D:/b c;" : "/a::/b c:"),
            windows ? (std::vector<std::string>{"C:/a", "D:/b c"})
                    : (std::vector<std::string>{"/a", "/b c"}));
  EXPECT_TRUE(listed_folders("").empty());
}

// A drive's ':' separates nothing on Windows.
TEST(Files, FoldersOfPrebuiltKernelsAreListedAsTheSystemDoes) {
  const OwnFolder folder;
  const std::string prebuilt = folder / "prebuilt";
  const gpu::CompileRequest request{"kernel", "source", "gfx1100", 64};
  gpu::CompiledCode code;
  code.code.resize(3);
  ASSERT_TRUE(gpu::write_prebuilt(prebuilt, request, code).ok());
  const std::string list = (folder / "absent") + platform::kListSeparator + prebuilt;
  platform::set_environment_variable("FULMEN_KERNEL_PATH", list.c_str());
  const auto found =
      gpu::cached_compile(nullptr, {StatusCode::unavailable, "no compiler"}, request);
  platform::set_environment_variable("FULMEN_KERNEL_PATH", nullptr);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->code.size(), 3U);
}

TEST(Files, AreReplacedWhileTheyAreOpen) {
  const OwnFolder folder;
  const std::string path = folder / "file";
  ASSERT_FALSE(write(path, "old"));
  std::error_code error;
  File open = File::open(path, Links::kept, error);
  ASSERT_FALSE(error) << error.message();
  error = write(path, "new");
  EXPECT_FALSE(error) << error.message();
  EXPECT_EQ(text_of(path), "new");
  std::string seen(3, ' ');
  EXPECT_EQ(open.read_start(seen.data(), seen.size()), 3U);
  EXPECT_EQ(seen, "old") << "who has it open reads on";
  EXPECT_FALSE(platform::remove_file(path));
  open.close();
  EXPECT_EQ(platform::remove_file(path), std::errc::no_such_file_or_directory);
}

TEST(Files, OfThreadsThatReplaceOneAreEachWhole) {
  const OwnFolder folder;
  const std::string path = folder / "file";
  const std::string texts[] = {std::string(900, 'a'), std::string(900, 'b')};
  ASSERT_FALSE(write(path, texts[0]));
  std::atomic<int> failed{0};
  std::thread writer([&] {
    for (int i = 0; i < 100; ++i) failed += write(path, texts[i % 2]) ? 1 : 0;
  });
  for (int i = 0; i < 100; ++i) {
    const std::string text = text_of(path);
    failed += text == texts[0] || text == texts[1] ? 0 : 1;
  }
  writer.join();
  EXPECT_EQ(failed, 0);
}

TEST(Files, LockIsHeldByOne) {
  const OwnFolder folder;
  const std::string path = folder / "file.lock";
  std::error_code error;
  File lock = File::lock(path, error);
  ASSERT_FALSE(error) << error.message();
  std::atomic<bool> released{false}, early{false};
  std::thread other([&] {
    std::error_code failed;
    const File second = File::lock(path, failed);
    early = failed || !released;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  released = true;
  lock.close();
  other.join();
  EXPECT_FALSE(early);
}

TEST(Files, AreThisUsersAlone) {
  const OwnFolder folder;
  std::error_code error;
  std::string path = folder / "fileXXXXXX";
  const File file = File::create(path, error);
  ASSERT_FALSE(error) << error.message();
  EXPECT_TRUE(file.is_this_users());
  EXPECT_FALSE(file.is_writable_by_others());
  EXPECT_TRUE(file.facts().is_regular);
}

TEST(Files, HaveNamesOfAnyLettersAndFoldersAreNone) {
  const OwnFolder folder;
  const std::string path = folder / "Größe 注意.txt";
  ASSERT_FALSE(write(path, "text"));
  EXPECT_EQ(text_of(path), "text");
  EXPECT_EQ(platform::matching_files(folder / "*.txt"), std::vector{path});
  EXPECT_EQ(read_regular_file(folder.path(), 1000, FileTrust::given).status().message(),
            "no regular file");
  const auto none = read_regular_file(folder / "none", 1000, FileTrust::own);
  EXPECT_TRUE(none.ok() && !*none) << none.status().message();
}

// Windows' paths end at 260 characters, unless they are written as the platform layer does.
TEST(Files, OfACacheLieDeep) {
  const OwnFolder root;
  std::string folder = root.path();
  for (int i = 0; i < 6; ++i) folder += "/" + std::string(60, static_cast<char>('a' + i));
  ASSERT_GT(folder.size(), 360U);
  gpu::CacheFile file;
  file.key[0] = 7;
  file.name = "kernel";
  file.arch = "gfx1100";
  file.compiled.code.resize(3);
  for (int i = 0; i < 2; ++i) {
    const Status stored = gpu::store_kernel(folder, file, FileTrust::own);
    ASSERT_TRUE(stored.ok()) << stored.message();
    const auto loaded = gpu::load_kernel(folder, file.key, FileTrust::own);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_TRUE(loaded->found);
  }
  EXPECT_EQ(gpu::list_kernels(folder).size(), 1U);
  const Result<int> removed = gpu::remove_kernels(folder);
  EXPECT_EQ(removed.ok() ? *removed : -1, 1);
}

TEST(Files, MatchPatterns) {
  const auto matches = platform::matches_pattern;
  EXPECT_TRUE(matches("hiprtc0[6-9][0-9][0-9].dll", "hiprtc0701.dll"));
  EXPECT_FALSE(matches("hiprtc0[6-9][0-9][0-9].dll", "hiprtc0507.dll"));
  EXPECT_FALSE(matches("hiprtc0[6-9][0-9][0-9].dll", "hiprtc-builtins0701.dll"));
  EXPECT_TRUE(matches("lib*.so.?", "libx.so.7"));
  EXPECT_FALSE(matches("lib*.so.?", "libx.so.71"));
}

}  // namespace
}  // namespace fulmen::testing
