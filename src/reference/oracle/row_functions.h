// score_mod, mask_mod and the block mask for rows of scores, pair by pair: for the oracle in double
// and standard attention in float.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "reference/oracle/score_row.h"
#include "runtime/block_lists.h"
#include "score/evaluate.h"
#include "score/functions.h"

namespace fulmen::reference {

template <class Real>
class RowFunctions {
 public:
  // Allocates all it will need: the others do not throw. The problem lives as long.
  RowFunctions(const Problem& problem, const AttentionTensors& tensors);

  // Takes from the keys what mask_mod and the block mask leave out. keys then view bytes of this
  // object, until the next call.
  void restrict_keys(int64_t b, int64_t h, int64_t i, AttendedKeys& keys) noexcept;
  // scores[j] becomes score_mod of it, for attended keys.
  void apply(int64_t b, int64_t h, int64_t i, const AttendedKeys& keys, Real* scores) noexcept;
  // score_mod's derivative by score j of the last apply(); 1 without score_mod.
  Real slope(int64_t j) const noexcept {
    return slopes_.empty() ? Real{1} : slopes_[static_cast<std::size_t>(j)];
  }
  // What roundings may do to a pair's ds: the square of what is its own, and the probability, which
  // what all of a row share is multiplied with.
  struct PairErrors {
    Real own = 0, probability = 0;
  };
  // Adds what score j of the last apply() gives to the tensors' gradients: ds times the derivatives
  // by the elements that it read. to: row-major, as many as tensors; null ones are left out.
  // squares: of the same shapes, or null.
  void add_gradients(int64_t j, Real ds, const PairErrors& errors, Real* const* to,
                     Real* const* squares) noexcept;
  // Adds to the squares what a row's pairs share: the errors of delta and of the LSE. squares may
  // be null.
  void end_row(Real of_delta, Real of_lse, Real* const* squares) noexcept;

 private:
  score::PairOf<Real> pair(int64_t j, Real score) const noexcept;

  // What a row's pairs added to an element: probabilities and ds, times the derivatives.
  struct Shared {
    int tensor = 0;
    int64_t place = 0;
    Real probabilities = 0, ds = 0;
  };

  const Problem& problem_;
  const ScoreFunctions::Impl* functions_;
  bool is_softcap_ = false;  // score_mod: it makes of a score of -inf what the option does
  std::array<score::Elements, score::kMaxTensors> elements_;
  BlockList partial_, full_;
  int64_t b_ = 0, h_ = 0, i_ = 0;
  std::vector<score::BasicValue<Real>> values_;
  std::vector<Real> before_, slopes_;  // [seqlen_k]
  std::vector<Shared> shared_;         // of the row at hand; room for each pair and load
  std::vector<uint8_t> keep_;          // [seqlen_k]
  std::vector<uint8_t> blocks_;        // of keys: 0 none, 1 masked by mask_mod, 2 not
};

// Row-major numbers of a gradient to where its tensor lies, rounded.
template <class Real>
void store_function_gradient(const Real* from, const ScoreFunctions::Tensor& tensor,
                             const Tensor& to) noexcept {
  const int64_t count = elements_of(tensor);
  for (int64_t at = 0; at < count; ++at) {
    store_float(to.data, tensor.gradient_dtype, gradient_offset(tensor, at),
                static_cast<float>(from[at]));
  }
}

extern template class RowFunctions<float>;
extern template class RowFunctions<double>;

}  // namespace fulmen::reference
