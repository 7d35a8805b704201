#include "tools/selftest/append_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "fulmen/fulmen.h"
#include "tools/tensors/device_tensors.h"
#include "tools/tensors/float_conversion.h"

namespace fulmen::tools {
namespace {

constexpr int64_t kBatch = 2, kNew = 5, kHeads = 2, kDim = 64, kRotary = 32, kPageSize = 16,
                  kPages = 3, kPositions = kPages * kPageSize;
constexpr int64_t kRow = kHeads * kDim;
constexpr int kUsed[kBatch] = {3, 30};
constexpr int kTable[kBatch * kPages] = {4, 0, 5, 2, 1, 3};

struct Kind {
  DType dtype;
  bool paged, rotary;
};
constexpr Kind kKinds[kAppendProblems] = {{DType::bf16, false, false},
                                          {DType::fp16, false, true},
                                          {DType::bf16, true, true},
                                          {DType::fp32, true, false}};

double value_of(const std::byte* data, DType dtype, int64_t at) {
  if (dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, data + 4 * at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, data + 2 * at, sizeof bits);
  if (dtype == DType::bf16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

// Memory of the device beside the host's.
struct Buffer {
  std::vector<std::byte> host;
  std::unique_ptr<DeviceMemory> there;
  void* data() { return there != nullptr ? there->data() : host.data(); }
};

class Call {
 public:
  explicit Call(std::string device) : device_(std::move(device)), backend_(backend_of(device_)) {}

  // Numbers of a normal distribution.
  Buffer& numbers(DType dtype, int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(generator_);
    std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
    convert_from_fp32(values.data(), dtype, bytes.data(), values.size());
    return keep(std::move(bytes));
  }
  Buffer& integers(const int* values, int64_t count) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values);
    return keep({bytes, bytes + static_cast<std::size_t>(count) * sizeof(int)});
  }
  Status upload() {
    if (backend_ == nullptr || backend_->uses_host_memory()) return {};
    for (const auto& buffer : buffers_) {
      buffer->there = std::make_unique<DeviceMemory>(backend_, device_, buffer->host.size());
      if (buffer->there->data() == nullptr)
        return {StatusCode::out_of_memory, "no memory on " + device_};
      if (Status status = backend_->copy(device_, buffer->there->data(), buffer->host.data(),
                                         buffer->host.size());
          !status.ok())
        return status;
    }
    return {};
  }
  Status download(Buffer& buffer) {
    if (buffer.there == nullptr) return {};
    return backend_->copy(device_, buffer.host.data(), buffer.there->data(), buffer.host.size());
  }
  Status synchronize() {
    return backend_ == nullptr ? Status{} : backend_->synchronize(device_, nullptr);
  }

 private:
  Buffer& keep(std::vector<std::byte> bytes) {
    buffers_.push_back(std::make_unique<Buffer>());
    buffers_.back()->host = std::move(bytes);
    return *buffers_.back();
  }

  std::string device_;
  std::shared_ptr<const Backend> backend_;
  std::mt19937_64 generator_{7};
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Row of a cache where sequence b has its row.
int64_t cache_row(const Kind& kind, int64_t b, int64_t row) {
  if (!kind.paged) return b * kPages * kPageSize + row;
  return kTable[b * kPages + row / kPageSize] * kPageSize + row % kPageSize;
}

// Returns the largest error of one cache, in units of what rounding may cost. An element that is
// not written must keep its bits.
double worst_error(const Kind& kind, bool rotates, const Buffer& before, const Buffer& after,
                   const Buffer& fresh, const Buffer& cos, const Buffer& sin) {
  const DType dtype = kind.dtype;
  const double unit = dtype == DType::fp32 ? 0x1p-24 : dtype == DType::fp16 ? 0x1p-11 : 0x1p-8;
  std::vector<std::byte> expected = before.host;
  const auto bytes = static_cast<std::size_t>(size_of(dtype));
  double worst = 0;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kNew; ++i) {
      for (int64_t e = 0; e < kRow; ++e) {
        const int64_t from = (b * kNew + i) * kRow + e,
                      to = cache_row(kind, b, kUsed[b] + i) * kRow + e, dim = e % kDim;
        std::byte* place = expected.data() + static_cast<std::size_t>(to) * bytes;
        if (!rotates || dim >= kRotary) {
          std::memcpy(place, fresh.host.data() + static_cast<std::size_t>(from) * bytes, bytes);
          continue;
        }
        // Pairs are elements 2 i and 2 i + 1.
        const int64_t pair = (kUsed[b] + i) * (kRotary / 2) + dim / 2;
        const double c = value_of(cos.host.data(), DType::fp32, pair),
                     s = value_of(sin.host.data(), DType::fp32, pair);
        const double x = value_of(fresh.host.data(), dtype, from - dim % 2),
                     y = value_of(fresh.host.data(), dtype, from - dim % 2 + 1);
        const double exact = dim % 2 == 0 ? x * c - y * s : y * c + x * s,
                     given = value_of(after.host.data(), dtype, to);
        const double bound =
            unit * std::fabs(exact) +
            0x1p-22 * (std::fabs(x) + std::fabs(y)) * (std::fabs(c) + std::fabs(s)) + 0x1p-25;
        worst = std::fmax(worst, std::fabs(given - exact) / bound);
        if (!(std::fabs(given - exact) >= 0)) return HUGE_VAL;  // NaN
        std::memcpy(place, after.host.data() + static_cast<std::size_t>(to) * bytes, bytes);
      }
    }
  }
  return expected == after.host ? worst : HUGE_VAL;
}

}  // namespace

