#include "api/cpp/sequence_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

constexpr int64_t kMaxSequence = std::numeric_limits<int32_t>::max();  // lengths are int32

Status check_optional_numbers(const char* name, const Tensor& t, TensorSpec& spec) {
  return absent(t) ? Status{} : check_numbers(name, t, spec);
}

Status check_batch(const AttentionTensors& a, Problem& p) {
  p.batch = a.q.shape[0];
  if (p.packed_q()) {
    const Shape& cu = a.cu_seqlens_q.shape;
    if (cu[0] != 1 || cu[1] != 1 || cu[2] != 1 || cu[3] < 1) {
      return invalid(fmt::format("cu_seqlens_q.shape is {}: [1, 1, 1, batch + 1] is needed", cu));
    }
    if (a.q.shape[0] != 1) {
      return invalid(fmt::format(
          "q.shape is {}: with cu_seqlens_q it is packed, [1, total_q, num_heads, head_dim]",
          a.q.shape));
    }
    p.batch = cu[3] - 1;
  }
  Status status;
  if (p.cu_seqlens_k.present) {
    status =
        check_shape("cu_seqlens_k", a.cu_seqlens_k, {1, 1, 1, p.batch + 1}, "[1, 1, 1, batch + 1]");
  }
  if (status.ok() && p.seqlens_k.present) {
    status = check_shape("seqlens_k", a.seqlens_k, {1, 1, 1, p.batch}, "[1, 1, 1, batch]");
  }
  if (status.ok() && p.leftpad_k.present) {
    status = check_shape("leftpad_k", a.leftpad_k, {1, 1, 1, p.batch}, "[1, 1, 1, batch]");
  }
  if (status.ok() && p.paged()) {
    const int64_t pages = a.block_table.shape[3];
    status = check_shape("block_table", a.block_table, {1, 1, p.batch, pages},
                         "[1, 1, batch, max_pages]");
  }
  return status;
}

Status check_combination(const Problem& p) {
  if (p.cu_seqlens_k.present && p.seqlens_k.present) {
    return invalid(
        "cu_seqlens_k and seqlens_k are both given: each says how many keys a sequence has, one of "
        "them is accepted");
  }
  if (p.cu_seqlens_k.present && p.leftpad_k.present) {
    return invalid(
        "leftpad_k is given beside cu_seqlens_k: it is accepted with seqlens_k, or with whole "
        "padded or paged sequences");
  }
  return {};
}

// The longest sequence: of the option, or `stored` where the shapes say it (-1: they do not).
// exact: every sequence is as long.
Status longest(const char* option, int64_t given, int64_t stored, bool exact, const char* packed,
               int64_t& length) {
  if (given < -1 || given > kMaxSequence) {
    return invalid(fmt::format("{} is {}: -1 (as the shapes say) to {} is accepted", option, given,
                               kMaxSequence));
  }
  if (given < 0 && stored < 0) {
    return invalid(fmt::format(
        "{} is -1: the longest sequence is needed where {} is packed, whose shape does not say it",
        option, packed));
  }
  if (given >= 0 && stored >= 0 && (exact ? given != stored : given > stored)) {
    return invalid(fmt::format("{} is {}: {}{} is accepted, as the shapes say", option, given,
                               exact ? "" : "up to ", stored));
  }
  length = given >= 0 ? given : stored;
  return {};
}

Status check_lengths(const AttentionTensors& a, const AttentionOptions& o, Problem& p) {
  if (p.packed_q()) p.total_q = a.q.shape[1];
  Status status = longest("max_seqlen_q", o.max_seqlen_q, p.packed_q() ? -1 : a.q.shape[1], true,
                          "q", p.seqlen_q);
  if (!status.ok()) return status;
  int64_t stored = a.k.shape[1];
  if (p.paged()) {
    p.num_pages = a.k.shape[0];
    p.page_size = a.k.shape[1];
    p.max_pages = a.block_table.shape[3];
    if (p.page_size < 1) {
      return invalid(
          fmt::format("k.shape is {}: with block_table it is [num_pages, page_size, num_kv_heads, "
                      "head_dim], and page_size "
                      "must be at least 1",
                      a.k.shape));
    }
    if (__builtin_mul_overflow(p.max_pages, p.page_size, &stored) || stored > kMaxSequence) {
      return invalid(fmt::format(
          "block_table.shape is {}, page_size is {}: sequences of up to {} keys are accepted",
          a.block_table.shape, p.page_size, kMaxSequence));
    }
  } else if (p.packed_k()) {
    p.total_k = a.k.shape[1];
    stored = -1;
  } else if (p.variable_lengths()) {
    p.padded_k = a.k.shape[1];
  }
  const bool exact = !p.cu_seqlens_k.present && !p.seqlens_k.present && !p.leftpad_k.present;
  return longest("max_seqlen_k", o.max_seqlen_k, stored, exact, "k", p.seqlen_k);
}

}  // namespace

Status check_sequence_tensors(const AttentionTensors& a, const AttentionOptions& o, Problem& p) {
  Status status = check_optional_numbers("cu_seqlens_q", a.cu_seqlens_q, p.cu_seqlens_q);
  if (status.ok()) status = check_optional_numbers("cu_seqlens_k", a.cu_seqlens_k, p.cu_seqlens_k);
  if (status.ok()) status = check_optional_numbers("seqlens_k", a.seqlens_k, p.seqlens_k);
  if (status.ok()) status = check_optional_numbers("block_table", a.block_table, p.block_table);
  if (status.ok()) status = check_optional_numbers("leftpad_k", a.leftpad_k, p.leftpad_k);
  if (status.ok()) status = check_combination(p);
  if (status.ok()) status = check_batch(a, p);
  if (status.ok()) status = check_lengths(a, o, p);
  return status;
}

Status check_sequence_gradients(const AttentionTensors& a, const Problem& p) {
  const char* cache = p.paged()             ? "block_table"
                      : p.seqlens_k.present ? "seqlens_k"
                      : p.leftpad_k.present ? "leftpad_k"
                                            : nullptr;
  if (cache != nullptr) {
    return invalid(
        fmt::format("{} is given: the backward pass takes packed sequences (cu_seqlens_q, "
                    "cu_seqlens_k), a cache has no "
                    "gradients",
                    cache));
  }
  if (p.variable_lengths() && !absent(a.dbias)) {
    return invalid(
        "dbias is given beside cu_seqlens: with sequences of different lengths a bias has no "
        "gradient");
  }
  return {};
}

}  // namespace fulmen
