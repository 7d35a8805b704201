// Queries, keys and values of a real text encoder with the exact result beside them: examples/data always, the whole set where
// $FULMEN_SHARED_DIR, or a folder `shared` beside the source tree, has it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
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
  const std::size_t header = static_cast<unsigned char>(bytes[8]) + 256U * static_cast<unsigned char>(bytes[9]);
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

fs::path shared_data() {
  const char* given = std::getenv("FULMEN_SHARED_DIR");
  return (given != nullptr ? fs::path(given) : fs::path(FULMEN_SOURCE_DIR) / ".." / "shared") / "data" / "minilm";
}

struct DataSet {
  const char* name;
  bool shared;         // the whole set, or the slice in examples/data
  const char* prefix;  // of the file names
  int64_t batch, seqlen, num_heads;
  double out_rounding;  // of the stored exact result
};

void PrintTo(const DataSet& set, std::ostream* stream) { *stream << set.name; }

fs::path folder_of(const DataSet& set) { return set.shared ? shared_data() : fs::path(FULMEN_SOURCE_DIR) / "examples" / "data"; }

// The stored exact result: double in the whole set, float in the slice.
std::vector<double> exact_values(const DataSet& set, const char* name) {
  const fs::path path = folder_of(set) / (std::string(set.prefix) + name);
  if (set.shared) return npy_values<double>(path);
  const std::vector<float> floats = npy_values<float>(path);
  return {floats.begin(), floats.end()};
}

class RealData : public ::testing::TestWithParam<DataSet> {};

TEST_P(RealData, MiniLm) {
  const DataSet& set = GetParam();
  const fs::path folder = folder_of(set);
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there; set FULMEN_SHARED_DIR";
  constexpr int64_t kDim = 32;
  const auto q = npy_values<float>(folder / (std::string(set.prefix) + "q.npy"));
  const auto k = npy_values<float>(folder / (std::string(set.prefix) + "k.npy"));
  const auto v = npy_values<float>(folder / (std::string(set.prefix) + "v.npy"));
  const auto keep = npy_values<uint8_t>(folder / "keep.npy");
  const auto exact = exact_values(set, "out.npy");
  const auto exact_lse = exact_values(set, "lse.npy");
  ASSERT_EQ(q.size(), static_cast<std::size_t>(set.batch * set.seqlen * set.num_heads * kDim));
  ASSERT_EQ(keep.size(), static_cast<std::size_t>(set.batch * set.seqlen));
  ASSERT_EQ(exact.size(), q.size());
  ASSERT_EQ(exact_lse.size(), static_cast<std::size_t>(set.batch * set.seqlen * set.num_heads));

  Random random(500);
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    CaseSpec spec;
    spec.dtype = dtype;
    spec.batch = set.batch;
    spec.seqlen_q = spec.seqlen_k = set.seqlen;
    spec.num_heads = spec.num_kv_heads = set.num_heads;
    spec.head_dim = spec.head_dim_v = kDim;
    spec.keep = true;
    spec.keep_broadcast = {false, true, true};
    Case c(spec, random);
    std::size_t element = 0;
    for (int64_t b = 0; b < set.batch; ++b) {
      for (int64_t i = 0; i < set.seqlen; ++i) {
        for (int64_t h = 0; h < set.num_heads; ++h) {
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
    // The oracle against the set's own result, computed elsewhere in double. The Problem's scale is a float: 97 * 3e-8.
    std::vector<double> out(exact.size());
    std::vector<double> lse(exact_lse.size());
    ASSERT_TRUE(attention_reference(c.problem(), c.tensors, out.data(), lse.data()).ok());
    for (std::size_t n = 0; n < out.size(); ++n) ASSERT_NEAR(out[n], exact[n], 2e-6 + set.out_rounding) << n;
    for (std::size_t n = 0; n < lse.size(); ++n) ASSERT_NEAR(lse[n], exact_lse[n], 3e-6 + 10 * set.out_rounding) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, RealData,
                         ::testing::Values(DataSet{"examples", false, "", 2, 44, 6, 1e-6},
                                           DataSet{"layer0", true, "layer0_", 4, 128, 12, 0},
                                           DataSet{"layer5", true, "layer5_", 4, 128, 12, 0}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fulmen::testing
