// Score functions and block masks in kernels: their source, and where its tensors are.
#pragma once

#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/backend.h"
#include "fulmen/problem.h"
#include "kernels/core/arguments.h"
#include "score/source.h"

namespace fulmen::gpu {

// Tiles' loops are unrolled: operations of a function that tile families take, each of whose
// operations is there once for each of a lane's scores.
constexpr int kMostTileOperations = 192;

bool has_score_mod(const Problem& problem);
bool has_mask_mod(const Problem& problem);
// Returns true if masks come from a function or from lists of blocks.
bool has_mask_parts(const Problem& problem);
// Returns true if what the masks say depends on the batch (the query, the head): the keep-mask,
// mask_mod, the block mask, and the band of each sequence where these have lengths of their own.
bool masks_differ_by_batch(const Problem& problem);
bool masks_differ_by_query(const Problem& problem);
bool masks_differ_by_head(const Problem& problem);
bool lists_differ_by_batch(const Problem& problem);
bool lists_differ_by_head(const Problem& problem);

// Yes for what kernels with functions serve; else why not. most_operations: of score_mod or its
// derivative. Every family that has functions asks.
Support takes_functions(const Problem& problem, int most_operations);

// Definitions for a kernel's source (kernels/core/score_functions.h): of score_mod, of a backward
// pass also of its derivative; of mask_mod.
std::string score_mod_source(const Problem& problem);
std::string mask_mod_source(const Problem& problem);

// The functions' tensors as the source reaches them.
std::vector<score::PrintedTensor> printed_tensors(const Problem& problem);

// Extents and strides that the source reads as numbers; then the tensors' addresses.
void set_function_numbers(const Problem& problem, kernels::FunctionTensors& to);
void set_function_pointers(const Problem& problem, const AttentionTensors& tensors,
                           kernels::FunctionTensors& to);
// A block mask's addresses and strides.
void set_block_lists(const Problem& problem, const AttentionTensors& tensors,
                     kernels::BlockMask& to);

}  // namespace fulmen::gpu
