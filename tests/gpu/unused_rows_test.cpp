// Rows of packed results that belong to no sequence become 0, and no other, on the CPU and in a
// GPU's memory.
#include "fulmen/unused_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_devices.h"
#include "plan/registry.h"

namespace fulmen::testing {
namespace {

constexpr std::byte kPoison{0x7B};
constexpr int64_t kDim = 6, kDimV = 5, kLongest = 7;

// Poisoned memory of a device, and the part of it that must become 0.
struct Memory {
  Memory(const std::string& device, const Tensor& tensor)
      : backend(backend_of(device)),
        device(device),
        size(size_of(tensor.dtype)),
        right(elements(tensor) * size, kPoison) {
    data = backend->allocate(device, right.size());
    put(right.data());
  }
  ~Memory() { backend->free(device, data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  static std::size_t elements(const Tensor& t) {
    int64_t last = 0;
    for (std::size_t d = 0; d < 4; ++d) last += (t.shape[d] - 1) * t.strides[d];
    return static_cast<std::size_t>(last + 1);
  }
  void put(const void* from) { ASSERT_TRUE(backend->copy(device, data, from, right.size()).ok()); }
  void expect_zero(int64_t element) {
    std::memset(right.data() + element * static_cast<int64_t>(size), 0, size);
  }
  void check(const char* name) {
    std::vector<std::byte> found(right.size());
    ASSERT_TRUE(backend->copy(device, found.data(), data, found.size()).ok());
    EXPECT_TRUE(found == right) << name;
  }
  std::shared_ptr<const Backend> backend;
  std::string device;
  std::size_t size;
  std::vector<std::byte> right;
  void* data = nullptr;
};

// Packed tensors of random sequences, some without rows, between rows that belong to no sequence.
class PackedCall {
 public:
  PackedCall(const std::string& device, DType dtype, Random& random)
      : device_(device), heads_(random.between(1, 3)) {
    const int64_t batch = random.between(0, 4);
    for (Side* side : {&q_, &k_}) {
      side->cu.push_back(static_cast<int>(random.between(0, 3)));
      for (int64_t b = 0; b < batch; ++b)
        side->cu.push_back(side->cu.back() + static_cast<int>(random.between(0, kLongest)));
      side->rows = side->cu.back() + random.between(1, 40);
    }
    const int64_t gap = random.between(0, 1) * 3;  // behind each head
    for (const auto& [tensor, side, dim] :
         {Placed{&t.q, &q_, kDim}, {&t.k, &k_, kDim}, {&t.v, &k_, kDimV}, {&t.dout, &q_, kDimV}}) {
      *tensor =
          place(dtype, {1, side->rows, heads_, dim}, {0, heads_ * (dim + gap), dim + gap, 1}).first;
    }
    t.out = result(
        "out",
        place(dtype, {1, q_.rows, heads_, kDimV}, {0, heads_ * (kDimV + gap), kDimV + gap, 1}), q_);
    t.lse = result("lse", place(DType::fp32, {1, heads_, q_.rows, 1}, {0, q_.rows, 1, 1}), q_);
    t.dq = result(
        "dq", place(dtype, {1, q_.rows, heads_, kDim}, {0, heads_ * (kDim + gap), kDim + gap, 1}),
        q_);
    t.dk = result(
        "dk", place(dtype, {1, k_.rows, heads_, kDim}, {0, heads_ * (kDim + gap), kDim + gap, 1}),
        k_);
    t.dv = result(
        "dv",
        place(dtype, {1, k_.rows, heads_, kDimV}, {0, heads_ * (kDimV + gap), kDimV + gap, 1}), k_);
    t.cu_seqlens_q = table(q_), t.cu_seqlens_k = table(k_);
  }
  // Zeroes with sequences of so many rows, and compares every byte.
  void check(bool backward, int64_t longest) {
    AttentionOptions options;
    options.max_seqlen_q = options.max_seqlen_k = longest;
    const Result<Problem> problem =
        backward ? make_backward_problem(t, options) : make_problem(t, options);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Status status = zero_unused_rows(problem.value(), t, device_);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(backend_of(device_)->synchronize(device_, nullptr).ok());
    for (const Written& one : results_) {
      const bool written = (one.name[0] == 'd') == backward;
      for (int64_t row = 0; row < one.side->rows && written; ++row) {
        if (is_used(*one.side, row, longest)) continue;
        const bool lse = one.tensor.shape[1] == heads_ && one.tensor.shape[3] == 1;
        for (int64_t head = 0; head < heads_; ++head) {
          const int64_t at = lse ? head * one.tensor.strides[1] + row
                                 : row * one.tensor.strides[1] + head * one.tensor.strides[2];
          for (int64_t d = 0; d < one.tensor.shape[3]; ++d) one.memory->expect_zero(at + d);
        }
      }
      one.memory->check(one.name);
    }
  }
  AttentionTensors t;

 private:
  struct Side {
    std::vector<int> cu;
    int64_t rows = 0;
  };
  struct Placed {
    InputTensor* tensor;
    const Side* side;
    int64_t dim;
  };
  struct Written {
    const char* name;
    Tensor tensor;
    Memory* memory;
    const Side* side;
  };
  static bool is_used(const Side& side, int64_t row, int64_t longest) {
    for (std::size_t b = 0; b + 1 < side.cu.size(); ++b) {
      if (row >= side.cu[b] && row < std::min<int64_t>(side.cu[b + 1], side.cu[b] + longest))
        return true;
    }
    return false;
  }
  std::pair<Tensor, Memory*> place(DType dtype, const std::array<int64_t, 4>& shape,
                                   const std::array<int64_t, 4>& strides) {
    Tensor tensor{nullptr, dtype, shape, strides};
    memory_.push_back(std::make_unique<Memory>(device_, tensor));
    tensor.data = memory_.back()->data;
    return {tensor, memory_.back().get()};
  }
  Tensor result(const char* name, const std::pair<Tensor, Memory*>& placed, const Side& side) {
    results_.push_back({name, placed.first, placed.second, &side});
    return placed.first;
  }
  Tensor table(const Side& side) {
    const auto count = static_cast<int64_t>(side.cu.size());
    const auto [tensor, memory] = place(DType::int32, {1, 1, 1, count}, {count, count, count, 1});
    memory->put(side.cu.data());
    return tensor;
  }
  std::string device_;
  int64_t heads_;
  Side q_, k_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<Written> results_;
};

class UnusedRows : public GpuTest {};

TEST_P(UnusedRows, AreZeroAndNoOthers) {
  Random random(own_stream(4100));
  for (int n = 0; n < 12; ++n) {
    for (const bool backward : {false, true}) {
      PackedCall call(
          device(),
          std::array{DType::fp32, DType::fp16, DType::bf16}[static_cast<std::size_t>(n) % 3],
          random);
      call.check(backward, kLongest);
    }
  }
}

// Lengths in a device's memory are unchecked: rows that a kernel cuts off belong to no sequence,
// too.
TEST_P(UnusedRows, BehindTheMostOfASequence) {
  if (backend_of(device())->uses_host_memory()) GTEST_SKIP() << "lengths are checked there";
  Random random(own_stream(4101));
  for (int n = 0; n < 4; ++n)
    PackedCall(device(), DType::bf16, random).check(n % 2 != 0, kLongest / 2);
}

TEST_P(UnusedRows, Mistakes) {
  Random random(own_stream(4102));
  PackedCall call(device(), DType::fp16, random);
  AttentionOptions options;
  options.max_seqlen_q = options.max_seqlen_k = kLongest;
  const Result<Problem> problem = make_problem(call.t, options);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_NE(zero_unused_rows(problem.value(), call.t, "cpu:7").message().find("cpu:7"),
            std::string::npos);
  AttentionTensors lost = call.t;
  lost.out.data = nullptr;
  EXPECT_EQ(zero_unused_rows(problem.value(), lost, device()).message(),
            "out.data is null: a pointer is needed");
  lost = call.t;
  lost.lse.data = static_cast<char*>(lost.lse.data) + 1;
  EXPECT_NE(
      zero_unused_rows(problem.value(), lost, device()).message().find("divisible by the 4 bytes"),
      std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(On, UnusedRows,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);
INSTANTIATE_TEST_SUITE_P(Host, UnusedRows, ::testing::Values("cpu"), test_name);
INSTANTIATE_TEST_SUITE_P(MachineCode, UnusedRows, ::testing::ValuesIn(machine_code_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing
