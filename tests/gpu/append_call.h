// A call of append_kv() with random tensors, in host memory and on a device, and what the two have
// in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "fulmen/kv_cache.h"
#include "fulmen/tensor_member.h"
#include "gpu/gpu_devices.h"
#include "plan/registry.h"
#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"

namespace fulmen::testing {

// Tensors of random numbers in host memory, contiguous.
struct AppendCall {
  using T = KvCacheTensors;
  static constexpr std::array<TensorMember<T>, 13> kAll{
      &T::k_cache,       &T::v_cache,    &T::seqlens_k,  &T::block_table, &T::k_new,
      &T::v_new,         &T::rotary_cos, &T::rotary_sin, &T::q,           &T::q_out,
      &T::seqlens_k_out, &T::k_scale,    &T::v_scale};
  static constexpr std::array<TensorMember<T>, 6> kWritten{
      &T::k_cache, &T::v_cache, &T::q_out, &T::seqlens_k_out, &T::k_scale, &T::v_scale};

  static int64_t bytes_of_row(DType dtype, int64_t dims) {
    return block_bytes(dtype) > 0 ? dims / kBlockNumbers * block_bytes(dtype)
                                  : dims * size_of(dtype);
  }
  static std::size_t bytes_of(const Tensor& t) {
    return static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] *
                                    bytes_of_row(t.dtype, t.shape[3]));
  }

  struct Shape {
    DType dtype = DType::bf16;
    int64_t batch = 1, rows = 1, seqlen_new = 1, seqlen_q = 1, heads = 1, kv_heads = 1, dim = 2,
            dim_v = 1, rotary_dim = 0, page_size = 0;
    DType rotary_dtype = DType::fp32;
    // Formats of the cache, with a scale of each token or of all.
    bool quantized = false, of_tokens = false;
    bool latent = false;  // v is the first dims of k, everywhere
    DType k_dtype = DType::int8, v_dtype = DType::int8, scale_dtype = DType::fp32;
  };
  AppendCall(const Shape& s, Random& random) {
    const int64_t max_pages = s.page_size > 0 ? (s.rows + s.page_size - 1) / s.page_size : 0,
                  pages = s.batch * max_pages + 2;
    const int64_t batch = s.page_size > 0 ? pages : s.batch,
                  rows = s.page_size > 0 ? s.page_size : s.rows;
    if (s.quantized) {
      t.k_cache = place(s.k_dtype, {batch, rows, s.kv_heads, s.dim});
      t.v_cache = place(s.v_dtype, {batch, rows, s.kv_heads, s.dim_v});
      for (const auto& [scale, of] : {std::pair{&t.k_scale, s.k_dtype}, {&t.v_scale, s.v_dtype}}) {
        if (block_bytes(of) > 0) continue;  // blocks have their own
        *scale = s.of_tokens ? floats(s.scale_dtype, {batch, rows, s.kv_heads, 1}, random)
                             : floats(s.scale_dtype, {1, 1, 1, 1}, random);
      }
    } else {
      t.k_cache = floats(s.dtype, {batch, rows, s.kv_heads, s.dim}, random);
      t.v_cache = floats(s.dtype, {batch, rows, s.kv_heads, s.dim_v}, random);
    }
    if (s.seqlen_new > 0) {
      t.k_new = floats(s.dtype, {s.batch, s.seqlen_new, s.kv_heads, s.dim}, random);
      t.v_new = floats(s.dtype, {s.batch, s.seqlen_new, s.kv_heads, s.dim_v}, random);
    }
    if (s.latent) {
      for (const auto& [values, keys] : {std::pair{&t.v_cache, &t.k_cache}, {&t.v_new, &t.k_new}}) {
        *values = *keys;
        values->shape[3] = s.dim_v;
      }
      t.v_scale = t.k_scale;
    }
    const int64_t most = s.rows - std::max(s.seqlen_new, s.seqlen_q);
    t.seqlens_k = numbers(1, s.batch, [&](int64_t) { return random.between(0, most); });
    t.seqlens_k_out = numbers(1, s.batch, [](int64_t) { return -7; });
    if (s.page_size > 0)
      t.block_table = numbers(s.batch, max_pages, [&](int64_t n) { return pages - 1 - n; });
    if (s.rotary_dim == 0) return;
    t.rotary_cos = floats(s.rotary_dtype, {1, 1, s.rows, s.rotary_dim / 2}, random);
    t.rotary_sin = floats(s.rotary_dtype, {1, 1, s.rows, s.rotary_dim / 2}, random);
    t.q = floats(s.dtype, {s.batch, s.seqlen_q, s.heads, s.dim}, random);
    t.q_out = floats(s.dtype, {s.batch, s.seqlen_q, s.heads, s.dim}, random);
  }
  T t;

 private:
  Tensor place(DType dtype, const std::array<int64_t, 4>& shape) {
    // Strides of blocks are in bytes.
    const int64_t row = block_bytes(dtype) > 0 ? bytes_of_row(dtype, shape[3]) : shape[3];
    Tensor tensor{nullptr, dtype, shape, {shape[1] * shape[2] * row, shape[2] * row, row, 1}};
    memory_.push_back(std::make_unique<std::byte[]>(bytes_of(tensor)));
    tensor.data = memory_.back().get();
    return tensor;
  }
  Tensor floats(DType dtype, const std::array<int64_t, 4>& shape, Random& random) {
    const Tensor tensor = place(dtype, shape);
    for (int64_t n = 0; n < shape[0] * shape[1] * shape[2] * shape[3]; ++n)
      reference::store_float(tensor.data, dtype, n, random.normal());
    return tensor;
  }
  template <class Number>
  Tensor numbers(int64_t rows, int64_t columns, const Number& number) {
    const Tensor tensor = place(DType::int32, {1, 1, rows, columns});
    for (int64_t n = 0; n < rows * columns; ++n)
      static_cast<int*>(tensor.data)[n] = static_cast<int>(number(n));
    return tensor;
  }
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

