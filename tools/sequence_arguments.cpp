#include "sequence_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "fulmen/printable.h"
#include "number_checks.h"

namespace fulmen::tools {
namespace {

Status load(const char* option, const std::string& path, std::size_t dims, NpyArray& array, Tensor& tensor) {
  if (path.empty()) return {};
  Result<NpyArray> read = read_npy(path, true);
  if (!read.ok()) return read.status();
  array = std::move(read).value();
  const auto& s = array.shape;
  if (array.dtype != DType::int32 || s.size() != dims) {
    return {StatusCode::invalid_argument,
            fmt::format("{} ({}): {} {} is not int32 {}", option, printable(path), to_string(array.dtype), shape_text(s),
                        dims == 2 ? "[batch, max_pages]" : "with one dim")};
  }
  tensor = {array.data.data(), DType::int32, {1, 1, dims == 2 ? s[0] : 1, s.back()}, {0, 0, s.back(), 1}};
  return {};
}

// The most rows of a sequence, where the option does not say it.
int64_t longest(int64_t given, const Tensor& cumulative) {
  if (given >= 0 || cumulative.data == nullptr) return given;
  int64_t most = 0;
  const auto* cu = static_cast<const int*>(cumulative.data);
  for (int64_t n = 1; n < cumulative.shape[3]; ++n) most = std::max(most, static_cast<int64_t>(cu[n]) - cu[n - 1]);
  return most;
}

}  // namespace

void add_sequence_options(CLI::App& app, SequenceArguments& a) {
  app.add_option("--cu-seqlens-q", a.cu_seqlens_q, "q is packed, [1, total, ...]: int32 [batch + 1], where each sequence begins");
  app.add_option("--cu-seqlens-k", a.cu_seqlens_k, "k and v are packed; with --block-table the sequences' lengths by differences");
  app.add_option("--seqlens-k", a.seqlens_k, "int32 [batch]: rows of padded or paged k and v that are used");
  app.add_option("--leftpad-k", a.leftpad_k, "int32 [batch]: the first of them");
  app.add_option("--block-table", a.block_table,
                 "k and v are [num_pages, page_size, ...]: int32 [batch, max_pages], pages in order");
  app.add_option("--max-seqlen-q", a.max_seqlen_q, "most queries of a sequence; by --cu-seqlens-q when not given")
      ->transform(int64_from(0));
  app.add_option("--max-seqlen-k", a.max_seqlen_k,
                 "most keys of a sequence; by --cu-seqlens-k, or as the shapes say, when not given")
      ->transform(int64_from(0));
}

Status load_sequences(const SequenceArguments& a, SequenceFiles& files, AttentionTensors& t, AttentionOptions& options) {
  Status status = load("--cu-seqlens-q", a.cu_seqlens_q, 1, files.cu_seqlens_q, t.cu_seqlens_q);
  if (status.ok()) status = load("--cu-seqlens-k", a.cu_seqlens_k, 1, files.cu_seqlens_k, t.cu_seqlens_k);
  if (status.ok()) status = load("--seqlens-k", a.seqlens_k, 1, files.seqlens_k, t.seqlens_k);
  if (status.ok()) status = load("--leftpad-k", a.leftpad_k, 1, files.leftpad_k, t.leftpad_k);
  if (status.ok()) status = load("--block-table", a.block_table, 2, files.block_table, t.block_table);
  options.max_seqlen_q = longest(a.max_seqlen_q, t.cu_seqlens_q);
  options.max_seqlen_k = longest(a.max_seqlen_k, t.cu_seqlens_k);
  return status;
}

}  // namespace fulmen::tools
