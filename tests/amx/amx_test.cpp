// The AMX kernels on emulated tiles, through the registry like any backend. Needs AVX-512 BF16 for what lies between the products.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "amx/emulated_tiles.h"
#include "cpu/backward_kernel.h"
#include "cpu/instruction_sets.h"
#include "cpu/tile_kernel.h"
#include "reference/float_formats.h"
#include "support/attention_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {

const cpu::IsaTable& emulated_amx_table();
const cpu::IsaTable& emulated_amx_fp16_table();

namespace {

bool has_avx512_bf16() {
  for (const cpu::InstructionSet& isa : cpu::instruction_sets()) {
    if (std::string_view(isa.table->name) == "avx512_bf16") return isa.available;
  }
  return false;
}

class EmulatedBackend final : public Backend {
 public:
  EmulatedBackend() : bf16_{&emulated_amx_table(), 1, true, ""}, fp16_{&emulated_amx_fp16_table(), 1, true, ""} {
    for (const cpu::InstructionSet* isa : {&bf16_, &fp16_}) {
      owned_.push_back(cpu::make_prefill_kernel(*isa));
      owned_.push_back(cpu::make_short_kernel(*isa));
    }
    owned_.push_back(cpu::make_backward_kernel(bf16_));
    for (const auto& kernel : owned_) kernels_.push_back(kernel.get());
  }
  std::string_view name() const noexcept override { return "amx_emulated"; }
  std::vector<DeviceInfo> devices() const override { return {{"amx_emulated", "emulated tiles", "", true, ""}}; }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  cpu::InstructionSet bf16_, fp16_;
  std::vector<std::unique_ptr<const Kernel>> owned_;
  std::vector<const Kernel*> kernels_;
};

class EmulatedAmx : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!has_avx512_bf16() || registered_) return;
    ASSERT_TRUE(register_backend(std::make_shared<EmulatedBackend>()).ok());
    registered_ = true;
  }
  void SetUp() override {
    if (!has_avx512_bf16()) GTEST_SKIP() << "this processor lacks AVX-512 BF16, which the tile kernels need beside the tiles";
  }
  // Runs every kernel of the backend that takes the case, which is one at least. change: of the case's inputs.
  static void check(CaseSpec spec, Random& random, const std::function<void(Case&)>& change = {}) {
    spec.dtype = random.chance(0.5) ? DType::bf16 : DType::fp16;
    Case c(spec, random);
    if (change) change(c);
    const Problem problem = c.problem();
    const auto all = candidates(problem, "amx_emulated");
    ASSERT_TRUE(all.ok());
    int kernels = 0;
    for (const Candidate& candidate : all.value()) {
      if (!candidate.support.yes) continue;
      ++kernels;
      c.options.kernel = candidate.kernel;
      c.options.num_threads = 2;
      c.poison_outputs();
      const auto made = plan(problem, "amx_emulated", c.options);
      ASSERT_TRUE(made.ok()) << made.status().message();
      GuardedBuffer workspace((made->workspace_bytes() + 63) / 64 * 64, GuardedBuffer::Flush::end);
      const Status status = made->run(nullptr, c.tensors, workspace.data(), workspace.size());
      ASSERT_TRUE(status.ok()) << status.message();
      const VerifyReport report = verify_result(problem, c.tensors);
      EXPECT_TRUE(report.ok) << candidate.kernel << ": " << report.message << "\n" << to_string(spec);
      EXPECT_EQ(c.stray_writes(), "");
    }
    EXPECT_GT(kernels, 0) << to_string(spec);
  }

  static void check_backward(CaseSpec spec, Random& random) {
    spec.backward = true;
    spec.dtype = DType::bf16;
    Case c(spec, random);
    c.options.num_threads = 2;
    EXPECT_TRUE(verified(c, "cpu.backward.amx_emulated", {"amx_emulated"})) << to_string(spec);
  }

 private:
  static inline bool registered_ = false;
};

// Of one KV head; V's head_dim is another one now and then.
CaseSpec two_heads(int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim) {
  CaseSpec spec;
  spec.batch = head_dim < 16 ? 8 : 1;  // of two elements, standard attention's may be right by luck
  spec.num_heads = 2;
  spec.num_kv_heads = 1;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_k = seqlen_k;
  spec.head_dim = head_dim;
  spec.head_dim_v = head_dim % 3 == 0 ? 48 : head_dim;
  return spec;
}

TEST_F(EmulatedAmx, Shapes) {
  Random random(1);
  SCOPED_TRACE(test_seed());
  for (const int64_t head_dim : {1, 16, 31, 32, 40, 59, 64, 80, 96, 111, 128, 192, 256}) {
    for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 147}, {64, 64}, {113, 203}, {70, 300}}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, head_dim);
      spec.causal = head_dim % 2 == 0 ? Causal::bottom_right : Causal::none;
      spec.lse = random.chance(0.5);
      check(spec, random);
    }
  }
}

