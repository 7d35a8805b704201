// What the backward pass of short sequences fetches ahead of itself, by an instruction set that
// also writes down the addresses.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/backward/steps.h"
#include "cpu/families.h"
#include "cpu/isa/instruction_sets.h"
#include "cpu/isa/scalar.h"
#include "support/cpu_backend.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

using Lines = std::map<int64_t, int>;  // and how often

int64_t line_of(const void* p) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)) / 64; }

// Its register blocks are so large that products fetch within them.
struct Recorder : cpu::Scalar {
  static constexpr int kQkVecs = 4, kQkKeys = 4, kPvVecs = 4, kPvRows = 4, kPvRowsNarrow = 8;
  static_assert(cpu::kBackwardStepWords<cpu::Scalar> == cpu::kWholeBlock);
  static inline Lines near, far;
  static void prefetch(const void* p) { ++near[line_of(p)]; }
  static void prefetch_l2(const void* p) { ++far[line_of(p)]; }
  static void clear() {
    near.clear();
    far.clear();
  }
};

constexpr const char* kDevice = "recorded_fetch";

// Two kernels: as on processors that fetch the rows of several heads together, into L2, and as on
// others.
class RecordedFetch final : public CpuBackend {
 public:
  RecordedFetch() : CpuBackend(kDevice, "this processor") {
    for (const bool together : {true, false}) {
      auto& [set, table] = *sets_.emplace_back(std::make_unique<Set>());
      table.name = together ? "together" : "next";
      table.lanes = Recorder::kLanes;
      table.backward[0] = cpu::backward_step<Recorder, float>;
      set.table = &table;
      set.available = true;
      set.fetch_blocks = together;
      add(cpu::make_kernel("backward", set));
    }
  }

 private:
  struct Set {
    cpu::InstructionSet set;
    cpu::IsaTable table;
  };
  std::vector<std::unique_ptr<Set>> sets_;
};

class BackwardPrefetchTest : public ::testing::TestWithParam<Layout> {
 protected:
  static void SetUpTestSuite() {
    static const Status status = register_backend(std::make_shared<RecordedFetch>());
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // Sequences enough for a worker to take whole ones; heads whose rows are 128 bytes.
  static CaseSpec spec_of(int64_t heads, int64_t kv_heads) {
    CaseSpec s;
    s.backward = true;
    s.layout = GetParam();
    s.batch = 7;
    s.seqlen_q = 40;
    s.seqlen_k = 50;
    s.num_heads = heads;
    s.num_kv_heads = kv_heads;
    s.head_dim = s.head_dim_v = 32;
    return s;
  }
  // Lines of a tensor's rows that are not in `lines`, except those of the first `heads` heads of
  // each batch element, or of the first one.
  struct But {
    int64_t heads;
    bool each;
  };
  static int64_t missing(const Tensor& tensor, const TensorSpec& spec, But but,
                         const Lines& lines) {
    int64_t count = 0;
    for (int64_t b = 0; b < tensor.shape[0]; ++b) {
      for (int64_t row = 0; row < tensor.shape[1]; ++row) {
        for (int64_t head = b == 0 || but.each ? but.heads : 0; head < tensor.shape[2]; ++head) {
          const float* begin = static_cast<const float*>(tensor.data) + b * spec.strides[0] +
                               row * spec.strides[1] + head * spec.strides[2];
          for (int64_t line = line_of(begin); line <= line_of(begin + tensor.shape[3] - 1); ++line)
            count += lines.count(line) == 0 ? 1 : 0;
        }
      }
    }
    return count;
  }
  static int64_t times(const Lines& lines) {
    int64_t all = 0;
    for (const auto& [line, count] : lines) all += count;
    return all;
  }
};

// While a unit is computed, the next one's rows are prefetched, or a share of the rows of several
// later heads: in the end all of them, and few twice.
TEST_P(BackwardPrefetchTest, EveryRowOfTheHeadsToCome) {
  Random random(9100);
  const bool apart = GetParam() == Layout::bhsd;
  for (const bool together : {true, false}) {
    Case c(spec_of(12, 12), random);
    c.options.num_threads = 1;
    Recorder::clear();
    ASSERT_TRUE(
        verified(c, together ? "cpu.backward.together" : "cpu.backward.next", Where{kDevice}));
    const Lines& fetched = together ? Recorder::far : Recorder::near;
    EXPECT_TRUE((together ? Recorder::near : Recorder::far).empty());
    const Problem& p = c.problem();
    const AttentionTensors& t = c.tensors;
    // 8 heads would be rows of 1,024 bytes, 6 divide 12; where heads' rows lie apart it is the next
    // head's.
    const But first = together && !apart ? But{6, false} : But{1, true};
    EXPECT_EQ(missing(t.q, p.q, first, fetched), 0);
    EXPECT_EQ(missing(t.k, p.k, first, fetched), 0);
    EXPECT_EQ(missing(t.v, p.v, first, fetched), 0);
    EXPECT_EQ(missing(t.out, p.out, first, fetched), 0);
    EXPECT_EQ(missing(t.dout, p.dout, first, fetched), 0);
    // Rows of q, out, dout and dq, and of k, v, dk and dv.
    const int64_t rows = 7 * 12 * (4 * 40 + 4 * 50);
    EXPECT_LE(times(fetched), rows * (GetParam() == Layout::odd_strides ? 4 : 3))
        << "a row has 2 lines, 3 where it begins anywhere";
  }
}

// Query heads that share a KV head are fetched with it, where they lie side by side; else the next
// group's first one.
TEST_P(BackwardPrefetchTest, GroupsOfHeads) {
  Random random(9110);
  Case c(spec_of(8, 4), random);  // 2 x 128 bytes, so all 4 KV heads together
  c.options.num_threads = 1;
  Recorder::clear();
  ASSERT_TRUE(verified(c, "cpu.backward.together", Where{kDevice}));
  if (GetParam() == Layout::bhsd) {
    EXPECT_EQ(missing(c.tensors.k, c.problem().k, {1, true}, Recorder::far), 0);
  } else {
    EXPECT_EQ(missing(c.tensors.q, c.problem().q, {8, false}, Recorder::far), 0);
    EXPECT_EQ(missing(c.tensors.k, c.problem().k, {4, false}, Recorder::far), 0);
  }
}

std::string name_of(const ::testing::TestParamInfo<Layout>& info) {
  constexpr std::array<const char*, 5> kNames{"Bshd", "Bhsd", "Sbhd", "PackedQkv", "OddStrides"};
  return kNames[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Layouts, BackwardPrefetchTest,
                         ::testing::Values(Layout::bshd, Layout::bhsd, Layout::sbhd,
                                           Layout::odd_strides),
                         name_of);

}  // namespace
}  // namespace fulmen::testing
