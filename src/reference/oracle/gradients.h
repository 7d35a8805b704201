// All gradients of a problem in memory, as the oracle or as standard attention gives them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "reference/oracle/score_row.h"
#include "runtime/float_formats.h"
#include "runtime/threading.h"

namespace fulmen::reference {

using Shape = std::array<int64_t, 4>;

// The five gradients, row-major; a dim of dbias that is summed over has size 1. Absent ones are
// empty.
struct GradientShapes {
  Shape dq, dk, dv, dbias, dsinks;
  explicit GradientShapes(const Problem& problem) noexcept;
};

template <class Real>
struct Gradients {
  Real *dq = nullptr, *dk = nullptr, *dv = nullptr, *dbias = nullptr, *dsinks = nullptr;
  // Arrays of the same shapes, in double: squares of what roundings may do to each (RowGradients),
  // added up.
  Real *dq_squares = nullptr, *dk_squares = nullptr, *dv_squares = nullptr,
       *dbias_squares = nullptr, *dsinks_squares = nullptr;
  // Of functions' tensors, as many as there are; null, or null each where not wanted.
  Real* const* functions = nullptr;
  Real* const* functions_squares = nullptr;  // the same of squares
};

inline int64_t elements(const Shape& shape) noexcept {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

// Where a query's row of dbias begins in memory of its shape.
inline int64_t bias_row(const Shape& shape, int64_t b, int64_t h, int64_t i) noexcept {
  const int64_t row = shape[2] == 1 ? 0 : i, head = shape[1] == 1 ? 0 : h,
                batch = shape[0] == 1 ? 0 : b;
  return ((batch * shape[1] + head) * shape[2] + row) * shape[3];
}

// The rows of packed q, or of packed k, that belong to sequences; all where they are not packed.
struct RowRange {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
  bool contains(int64_t row) const noexcept { return row >= begin && row < end; }
};
RowRange rows_of_queries(const Problem& problem, const AttentionTensors& tensors) noexcept;
RowRange rows_of_keys(const Problem& problem, const AttentionTensors& tensors) noexcept;

// Row-major numbers of a gradient to where its tensor lies, rounded; of dim 1 the rows of the
// range.
template <class Real>
void store_gradient(const Real* from, const Shape& shape, const TensorSpec& spec, const Tensor& to,
                    RowRange rows = {}) noexcept {
  for (int64_t a = 0; a < shape[0]; ++a) {
    for (int64_t b = 0; b < shape[1]; ++b) {
      if (!rows.contains(b)) {
        from += shape[2] * shape[3];
        continue;
      }
      for (int64_t c = 0; c < shape[2]; ++c) {
        const int64_t row = offset_of(spec, a, b, c);
        for (int64_t d = 0; d < shape[3]; ++d)
          store_float(to.data, spec.dtype, row + d, static_cast<float>(*from++));
      }
    }
  }
}

// Computes the gradients that are not null, except packed rows that belong to no sequence, in
// parallel over KV heads. storage: see BackwardHead. Throws std::bad_alloc, and what run_workers
// does.
template <class Real>
void compute_gradients(const Problem& problem, const AttentionTensors& tensors, DType storage,
                       const Gradients<Real>& to, const cpu::ThreadSettings& most_threads);

extern template void compute_gradients(const Problem&, const AttentionTensors&, DType,
                                       const Gradients<float>&, const cpu::ThreadSettings&);
extern template void compute_gradients(const Problem&, const AttentionTensors&, DType,
                                       const Gradients<double>&, const cpu::ThreadSettings&);

}  // namespace fulmen::reference
