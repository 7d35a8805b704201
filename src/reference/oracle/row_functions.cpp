#include "reference/oracle/row_functions.h"

#include <algorithm>
#include <cmath>

#include "runtime/block_lists.h"
#include "score/softcap.h"

namespace fulmen::reference {

template <class Real>
RowFunctions<Real>::RowFunctions(const Problem& p, const AttentionTensors& t)
    : problem_(p),
      functions_(p.functions.impl()),
      partial_(partial_blocks(p, t)),
      full_(full_blocks(p, t)) {
  const auto keys = static_cast<std::size_t>(p.seqlen_k);
  if (p.has_block_mask()) blocks_.resize(static_cast<std::size_t>(p.key_blocks()));
  if (p.has_block_mask() || (functions_ != nullptr && functions_->has_mask())) keep_.resize(keys);
  if (functions_ == nullptr) return;
  score::bind(p.functions, t.function_tensors, elements_.data());
  values_.resize(std::max({functions_->score.nodes.size(), functions_->mask.nodes.size(),
                           functions_->gradient.nodes.size()}));
  if (!functions_->has_score()) return;
  is_softcap_ = score::softcap_of_function(p) > 0;
  before_.resize(keys);
  shared_.reserve(keys * functions_->loads.size());
  slopes_.resize(keys);
}

template <class Real>
score::PairOf<Real> RowFunctions<Real>::pair(int64_t j, Real score) const noexcept {
  return {score, static_cast<int32_t>(b_), static_cast<int32_t>(h_), static_cast<int32_t>(i_),
          static_cast<int32_t>(j)};
}

template <class Real>
void RowFunctions<Real>::restrict_keys(int64_t b, int64_t h, int64_t i,
                                       AttendedKeys& keys) noexcept {
  if (keep_.empty()) return;
  b_ = b, h_ = h, i_ = i;
  if (!blocks_.empty()) {
    std::fill(blocks_.begin(), blocks_.end(), uint8_t{0});
    const int64_t row = i / problem_.mask_block_q;
    for (const auto& [list, state] : {std::pair{&partial_, 1}, {&full_, 2}}) {
      const BlockRow listed = block_row(*list, b, h, row, static_cast<int>(blocks_.size()));
      for (int at = 0; at < listed.count; ++at) {
        if (const int block = listed.listed(at); block >= 0)
          blocks_[static_cast<std::size_t>(block)] = static_cast<uint8_t>(state);
      }
    }
  }
  const bool masked = functions_ != nullptr && functions_->has_mask();
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    uint8_t& keep = keep_[static_cast<std::size_t>(j)];
    const int state =
        blocks_.empty() ? 1 : blocks_[static_cast<std::size_t>(j / problem_.mask_block_k)];
    keep = keys.contains(j) && state != 0 ? 1 : 0;
    if (keep == 0 || state == 2 || !masked) continue;
    const score::Graph& graph = functions_->mask;
    score::evaluate(graph.nodes, elements_.data(), pair(j, Real{0}), values_.data());
    keep = values_[static_cast<std::size_t>(graph.results[0])].integer != 0 ? 1 : 0;
  }
  keys.keep = keep_.data();
  keys.keep_stride = 1;
}

template <class Real>
void RowFunctions<Real>::apply(int64_t b, int64_t h, int64_t i, const AttendedKeys& keys,
                               Real* scores) noexcept {
  if (before_.empty()) return;
  b_ = b, h_ = h, i_ = i;
  const score::Graph &graph = functions_->score, &gradient = functions_->gradient;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (!keys.contains(j)) continue;
    const auto at = static_cast<std::size_t>(j);
    const score::PairOf<Real> here = pair(j, scores[j]);
    before_[at] = scores[j];
    if (scores[j] == -HUGE_VAL && !is_softcap_) {  // left out before: stays so
      slopes_[at] = 0;
      continue;
    }
    score::evaluate(graph.nodes, elements_.data(), here, values_.data());
    scores[j] = values_[static_cast<std::size_t>(graph.results[0])].real;
    slopes_[at] = 1;
    if (gradient.results.empty()) continue;
    score::evaluate(gradient.nodes, elements_.data(), here, values_.data());
    slopes_[at] = values_[static_cast<std::size_t>(gradient.results[0])].real;
  }
}

template <class Real>
void RowFunctions<Real>::add_gradients(int64_t j, Real ds, const PairErrors& errors,
                                       Real* const* to, Real* const* squares) noexcept {
  if (to == nullptr || functions_ == nullptr || functions_->loads.empty()) return;
  const score::Graph& graph = functions_->gradient;
  score::evaluate(graph.nodes, elements_.data(), pair(j, before_[static_cast<std::size_t>(j)]),
                  values_.data());
  const auto result = [&](int at) {
    return values_[static_cast<std::size_t>(graph.results[static_cast<std::size_t>(at)])];
  };
  for (const LoadResult& load : functions_->loads) {
    Real* gradient = to[load.tensor];
    const ScoreFunctions::Tensor& tensor =
        functions_->tensors[static_cast<std::size_t>(load.tensor)];
    int64_t place = 0;
    bool inside = gradient != nullptr;
    for (int d = 0; d < tensor.dims && inside; ++d) {
      const int32_t index = result(load.index + d).integer;
      inside = index >= 0 && index < tensor.shape[d];
      place = place * tensor.shape[d] + index;
    }
    if (!inside) continue;
    const Real by = result(load.by).real;
    gradient[place] += ds * by;
    if (squares == nullptr) continue;
    const Real evaluated = static_cast<Real>(kRoundingsOfAProbability * kUnitOfFloat) * ds;
    squares[load.tensor][place] += errors.own * by * by + evaluated * evaluated * (1 + by * by);
    shared_.push_back({load.tensor, place, errors.probability * by, ds * by});
  }
}

template <class Real>
void RowFunctions<Real>::end_row(Real of_delta, Real of_lse, Real* const* squares) noexcept {
  if (squares == nullptr) return;
  std::sort(shared_.begin(), shared_.end(), [](const Shared& a, const Shared& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.place < b.place;
  });
  for (std::size_t at = 0; at < shared_.size();) {
    Shared sum = shared_[at];
    for (++at;
         at < shared_.size() && shared_[at].tensor == sum.tensor && shared_[at].place == sum.place;
         ++at) {
      sum.probabilities += shared_[at].probabilities;
      sum.ds += shared_[at].ds;
    }
    const Real delta = of_delta * sum.probabilities, lse = of_lse * sum.ds;
    squares[sum.tensor][sum.place] += delta * delta + lse * lse;
  }
  shared_.clear();
}

template class RowFunctions<float>;
template class RowFunctions<double>;

}  // namespace fulmen::reference
