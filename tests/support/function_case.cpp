#include "support/function_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "fulmen/reference.h"

namespace fulmen::testing {

Functions::Functions(const CaseSpec& s, Random& random, bool gradients) {
  const auto fill = [&](std::vector<float>& to, int64_t count) {
    to.resize(static_cast<std::size_t>(count));
    for (float& x : to) x = 0.5F * random.normal();
  };
  fill(slopes, s.num_heads);
  fill(gain, 1);
  fill(table, s.num_heads * 17);
  slopes_gradient = slopes, gain_gradient = gain, table_gradient = table;
  for (int64_t i = 0; i < std::max(s.seqlen_q, s.seqlen_k); ++i) {
    documents.push_back(static_cast<int32_t>(i / 37));
    shifts.push_back(static_cast<int8_t>(random.between(-3, 3)));
  }
  const auto float_tensor = [&](const char* name, int dims, std::vector<float>& values,
                                std::array<int64_t, 4> shape, std::array<int64_t, 4> strides,
                                std::vector<float>& gradient) {
    FunctionTensor tensor{name, dims, Tensor{values.data(), DType::fp32, shape, strides}, {}};
    if (gradients) tensor.gradient = {gradient.data(), DType::fp32, shape, strides};
    list.push_back(tensor);
  };
  float_tensor("slopes", 1, slopes, {s.num_heads}, {1}, slopes_gradient);
  float_tensor("gain", 0, gain, {}, {}, gain_gradient);
  // Transposed in memory.
  float_tensor("table", 2, table, {s.num_heads, 17}, {1, s.num_heads}, table_gradient);
  const auto length = static_cast<int64_t>(documents.size());
  list.push_back({"documents", 1, Tensor{documents.data(), DType::int32, {length}, {1}}, {}});
  list.push_back({"shifts", 1, Tensor{shifts.data(), DType::int8, {length}, {1}}, {}});
}

std::string random_band_mask(Random& random) {
  const std::string bound = std::to_string(random.between(-20, 60));
  const std::string band =
      random.pick({std::string("q >= k"), "q >= k & q - k <= " + bound, "abs(q - k) < " + bound,
                   "k <= q + " + bound, "k - q >= " + bound, std::string("q > k")});
  return random.chance(0.5) ? band : band + " & documents[q] == documents[k]";
}

void draw_functions(Case& c, Random& random) {
  const bool score = random.chance(0.7);
  if (score) c.options.score_mod = kScores[random.between(0, std::size(kScores) - 1)];
  if (!score || random.chance(0.6))
    c.options.mask_mod = kMasks[random.between(0, std::size(kMasks) - 1)];
}

// What forward gives with the functions, for a backward case.
void set_forward_results(Case& c) {
  AttentionTensors t = c.tensors;
  std::vector<FunctionTensor> inputs(t.function_tensors.begin(), t.function_tensors.end());
  for (FunctionTensor& one : inputs) one.gradient = {};
  t.function_tensors = inputs;
  const auto p = make_problem(t, c.options);
  ASSERT_TRUE(p.ok()) << p.status().message();
  const auto count = [](const Problem::Shape& s) {
    return static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]);
  };
  std::vector<double> out(count(p->out_shape()), NAN), lse(count(p->lse_shape()), NAN);
  ASSERT_TRUE(attention_reference(*p, t, out.data(), lse.data()).ok());
  const auto store = [](const Tensor& tensor, const Problem::Shape& s,
                        const std::vector<double>& from) {
    std::size_t at = 0;
    for (int64_t a = 0; a < s[0]; ++a) {
      for (int64_t b = 0; b < s[1]; ++b) {
        for (int64_t i = 0; i < s[2]; ++i) {
          for (int64_t d = 0; d < s[3]; ++d, ++at) {
            if (!std::isnan(from[at]))
              Case::set(tensor, {a, b, i, d}, static_cast<float>(from[at]));
          }
        }
      }
    }
  };
  store(c.tensors.out, p->out_shape(), out);
  store(c.tensors.lse, p->lse_shape(), lse);
}

void Blocks::put(Case& c, int64_t block_q, int64_t block_k, bool by_head, Random& random) {
  const int64_t rows = (c.spec.seqlen_q + block_q - 1) / block_q,
                keys = (c.spec.seqlen_k + block_k - 1) / block_k,
                heads = by_head ? c.spec.num_heads : 1;
  for (int64_t row = 0; row < heads * rows; ++row) {
    std::vector<int32_t> partial, full;
    for (int32_t key = 0; key < keys; ++key) {
      const int64_t what = random.between(0, 3);
      if (what == 1 || what == 2) partial.push_back(key);
      if (what == 3) full.push_back(key);
    }
    counts.push_back(static_cast<int32_t>(partial.size()));
    full_counts.push_back(static_cast<int32_t>(full.size()));
    // Behind the listed ones anything may stand.
    partial.resize(static_cast<std::size_t>(keys), 12345);
    full.resize(static_cast<std::size_t>(keys), -7);
    indices.insert(indices.end(), partial.begin(), partial.end());
    full_indices.insert(full_indices.end(), full.begin(), full.end());
  }
  c.options.mask_block_q = block_q;
  c.options.mask_block_k = block_k;
  c.tensors.kv_num_blocks = Tensor::bhqk(counts.data(), DType::int32, 1, heads, 1, rows);
  c.tensors.kv_indices = Tensor::bhqk(indices.data(), DType::int32, 1, heads, rows, keys);
  if (random.chance(0.3)) return;
  c.tensors.full_kv_num_blocks = Tensor::bhqk(full_counts.data(), DType::int32, 1, heads, 1, rows);
  c.tensors.full_kv_indices = Tensor::bhqk(full_indices.data(), DType::int32, 1, heads, rows, keys);
}

}  // namespace fulmen::testing
