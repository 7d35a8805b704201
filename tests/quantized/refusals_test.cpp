// What quantize_kv, dequantize_kv and a call with quantized keys and values refuse, in which words,
// and numbers that are not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"

namespace fulmen::testing {
namespace {

struct Small {
  static constexpr int64_t kKeys = 3, kHeads = 2, kDim = 32;
  std::vector<float> q = std::vector<float>(4 * kDim, 0.5F), out = q;
  std::vector<float> numbers = std::vector<float>(kKeys * kHeads * kDim, 1.0F), back = numbers;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(numbers.size() * 2);
  std::vector<float> scale = std::vector<float>(numbers.size(), 1.0F);
  AttentionTensors tensors{.q = Tensor::bshd(q.data(), DType::fp32, 1, 1, 4, kDim),
                           .k = stored(DType::int8),
                           .v = stored(DType::int8),
                           .out = Tensor::bshd(out.data(), DType::fp32, 1, 1, 4, kDim)};

  Tensor stored(DType dtype) { return Tensor::bshd(bytes.data(), dtype, 1, kKeys, kHeads, kDim); }
  Tensor plain(std::vector<float>& x) {
    return Tensor::bshd(x.data(), DType::fp32, 1, kKeys, kHeads, kDim);
  }
  Tensor scales(int64_t batch, int64_t keys, int64_t heads, int64_t dim) {
    return Tensor::bshd(scale.data(), DType::fp32, batch, keys, heads, dim);
  }
};

void expect_said(const Status& status, const std::string& words) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

TEST(QuantizedRefusals, OfACall) {
  const auto refused = [](const auto& bend, const std::string& words) {
    Small call;
    bend(call);
    expect_said(attention(call.tensors, {}, "cpu"), words);
  };
  refused([](Small& c) { c.tensors.k.dtype = DType::boolean; }, "k.dtype is boolean");
  refused([](Small& c) { c.tensors.q.dtype = DType::int8; },
          "q.dtype is int8: fp32, fp16 and bf16");
  refused([](Small& c) { c.tensors.k_scale = c.scales(1, 2, 1, 1); },
          "k_scale.shape is [1, 2, 1, 1]: [batch, seqlen_k, num_kv_heads, head_dim] = "
          "[1, 3, 2, 32] is needed, where each dim may be 1");
  refused([](Small& c) { c.tensors.v_scale = c.scales(1, 1, 1, 32); },
          "v_scale.shape is [1, 1, 1, 32]: [batch, 1, num_kv_heads, 1] = [1, 1, 2, 1]");
  refused([](Small& c) { c.tensors.q_scale = c.scales(1, 3, 1, 1); },
          "q_scale.shape is [1, 3, 1, 1]");
  refused([](Small& c) { c.tensors.k_scale = c.scales(1, 3, 2, 32); },
          "scales of each token and of each channel are not accepted together");
  refused(
      [](Small& c) {
        c.tensors.k_scale = c.scales(1, 3, 1, 1);
        c.tensors.k_scale.strides[1] = 0;
      },
      "one scale for all tokens has dim 1 of size 1");
  refused(
      [](Small& c) {
        c.tensors.v_scale = c.scales(1, 1, 1, 1);
        c.tensors.v_scale.dtype = DType::bf16;
      },
      "v_scale.dtype is bf16: fp32 and fp16 are accepted");
  refused(
      [](Small& c) {
        c.tensors.k = c.stored(DType::q8_0);
        c.tensors.k_scale = c.scales(1, 1, 1, 1);
      },
      "k_scale is given, k.dtype is q8_0: its blocks have their own scales");
  refused(
      [](Small& c) {
        for (Tensor* t : {static_cast<Tensor*>(&c.tensors.q), static_cast<Tensor*>(&c.tensors.k)})
          t->shape[3] = 16;
        c.tensors.k.dtype = DType::q4_0;
      },
      "k.shape is [1, 3, 2, 16]: q4_0 has blocks of 32 numbers");
  Small call;
  call.tensors.v_scale = call.scales(1, 1, 1, 1);
  call.tensors.k_scale = call.scales(1, 3, 2, 1);
  EXPECT_TRUE(attention(call.tensors, {}, "cpu").ok());
}

TEST(QuantizedRefusals, OfQuantizing) {
  const auto refused = [](const auto& bend, const std::string& words) {
    Small c;
    Tensor from = c.plain(c.numbers), to = c.stored(DType::int8), scale;
    bend(c, from, to, scale);
    expect_said(quantize_kv(from, to, scale), words);
    expect_said(dequantize_kv(to, scale, from), words);
  };
  using T = Tensor;
  refused([](Small&, T& from, T&, T&) { from.dtype = DType::int8; }, "numbers.dtype is int8");
  refused([](Small&, T&, T& to, T&) { to.dtype = DType::fp16; },
          "quantized.dtype is fp16: int8, fp8 and the block formats are accepted");
  refused([](Small&, T&, T& to, T&) { to.shape[1] = 2; }, "quantized.shape is [1, 2, 2, 32]");
  refused([](Small& c, T&, T&, T& scale) { scale = c.scales(2, 1, 1, 1); },
          "scale.shape is [2, 1, 1, 1]");
  refused(
      [](Small& c, T&, T& to, T& scale) {
        to = c.stored(DType::q8_0);
        scale = c.scales(1, 1, 1, 1);
      },
      "scale is given, quantized.dtype is q8_0");
  refused([](Small&, T&, T& to, T&) { to.data = nullptr; }, "quantized.data is null");
  refused([](Small&, T& from, T& to, T&) { to.data = from.data; }, "overlaps");
}

// A NaN stays in what shares its scale; a scale of 0 makes zeros; infinite scales do what they say.
TEST(QuantizedNumbers, ThatAreNotFinite) {
  for (const DType dtype : {DType::int8, DType::fp8_e4m3, DType::q8_0}) {
    Small c;
    const Tensor scale = block_bytes(dtype) > 0 ? Tensor{} : c.scales(1, 3, 2, 1);
    c.numbers[5] = NAN;  // key 0, head 0
    for (int d = 0; d < Small::kDim; ++d) c.numbers[static_cast<std::size_t>(32 + d)] = 0;
    c.numbers[70] = HUGE_VALF;  // key 1, head 0
    ASSERT_TRUE(quantize_kv(c.plain(c.numbers), c.stored(dtype), scale).ok());
    ASSERT_TRUE(dequantize_kv(c.stored(dtype), scale, c.plain(c.back)).ok());
    for (std::size_t n = 0; n < c.back.size(); ++n) {
      if (n / 32 == 0 || n / 32 == 2) {
        EXPECT_TRUE(std::isnan(c.back[n])) << n;
      } else {
        EXPECT_NEAR(c.back[n], c.numbers[n], 0.01) << n;
      }
    }
    // The call's rows see what is stored.
    c.tensors.k = c.tensors.v = c.stored(dtype);
    c.tensors.k_scale = c.tensors.v_scale = scale;
    ASSERT_TRUE(attention(c.tensors, {}, "cpu").ok());
    EXPECT_TRUE(std::isnan(c.out[0]));
    EXPECT_NEAR(c.out[2 * 32], 0.7, 0.3);  // head 1 of k and v is finite
  }
  Small c;
  c.scale[0] = HUGE_VALF;
  c.bytes.assign(c.bytes.size(), 1);
  ASSERT_TRUE(dequantize_kv(c.stored(DType::int8), c.scales(1, 1, 1, 1), c.plain(c.back)).ok());
  EXPECT_EQ(c.back[0], HUGE_VALF);
}

}  // namespace
}  // namespace fulmen::testing
