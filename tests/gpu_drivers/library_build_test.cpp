// Which build of a compiler is loaded: part of the key of what it compiles.
#include "gpu/libraries/library_build.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "gpu/compile/toolchains/runtime_compiler.h"
#include "gpu_drivers/fake_library.h"
#include "runtime/run_program.h"

namespace fulmen::testing {
namespace {

// The identity of a compiler in this file.
std::string identity_of(const std::string& file, const std::vector<std::string>& generators = {},
                        std::string_view beside = "") {
  const gpu::RuntimeCompilerKind kind{.name = "fake",
                                      .prefix = "nvrtc",
                                      .arch_option = "--gpu-architecture=",
                                      .code_size = "GetCUBINSize",
                                      .code = "GetCUBIN",
                                      .options = {},
                                      .family_options = {},
                                      .generators = generators,
                                      .beside = beside,
                                      .before = "",
                                      .after = "",
                                      .needed = "",
                                      .other_chips = ""};
  const auto compiler = gpu::open_runtime_compiler(kind, {.names = {file},
                                                          .home_variables = {},
                                                          .system_folders = {},
                                                          .python_folders = {},
                                                          .install = ""});
  EXPECT_TRUE(compiler.ok()) << compiler.status().message();
  return compiler.ok() ? compiler.value()->identity("gfx1100") : std::string();
}

TEST(LibraryBuild, ACompilersIdentityHasItsBuild) {
  const std::string one = identity_of(FULMEN_FAKE_BUILDS "/one/libruntime_one.so");
  const std::string two = identity_of(FULMEN_FAKE_BUILDS "/two/libruntime_two.so");
  EXPECT_NE(one.find("build 1a01"), std::string::npos) << one;
  EXPECT_NE(two.find("build 1a02"), std::string::npos) << two;
}

TEST(LibraryBuild, TheFileStandsInForABuildId) {
  const std::string file = FULMEN_FAKE_BUILDS "/unnamed/libruntime_unnamed.so";
  const std::string is = gpu::file_build(file), said = identity_of(file);
  ASSERT_FALSE(is.empty());
  EXPECT_NE(said.find(is), std::string::npos) << said;
  EXPECT_EQ(gpu::file_build("/absent/file"), "");
}

TEST(LibraryBuild, ACompilersIdentityHasTheCodeGeneratorThatItOpens) {
  const std::string file = FULMEN_FAKE_BUILDS "/one/libruntime_one.so";
  const auto with = [&](const std::string& generator) {
    setenv("FULMEN_FAKE_GENERATOR", generator.c_str(), 1);
    std::string identity = identity_of(file, {"libfake_generator"});
    unsetenv("FULMEN_FAKE_GENERATOR");
    // Closes the compiler's own handle and this one: the library is unloaded afterwards.
    void* opened = dlopen(generator.c_str(), RTLD_NOW | RTLD_NOLOAD);
    EXPECT_NE(opened, nullptr);
    for (int n = 0; opened != nullptr && n < 2; ++n) dlclose(opened);
    return identity;
  };
  const std::string one = with(FULMEN_FAKE_BUILDS "/one/libfake_generator.so");
  EXPECT_NE(one.find("build 1a01ff"), std::string::npos) << one;
  const std::string two = with(FULMEN_FAKE_BUILDS "/two/libfake_generator.so");
  EXPECT_NE(two.find("build 1a02ff"), std::string::npos) << two;
}

TEST(LibraryBuild, ACompilersIdentityHasWhatLiesBesideIt) {
  const TemporaryDirectory folder;
  const std::string library = folder.path() + "/libruntime.so",
                    builtins = folder.path() + "/libbuiltins.so.13";
  std::filesystem::copy_file(FULMEN_FAKE_BUILDS "/one/libruntime_one.so", library);
  ASSERT_TRUE(write_file(builtins, "12345").ok());
  const std::string said = identity_of(library, {}, "libbuiltins.so");
  EXPECT_NE(said.find(builtins + " 5 "), std::string::npos) << said;
  EXPECT_NE(said.find("build 1a01"), std::string::npos) << said;
}

// Notes as in a file: words, the name and what it describes padded to 4.
std::vector<std::byte> note(unsigned name_bytes, unsigned bytes, unsigned type,
                            const char (&rest)[9]) {
  std::vector<std::byte> all(12 + 8);
  const unsigned words[] = {name_bytes, bytes, type};
  std::memcpy(all.data(), words, sizeof(words));
  std::memcpy(all.data() + sizeof(words), rest, 8);
  return all;
}

TEST(LibraryBuild, NotesAreReadWithinTheirBounds) {
  const char gnu[] = "GNU\0\x12\xab\0\0";
  std::vector<std::byte> notes = note(4, 4, 1, gnu);
  const std::vector<std::byte> id = note(4, 2, 3, gnu);
  notes.insert(notes.end(), id.begin(), id.end());
  EXPECT_EQ(gpu::build_id_in(notes, 4), "12ab") << "the second one";
  EXPECT_EQ(gpu::build_id_in({}, 4), "");
  // Every cut, and sizes beyond the end. The copy has no spare bytes for a sanitizer to miss.
  for (std::size_t bytes = 0; bytes + 2 < notes.size(); ++bytes) {
    const std::vector<std::byte> cut(notes.begin(),
                                     notes.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(gpu::build_id_in(cut, 4), "") << bytes;
  }
  for (const unsigned bad : {9U, 0x7fffffffU, 0xfffffff0U, 0xffffffffU}) {
    EXPECT_EQ(gpu::build_id_in(note(4, bad, 3, gnu), 4), "") << bad;
    EXPECT_EQ(gpu::build_id_in(note(bad, 2, 3, gnu), 4), "") << bad;
    EXPECT_EQ(gpu::build_id_in(note(bad, bad, 3, gnu), 8), "") << bad;
  }
  EXPECT_EQ(gpu::build_id_in(note(4, 0, 3, gnu), 4), "") << "an empty one is none";
}

TEST(LibraryBuild, AnAddressOfNoLibraryHasNone) {
  const int here = 0;
  EXPECT_EQ(gpu::library_build(&here), "");
  EXPECT_EQ(gpu::builds_of_loaded("libnobody_has_this"), "");
}

}  // namespace
}  // namespace fulmen::testing
