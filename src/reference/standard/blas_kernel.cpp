// "cpu.standard.blas": standard attention over a BLAS. The products read q, k and v where they are
// through leading dimensions, so interleaved heads, packed QKV and head-major layouts cost nothing
// extra.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>

#include "reference/baseline_kernels.h"
#include "reference/kernels.h"
#include "reference/oracle/score_row.h"
#include "reference/row_loops.h"
#include "reference/standard/blas.h"
#include "reference/standard/steps.h"
#include "runtime/fork_safe.h"
#include "runtime/threading.h"

namespace fulmen::reference {
namespace {

constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;

// 512 query rows a product keep OpenBLAS at its full rate, and give two threads work at batch 1
// with few heads.
constexpr int64_t kBlockRows = 512;

// A matrix of rows of q or out: the queries of one head, or for a single query the heads that share
// a KV head, which makes the decode step's matrix-vector products into thin matrix products.
struct RowBlock {
  int64_t b, h, i, count;
  bool over_heads;
  int64_t head(int64_t r) const noexcept { return over_heads ? h + r : h; }
  int64_t query(int64_t r) const noexcept { return over_heads ? i : i + r; }
};

class BlasRunner final : public Runner {
 public:
  BlasRunner(Sgemm sgemm, const Problem& problem, const AttentionOptions& options)
      : sgemm_(sgemm),
        p_(problem),
        threads_(cpu::thread_settings(options)),
        over_heads_(problem.seqlen_q == 1),
        config_{.kernel = "cpu.standard.blas"} {
    rows_ = over_heads_ ? p_.group_size() : std::min(kBlockRows, p_.seqlen_q);
    config_.block_m = static_cast<int>(rows_);
    config_.num_threads = threads_.num_threads;
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    return floats_per_worker() * sizeof(float) * static_cast<std::size_t>(threads_.num_threads);
  }

  Status run(void* /*stream*/, const AttentionTensors& tensors, void* workspace) const override {
    const int64_t heads = over_heads_ ? p_.num_kv_heads : p_.num_heads;
    const int64_t blocks =
        over_heads_ || p_.seqlen_q == 0 ? p_.seqlen_q : (p_.seqlen_q + rows_ - 1) / rows_;
    cpu::parallel_tasks(threads_, p_.batch * heads * blocks, [&](int64_t task, int worker) {
      const int64_t b = task / (heads * blocks);
      const int64_t head = task / blocks % heads;
      const int64_t first = task % blocks * rows_;
      const RowBlock block =
          over_heads_ ? RowBlock{b, head * rows_, 0, rows_, true}
                      : RowBlock{b, head, first, std::min(rows_, p_.seqlen_q - first), false};
      attend(
          tensors, block,
          static_cast<float*>(workspace) + floats_per_worker() * static_cast<std::size_t>(worker));
    });
    return {};
  }

 private:
  std::size_t floats_per_worker() const noexcept {
    return static_cast<std::size_t>((rows_ * p_.seqlen_k + 15) / 16 * 16);
  }

  // Rows of a block are the matrix's rows: their distance is its leading dimension. One row has
  // none, but BLAS still checks it.
  int64_t leading(const TensorSpec& spec, bool over_heads, int64_t columns) const noexcept {
    return std::max(spec.strides[over_heads ? 2 : 1], columns);
  }

  void attend(const AttentionTensors& t, const RowBlock& block, float* scores) const noexcept {
    const int64_t kv_head = block.h / p_.group_size();
    const float* q =
        static_cast<const float*>(t.q.data) + offset_of(p_.q, block.b, block.i, block.h);
    const float* k = static_cast<const float*>(t.k.data) + offset_of(p_.k, block.b, 0, kv_head);
    const float* v = static_cast<const float*>(t.v.data) + offset_of(p_.v, block.b, 0, kv_head);
    float* out = static_cast<float*>(t.out.data) + offset_of(p_.out, block.b, block.i, block.h);
    const int m = static_cast<int>(block.count);
    const int n = static_cast<int>(p_.seqlen_k);
    const int dim = static_cast<int>(p_.head_dim);
    const int dim_v = static_cast<int>(p_.head_dim_v);
    const int ld_out = static_cast<int>(leading(p_.out, block.over_heads, dim_v));

    if (n > 0) {
      sgemm_(kRowMajor, kNoTranspose, kTranspose, m, n, dim, p_.softmax_scale, q,
             static_cast<int>(leading(p_.q, block.over_heads, dim)), k,
             static_cast<int>(leading(p_.k, false, dim)), 0.0F, scores, n);
    }
    for (int64_t r = 0; r < block.count; ++r) {
      const float lse = softmax_step(p_, t, block.b, block.head(r), block.query(r), DType::fp32,
                                     scores + r * n, nullptr);
      if (p_.lse.present)
        static_cast<float*>(t.lse.data)[offset_of(p_.lse, block.b, block.head(r), block.query(r))] =
            lse;
    }
    if (n > 0) {
      sgemm_(kRowMajor, kNoTranspose, kNoTranspose, m, dim_v, n, 1.0F, scores, n, v,
             static_cast<int>(leading(p_.v, false, dim_v)), 0.0F, out, ld_out);
    }
    for (int64_t r = 0; r < block.count; ++r)
      repair(t, block, r, v, scores + r * n, out + r * ld_out);
  }

