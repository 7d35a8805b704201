// Options that name files of the small tensors: numbers of heads, and the tables of sequences of
// different lengths. One row each.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/status.h"
#include "tools/files/npy.h"

namespace fulmen::tools {

struct VectorFile {
  const char* option;  // "--sinks"
  InputTensor AttentionTensors::* tensor;
  DType dtype;
  bool one_dim, two_dims;  // the ranks that a file may have
  const char* dims;        // the accepted array's, for messages: "[head]"
  const char* help;
};
inline constexpr std::array kVectorFiles{
    VectorFile{"--alibi", &AttentionTensors::alibi_slopes, DType::fp32, true, true,
               "[head] or [batch, head]", "ALiBi slopes, fp32 [head] or [batch, head]"},
    VectorFile{"--sinks", &AttentionTensors::sinks, DType::fp32, true, false, "[head]",
               "attention sinks, fp32 [head]"},
    VectorFile{"--cu-seqlens-q", &AttentionTensors::cu_seqlens_q, DType::int32, true, false,
               "with one dim",
               "q is packed, [1, total, ...]: int32 [batch + 1], where each sequence begins"},
    VectorFile{"--cu-seqlens-k", &AttentionTensors::cu_seqlens_k, DType::int32, true, false,
               "with one dim",
               "k and v are packed; with --block-table the sequences' lengths by differences"},
    VectorFile{"--seqlens-k", &AttentionTensors::seqlens_k, DType::int32, true, false,
               "with one dim", "int32 [batch]: rows of padded or paged k and v that are used"},
    VectorFile{"--leftpad-k", &AttentionTensors::leftpad_k, DType::int32, true, false,
               "with one dim", "int32 [batch]: the first of them"},
    VectorFile{"--block-table", &AttentionTensors::block_table, DType::int32, false, true,
               "[batch, max_pages]",
               "k and v are [num_pages, page_size, ...]: int32 [batch, max_pages], pages in order"},
    VectorFile{"--k-scale", &AttentionTensors::k_scale, DType::fp32, true, true,
               "[1], [kv_head], [batch, kv_head] or [batch, seqlen_k, kv_head, 1]",
               "factors of k's numbers, fp32 [1], [kv_head], [batch, kv_head] or, with 1 for what "
               "shares one, [batch, seqlen_k, kv_head, head_dim]"},
    VectorFile{"--v-scale", &AttentionTensors::v_scale, DType::fp32, true, true,
               "[1], [kv_head], [batch, kv_head] or [batch, seqlen_k, kv_head, 1]",
               "the same of v"},
    VectorFile{"--q-scale", &AttentionTensors::q_scale, DType::fp32, true, true,
               "[1], [kv_head] or [batch, kv_head]",
               "the same of the queries that share a KV head"},
};

struct VectorArguments {
  std::array<std::string, kVectorFiles.size()> paths;  // in the table's order; empty: not given
  int64_t max_seqlen_q = -1;                           // -1: the longest of packed tensors
  int64_t max_seqlen_k = -1;

  bool given(InputTensor AttentionTensors::* tensor) const;
};

void add_vector_options(CLI::App& app, VectorArguments& arguments);

using VectorArrays = std::array<NpyArray, kVectorFiles.size()>;
// Reads the files, views them in tensors, and sets the options' longest sequences. Errors name the
// option.
Status load_vectors(const VectorArguments& arguments, VectorArrays& arrays,
                    AttentionTensors& tensors, AttentionOptions& options);

}  // namespace fulmen::tools
