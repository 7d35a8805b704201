#include "reference/oracle/gradients.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "algorithm/philox.h"
#include "fulmen/reference.h"
#include "reference/oracle/backward_rows.h"
#include "reference/oracle/row_positions.h"
#include "runtime/empty_tensors.h"
#include "runtime/fork_safe.h"
#include "runtime/made_problem.h"
#include "runtime/threading.h"

namespace fulmen::reference {

// Each worker's part of the gradients of functions' tensors.
template <class Real>
class FunctionSums {
 public:
  FunctionSums(std::span<const ScoreFunctions::Tensor> tensors, Real* const* wanted, int workers) {
    if (wanted == nullptr) return;
    for (const ScoreFunctions::Tensor& tensor : tensors) sizes_.push_back(elements_of(tensor));
    parts_.resize(static_cast<std::size_t>(workers));
    for (Part& part : parts_) {
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        part.sums.emplace_back(wanted[t] != nullptr ? static_cast<std::size_t>(sizes_[t]) : 0);
        part.pointers.push_back(wanted[t] != nullptr ? part.sums.back().data() : nullptr);
      }
    }
  }
  Real* const* of(int worker) noexcept {
    return parts_.empty() ? nullptr : parts_[static_cast<std::size_t>(worker)].pointers.data();
  }
  void store(Real* const* to) const noexcept {
    for (std::size_t t = 0; t < sizes_.size(); ++t) {
      if (to[t] == nullptr) continue;
      std::fill_n(to[t], sizes_[t], Real{0});
      for (const Part& part : parts_) {
        for (int64_t i = 0; i < sizes_[t]; ++i)
          to[t][i] += part.sums[t][static_cast<std::size_t>(i)];
      }
    }
  }

 private:
  struct Part {
    std::vector<std::vector<Real>> sums;
    std::vector<Real*> pointers;
  };
  std::vector<int64_t> sizes_;
  std::vector<Part> parts_;
};

namespace {

Shape shape_if(const TensorSpec& spec, const Shape& shape) noexcept {
  return spec.present ? shape : Shape{};
}

}  // namespace

GradientShapes::GradientShapes(const Problem& p) noexcept
    : dq(shape_if(p.dq, p.q_shape())),
      dk(shape_if(p.dk, p.k_shape())),
      dv(shape_if(p.dv, p.v_shape())),
      dbias(shape_if(
          p.dbias,
          {p.dbias.strides[0] != 0 ? p.batch : std::min<int64_t>(p.batch, 1),
           p.dbias.strides[1] != 0 ? p.num_heads : 1,
           p.dbias.strides[2] != 0 ? p.seqlen_q : std::min<int64_t>(p.seqlen_q, 1), p.seqlen_k})),
      dsinks(shape_if(p.dsinks, {1, 1, 1, p.num_heads})) {}

RowRange rows_of_queries(const Problem& p, const AttentionTensors& t) noexcept {
  if (!p.packed_q()) return {};
  const int* cu = static_cast<const int*>(t.cu_seqlens_q.data);
  return {cu[0], cu[p.batch]};
}

RowRange rows_of_keys(const Problem& p, const AttentionTensors& t) noexcept {
  if (!p.packed_k()) return {};
  const int* cu = static_cast<const int*>(t.cu_seqlens_k.data);
  return {cu[0], cu[p.batch]};
}