// More keys than are packed at once.
TEST_F(EmulatedAmx, SeveralChunksOfKeys) {
  Random random(7);
  SCOPED_TRACE(test_seed());
  for (const auto& [seqlen_q, seqlen_k] : {std::pair{70, 513}, {33, 640}, {600, 600}, {5, 1025}}) {
    for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, random.pick({32, 48, 128}));
      spec.causal = causal;
      spec.lse = random.chance(0.5);
      spec.dropout = random.pick({0.0F, 0.0F, 0.2F});
      spec.sinks = random.chance(0.3);
      check(spec, random);
    }
  }
}

// 32 query tiles in a task, which narrow heads have.
TEST_F(EmulatedAmx, ManyQueryTilesInATask) {
  Random random(8);
  SCOPED_TRACE(test_seed());
  for (const int64_t seqlen_q : {2048, 2100}) {
    CaseSpec spec = two_heads(seqlen_q, 150, 16);
    spec.num_heads = 8;
    spec.lse = seqlen_q == 2048;
    check(spec, random);
  }
}

TEST_F(EmulatedAmx, SequencesOfAnyLengths) {
  Random random(9);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 8; ++i) {
    CaseSpec spec = two_heads(random.pick({1, 90, 300}), 700, random.pick({16, 64, 72}));
    spec.batch = 5;
    spec.packed_q = random.chance(0.5);
    spec.packed_k = i % 4 == 0;
    spec.used_k = !spec.packed_k;
    spec.page_size = i % 4 == 1 ? 16 : i % 4 == 2 ? 256 : 0;
    spec.causal = random.pick({Causal::none, Causal::bottom_right});
    spec.lse = random.chance(0.5);
    check(spec, random);
  }
}

// Many heads: tasks of up to eight query tiles.
TEST_F(EmulatedAmx, SeveralQueryTilesInATask) {
  Random random(3);
  SCOPED_TRACE(test_seed());
  for (const auto& [seqlen_q, seqlen_k] : {std::pair{128, 256}, {200, 390}, {449, 449}, {512, 130}}) {
    for (int variant = 0; variant < 4; ++variant) {
      CaseSpec spec;
      spec.batch = 1;
      spec.num_heads = 8;
      spec.num_kv_heads = 2;
      spec.seqlen_q = seqlen_q;
      spec.seqlen_k = seqlen_k;
      spec.head_dim = spec.head_dim_v = variant == 3 ? 72 : 32;
      spec.causal = variant == 1 ? Causal::bottom_right : variant == 2 ? Causal::top_left : Causal::none;
      if (variant == 2) spec.window_left = 70;  // query tiles that skip key tiles
      spec.scale = 1.0F;                        // maxima move
      spec.lse = variant != 0;
      check(spec, random);
    }
  }
}

// Offsets of the first key tile that the scores of a later one leave far behind, so far that 2^(score - offset) would overflow; and
// a NaN among them, which the row keeps.
TEST_F(EmulatedAmx, LaterScoresThatAreMuchLarger) {
  Random random(6);
  SCOPED_TRACE(test_seed());
  for (const int64_t seqlen_q : {5, 32, 90}) {
    for (const float last : {-300.0F, __builtin_nanf("")}) {
      CaseSpec spec = two_heads(seqlen_q, 400, 64);
      spec.lse = seqlen_q != 32;
      check(spec, random, [last](Case& c) {
        const Problem p = c.problem();
        const auto set = [&](int64_t key, float factor) {
          for (int64_t d = 0; d < p.head_dim; ++d) {
            const int64_t at = key * p.k.strides[1] + d;
            reference::store_float(c.tensors.k.data, p.dtype, at, factor * reference::load_float(c.tensors.k.data, p.dtype, at));
          }
        };
        set(200, 30);
        set(333, 100);
        set(399, last);
      });
    }
  }
}

TEST_F(EmulatedAmx, AnyFeatures) {
  Random random(2);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 60; ++i) {
    CaseSpec spec = random_spec(random);
    check(spec, random);
  }
}

TEST_F(EmulatedAmx, GradientsOfEveryShape) {
  Random random(4);
  SCOPED_TRACE(test_seed());
  for (const int64_t head_dim : {1, 16, 31, 32, 48, 59, 64, 80, 111, 128, 256}) {
    for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 147}, {64, 64}, {113, 203}, {70, 33}}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, head_dim);
      spec.causal = random.pick({Causal::none, Causal::bottom_right});
      check_backward(spec, random);
    }
  }
}

// Several blocks of held keys, and splits of the keys: sums of dQ wait in memory.
TEST_F(EmulatedAmx, GradientsOfLongRows) {
  Random random(5);
  SCOPED_TRACE(test_seed());
  for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
    CaseSpec spec;
    spec.batch = 1;
    spec.num_heads = spec.num_kv_heads = 1;
    spec.seqlen_q = 150;
    spec.seqlen_k = 1300;
    spec.head_dim = spec.head_dim_v = 48;
    spec.causal = causal;
    check_backward(spec, random);
  }
}

TEST_F(EmulatedAmx, GradientsOfAnyFeatures) {
  Random random(6);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 40; ++i) check_backward(random_backward_spec(random), random);
}

}  // namespace
}  // namespace fulmen::testing
