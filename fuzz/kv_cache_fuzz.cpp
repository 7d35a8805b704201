// Calls of fulmen_append_kv bent out of shape by the input's bytes: refused with a sentence, or
// done within memory of exactly the size that the strides reach.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "fulmen/fulmen_c.h"
#include "fuzz/call_bytes.h"

using namespace fulmen::fuzz;

namespace {

constexpr fulmen_tensor fulmen_kv_cache::* kTensors[] = {
    &fulmen_kv_cache::k_cache,     &fulmen_kv_cache::v_cache,       &fulmen_kv_cache::seqlens_k,
    &fulmen_kv_cache::block_table, &fulmen_kv_cache::k_new,         &fulmen_kv_cache::v_new,
    &fulmen_kv_cache::rotary_cos,  &fulmen_kv_cache::rotary_sin,    &fulmen_kv_cache::q,
    &fulmen_kv_cache::q_out,       &fulmen_kv_cache::seqlens_k_out, &fulmen_kv_cache::k_scale,
    &fulmen_kv_cache::v_scale};

// A call that is right, of a shape that the bytes choose.
fulmen_kv_cache right_call(Bytes& in) {
  constexpr std::array<int64_t, 8> kSizes{1, 2, 3, 5, 8, 17, 33, 0};
  const int64_t b = in.pick(kSizes), rows = in.pick(kSizes), added = in.pick(kSizes),
                heads = 1 + in.next() % 3;
  int64_t d = 2 + in.next() % 40, dv = 1 + in.next() % 40;
  const int64_t queries = in.next() % 4;
  const int32_t dtype = in.next() % 3, k_dtype = stored_dtype(in.next(), dtype, d),
                v_dtype = stored_dtype(in.next(), dtype, dv);
  const int features = in.next();
  fulmen_kv_cache c;
  fulmen_kv_cache_init(&c);
  const bool paged = (features & 1) != 0;
  c.k_cache = packed(k_dtype, {paged ? 4 : b, paged ? 3 : rows, heads, d});
  c.v_cache = packed(v_dtype, {paged ? 4 : b, paged ? 3 : rows, heads, dv});
  if (k_dtype != dtype && k_dtype < FULMEN_Q8_0) {
    c.k_scale = packed(FULMEN_FP16, {c.k_cache.shape[0], c.k_cache.shape[1], heads, 1});
  }
  if (v_dtype != dtype && v_dtype < FULMEN_Q8_0) c.v_scale = packed(FULMEN_FP32, {1, 1, heads, 1});
  c.seqlens_k = packed(FULMEN_INT32, {1, 1, 1, b});
  if (paged) c.block_table = packed(FULMEN_INT32, {1, 1, b, 1 + rows / 3});
  if ((features & 2) == 0) {
    c.k_new = packed(dtype, {b, added, heads, d});
    c.v_new = packed(dtype, {b, added, heads, dv});
  }
  if ((features & 4) != 0) {
    c.rotary_cos = c.rotary_sin =
        packed((features & 8) != 0 ? dtype : FULMEN_FP32, {1, 1, 1 + in.next() % 64, d / 2});
    if ((features & 16) != 0) c.q = c.q_out = packed(dtype, {b, queries, heads * 2, d});
  }
  if ((features & 32) != 0) c.seqlens_k_out = c.seqlens_k;
  c.rotary_interleaved = (features & 64) != 0;
  c.queries_advance = (features & 128) != 0;
  c.num_threads = 1;
  return c;
}

void bend(Bytes& in, fulmen_kv_cache& c) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr std::array<int64_t, 16> kNumbers{0,
                                             1,
                                             2,
                                             3,
                                             4,
                                             8,
                                             33,
                                             257,
                                             -1,
                                             1000000007,
                                             0x7fffffff,
                                             0x80000000,
                                             int64_t{1} << 40,
                                             kMost,
                                             -kMost - 1,
                                             int64_t{1} << 60};
  fulmen_tensor& tensor = c.*kTensors[in.next() % std::size(kTensors)];
  const int64_t number = in.pick(kNumbers);
  const int what = in.next() % 13;
  if (what < 4) {
    tensor.shape[what] = number;
  } else if (what < 8) {
    tensor.strides[what - 4] = number;
  } else if (what == 8) {
    tensor.dtype = static_cast<int32_t>(number);
  } else if (what == 9) {
    tensor = {};
  } else if (what == 10) {
    tensor = c.*kTensors[in.next() % std::size(kTensors)];
  } else if (what == 11) {
    c.num_threads = static_cast<int32_t>(number);
  } else {
    c.struct_size = static_cast<std::size_t>(number);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  fulmen_kv_cache c = right_call(in);
  for (int bends = in.next() % 4; bends > 0; --bends) bend(in, c);
  const int checked = fulmen_append_kv_check(&c);
  if ((checked == FULMEN_OK) != (*fulmen_last_error() == '\0')) std::abort();
  if (checked == FULMEN_INTERNAL) std::abort();
  if (checked != FULMEN_OK || c.struct_size != sizeof c) return 0;

  int64_t work = 1;  // rows that take no memory take time
  for (const fulmen_tensor& t : {c.k_new, c.q}) {
    if (absent(t)) continue;
    for (const int64_t n : t.shape)
      work = std::min<int64_t>(work * std::max<int64_t>(n, 1), int64_t{1} << 30);
  }
  if (work > 1000000) return 0;
  Memory memory;
  bool small = true;
  for (const auto member : kTensors) {
    fulmen_tensor& t = c.*member;
    const std::size_t bytes = elements(t) * size_of(t.dtype);
    small = small && bytes <= kMostBytes;
    if (!small || absent(t)) continue;
    t.data = memory.take(bytes);
    if (bytes == 0) continue;
    std::memset(t.data, 0, bytes);
    for (std::size_t i = 0; t.dtype == FULMEN_INT32 && i + 4 <= bytes; i += 4) {
      // Some are below 0, some too large.
      const int32_t number = static_cast<int8_t>(in.next()) / 4;
      std::memcpy(static_cast<char*>(t.data) + i, &number, 4);
    }
  }
  if (small) {
    const int code = fulmen_append_kv(&c, "cpu", nullptr);
    if ((code == FULMEN_OK) != (*fulmen_last_error() == '\0')) std::abort();
    if (code != FULMEN_OK && code != FULMEN_INVALID_ARGUMENT) std::abort();
    // The cache on its own: back to numbers of the new rows' dtype, and to what is stored again.
    fulmen_tensor numbers = c.k_new;
    std::copy_n(c.k_cache.shape, 4, numbers.shape);
    numbers = packed(numbers.dtype,
                     {numbers.shape[0], numbers.shape[1], numbers.shape[2], numbers.shape[3]});
    const std::size_t bytes = elements(numbers) * size_of(numbers.dtype);
    if (bytes > kMostBytes) return 0;
    numbers.data = memory.take(bytes);
    for (const int status : {fulmen_dequantize_kv(&c.k_cache, &c.k_scale, &numbers),
                             fulmen_quantize_kv(&numbers, &c.k_cache, &c.k_scale, false)}) {
      if (status != FULMEN_OK && status != FULMEN_INVALID_ARGUMENT) std::abort();
    }
  }
  return 0;
}
