// Queries, keys and values of a real text encoder with the exact result beside them: examples/data.
// tests/python/test_transformers.py has whole layers of the same encoder.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

namespace fs = std::filesystem;

// The bytes behind a .npy header; what they are is known from the set's README.
std::vector<char> npy_payload(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() < 10) throw std::runtime_error(path.string() + ": not a .npy file");
  const std::size_t header =
      static_cast<unsigned char>(bytes[8]) + 256U * static_cast<unsigned char>(bytes[9]);
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(10 + header));
  return bytes;
}

template <class T>
std::vector<T> npy_values(const fs::path& path) {
  const std::vector<char> bytes = npy_payload(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

TEST(RealData, MiniLm) {
  constexpr int64_t kBatch = 2, kSeqlen = 44, kHeads = 6, kDim = 32;
  const fs::path folder = fs::path(FULMEN_SOURCE_DIR) / "examples" / "data";
  const auto q = npy_values<float>(folder / "q.npy");
  const auto k = npy_values<float>(folder / "k.npy");
  const auto v = npy_values<float>(folder / "v.npy");
  const auto keep = npy_values<uint8_t>(folder / "keep.npy");
  const auto exact = npy_values<float>(folder / "out.npy");
  const auto exact_lse = npy_values<float>(folder / "lse.npy");
  ASSERT_EQ(q.size(), static_cast<std::size_t>(kBatch * kSeqlen * kHeads * kDim));
  ASSERT_EQ(keep.size(), static_cast<std::size_t>(kBatch * kSeqlen));
  ASSERT_EQ(exact.size(), q.size());
  ASSERT_EQ(exact_lse.size(), static_cast<std::size_t>(kBatch * kSeqlen * kHeads));

  Random random(500);
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    CaseSpec spec;
    spec.dtype = dtype;
    spec.batch = kBatch;
    spec.seqlen_q = spec.seqlen_k = kSeqlen;
    spec.num_heads = spec.num_kv_heads = kHeads;
    spec.head_dim = spec.head_dim_v = kDim;
    spec.keep = true;
    spec.keep_broadcast = {false, true, true};
    Case c(spec, random);
    std::size_t element = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < kSeqlen; ++i) {
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t d = 0; d < kDim; ++d, ++element) {
            Case::set(c.tensors.q, {b, i, h, d}, q[element]);
            Case::set(c.tensors.k, {b, i, h, d}, k[element]);
            Case::set(c.tensors.v, {b, i, h, d}, v[element]);
          }
        }
      }
    }
    std::memcpy(c.tensors.keep_mask.data, keep.data(), keep.size());
    EXPECT_GT(expect_all_kernels_verified(c), 0);

    if (dtype != DType::fp32) continue;
    // The oracle against the set's own result, computed elsewhere in double. The Problem's scale is
    // a float: 97 * 3e-8.
    std::vector<double> out(exact.size());
    std::vector<double> lse(exact_lse.size());
    ASSERT_TRUE(attention_reference(c.problem(), c.tensors, out.data(), lse.data()).ok());
    for (std::size_t n = 0; n < out.size(); ++n) ASSERT_NEAR(out[n], exact[n], 3e-6) << n;
    for (std::size_t n = 0; n < lse.size(); ++n) ASSERT_NEAR(lse[n], exact_lse[n], 1.3e-5) << n;
  }
}

}  // namespace
}  // namespace fulmen::testing
