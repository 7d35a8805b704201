// Appending to a KV cache: pointers and values are checked, then the device's backend does it.
#include "fulmen/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>

#include "api/tensor_checks.h"
#include "fulmen/backend.h"
#include "plan/registry.h"

namespace fulmen {
namespace {

using T = KvCacheTensors;
using P = KvCacheProblem;

struct Field {
  const char* name;
  Tensor T::* tensor;
  TensorSpec P::* spec;
  bool written;
};
constexpr std::array<Field, 11> kFields{{{"k_cache", &T::k_cache, &P::k_cache, true},
                                         {"v_cache", &T::v_cache, &P::v_cache, true},
                                         {"q_out", &T::q_out, &P::q_out, true},
                                         {"seqlens_k_out", &T::seqlens_k_out, &P::seqlens_k_out, true},
                                         {"seqlens_k", &T::seqlens_k, &P::seqlens_k, false},
                                         {"block_table", &T::block_table, &P::block_table, false},
                                         {"k_new", &T::k_new, &P::k_new, false},
                                         {"v_new", &T::v_new, &P::v_new, false},
                                         {"rotary_cos", &T::rotary_cos, &P::rotary_cos, false},
                                         {"rotary_sin", &T::rotary_sin, &P::rotary_sin, false},
                                         {"q", &T::q, &P::q, false}}};

std::uintptr_t address(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data); }

// From the first to one past the last element; 0 where there is none.
std::uintptr_t bytes_of(const Tensor& t, const TensorSpec& spec) {
  int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (t.shape[d] == 0) return 0;
    last += (t.shape[d] - 1) * spec.strides[d];
  }
  return static_cast<std::uintptr_t>((last + 1) * size_of(spec.dtype));
}

Status check_pointers(const P& p, const T& tensors) {
  std::array<std::uintptr_t, kFields.size()> bytes{};
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    const TensorSpec& spec = p.*kFields[i].spec;
    const Tensor& t = tensors.*kFields[i].tensor;
    bytes[i] = spec.present ? bytes_of(t, spec) : 0;
    if (bytes[i] == 0) continue;
    if (t.data == nullptr) return invalid(fmt::format("{}.data is null: {} bytes are needed there", kFields[i].name, bytes[i]));
    const auto alignment = static_cast<std::uintptr_t>(size_of(spec.dtype));
    if (address(t) % alignment != 0) {
      return invalid(fmt::format("{}.data is {}: an address divisible by the {} bytes of its dtype is needed", kFields[i].name,
                                 t.data, alignment));
    }
  }
  for (std::size_t i = 0; i < kFields.size() && kFields[i].written; ++i) {
    for (std::size_t j = i + 1; j < kFields.size(); ++j) {
      const Tensor &a = tensors.*kFields[i].tensor, &b = tensors.*kFields[j].tensor;
      if (bytes[i] == 0 || bytes[j] == 0 || address(a) >= address(b) + bytes[j] || address(b) >= address(a) + bytes[i]) continue;
      if (kFields[j].tensor == &T::v_cache) continue;  // K and V of a page may lie between each other
      if (kFields[i].tensor == &T::q_out && kFields[j].tensor == &T::q && a.data == b.data && p.q == p.q_out) continue;
      return invalid(fmt::format("{} at {} overlaps {} at {}: outputs need memory of their own", kFields[i].name, a.data,
                                 kFields[j].name, b.data));
    }
  }
  return {};
}

// Rows and positions that seqlens_k leads to, and the pages of the rows that are written.
Status check_values(const P& p, const T& tensors) {
  const auto* used = static_cast<const int*>(tensors.seqlens_k.data);
  const auto* table = static_cast<const int*>(tensors.block_table.data);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (used[b] < 0 || used[b] + p.seqlen_new > p.rows) {
      return invalid(fmt::format("seqlens_k[{}] is {}: with {} new rows 0 to {} are accepted, a sequence has {} rows in the cache",
                                 b, used[b], p.seqlen_new, p.rows - p.seqlen_new, p.rows));
    }
    const int64_t queries = p.queries_advance ? p.seqlen_q : std::min<int64_t>(p.seqlen_q, 1);
    const int64_t turned = std::max(p.seqlen_new, queries);
    if (p.rotary_dim > 0 && used[b] + turned > p.positions) {
      return invalid(fmt::format("seqlens_k[{}] is {}: with {} positions from there on up to {} is accepted, rotary_cos has {}", b,
                                 used[b], turned, p.positions - turned, p.positions));
    }
    for (int64_t row = used[b]; p.paged() && row < used[b] + p.seqlen_new; row = (row / p.page_size + 1) * p.page_size) {
      const int64_t column = row / p.page_size;
      const int page = table[b * p.block_table.strides[2] + column];
      if (page < 0 || page >= p.num_pages) {
        return invalid(fmt::format("block_table[{}, {}] is {}: 0 to {} are accepted, the cache has {} pages", b, column, page,
                                   p.num_pages - 1, p.num_pages));
      }
    }
  }
  return {};
}

}  // namespace

Status Backend::append_kv(const std::string& device, void* /*stream*/, const KvCacheProblem& /*problem*/,
                          const KvCacheTensors& /*tensors*/, const KvCacheOptions& /*options*/) const {
  return {StatusCode::unsupported, fmt::format("backend {} cannot append to a KV cache (device \"{}\")", name(), device)};
}

Status append_kv(const KvCacheTensors& tensors, const KvCacheOptions& options, const std::string& asked_device, void* stream) {
  try {
    const Result<KvCacheProblem> problem = make_kv_cache_problem(tensors, options);
    if (!problem.ok()) return problem.status();
    const std::string device = asked_device.empty() ? default_device() : asked_device;
    if (Status status = check_device(device); !status.ok()) return status;
    if (Status status = check_pointers(problem.value(), tensors); !status.ok()) return status;
    const auto backend = backend_of(device);
    if (backend->uses_host_memory()) {
      if (Status status = check_values(problem.value(), tensors); !status.ok()) return status;
    }
    return backend->append_kv(device, stream, problem.value(), tensors, options);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to append to a KV cache"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, fmt::format("appending to a KV cache failed: {}", error.what())};
  }
}

}  // namespace fulmen
