// "cpu.reference.backward": the oracle's gradients as a kernel that can be forced by name.
#include <memory>
#include <new>
#include <vector>

#include "reference/baseline_kernels.h"
#include "reference/oracle/gradients.h"
#include "reference/oracle/row_functions.h"
#include "runtime/fork_safe.h"

namespace fulmen::reference {
namespace {

// One gradient in double, to be stored in the tensor.
class Exact {
 public:
  Exact(const TensorSpec& spec, const Shape& shape)
      : spec_(spec), shape_(shape), values_(static_cast<std::size_t>(elements(shape))) {}
  double* data() noexcept { return spec_.present ? values_.data() : nullptr; }
  void store(const Tensor& to, RowRange rows = {}) const noexcept {
    store_gradient(values_.data(), shape_, spec_, to, rows);
  }

 private:
  const TensorSpec& spec_;
  Shape shape_;
  std::vector<double> values_;
};

class OracleRunner final : public Runner {
 public:
  OracleRunner(const Problem& problem, const AttentionOptions& options)
      : p_(problem),
        threads_(cpu::thread_settings(options)),
        config_{.kernel = "cpu.reference.backward"} {
    config_.num_threads = threads_.num_threads;
  }
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override { return 0; }

  // Allocates, like the forward oracle.
  Status run(void* /*stream*/, const AttentionTensors& t, void* /*workspace*/) const override {
    const GradientShapes shapes(p_);
    Exact dq(p_.dq, shapes.dq), dk(p_.dk, shapes.dk), dv(p_.dv, shapes.dv),
        dbias(p_.dbias, shapes.dbias);
    Exact dsinks(p_.dsinks, shapes.dsinks);
    const auto functions = p_.functions.tensors();
    std::vector<std::vector<double>> of_functions;
    std::vector<double*> pointers;
    for (const ScoreFunctions::Tensor& tensor : functions) {
      of_functions.emplace_back(tensor.has_gradient ? static_cast<std::size_t>(elements_of(tensor))
                                                    : 0);
      pointers.push_back(tensor.has_gradient ? of_functions.back().data() : nullptr);
    }
    compute_gradients<double>(p_, t, DType::fp32,
                              {.dq = dq.data(),
                               .dk = dk.data(),
                               .dv = dv.data(),
                               .dbias = dbias.data(),
                               .dsinks = dsinks.data(),
                               .functions = functions.empty() ? nullptr : pointers.data()},
                              threads_);
    for (std::size_t i = 0; i < functions.size(); ++i) {
      if (functions[i].has_gradient)
        store_function_gradient(of_functions[i].data(), functions[i],
                                t.function_tensors[i].gradient);
    }
    dq.store(t.dq, rows_of_queries(p_, t));
    dk.store(t.dk, rows_of_keys(p_, t));
    dv.store(t.dv, rows_of_keys(p_, t));
    dbias.store(t.dbias);
    dsinks.store(t.dsinks);
    return {};
  }

 private:
  Problem p_;
  cpu::ThreadSettings threads_;
  KernelConfig config_;
};

class ReferenceBackward final : public Kernel {
 public:
  std::string_view name() const noexcept override { return "cpu.reference.backward"; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  bool score_functions() const noexcept override { return true; }
  bool block_masks() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& /*problem*/, const std::string& /*device*/) const override {
    return {};
  }
  // Last of all where functions or a block mask leave few kernels.
  double rank(const Problem& problem) const override {
    return problem.functions.any() || problem.has_block_mask() ? 0.1 : 0;
  }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    return std::unique_ptr<Runner>(std::make_unique<OracleRunner>(problem, options));
  }
};

}  // namespace

const Kernel& reference_backward_kernel() {
  constinit static MadeOnce<const ReferenceBackward> made;
  return made.get();
}

}  // namespace fulmen::reference
