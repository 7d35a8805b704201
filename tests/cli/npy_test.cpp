// Reading and writing .npy files, without the program.
#include "tools/files/npy.h"

#include <array>
#include <cstring>

#include "program.h"

namespace fulmen::test {
namespace {

using tools::NpyArray;
using tools::read_npy;

class NpyTest : public ProgramTest {
 protected:
  static std::string floats(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  // The message of refusing a file with these bytes.
  std::string refusal(const std::string& bytes) const {
    write_bytes("bad.npy", bytes);
    const Result<NpyArray> array = read_npy(path("bad.npy"), false);
    EXPECT_FALSE(array.ok());
    EXPECT_EQ(array.status().message().rfind(path("bad.npy") + ": ", 0), 0U)
        << array.status().message();
    return array.status().message();
  }
};

#define EXPECT_CONTAINS(text, part) EXPECT_PRED2(contains, text, part)
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(NpyTest, ReadsEveryVersion) {
  for (const int version : {1, 2, 3}) {
    write_bytes("a.npy", npy_bytes(version, dict("<f4", "(2, 3)"), floats({1, 2, 3, 4, 5, 6})));
    const Result<NpyArray> array = read_npy(path("a.npy"), false);
    ASSERT_TRUE(array.ok()) << "version " << version << ": " << array.status().message();
    EXPECT_EQ(array->dtype, DType::fp32);
    EXPECT_EQ(array->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(static_cast<const float*>(array->data.data())[5], 6.0F);
  }
}

TEST_F(NpyTest, ReadsEveryAcceptedType) {
  struct Type {
    const char* descr;
    DType dtype;
    std::size_t bytes;
  };
  for (const auto& [descr, dtype, bytes] :
       {Type{"<f4", DType::fp32, 4}, Type{"<f2", DType::fp16, 2}, Type{"<u2", DType::bf16, 2},
        Type{"|b1", DType::boolean, 1}, Type{"|u1", DType::boolean, 1}}) {
    write_bytes("a.npy", npy_bytes(1, dict(descr, "(3,)"), std::string(3 * bytes, '\1')));
    const Result<NpyArray> array = read_npy(path("a.npy"), true);
    ASSERT_TRUE(array.ok()) << array.status().message();
    EXPECT_EQ(array->dtype, dtype) << descr;
  }
}

TEST_F(NpyTest, ReadsScalarsAndEmptyArrays) {
  write_bytes("scalar.npy", npy_bytes(1, dict("<f4", "()"), floats({7})));
  const Result<NpyArray> scalar = read_npy(path("scalar.npy"), false);
  ASSERT_TRUE(scalar.ok()) << scalar.status().message();
  EXPECT_EQ(scalar->element_count(), 1U);
  write_bytes("empty.npy", npy_bytes(1, dict("<f4", "(0, 9223372036854775807)"), ""));
  const Result<NpyArray> empty = read_npy(path("empty.npy"), false);
  EXPECT_FALSE(empty.ok());  // such a shape overflows once any other size is 2
  write_bytes("empty.npy", npy_bytes(1, dict("<f4", "(0, 3)"), ""));
  EXPECT_TRUE(read_npy(path("empty.npy"), false).ok());
}

TEST_F(NpyTest, RefusesWithReason) {
  EXPECT_CONTAINS(refusal(""), "not a .npy file");
  EXPECT_CONTAINS(refusal("PK\3\4 a zip file, as .npz is"), "not a .npy file");
  EXPECT_CONTAINS(refusal(npy_bytes(4, dict("<f4", "(1,)"), floats({1}))), "version 4.0");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict("<f8", "(1,)"), std::string(8, '\0'))),
                  "astype(numpy.float32)");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict(">f4", "(1,)"), floats({1}))), "big-endian");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict("<i8", "(1,)"), std::string(8, '\0'))),
                  "'<i8' is not accepted");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict("<u2", "(1,)"), std::string(2, '\0'))), "--bf16");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict("<f4", "(2, 2)", "True"), floats({1, 2, 3, 4}))),
                  "ascontiguousarray");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict("<f4", "(2, 2)"), floats({1, 2, 3}))),
                  "needs 16 bytes of data, the file has 12");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict("<f4", "(4294967296, 4294967296)"), "")), "overflows");
  EXPECT_CONTAINS(refusal(npy_bytes(1, dict("<f4", "(-1, 2)"), "")), "'shape'");
  EXPECT_CONTAINS(
      refusal(npy_bytes(1, "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}", "")),
      "structured");
  EXPECT_CONTAINS(refusal(npy_bytes(1, "{'descr': '<f4', 'shape': (1,)}", floats({1}))), "missing");
  EXPECT_CONTAINS(refusal(npy_bytes(1, "{'descr': '<f4', ", "")), "malformed");
}

TEST_F(NpyTest, RefusesEveryTruncation) {
  const std::string whole = npy_bytes(1, dict("<f4", "(1,)"), floats({1}));
  for (std::size_t length = 0; length < whole.size(); ++length) refusal(whole.substr(0, length));
}

TEST_F(NpyTest, WhatIsWrittenReadsBack) {
  const std::array<float, 6> values{1, -2, 3, 4, 5, 6.5F};
  write_array("a.npy", DType::fp32, {1, 2, 3}, values.data());
  const Result<NpyArray> array = read_npy(path("a.npy"), false);
  ASSERT_TRUE(array.ok()) << array.status().message();
  EXPECT_EQ(array->shape, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(std::memcmp(array->data.data(), values.data(), sizeof(values)), 0);
  EXPECT_EQ((std::filesystem::file_size(path("a.npy")) - sizeof(values)) % 64, 0U)
      << "NumPy aligns the data to 64 bytes";
}

TEST_F(NpyTest, FileThatIsNotCommittedLeavesNothing) {
  write_bytes("old.npy", "old");
  {
    Result<tools::OutputFile> file = tools::OutputFile::create(path("old.npy"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write(std::as_bytes(std::span("new"))).ok());
  }
  EXPECT_EQ(files(), std::vector<std::string>{"old.npy"});
  EXPECT_EQ(read_text(path("old.npy")), "old");
}

}  // namespace
}  // namespace fulmen::test
