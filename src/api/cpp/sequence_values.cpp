// The values of the tensors that say where sequences lie, where they can be read: nothing may be
// run on ones that point elsewhere.
#include <fmt/format.h>

#include <string>

#include "fulmen/reference.h"
#include "runtime/memory_range.h"
#include "runtime/sequence_view.h"
#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

// Ascending from 0 or more; rows: of the packed tensor, -1 where there is none. A `longest` of all
// its rows says nothing more.
Status check_cumulative(const char* name, const int* cu, int64_t batch, const char* packed,
                        int64_t rows, const char* option, int64_t longest) {
  if (cu == nullptr) return {};
  if (cu[0] < 0) return invalid(fmt::format("{}[0] is {}: 0 or above is accepted", name, cu[0]));
  for (int64_t b = 0; b < batch; ++b) {
    if (cu[b + 1] < cu[b]) {
      return invalid(fmt::format("{}[{}] is {}: at least {}, the number before it, is accepted",
                                 name, b + 1, cu[b + 1], cu[b]));
    }
    if (static_cast<int64_t>(cu[b + 1]) - cu[b] > longest && longest != rows) {
      return invalid(fmt::format("{}[{}] is {}: sequence {} would have {} rows, {} is {}", name,
                                 b + 1, cu[b + 1], b, static_cast<int64_t>(cu[b + 1]) - cu[b],
                                 option, longest));
    }
  }
  if (rows >= 0 && cu[batch] > rows) {
    return invalid(
        fmt::format("{}[{}] is {}: {} has {} rows", name, batch, cu[batch], packed, rows));
  }
  return {};
}

// Which rows of padded or paged k and v are used.
Status check_used_keys(const Problem& p, const algorithm::SequenceTable& table) {
  for (int64_t b = 0; b < p.batch && table.cu_seqlens_k == nullptr; ++b) {
    const int64_t end = table.seqlens_k != nullptr ? table.seqlens_k[b] : table.stored_k;
    if (end < 0 || end > table.stored_k) {
      const std::string rows =
          p.paged()
              ? fmt::format("a row of block_table has {} pages of {}", p.max_pages, p.page_size)
              : fmt::format("a sequence has {} rows in k", table.stored_k);
      return invalid(fmt::format("seqlens_k[{}] is {}: 0 to {} is accepted, {}", b, end,
                                 table.stored_k, rows));
    }
    const int64_t begin = table.leftpad_k != nullptr ? table.leftpad_k[b] : 0;
    if (begin < 0 || begin > end) {
      return invalid(fmt::format(
          "leftpad_k[{}] is {}: 0 to {}, the end of the sequence's used rows, is accepted", b,
          begin, end));
    }
    if (end - begin > p.seqlen_k && table.seqlens_k == nullptr) {
      return invalid(
          fmt::format("max_seqlen_k is {}: sequence {} has {} keys, rows {} (leftpad_k) to {} of k",
                      p.seqlen_k, b, end - begin, begin, end - 1));
    }
    if (end - begin > p.seqlen_k) {
      return invalid(
          fmt::format("seqlens_k[{}] is {}: sequence {} would have {} keys, max_seqlen_k is {}", b,
                      end, b, end - begin, p.seqlen_k));
    }
  }
  return {};
}

Status check_pages(const Problem& p, const algorithm::SequenceTable& table) {
  for (int64_t b = 0; b < p.batch && p.paged(); ++b) {
    const algorithm::Sequence s = table.sequence(b);
    if (s.k_len > table.stored_k) {
      return invalid(
          fmt::format("cu_seqlens_k[{}] makes sequence {} {} keys long: its row of block_table has "
                      "{} pages of {}",
                      b + 1, b, s.k_len, p.max_pages, p.page_size));
    }
    if (s.k_len == 0) continue;
    for (int64_t page = s.k_row / p.page_size; page * p.page_size < s.k_row + s.k_len; ++page) {
      const int number = table.block_table[b * table.table_stride + page];
      if (number < 0 || number >= p.num_pages) {
        return invalid(
            fmt::format("block_table[{}, {}] is {}: 0 to {} are accepted, k and v have {} pages", b,
                        page, number, p.num_pages - 1, p.num_pages));
      }
    }
  }
  return {};
}

// That there is something to read.
Status check_tables(const Problem& p, const AttentionTensors& t) {
  const struct {
    const char* name;
    const TensorSpec& spec;
    const Tensor& tensor;
    int64_t elements;
  } tables[] = {{"cu_seqlens_q", p.cu_seqlens_q, t.cu_seqlens_q, p.batch + 1},
                {"cu_seqlens_k", p.cu_seqlens_k, t.cu_seqlens_k, p.batch + 1},
                {"seqlens_k", p.seqlens_k, t.seqlens_k, p.batch},
                {"block_table", p.block_table, t.block_table, p.batch * p.max_pages},
                {"leftpad_k", p.leftpad_k, t.leftpad_k, p.batch}};
  for (const auto& table : tables) {
    if (!table.spec.present || table.elements == 0) continue;
    const MemoryRange range{table.name, table.tensor.data, 1, DType::int32};
    if (!addressable(range)) return bad_address(range, "a pointer is needed");
  }
  return {};
}

}  // namespace

Status check_sequences(const Problem& p, const AttentionTensors& tensors) {
  if (!p.variable_lengths()) return {};
  if (Status status = check_tables(p, tensors); !status.ok()) return status;
  const algorithm::SequenceTable table = sequence_table(p, tensors);
  Status status = check_cumulative("cu_seqlens_q", table.cu_seqlens_q, p.batch, "q",
                                   p.packed_q() ? p.total_q : -1, "max_seqlen_q", p.seqlen_q);
  if (status.ok()) {
    status = check_cumulative("cu_seqlens_k", table.cu_seqlens_k, p.batch, "k",
                              p.packed_k() ? p.total_k : -1, "max_seqlen_k", p.seqlen_k);
  }
  if (status.ok()) status = check_used_keys(p, table);
  if (status.ok()) status = check_pages(p, table);
  return status;
}

}  // namespace fulmen
