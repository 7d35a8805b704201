// Every check of a KV cache's tensors that needs no pointers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <new>

#include "api/cpp/latent_cache.h"
#include "fulmen/kv_cache.h"
#include "runtime/tensor_checks.h"
#include "runtime/threading.h"

namespace fulmen {
namespace {

using T = KvCacheTensors;
using P = KvCacheProblem;

Status missing(const char* name, const char* why) {
  return invalid(fmt::format("{} is missing: {}", name, why));
}

// A tensor of the new rows' dtype and this shape.
Status check_rows(const char* name, const Tensor& t, const P& p, const Shape& want,
                  const char* meaning, TensorSpec& spec) {
  if (t.dtype != p.dtype)
    return invalid(
        fmt::format("{}.dtype is {}: {} is needed", name, name_of(t.dtype), to_string(p.dtype)));
  if (Status status = check_view(name, t); !status.ok()) return status;
  spec = spec_of(t);
  return check_shape(name, t, want, meaning);
}

Status check_numbers(const char* name, const Tensor& t, const Shape& want, const char* meaning,
                     TensorSpec& spec) {
  if (Status status = check_numbers(name, t, spec); !status.ok()) return status;
  return check_shape(name, t, want, meaning);
}

Status check_head_dim(const char* name, const Tensor& t, int64_t dim, int64_t most) {
  if (dim >= 1 && dim <= most) return {};
  return invalid(fmt::format("{}.shape is {}: head_dim is {}, 1 to {} are accepted", name, t.shape,
                             dim, most));
}

// The cache itself: of the new rows' dtype, or quantized.
Status check_stored(const char* name, const Tensor& t, const P& p, const Shape& want,
                    const char* meaning, TensorSpec& spec) {
  if (t.dtype != p.dtype && !is_kv_format(t.dtype)) {
    return invalid(fmt::format("{}.dtype is {}: {}, int8, fp8 and the block formats are accepted",
                               name, name_of(t.dtype), to_string(p.dtype)));
  }
  if (Status status = check_view(name, t); !status.ok()) return status;
  spec = spec_of(t);
  return check_shape(name, t, want, meaning);
}

// cache: the shape of what it scales.
Status check_scale(const char* name, const Tensor& t, const char* of, DType dtype, const P& p,
                   const Shape& cache, TensorSpec& spec) {
  if (absent(t)) return {};
  if (is_float(dtype) || block_bytes(dtype) > 0) {
    return invalid(fmt::format("{} is given, {}.dtype is {}: int8 and fp8 have scales", name, of,
                               to_string(dtype)));
  }
  if (t.dtype != DType::fp32 && t.dtype != DType::fp16)
    return invalid(
        fmt::format("{}.dtype is {}: fp32 and fp16 are accepted", name, name_of(t.dtype)));
  if (Status status = check_view(name, t); !status.ok()) return status;
  const bool of_token = t.shape[1] != 1;
  const Shape want =
      of_token ? Shape{cache[0], cache[1], cache[2], 1} : Shape{p.batch, 1, p.num_kv_heads, 1};
  for (int d = 0; d < 4; ++d) {
    // What is written has a place for each.
    if (t.shape[d] == want[d] || (t.shape[d] == 1 && !of_token)) continue;
    return invalid(
        fmt::format("{}.shape is {}: {} = {} is needed{}", name, t.shape,
                    of_token ? "that of the cache without channels" : "[batch, 1, num_kv_heads, 1]",
                    want, of_token ? "" : ", where each dim may be 1"));
  }
  if (of_token) {
    if (Status status = check_output(name, t); !status.ok()) return status;
  }
  spec = spec_of(t);
  return {};
}

Status check_cache(const T& a, P& p) {
  if (absent(a.k_cache)) return missing("k_cache", "the cache is always needed");
  if (absent(a.v_cache)) return missing("v_cache", "the cache is always needed");
  if (absent(a.seqlens_k)) return missing("seqlens_k", "it says where new rows go");
  // What is not quantized has the cache's dtype; with a cache that is, the new rows say theirs.
  const Tensor& rows = is_float(a.k_cache.dtype)   ? static_cast<const Tensor&>(a.k_cache)
                       : is_float(a.v_cache.dtype) ? static_cast<const Tensor&>(a.v_cache)
                       : absent(a.k_new)           ? static_cast<const Tensor&>(a.q)
                                                   : a.k_new;
  if (!is_float(rows.dtype)) {
    return invalid(fmt::format("{}.dtype is {}: fp32, fp16 and bf16 are accepted",
                               absent(a.k_new) ? "q" : "k_new", name_of(rows.dtype)));
  }
  p.dtype = rows.dtype;
  p.k_dtype = a.k_cache.dtype;
  p.v_dtype = a.v_cache.dtype;
  p.batch = a.seqlens_k.shape[3];
  p.num_kv_heads = a.k_cache.shape[2];
  p.head_dim = a.k_cache.shape[3];
  p.head_dim_v = a.v_cache.shape[3];
  Status status =
      check_numbers("seqlens_k", a.seqlens_k, {1, 1, 1, p.batch}, "[1, 1, 1, batch]", p.seqlens_k);
  if (status.ok()) status = check_view("k_cache", a.k_cache);
  if (status.ok()) status = check_head_dim("k_cache", a.k_cache, p.head_dim, kMaxHeadDim);
  if (status.ok()) status = check_head_dim("v_cache", a.v_cache, p.head_dim_v, kMaxHeadDimV);
  if (!status.ok()) return status;
  p.rows = a.k_cache.shape[1];
  const char* meaning = "[batch, rows, num_kv_heads, head_dim]";
  Shape want{p.batch, p.rows, p.num_kv_heads, p.head_dim};
  if (!absent(a.block_table)) {
    p.num_pages = a.k_cache.shape[0];
    p.page_size = a.k_cache.shape[1];
    p.max_pages = a.block_table.shape[3];
    status = check_numbers("block_table", a.block_table, {1, 1, p.batch, p.max_pages},
                           "[1, 1, batch, max_pages]", p.block_table);
    if (!status.ok()) return status;
    if (p.page_size < 1)
      return invalid(
          fmt::format("k_cache.shape is {}: page_size must be at least 1", a.k_cache.shape));
    if (__builtin_mul_overflow(p.max_pages, p.page_size, &p.rows) ||
        p.rows > std::numeric_limits<int32_t>::max()) {
      return invalid(fmt::format(
          "block_table.shape is {}, page_size is {}: sequences of up to 2^31 - 1 keys are accepted",
          a.block_table.shape, p.page_size));
    }
    meaning = "[num_pages, page_size, num_kv_heads, head_dim]";
    want = {p.num_pages, p.page_size, p.num_kv_heads, p.head_dim};
  }
  status = check_stored("k_cache", a.k_cache, p, want, meaning, p.k_cache);
  if (status.ok())
    status = check_scale("k_scale", a.k_scale, "k_cache", p.k_dtype, p, want, p.k_scale);
  want[3] = p.head_dim_v;
  if (status.ok()) status = check_stored("v_cache", a.v_cache, p, want, meaning, p.v_cache);
  if (status.ok())
    status = check_scale("v_scale", a.v_scale, "v_cache", p.v_dtype, p, want, p.v_scale);
  if (status.ok()) status = check_output("k_cache", a.k_cache);
  if (status.ok()) status = check_output("v_cache", a.v_cache);
  return status;
}

Status check_new_rows(const T& a, P& p) {
  if (absent(a.k_new) && absent(a.v_new)) return {};
  if (absent(a.k_new)) return missing("k_new", "v_new is given, both or neither are accepted");
  if (absent(a.v_new)) return missing("v_new", "k_new is given, both or neither are accepted");
  p.seqlen_new = a.k_new.shape[1];
  Status status =
      check_rows("k_new", a.k_new, p, {p.batch, p.seqlen_new, p.num_kv_heads, p.head_dim},
                 "[batch, seqlen_new, num_kv_heads, head_dim]", p.k_new);
  if (!status.ok()) return status;
  return check_rows("v_new", a.v_new, p, {p.batch, p.seqlen_new, p.num_kv_heads, p.head_dim_v},
                    "[batch, seqlen_new, num_kv_heads, head_dim_v]", p.v_new);
}

Status check_rotary(const T& a, P& p) {
  if (absent(a.rotary_cos) != absent(a.rotary_sin)) {
    return missing(absent(a.rotary_cos) ? "rotary_cos" : "rotary_sin",
                   "rotary_cos and rotary_sin go together");
  }
  if (absent(a.rotary_cos)) {
    if (absent(a.q) && absent(a.q_out)) return {};
    return missing("rotary_cos", "without a rotary embedding there is nothing to do with q");
  }
  p.positions = a.rotary_cos.shape[2];
  const int64_t half = a.rotary_cos.shape[3];
  for (const auto& [name, tensor, spec] : {std::tuple{"rotary_cos", &a.rotary_cos, &p.rotary_cos},
                                           {"rotary_sin", &a.rotary_sin, &p.rotary_sin}}) {
    if (tensor->dtype != DType::fp32 && tensor->dtype != p.dtype) {
      return invalid(fmt::format("{}.dtype is {}: fp32 or {}, the new rows', is needed", name,
                                 name_of(tensor->dtype), to_string(p.dtype)));
    }
    if (tensor->dtype != a.rotary_cos.dtype) {
      return invalid(fmt::format("{}.dtype is {}, rotary_cos.dtype is {}: they must agree", name,
                                 name_of(tensor->dtype), name_of(a.rotary_cos.dtype)));
    }
    if (Status status = check_view(name, *tensor); !status.ok()) return status;
    Status status =
        check_shape(name, *tensor, {1, 1, p.positions, half}, "[1, 1, positions, rotary_dim / 2]");
    if (!status.ok()) return status;
    *spec = spec_of(*tensor);
  }
  if (half < 1 || 2 * half > p.head_dim) {
    return invalid(fmt::format(
        "rotary_cos.shape is {}: rotary_dim / 2 is {}, 1 to head_dim / 2 = {} are accepted",
        a.rotary_cos.shape, half, p.head_dim / 2));
  }
  p.rotary_dim = 2 * half;
  if (absent(a.q) != absent(a.q_out))
    return missing(absent(a.q) ? "q" : "q_out", "q and q_out go together");
  if (absent(a.q)) return {};
  p.seqlen_q = a.q.shape[1];
  p.num_heads = a.q.shape[2];
  const Shape want{p.batch, p.seqlen_q, p.num_heads, p.head_dim};
  Status status = check_rows("q", a.q, p, want, "[batch, seqlen_q, num_heads, head_dim]", p.q);
  if (status.ok())
    status =
        check_rows("q_out", a.q_out, p, want, "[batch, seqlen_q, num_heads, head_dim]", p.q_out);
  return status.ok() ? check_output("q_out", a.q_out) : status;
}

// Whatever seqlens_k says, each sequence needs as many positions as it has new keys, or queries
// that advance: a kernel that is led past the last one takes the last one, so there is one.
Status check_positions(const T& a, const P& p) {
  if (p.rotary_dim == 0 || p.batch == 0 || p.positions_needed() <= p.positions) return {};
  return invalid(
      fmt::format("rotary_cos.shape is {}: it has {} positions, at least {} are needed, one for "
                  "each new row or query",
                  a.rotary_cos.shape, p.positions, p.positions_needed()));
}

}  // namespace

Result<KvCacheProblem> make_kv_cache_problem(const KvCacheTensors& tensors,
                                             const KvCacheOptions& options) {
  try {
    P p;
    if (Status status = cpu::check_num_threads(options.num_threads); !status.ok()) return status;
    p.rotary_interleaved = options.rotary_interleaved;
    p.queries_advance = options.queries_advance;
    Status status = check_cache(tensors, p);
    if (status.ok()) status = check_new_rows(tensors, p);
    if (status.ok()) status = check_rotary(tensors, p);
    if (status.ok() && !absent(tensors.seqlens_k_out)) {
      status = check_numbers("seqlens_k_out", tensors.seqlens_k_out, {1, 1, 1, p.batch},
                             "[1, 1, 1, batch]", p.seqlens_k_out);
    }
    if (status.ok() && !p.k_new.present && !p.q.present) {
      status = invalid("k_new, v_new and q are all missing: there is nothing to do");
    }
    if (status.ok()) status = check_positions(tensors, p);
    if (status.ok()) status = check_latent_cache(tensors, p);
    if (!status.ok()) return status;
    return p;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to describe the problem");
  }
}

}  // namespace fulmen
