// Appending to a KV cache: pointers and values are checked, then the device's backend does it.
#include "fulmen/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/backend.h"
#include "plan/plan_impl.h"
#include "plan/registry.h"
#include "runtime/empty_tensors.h"
#include "runtime/environment.h"
#include "runtime/kv_cache_fields.h"
#include "runtime/memory_range.h"
#include "runtime/shared_bytes.h"
#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

using T = KvCacheTensors;
using P = KvCacheProblem;

bool is_of_cache(TensorMember<T> tensor) {
  return tensor == &T::k_cache || tensor == &T::v_cache || tensor == &T::k_scale ||
         tensor == &T::v_scale;
}
// Scales of tokens are; others are read.
bool is_written(const KvCacheField& field, const T& tensors) {
  const bool scale = field.tensor == &T::k_scale || field.tensor == &T::v_scale;
  return field.written && (!scale || (tensors->*field.tensor).shape[1] > 1);
}

// Two fields whose memory overlaps, of which the first may be written.
bool may_overlap(const P& p, const T& t, const KvCacheField& first, const KvCacheField& second) {
  if (!is_written(first, t) && !is_written(second, t)) return true;
  if (first.tensor == &T::q_out && second.tensor == &T::q)
    return t.q.data == t.q_out.data && p.q == p.q_out;
  if (!is_of_cache(first.tensor) || !is_of_cache(second.tensor)) return false;
  const bool values_of_keys = (first.tensor == &T::k_cache && second.tensor == &T::v_cache) ||
                              (first.tensor == &T::k_scale && second.tensor == &T::v_scale);
  if (p.values_in_keys && values_of_keys) return true;
  // K and V of a page, and their scales, may lie between each other.
  return !share_bytes(t->*first.tensor, p.*first.spec, t->*second.tensor, p.*second.spec,
                      p.paged());
}

Status check_pointers(const P& p, const T& tensors) {
  std::array<MemoryRange, kKvCacheFields.size()> ranges{};
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto& [name, member, specified, written] = kKvCacheFields[i];
    const TensorSpec& spec = p.*specified;
    const Tensor& t = tensors->*member;
    ranges[i] = {name, t.data, bytes_of(spec, t.shape), spec.dtype};
    if (!addressable(ranges[i]))
      return bad_address(ranges[i], fmt::format("{} bytes are needed there", ranges[i].bytes));
  }
  for (std::size_t i = 0; i < ranges.size() && kKvCacheFields[i].written; ++i) {
    for (std::size_t j = i + 1; j < ranges.size(); ++j) {
      if (!overlap(ranges[i], ranges[j])) continue;
      if (!may_overlap(p, tensors, kKvCacheFields[i], kKvCacheFields[j]))
        return bad_overlap(ranges[i], ranges[j], "outputs");
    }
  }
  return {};
}

// Rows and positions that seqlens_k leads to, and the pages of the rows that are written.
Status check_values(const P& p, const T& tensors) {
  const auto* used = static_cast<const int*>(tensors.seqlens_k.data);
  const auto* table = static_cast<const int*>(tensors.block_table.data);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.seqlen_new > p.rows) {
      return invalid(
          fmt::format("k_new has {} rows: a sequence has {} rows in the cache, so no more new ones "
                      "are accepted",
                      p.seqlen_new, p.rows));
    }
    if (used[b] < 0 || used[b] + p.seqlen_new > p.rows) {
      const std::string rows = p.paged()
                                   ? fmt::format("a row of block_table has {} pages of {}",
                                                 p.rows / p.page_size, p.page_size)
                                   : fmt::format("a sequence has {} rows in the cache", p.rows);
      return invalid(fmt::format("seqlens_k[{}] is {}: with {} new rows 0 to {} are accepted, {}",
                                 b, used[b], p.seqlen_new, p.rows - p.seqlen_new, rows));
    }
    const int64_t needed = p.positions_needed();
    if (p.rotary_dim > 0 && used[b] + needed > p.positions) {
      return invalid(
          fmt::format("seqlens_k[{}] is {}: with {} positions from there on up to {} is accepted, "
                      "rotary_cos has {}",
                      b, used[b], needed, p.positions - needed, p.positions));
    }
    for (int64_t row = used[b]; p.paged() && row < used[b] + p.seqlen_new;
         row = (row / p.page_size + 1) * p.page_size) {
      const int64_t column = row / p.page_size;
      const int page = table[b * p.block_table.strides[2] + column];
      if (page < 0 || page >= p.num_pages) {
        return invalid(
            fmt::format("block_table[{}, {}] is {}: 0 to {} are accepted, the cache has {} pages",
                        b, column, page, p.num_pages - 1, p.num_pages));
      }
    }
  }
  return {};
}

// The same of numbers in the memory of a device, which are copied to the host first.
Status check_device_values(const Backend& backend, const std::string& device, const P& p,
                           T tensors) {
  std::vector<int> lengths, pages;
  const auto copy = [&](const TensorSpec& spec, Tensor& tensor, std::vector<int>& to) -> Status {
    const std::size_t bytes = bytes_of(spec, tensor.shape);
    if (bytes == 0) return {};
    to.resize(bytes / sizeof(int));
    const void* from = std::exchange(tensor.data, to.data());
    return backend.copy(device, to.data(), from, bytes);
  };
  if (Status status = copy(p.seqlens_k, tensors.seqlens_k, lengths); !status.ok()) return status;
  if (Status status = copy(p.block_table, tensors.block_table, pages); !status.ok()) return status;
  return check_values(p, tensors);
}

}  // namespace

Status Backend::append_kv(const std::string& device, void* /*stream*/,
                          const KvCacheProblem& /*problem*/, const KvCacheTensors& /*tensors*/,
                          const KvCacheOptions& /*options*/) const {
  return {StatusCode::unsupported,
          fmt::format("backend {} cannot append to a KV cache (device \"{}\")", name(), device)};
}

Status append_kv(const KvCacheTensors& tensors, const KvCacheOptions& options,
                 const std::string& asked_device, void* stream) {
  try {
    const Result<KvCacheProblem> problem = make_kv_cache_problem(tensors, options);
    if (!problem.ok()) return problem.status();
    const std::string device = asked_device.empty() ? default_device() : asked_device;
    if (Status status = check_device(device); !status.ok()) return status;
    if (Status status = check_pointers(problem.value(), tensors); !status.ok()) return status;
    const auto backend = backend_of(device);
    if (backend->uses_host_memory()) {
      if (Status status = check_values(problem.value(), tensors); !status.ok()) return status;
      return backend->append_kv(device, stream, problem.value(),
                                without_null(problem.value(), tensors), options);
    }
    if (options.validate || environment_flag("FLASH_ATTENTION_VALIDATE")) {
      if (backend->is_capturing(device, stream)) {
        return {StatusCode::invalid_argument,
                fmt::format("stream {} of device {} is being captured, and validate "
                            "(FLASH_ATTENTION_VALIDATE) waits for it, which a "
                            "capture does not allow",
                            stream, device)};
      }
      Status status = check_device_values(*backend, device, problem.value(), tensors);
      if (!status.ok()) return status;
    }
    return backend->append_kv(device, stream, problem.value(), tensors, options);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to append to a KV cache"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, fmt::format("appending to a KV cache failed: {}", error.what())};
  } catch (...) {
    return {StatusCode::internal, "appending to a KV cache failed: a backend or a pool threw"};
  }
}

}  // namespace fulmen
