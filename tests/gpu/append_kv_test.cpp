// Appending to a KV cache in a GPU's memory, beside the same call on the CPU.
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

namespace fulmen::testing {
namespace {

using T = KvCacheTensors;
constexpr std::array<TensorMember<T>, 13> kAll{
    &T::k_cache,       &T::v_cache,    &T::seqlens_k,  &T::block_table, &T::k_new,
    &T::v_new,         &T::rotary_cos, &T::rotary_sin, &T::q,           &T::q_out,
    &T::seqlens_k_out, &T::k_scale,    &T::v_scale};
constexpr std::array<TensorMember<T>, 6> kWritten{&T::k_cache,       &T::v_cache, &T::q_out,
                                                  &T::seqlens_k_out, &T::k_scale, &T::v_scale};

std::size_t bytes_of(const Tensor& t) {
  return static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3] *
                                  size_of(t.dtype));
}

// Tensors of random numbers in host memory, contiguous.
struct HostCall {
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
  HostCall(const Shape& s, Random& random) {
    const int64_t max_pages = s.page_size > 0 ? (s.rows + s.page_size - 1) / s.page_size : 0,
                  pages = s.batch * max_pages + 2;
    const int64_t batch = s.page_size > 0 ? pages : s.batch,
                  rows = s.page_size > 0 ? s.page_size : s.rows;
    if (s.quantized) {
      t.k_cache = place(s.k_dtype, {batch, rows, s.kv_heads, s.dim});
      t.v_cache = place(s.v_dtype, {batch, rows, s.kv_heads, s.dim_v});
      for (Tensor* scale : {&t.k_scale, &t.v_scale}) {
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
    Tensor tensor{
        nullptr, dtype, shape, {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
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

class GpuAppendKv : public GpuTest {
 protected:
  // Runs the call on the device, with copies of the tensors there; its outputs are copied back into
  // the host's.
  static Status run(const T& host, const KvCacheOptions& options) {
    const auto backend = backend_of(device());
    T there = host;
    std::vector<void*> owned;
    Status status;
    for (const TensorMember<T> tensor : kAll) {
      if ((host->*tensor).data == nullptr) continue;
      void* memory = backend->allocate(device(), bytes_of(host->*tensor));
      owned.push_back(memory);
      (there->*tensor).data = memory;
      if (status.ok())
        status = backend->copy(device(), memory, (host->*tensor).data, bytes_of(host->*tensor));
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
    for (const TensorMember<T> tensor : kWritten) {
      if (!status.ok() || (host->*tensor).data == nullptr) continue;
      if (latent && (tensor == &T::v_cache || tensor == &T::v_scale)) continue;
      status = backend->copy(device(), (host->*tensor).data, (there->*tensor).data,
                             bytes_of(host->*tensor));
    }
    for (void* memory : owned) backend->free(device(), memory);
    return status;
  }
  // Rotated keys may be one code apart; their scale is another one then, too, by a rounding.
  static void expect_same_codes(const Tensor& a, const Tensor& b, bool in_bits) {
    const auto *x = static_cast<const uint8_t*>(a.data), *y = static_cast<const uint8_t*>(b.data);
    for (std::size_t n = 0; n < bytes_of(a); ++n) {
      if (in_bits) {
        ASSERT_EQ(x[n], y[n]) << "element " << n;
        continue;
      }
      // Of either sign: neighbours on the number line, where 0 is one code or two.
      const auto place = [&](uint8_t code) {
        if (a.dtype == DType::int8) return static_cast<int>(static_cast<int8_t>(code));
        return code < 0x80 ? static_cast<int>(code) : 0x80 - static_cast<int>(code);
      };
      ASSERT_LE(std::abs(place(x[n]) - place(y[n])), 1) << "element " << n;
    }
  }
  // Every element of what is written, untouched ones included.
  static void expect_same(const T& here, const T& there) {
    for (const TensorMember<T> tensor : kWritten) {
      const Tensor &a = here->*tensor, &b = there->*tensor;
      if (a.data == nullptr) continue;
      const int64_t count = static_cast<int64_t>(bytes_of(a)) / size_of(a.dtype);
      if (a.dtype == DType::int32) {
        EXPECT_TRUE(std::equal(static_cast<int*>(a.data), static_cast<int*>(a.data) + count,
                               static_cast<int*>(b.data)));
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

TEST_P(GpuAppendKv, QuantizesAsTheCpuDoes) {
  Random random(own_stream(7907));
  constexpr std::array kFormats{DType::int8,     DType::int8,         DType::fp8_e4m3,
                                DType::fp8_e5m2, DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz};
  for (int n = 0; n < 6; ++n) {
    HostCall::Shape s;
    s.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    s.batch = random.between(1, 2);
    s.kv_heads = random.between(1, 3);
    s.heads = s.kv_heads;
    s.dim = random.between(1, 90);
    s.dim_v = random.between(1, 90);
    s.rotary_dim = random.chance(0.7) ? random.between(0, s.dim / 2) * 2 : 0;
    s.seqlen_new = random.between(1, 9);
    s.seqlen_q = random.between(1, 3);
    s.rows = random.between(10, 40);
    s.page_size = random.pick<int64_t>({0, 0, 4, 7});
    s.quantized = true;
    s.of_tokens = random.chance(0.6);
    s.k_dtype = kFormats[static_cast<std::size_t>(random.between(0, 5))];
    s.v_dtype = kFormats[static_cast<std::size_t>(random.between(0, 5))];
    s.scale_dtype = random.pick({DType::fp32, DType::fp16});
    if (!drawn()) continue;
    KvCacheOptions options;
    options.rotary_interleaved = random.chance(0.5);
    Random same = random;
    HostCall here(s, random), there(s, same);
    // Numbers that have no scale.
    if (random.chance(0.2)) {
      for (const HostCall* call : {&here, &there})
        reference::store_float(call->t.v_new.data, s.dtype, 0, NAN);
    }
    ASSERT_TRUE(append_kv(here.t, options).ok());
    const Status status = run(there.t, options);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_same(here.t, there.t);
  }
}

TEST_P(GpuAppendKv, IsWhatTheCpuDoes) {
  Random random(own_stream(7900));
  for (int n = 0; n < 24; ++n) {
    HostCall::Shape s;
    s.dtype = std::array{DType::fp32, DType::fp16, DType::bf16}[static_cast<std::size_t>(n) % 3];
    s.batch = random.between(1, 3);
    s.kv_heads = random.between(1, 3);
    s.heads = s.kv_heads * random.between(1, 2);
    s.dim = random.between(1, 90);
    s.dim_v = random.between(1, 90);
    s.rotary_dim = random.chance(0.7) ? random.between(0, s.dim / 2) * 2 : 0;
    s.rotary_dtype = random.chance(0.5) ? DType::fp32 : s.dtype;
    s.seqlen_new = random.between(s.rotary_dim > 0 ? 0 : 1, 9);
    s.seqlen_q = random.between(1, 5);
    s.rows = random.between(10, 40);
    s.page_size = random.pick<int64_t>({0, 0, 1, 4, 7, 16});
    KvCacheOptions options;
    options.rotary_interleaved = random.chance(0.5);
    options.queries_advance = random.chance(0.5);
    Random same = random;
    HostCall here(s, random), there(s, same);
    if (random.chance(0.3)) {
      here.t.q_out = here.t.q;
      there.t.q_out = there.t.q;
    }
    const Status expected = append_kv(here.t, options, "cpu");
    ASSERT_TRUE(expected.ok()) << expected.message();
    const Status status = run(there.t, options);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_same(here.t, there.t);
  }
}

// Values that are the first dims of keys are written with these, and so is their scale.
TEST_P(GpuAppendKv, LatentRowsAreWrittenOnce) {
  Random random(own_stream(7908));
  for (const DType stored : {DType::bf16, DType::int8, DType::fp8_e4m3}) {
    for (const bool of_tokens : {false, true}) {
      if (!drawn()) continue;
      HostCall::Shape s;
      s.latent = true;
      s.batch = 2;
      s.dim = 80;
      s.dim_v = 64;
      s.rows = 12;
      s.page_size = of_tokens ? 4 : 0;
      s.seqlen_new = 3;
      s.quantized = stored != DType::bf16;
      s.of_tokens = of_tokens;
      s.k_dtype = s.v_dtype = stored;
      Random same = random;
      HostCall here(s, random), there(s, same);
      const Status expected = append_kv(here.t, {}, "cpu");
      ASSERT_TRUE(expected.ok()) << expected.message();
      const Status status = run(there.t, {});
      ASSERT_TRUE(status.ok()) << status.message();
      here.t.v_cache = there.t.v_cache = here.t.v_scale = there.t.v_scale = {};
      expect_same(here.t, there.t);
    }
  }
}

// Rows that are copied 16 bytes at a time: the dims that are not rotated, and an end that does not
// fill 16 bytes.
TEST_P(GpuAppendKv, ByVectorsWhereRowsAreWhole) {
  Random random(own_stream(7905));
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const int64_t rotary_dim : {0, 32, 36}) {
      HostCall::Shape s;
      s.dtype = dtype;
      s.batch = s.kv_heads = s.heads = 2;
      s.dim = 136;
      s.dim_v = 256;
      s.rotary_dim = rotary_dim;
      s.seqlen_new = 3;
      s.rows = 12;
      Random same = random;
      HostCall here(s, random), there(s, same);
      const Status expected = append_kv(here.t, {}, "cpu");
      ASSERT_TRUE(expected.ok()) << expected.message();
      const Status status = run(there.t, {});
      ASSERT_TRUE(status.ok()) << status.message();
      expect_same(here.t, there.t);
    }
  }
  HostCall::Shape one;  // row 0 is whole, its end is not
  one.dtype = DType::bf16;
  one.rows = 4;
  one.dim = one.dim_v = 77;
  Random same = random;
  HostCall here(one, random), there(one, same);
  ASSERT_TRUE(append_kv(here.t, {}, "cpu").ok());
  const Status status = run(there.t, {});
  ASSERT_TRUE(status.ok()) << status.message();
  expect_same(here.t, there.t);
}

// Unchecked numbers lead to no access outside: rows without a place are not written, and everything
// else is.
TEST_P(GpuAppendKv, NumbersThatLeadOutside) {
  Random random(7910);
  HostCall::Shape s;
  s.dtype = DType::fp16;
  s.batch = 4;
  s.rows = 12;
  s.seqlen_new = 3;
  s.kv_heads = 2;
  s.heads = 2;
  s.dim = s.dim_v = s.rotary_dim = 8;
  s.page_size = 4;
  Random same = random;
  HostCall before(s, random), call(s, same);
  auto* used = static_cast<int*>(call.t.seqlens_k.data);
  used[0] = -2147483647 - 1;
  used[1] = 2147483640;
  used[2] = 100;
  used[3] = 3;
  auto* table = static_cast<int*>(call.t.block_table.data);
  table[3 * 3] = -1;
  table[3 * 3 + 1] = 1 << 30;
  const Status status = run(call.t, {});
  ASSERT_TRUE(status.ok()) << status.message();
  for (Tensor T::* cache : {&T::k_cache, &T::v_cache}) {
    const Tensor &a = before.t.*cache, &b = call.t.*cache;
    EXPECT_TRUE(std::equal(static_cast<std::byte*>(a.data),
                           static_cast<std::byte*>(a.data) + bytes_of(a),
                           static_cast<std::byte*>(b.data)));
  }
}

TEST_P(GpuAppendKv, RefusesHostMemory) {
  Random random(7920);
  HostCall call({.rows = 4}, random);
  const Status status = append_kv(call.t, {}, device());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("k_cache.data is"), std::string::npos) << status.message();
}

INSTANTIATE_TEST_SUITE_P(On, GpuAppendKv, ::testing::ValuesIn(gpu_devices()), test_name);
INSTANTIATE_TEST_SUITE_P(MachineCode, GpuAppendKv, ::testing::ValuesIn(machine_code_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
