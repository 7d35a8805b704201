// Tensors of over 4 GiB, whose two heads, or two rows, lie more than 2^31 elements apart.
#include <string_view>

#include "gpu/gpu_devices.h"
#include "plan/plan_impl.h"
#include "plan/registry.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr int64_t kFar = (int64_t{1} << 31) + 64;  // elements; rows stay at multiples of 16 bytes
constexpr std::size_t kRow = 1, kHead = 2;         // places in a shape

// A case's tensors on a device. In tensors with a row of head_dim elements for each position and
// head, the dim `far` has the stride kFar.
class FarCopy {
 public:
  FarCopy(const std::string& device, const AttentionTensors& host, std::size_t far)
      : device_(device), backend_(backend_of(device)), host_(host), tensors(host) {
    for (const TensorField& field : kTensorTable) {
      Tensor& tensor = tensors->*field.tensor;
      if (tensor.data == nullptr) continue;
      const int64_t dim = tensor.shape[3];
      if (std::string_view(field.name).find("lse") == std::string_view::npos) {
        tensor.strides = {2 * kFar, far == kRow ? kFar : dim, far == kRow ? dim : kFar, 1};
      }
      int64_t elements = 1;
      for (std::size_t n = 0; n < 4; ++n) elements += (tensor.shape[n] - 1) * tensor.strides[n];
      tensor.data = allocate(static_cast<std::size_t>(elements * size_of(tensor.dtype)));
      if (tensor.data == nullptr) return;
    }
    complete = true;
  }
  ~FarCopy() {
    for (void* memory : memory_) backend_->free(device_, memory);
  }
  FarCopy(const FarCopy&) = delete;
  FarCopy& operator=(const FarCopy&) = delete;

  void* allocate(std::size_t bytes) {
    void* memory = backend_->allocate(device_, bytes);
    if (memory != nullptr) memory_.push_back(memory);
    return memory;
  }
  // Copies the contents of the host's tensors, poisoned outputs included, to the device and back.
  Status run(const Plan& plan) {
    const std::size_t bytes = plan.workspace_bytes();
    Status status = copy_all(true);
    if (status.ok())
      status = plan.run(nullptr, tensors, bytes > 0 ? allocate(bytes) : nullptr, bytes);
    if (status.ok()) status = backend_->synchronize(device_, nullptr);
    return status.ok() ? copy_all(false) : status;
  }

 private:
  const std::string device_;
  const std::shared_ptr<const Backend> backend_;
  const AttentionTensors& host_;
  std::vector<void*> memory_;

  Status copy_all(bool there) {
    for (const TensorField& field : kTensorTable) {
      if ((tensors->*field.tensor).data == nullptr) continue;
      if (Status status = copy(field, there); !status.ok()) return status;
    }
    return {};
  }
  // Copies row by row; for one sequence.
  Status copy(const TensorField& field, bool there) {
    const Tensor &near = host_->*field.tensor, &far = tensors->*field.tensor;
    const int64_t bytes = size_of(near.dtype);
    for (int64_t i = 0; i < near.shape[1]; ++i) {
      for (int64_t j = 0; j < near.shape[2]; ++j) {
        std::byte* ours = static_cast<std::byte*>(near.data) +
                          (i * near.strides[1] + j * near.strides[2]) * bytes;
        std::byte* theirs =
            static_cast<std::byte*>(far.data) + (i * far.strides[1] + j * far.strides[2]) * bytes;
        const auto length = static_cast<std::size_t>(near.shape[3] * bytes);
        Status status = there ? backend_->copy(device_, theirs, ours, length)
                              : backend_->copy(device_, ours, theirs, length);
        if (!status.ok()) return status;
      }
    }
    return {};
  }

 public:
  AttentionTensors tensors;
  bool complete = false;  // there was memory for all
};

class GpuFarTensors : public GpuTest {
 protected:
  // How many kernels ran; 1 where the case is not drawn.
  int check(CaseSpec spec, std::size_t far, Random& random) const {
    if (!drawn()) return 1;
    spec.batch = 1;
    Case c(spec, random);
    FarCopy there(device(), c.tensors, far);
    if (!there.complete) return 0;
    Result<Problem> problem = spec.backward ? make_backward_problem(there.tensors, c.options)
                                            : make_problem(there.tensors, c.options);
    if (!problem.ok()) {
      ADD_FAILURE() << problem.status().message();
      return 0;
    }
    const std::vector<std::string> kernels = kernels_for(problem.value(), device());
    for (const std::string& kernel : kernels) {
      if (!runs_here(kernel)) continue;
      AttentionOptions options = c.options;
      options.kernel = kernel;
      const Result<Plan> planned = plan(problem.value(), device(), options);
      EXPECT_TRUE(planned.ok()) << planned.status().message();
      if (!planned.ok()) continue;
      c.poison_outputs();
      const Status status = there.run(planned.value());
      EXPECT_TRUE(status.ok()) << kernel << ": " << status.message();
      const VerifyReport report = verify_result(c.problem(), c.tensors);
      EXPECT_TRUE(report.ok) << kernel << ": " << report.message << "\n  " << to_string(spec);
    }
    return static_cast<int>(kernels.size());
  }
};

CaseSpec spec_of(DType dtype, int64_t seqlen_q, int64_t seqlen_k, bool backward) {
  CaseSpec s;
  s.dtype = dtype;
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  s.num_heads = s.num_kv_heads = 2;
  s.head_dim = s.head_dim_v = 64;
  s.backward = backward;
  return s;
}

TEST_P(GpuFarTensors, EveryKernel) {
  Random random(7800);
  int runs = 0;
  for (const bool backward : {false, true}) {
    runs += check(spec_of(DType::bf16, 70, 150, backward), kHead, random);
    runs += check(spec_of(DType::fp16, 64, 64, backward), kHead, random);
    runs += check(spec_of(DType::fp32, 5, 9, backward), kHead, random);
    runs += check(spec_of(DType::bf16, 2, 2, backward), kRow, random);
    runs += check(spec_of(DType::fp32, 2, 2, backward), kRow, random);
  }
  runs += check(spec_of(DType::bf16, 1, 700, false), kHead, random);
  EXPECT_TRUE(runs == 0 || runs >= 11) << runs;
  if (runs == 0) GTEST_SKIP() << "no memory for tensors of 4 GiB on " << device();
}

std::vector<std::string> one_of_each_target() {
  std::vector<std::string> names;
  for (const std::string& chip : test_chips(has_warpgroups)) names.push_back("emulated:" + chip);
  for (const std::string& device : gpu_devices(Chips::one_of_each_target)) names.push_back(device);
  return names;
}
INSTANTIATE_TEST_SUITE_P(On, GpuFarTensors, ::testing::ValuesIn(one_of_each_target()), test_name);

}  // namespace
}  // namespace fulmen::testing
