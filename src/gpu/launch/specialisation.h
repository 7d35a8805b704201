// From a Problem and a tile shape to the constants that a kernel is compiled with, and the
// arguments that a launch passes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/launch/score_functions.h"
#include "gpu/targets/chip.h"
#include "kernels/core/arguments.h"
#include "kernels/core/configuration.h"

namespace fulmen::gpu {

// A kernel to compile: its configuration, and what that says nothing of.
struct Specialisation : kernels::Configuration {
  std::string_view entry;          // "forward/prefill.h"
  const Target* target = nullptr;  // none: no matrix instructions
  bool backward = false;           // it takes BackwardArguments
  std::string functions;           // definitions of score functions: launch/score_functions.h

  DType tensor_dtype() const { return static_cast<DType>(dtype); }
};

// Which gradients a backward kernel gives.
constexpr int kGivesDq = 1, kGivesDk = 2, kGivesDv = 4, kGivesDbias = 8, kGivesTensors = 16,
              kStoresDbias = 32;

// A kernel beside the products, by whose dtype, dims and tiles it goes: without their target and
// what only changes scores.
Specialisation helper_kernel(const Specialisation& products, std::string_view entry, int workgroup);

// Configuration::keep_mask, and the bits of Configuration::mask_parts.
constexpr int kMaskAsBytes = 1, kMaskAsBits = 2;
constexpr int kMaskOfBytes = 1, kMaskOfFunction = 2, kMaskOfBlocks = 4;

// Configuration::mask_parts.
int mask_parts(const Problem& problem);
// Returns true if the scale is positive and nothing but masks changes scores.
bool scales_alone(const Problem& problem);

// Fills in what the problem decides: dtype, features, exact_dims, and whole_rows as far as strides
// say.
void specialise_for(const Problem& problem, Specialisation& s);
// Returns true if rows of q, k, v and out (or of the bias) can move as 16-byte vectors, by their
// strides. Pointers are checked when a plan runs.
bool strides_are_whole(const Problem& problem);
bool bias_is_whole(const Problem& problem);
// kNaturalUnits of kernels/core/config.h.
inline bool natural_units(const Problem& p) {
  return (p.bias.present && p.bias.dtype != DType::fp16) || has_score_mod(p);
}
// Returns true if every tile of block_n keys lies in one page.
bool tiles_in_pages(const Problem& problem, int block_n);

inline kernels::View view_of(const TensorSpec& spec, const void* data = nullptr) {
  return {data, spec.strides[0], spec.strides[1], spec.strides[2]};
}

// Returns true if kernels read masks beside the band.
inline bool has_masks(const Problem& p) { return p.keep_mask.present || has_mask_parts(p); }
inline bool has_band(const Problem& p) { return p.window_left >= 0 || p.window_right >= 0; }
inline int64_t tiles_of(int64_t length, int64_t tile) { return (length + tile - 1) / tile; }
inline int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

std::string prelude(const Specialisation& s);
// The function in the compiled kernel, which profilers show: "fulmen_prefill_tma".
std::string entry_name(const Specialisation& s);
// "forward gfx11 bf16 d128 64x32 ...": for listings.
std::string to_string(const Specialisation& s);
Result<CompileRequest> compile_request(const Specialisation& s, const Chip& chip,
                                       Platform platform);

// Everything but pointers, splits and tiles.
kernels::ForwardArguments arguments_of(const Problem& problem);
void set_pointers(const Problem& problem, const AttentionTensors& tensors,
                  kernels::ForwardArguments& arguments);
// Gradients, with their pointers, and their scale.
void set_gradients(const Problem& problem, const AttentionTensors& tensors,
                   kernels::BackwardArguments& arguments);

}  // namespace fulmen::gpu
