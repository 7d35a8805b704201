// out in q's memory on GPUs: every kernel gives the same bits as with memory of its own.
#include <vector>

#include "gpu/gpu_devices.h"
#include "plan/registry.h"
#include "support/device_copy.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class InPlaceOnGpu : public GpuTest {};

// All bytes of a dense q or out on the device.
std::vector<std::byte> read(const Backend& backend, const std::string& device, const Tensor& t) {
  const auto elements = static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]);
  std::vector<std::byte> bytes(elements * static_cast<std::size_t>(size_of(t.dtype)));
  EXPECT_TRUE(backend.copy(device, bytes.data(), t.data, bytes.size()).ok());
  return bytes;
}

void expect_same_bits(const Case& c, const std::string& kernel, const std::string& device) {
  AttentionOptions options = c.options;
  options.kernel = kernel;
  const Result<Plan> planned = plan(make_problem(c.tensors, options).value(), device, options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const auto backend = backend_of(device);
  const auto run = [&](bool over_q) -> std::vector<std::byte> {
    const auto there = DeviceCopy::make(device, c.tensors, 0);
    EXPECT_TRUE(there.ok()) << there.status().message();
    AttentionTensors t = there.value()->tensors();
    if (over_q) t.out.data = t.q.data;
    const Result<void*> workspace = there.value()->make_workspace(planned->workspace_bytes());
    const Status status = planned->run(nullptr, t, workspace.value(), planned->workspace_bytes());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(backend->synchronize(device, nullptr).ok());
    return read(*backend, device, t.out);
  };
  EXPECT_TRUE(run(false) == run(true)) << kernel << ": " << to_string(c.spec);
}

TEST_P(InPlaceOnGpu, TheSameBitsByEveryKernel) {
  Random random(own_stream(7600));
  struct Shape {
    int64_t batch, seqlen_q, seqlen_k, head_dim;
    bool bias;
  };
  int runs = 0;
  for (const Shape& shape :
       {Shape{3, 64, 64, 32, true}, Shape{1, 150, 170, 64, false}, Shape{2, 1, 300, 128, false}}) {
    CaseSpec spec;
    spec.dtype = DType::fp16;
    spec.batch = shape.batch;
    spec.seqlen_q = shape.seqlen_q;
    spec.seqlen_k = shape.seqlen_k;
    spec.num_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim = spec.head_dim_v = shape.head_dim;
    spec.bias = shape.bias;
    spec.bias_dtype = DType::fp16;
    const Case c(spec, random);
    for (const std::string& kernel : kernels_for(c.problem(), device())) {
      ++runs;
      if (runs_here(kernel) && drawn()) expect_same_bits(c, kernel, device());
    }
  }
  EXPECT_GE(runs, 6);
}

INSTANTIATE_TEST_SUITE_P(On, InPlaceOnGpu,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);

}  // namespace
}  // namespace fulmen::testing