class AppendKvTest : public GpuTest {
 protected:
  using T = KvCacheTensors;
  // Runs the call on the device, with copies of the tensors there; its outputs are copied back into
  // the host's.
  static Status run(const T& host, const KvCacheOptions& options) {
    const auto backend = backend_of(device());
    T there = host;
    std::vector<void*> owned;
    Status status;
    for (const TensorMember<T> tensor : AppendCall::kAll) {
      if ((host->*tensor).data == nullptr) continue;
      void* memory = backend->allocate(device(), AppendCall::bytes_of(host->*tensor));
      owned.push_back(memory);
      (there->*tensor).data = memory;
      if (status.ok())
        status = backend->copy(device(), memory, (host->*tensor).data,
                               AppendCall::bytes_of(host->*tensor));
    }
    if (host.q_out.data == host.q.data) there.q_out.data = there.q.data;
    const bool latent = host.v_cache.data == host.k_cache.data;
    if (latent) {
      there.v_cache.data = there.k_cache.data;
      there.v_new.data = there.k_new.data;
      there.v_scale.data = there.k_scale.data;
    }
    if (status.ok()) status = append_kv(there, options, device());
    if (status.ok()) status = backend->synchronize(device(), nullptr);
    for (const TensorMember<T> tensor : AppendCall::kWritten) {
      if (!status.ok() || (host->*tensor).data == nullptr) continue;
      if (latent && (tensor == &T::v_cache || tensor == &T::v_scale)) continue;
      status = backend->copy(device(), (host->*tensor).data, (there->*tensor).data,
                             AppendCall::bytes_of(host->*tensor));
    }
    for (void* memory : owned) backend->free(device(), memory);
    return status;
  }
  // The same call here and there, with equal tensors.
  static void expect_as_on_the_cpu(const AppendCall& here, const AppendCall& there,
                                   const KvCacheOptions& options = {}) {
    const Status expected = append_kv(here.t, options, "cpu");
    ASSERT_TRUE(expected.ok()) << expected.message();
    const Status status = run(there.t, options);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_same(here.t, there.t);
  }
  // Rotated keys may be one code apart; their scale is another one then, too, by a rounding.
  static void expect_same_codes(const Tensor& a, const Tensor& b, bool in_bits) {
    const auto *x = static_cast<const uint8_t*>(a.data), *y = static_cast<const uint8_t*>(b.data);
    for (std::size_t n = 0; n < AppendCall::bytes_of(a); ++n) {
      if (in_bits) {
        ASSERT_EQ(x[n], y[n]) << "element " << n;
        continue;
      }
      // Codes of either sign are neighbours on the number line, where 0 is one code or two.
      const auto place = [&](uint8_t code) {
        if (a.dtype == DType::int8) return static_cast<int>(static_cast<int8_t>(code));
        return code < 0x80 ? static_cast<int>(code) : 0x80 - static_cast<int>(code);
      };
      ASSERT_LE(std::abs(place(x[n]) - place(y[n])), 1) << "element " << n;
    }
  }
  // Blocks of values byte by byte. Of rotated keys, whose numbers may differ by a rounding, so may
  // a block's scale and with it the code of any number by one.
  static void expect_same_blocks(const Tensor& a, const Tensor& b, bool in_bits) {
    const auto *x = static_cast<const uint8_t*>(a.data), *y = static_cast<const uint8_t*>(b.data);
    const auto bytes = static_cast<std::size_t>(block_bytes(a.dtype));
    for (std::size_t at = 0; at < AppendCall::bytes_of(a); at += bytes) {
      if (in_bits) {
        ASSERT_TRUE(std::equal(x + at, x + at + bytes, y + at)) << "block " << at / bytes;
        continue;
      }
      float here[kBlockNumbers], there[kBlockNumbers], most = 0;
      reference::decode_block(a.dtype, x + at, here);
      reference::decode_block(b.dtype, y + at, there);
      for (const float number : here) most = std::fmax(most, std::fabs(number));
      const float levels = a.dtype == DType::q8_0                             ? 127
                           : a.dtype == DType::q5_0 || a.dtype == DType::q5_1 ? 15
                                                                              : 7;
      for (int n = 0; n < kBlockNumbers; ++n) {
        if (std::isnan(here[n]) && std::isnan(there[n])) continue;
        ASSERT_NEAR(here[n], there[n], 1.1F * most / levels) << "block " << at / bytes;
      }
    }
  }
  // Every element of what is written, untouched ones included.
  static void expect_same(const T& here, const T& there) {
    for (const TensorMember<T> tensor : AppendCall::kWritten) {
      const Tensor &a = here->*tensor, &b = there->*tensor;
      if (a.data == nullptr) continue;
      const int64_t count = static_cast<int64_t>(AppendCall::bytes_of(a)) / size_of(a.dtype);
      if (a.dtype == DType::int32) {
        EXPECT_TRUE(std::equal(static_cast<int*>(a.data), static_cast<int*>(a.data) + count,
                               static_cast<int*>(b.data)));
        continue;
      }
      if (block_bytes(a.dtype) > 0) {
        expect_same_blocks(a, b, tensor == &T::v_cache);
        continue;
      }
      if (size_of(a.dtype) == 1) {
        expect_same_codes(a, b, tensor == &T::v_cache);
        continue;
      }
      // Products and sums may be contracted, which saves a rounding of the terms.
      const float size = 4 * (a.dtype == DType::fp32   ? 1e-6F
                              : a.dtype == DType::fp16 ? 0x1p-11F
                                                       : 0x1p-8F);
      for (int64_t n = 0; n < count; ++n) {
        const float x = reference::load_float(a.data, a.dtype, n),
                    y = reference::load_float(b.data, b.dtype, n);
        if (std::isnan(x) && std::isnan(y)) continue;
        ASSERT_NEAR(x, y, size * std::max(1.0F, std::fabs(x))) << "element " << n;
        ASSERT_TRUE(!(tensor == &T::v_cache) || x == y) << "element " << n << " of v_cache";
      }
    }
  }
};

}  // namespace fulmen::testing
