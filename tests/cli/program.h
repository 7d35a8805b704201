// Runs the fulmen program as a user does, in a folder of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tools/files/npy.h"

namespace fulmen::test {

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "fulmen_cli_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Arguments are passed as they are: no shell expands them.
  Outcome fulmen(const std::vector<std::string>& arguments) const {
    return program(FULMEN_CLI, arguments);
  }
  Outcome program(const std::string& name, const std::vector<std::string>& arguments) const {
    std::string command = "cd '" + folder_.string() + "' && '" + name + "'";
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    const auto out = folder_ / ".stdout", err = folder_ / ".stderr";
    const int status = std::system((command + " >.stdout 2>.stderr </dev/null").c_str());
    Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(out), read_text(err)};
    std::filesystem::remove(out);
    std::filesystem::remove(err);
    return outcome;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string example(const std::string& name) {
    return std::string(FULMEN_SOURCE_DIR "/examples/data/") + name;
  }
  // The options of the example's inputs.
  static std::vector<std::string> example_inputs() {
    return {"--q", example("q.npy"), "--k",    example("k.npy"),
            "--v", example("v.npy"), "--keep", example("keep.npy")};
  }

  // From -1 to 1.
  static std::vector<float> numbers(int64_t count, int64_t seed) {
    std::vector<float> x;
    for (int64_t i = 0; i < count; ++i)
      x.push_back(static_cast<float>((i * 37 + seed * 11) % 101) / 50.0F - 1.0F);
    return x;
  }
  void write_bytes(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  // A file of the given version, dictionary and data.
  static std::string npy_bytes(int version, const std::string& dict, const std::string& data) {
    std::string bytes = "\x93NUMPY";
    bytes += static_cast<char>(version);
    bytes += '\0';
    for (std::size_t i = 0; i < (version == 1 ? 2U : 4U); ++i)
      bytes += static_cast<char>(dict.size() >> (8 * i) & 0xFF);
    return bytes + dict + data;
  }
  static std::string dict(const std::string& descr, const std::string& shape,
                          const std::string& fortran = "False") {
    return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape +
           ", }\n";
  }
  void write_array(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                   const void* data) const {
    auto file = tools::OutputFile::create(path(name));
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(tools::write_npy(file.value(), dtype, shape, data).ok());
    ASSERT_TRUE(file->commit().ok());
  }
  // Every name in the folder.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::filesystem::path folder_;
};

// One clear sentence: a single line that begins with the program's name.
inline void expect_one_sentence(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_EQ(outcome.err.rfind("fulmen: ", 0), 0U) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos)
      << "expected '" << part << "' in: " << outcome.err;
}

}  // namespace fulmen::test
