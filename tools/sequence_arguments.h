// Options that name the tables of sequences of different lengths and of paged keys.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/status.h"
#include "npy.h"

namespace fulmen::tools {

struct SequenceArguments {
  std::string cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, leftpad_k;  // paths of int32 .npy files; empty: not given
  int64_t max_seqlen_q = -1;                                                  // -1: of packed tensors the longest there is
  int64_t max_seqlen_k = -1;
};

void add_sequence_options(CLI::App& app, SequenceArguments& arguments);

struct SequenceFiles {
  NpyArray cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, leftpad_k;
};
// Reads the files, views them in tensors, and sets the options' longest sequences. Errors name the option.
Status load_sequences(const SequenceArguments& arguments, SequenceFiles& files, AttentionTensors& tensors,
                      AttentionOptions& options);

}  // namespace fulmen::tools
