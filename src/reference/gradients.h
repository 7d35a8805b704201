// All gradients of a problem in memory, as the oracle or as standard attention gives them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::reference {

using Shape = std::array<int64_t, 4>;

// The five gradients, row-major; a dim of dbias that is summed over has size 1. Absent ones are empty.
struct GradientShapes {
  Shape dq, dk, dv, dbias, dsinks;
  explicit GradientShapes(const Problem& problem) noexcept;
};

template <class Real>
struct Gradients {
  Real *dq = nullptr, *dk = nullptr, *dv = nullptr, *dbias = nullptr, *dsinks = nullptr;
  Real* dsink_rounding = nullptr;  // [batch, num_heads, seqlen_q]: see RowGradients
};

inline int64_t elements(const Shape& shape) noexcept { return shape[0] * shape[1] * shape[2] * shape[3]; }

// Computes the gradients that are not null, in parallel over KV heads. storage: see BackwardHead. Throws std::bad_alloc.
template <class Real>
void compute_gradients(const Problem& problem, const AttentionTensors& tensors, DType storage, const Gradients<Real>& to);

extern template void compute_gradients(const Problem&, const AttentionTensors&, DType, const Gradients<float>&);
extern template void compute_gradients(const Problem&, const AttentionTensors&, DType, const Gradients<double>&);

}  // namespace fulmen::reference