AppendResult check_append(const std::string& device, int problem) {
  const Kind& kind = kKinds[problem];
  AppendResult result;
  result.problem = fmt::format(
      "append_kv {} b={} new={} h={} d={}{}{}", to_string(kind.dtype), kBatch, kNew, kHeads, kDim,
      kind.paged ? ", paged by 16" : ", padded", kind.rotary ? ", rotary 32" : "");
  Call call(device);
  constexpr int64_t kCacheRows = kBatch * kPages * kPageSize;
  Buffer &k = call.numbers(kind.dtype, kCacheRows * kRow),
         &v = call.numbers(kind.dtype, kCacheRows * kRow);
  Buffer &k_new = call.numbers(kind.dtype, kBatch * kNew * kRow),
         &v_new = call.numbers(kind.dtype, kBatch * kNew * kRow);
  Buffer &cos = call.numbers(DType::fp32, kPositions * kRotary / 2),
         &sin = call.numbers(DType::fp32, kPositions * kRotary / 2);
  Buffer &used = call.integers(kUsed, kBatch), &table = call.integers(kTable, kBatch * kPages);
  const Buffer k_before{k.host, nullptr}, v_before{v.host, nullptr};
  const auto run = [&]() -> Status {
    if (Status status = call.upload(); !status.ok()) return status;
    KvCacheTensors t;
    const int64_t outer = kind.paged ? kBatch * kPages : kBatch,
                  rows = kind.paged ? kPageSize : kPages * kPageSize;
    t.k_cache = Tensor::bshd(k.data(), kind.dtype, outer, rows, kHeads, kDim);
    t.v_cache = Tensor::bshd(v.data(), kind.dtype, outer, rows, kHeads, kDim);
    t.k_new = Tensor::bshd(k_new.data(), kind.dtype, kBatch, kNew, kHeads, kDim);
    t.v_new = Tensor::bshd(v_new.data(), kind.dtype, kBatch, kNew, kHeads, kDim);
    t.seqlens_k = {used.data(), DType::int32, {1, 1, 1, kBatch}, {0, 0, 0, 1}};
    if (kind.paged)
      t.block_table = {table.data(), DType::int32, {1, 1, kBatch, kPages}, {0, 0, kPages, 1}};
    if (kind.rotary) {
      t.rotary_cos = {
          cos.data(), DType::fp32, {1, 1, kPositions, kRotary / 2}, {0, 0, kRotary / 2, 1}};
      t.rotary_sin = {
          sin.data(), DType::fp32, {1, 1, kPositions, kRotary / 2}, {0, 0, kRotary / 2, 1}};
    }
    Status status = append_kv(t, {}, device);
    if (status.ok()) status = call.synchronize();
    if (status.ok()) status = call.download(k);
    return status.ok() ? call.download(v) : status;
  };
  if (const Status status = run(); !status.ok()) {
    result.message = status.message();
    return result;
  }
  result.worst_error = std::fmax(worst_error(kind, kind.rotary, k_before, k, k_new, cos, sin),
                                 worst_error(kind, false, v_before, v, v_new, cos, sin));
  result.ok = result.worst_error <= 1;
  if (!result.ok) result.message = "a row of the cache is not what it has to be";
  return result;
}

}  // namespace fulmen::tools