  // The product multiplies masked keys by 0: a NaN or infinity in such a row of V leaks. Computes
  // those rows again without them.
  void repair(const AttentionTensors& t, const RowBlock& block, int64_t r, const float* v,
              const float* probabilities, float* out) const noexcept {
    if (p_.seqlen_k > 0) {
      const bool masked = p_.keep_mask.present || p_.window_left >= 0 || p_.window_right >= 0;
      if (!masked ||
          std::all_of(out, out + p_.head_dim_v, [](float x) { return std::isfinite(x); }))
        return;
    }
    std::fill(out, out + p_.head_dim_v, start_of_row(p_, t, block.head(r)));
    const AttendedKeys keys(p_, t, block.b, block.head(r), block.query(r));
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      if (keys.contains(j))
        add_scaled(out, v + j * p_.v.strides[1], probabilities[j], p_.head_dim_v);
    }
  }

  Sgemm sgemm_;
  Problem p_;
  cpu::ThreadSettings threads_;
  bool over_heads_;
  int64_t rows_ = 0;
  KernelConfig config_;
};

class StandardBlas final : public Kernel {
 public:
  std::string_view name() const noexcept override { return "cpu.standard.blas"; }
  bool dropout() const noexcept override { return true; }
  double rank(const Problem& /*problem*/) const override { return 1; }
  std::string_view layout() const noexcept override {
    return "rows of q, k, v and out further apart than their length";
  }

  Support supports(const Problem& p, const std::string& /*device*/) const override {
    if (p.dtype != DType::fp32)
      return Support::no(
          fmt::format("BLAS computes fp32 only, the dtype is {}", to_string(p.dtype)));
    struct Matrix {
      const char* name;
      const TensorSpec& spec;
      int64_t rows, columns;
      int row_dim;
    };
    const bool over_heads = p.seqlen_q == 1;
    const int64_t q_rows = over_heads ? p.num_heads : p.seqlen_q;
    const int q_dim = over_heads ? 2 : 1;
    for (const Matrix& m : std::array<Matrix, 4>{{{"q", p.q, q_rows, p.head_dim, q_dim},
                                                  {"k", p.k, p.seqlen_k, p.head_dim, 1},
                                                  {"v", p.v, p.seqlen_k, p.head_dim_v, 1},
                                                  {"out", p.out, q_rows, p.head_dim_v, q_dim}}}) {
      const int64_t leading = m.spec.strides[static_cast<std::size_t>(m.row_dim)];
      if (m.rows > INT_MAX || leading > INT_MAX) {
        return Support::no(fmt::format("{}: {} rows of stride {} exceed BLAS's 32-bit sizes",
                                       m.name, m.rows, leading));
      }
      if (m.rows > 1 && leading < m.columns) {
        return Support::no(fmt::format("{}: BLAS needs rows at least {} apart, the stride is {}",
                                       m.name, m.columns, leading));
      }
    }
    const Result<Sgemm> found = find_sgemm();
    return found.ok() ? Support{} : Support::no(found.status().message());
  }

  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    const Result<Sgemm> found = find_sgemm();
    if (!found.ok()) return found.status();
    return std::unique_ptr<Runner>(std::make_unique<BlasRunner>(found.value(), problem, options));
  }
};

}  // namespace

const Kernel& standard_blas_kernel() {
  constinit static MadeOnce<const StandardBlas> made;
  return made.get();
}

std::vector<const Kernel*> baseline_kernels() {
  return {&standard_blas_kernel(), &standard_plain_kernel(), &reference_double_kernel(),
          &standard_backward_kernel(), &reference_backward_kernel()};
}

}  // namespace fulmen::reference