template <class Real>
void compute_gradients(const Problem& p, const AttentionTensors& t, DType storage,
                       const Gradients<Real>& to, const cpu::ThreadSettings& most_threads) {
  const cpu::ThreadSettings threads = cpu::at_most(p.batch * p.num_kv_heads, most_threads);
  const GradientShapes shapes(p);
  if (to.dbias != nullptr) std::fill_n(to.dbias, elements(shapes.dbias), Real{0});
  if (to.dbias_squares != nullptr) std::fill_n(to.dbias_squares, elements(shapes.dbias), Real{0});
  if (to.dsinks_squares != nullptr)
    std::fill_n(to.dsinks_squares, elements(shapes.dsinks), Real{0});
  if (to.dsinks != nullptr) std::fill_n(to.dsinks, elements(shapes.dsinks), Real{0});
  FunctionSums<Real> added(p.functions.tensors(), to.functions, threads.num_threads),
      squares(p.functions.tensors(), to.functions_squares, threads.num_threads);
  const bool roundings = to.dq_squares != nullptr || to.dk_squares != nullptr ||
                         to.dv_squares != nullptr || to.dbias_squares != nullptr ||
                         to.dsinks_squares != nullptr || to.functions_squares != nullptr;
  std::vector<BackwardHead<Real>> heads;
  heads.reserve(static_cast<std::size_t>(threads.num_threads));
  for (int worker = 0; worker < threads.num_threads; ++worker)
    heads.emplace_back(p, t, storage, roundings);
  Mutex sums;  // dbias and dsinks add up what several tasks give

  cpu::parallel_tasks(threads, p.batch * p.num_kv_heads, [&](int64_t task, int worker) {
    const int64_t b = task / p.num_kv_heads, kv_head = task % p.num_kv_heads;
    BackwardHead<Real>& head = heads[static_cast<std::size_t>(worker)];
    head.load(b, kv_head);
    const SequenceView& sequence = head.sequence();
    const int64_t queries = sequence.problem.seqlen_q, keys = sequence.problem.seqlen_k;
    const RowStatistics rows(p, sequence, b);
    for (int64_t h = kv_head * p.group_size(); h < (kv_head + 1) * p.group_size(); ++h) {
      for (int64_t i = 0; i < queries; ++i) {
        const RowGradients<Real> row = head.row(h, i, added.of(worker), squares.of(worker));
        if (to.dq != nullptr)
          std::copy_n(row.dq, p.head_dim, to.dq + (rows.q(i) * p.num_heads + h) * p.head_dim);
        if (to.dq_squares != nullptr)
          std::copy_n(row.dq_squares, p.head_dim,
                      to.dq_squares + (rows.q(i) * p.num_heads + h) * p.head_dim);
        if (to.dbias == nullptr && to.dsinks == nullptr) continue;
        const std::scoped_lock lock(sums);
        if (to.dsinks != nullptr) to.dsinks[h] += row.dsink;
        if (to.dsinks_squares != nullptr) to.dsinks_squares[h] += row.dsink_squares;
        if (to.dbias == nullptr) continue;
        Real* dbias = to.dbias + bias_row(shapes.dbias, b, h, i);
        for (int64_t j = 0; j < keys; ++j) dbias[j] += row.dscores[j];
        if (to.dbias_squares == nullptr) continue;
        Real* squares = to.dbias_squares + bias_row(shapes.dbias, b, h, i);
        for (int64_t j = 0; j < keys; ++j) squares[j] += row.dscores_squares[j];
      }
    }
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t row = rows.k(j) * p.num_kv_heads + kv_head;
      if (to.dk != nullptr)
        std::copy_n(head.dk() + j * p.head_dim, p.head_dim, to.dk + row * p.head_dim);
      if (to.dk_squares != nullptr)
        std::copy_n(head.dk_squares() + j * p.head_dim, p.head_dim,
                    to.dk_squares + row * p.head_dim);
      if (to.dv_squares != nullptr)
        std::copy_n(head.dv_squares() + j * p.head_dim_v, p.head_dim_v,
                    to.dv_squares + row * p.head_dim_v);
      if (to.dv != nullptr)
        std::copy_n(head.dv() + j * p.head_dim_v, p.head_dim_v, to.dv + row * p.head_dim_v);
    }
  });
  added.store(to.functions);
  squares.store(to.functions_squares);
}

template void compute_gradients(const Problem&, const AttentionTensors&, DType,
                                const Gradients<float>&, const cpu::ThreadSettings&);
template void compute_gradients(const Problem&, const AttentionTensors&, DType,
                                const Gradients<double>&, const cpu::ThreadSettings&);

}  // namespace fulmen::reference

namespace fulmen {

Status attention_backward_reference(const Problem& problem, const AttentionTensors& given,
                                    const ReferenceGradients& to, const AttentionOptions& options) {
  try {
    if (Status status = cpu::check_num_threads(options.num_threads); !status.ok()) return status;
    if (Status status = check_sequences(problem, given); !status.ok()) return status;
    const AttentionTensors tensors = without_null(problem, given);
    reference::compute_gradients<double>(problem, tensors, DType::fp32,
                                         {.dq = to.dq,
                                          .dk = to.dk,
                                          .dv = to.dv,
                                          .dbias = to.dbias,
                                          .dsinks = to.dsinks,
                                          .functions = to.function_gradients},
                                         cpu::thread_settings(options));
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory,
            "no memory for the gradients of one KV head in double a thread"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, error.what()};
  } catch (...) {
    return {StatusCode::internal, "parallel_for threw"};
  }
}

Status dropout_mask(const Problem& p, const AttentionTensors& tensors, uint8_t* keep) {
  if (Status status = check_made(p); !status.ok()) return status;
  if (p.batch == 0 || p.seqlen_q == 0 || p.seqlen_k == 0) return {};
  if (keep == nullptr) {
    return {StatusCode::invalid_argument, "keep is null: a pointer is needed"};
  }
  for (int64_t head = 0; head < p.batch * p.num_heads; ++head) {
    const auto random =
        algorithm::DropoutHead::of(tensors.dropout_seed, tensors.dropout_offset, head);
    for (int64_t i = 0; i < p.seqlen_q; i += 2) {
      for (int64_t j = 0; j < p.seqlen_k; j += 4) {
        const algorithm::Philox block = random.block(i / 2, j / 4);
        for (int64_t row = i; row < std::min(i + 2, p.seqlen_q); ++row) {
          for (int64_t column = j; column < std::min(j + 4, p.seqlen_k); ++column) {
            const bool kept = algorithm::DropoutHead::number(block, row, column) >= p.dropout;
            keep[(head * p.seqlen_q + row) * p.seqlen_k + column] = kept ? 1 : 0;
          }
        }
      }
    }
  }
  return {};
}

}  // namespace fulmen
