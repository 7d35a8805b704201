// The forward pass on emulated tiles.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "amx/emulated_backend.h"
#include "runtime/float_formats.h"
#include "support/attention_case.h"
#include "support/guarded_buffer.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

const Where kWhere{"amx_emulated"};

class EmulatedAmxForward : public EmulatedAmx {
 protected:
  // Runs every kernel of the backend that takes the case, at least one, where it is drawn. change:
  // edits the case's inputs.
  void check(CaseSpec spec, Random& random, const std::function<void(Case&)>& change = {}) {
    if (!drawn()) return;
    spec.dtype = random.chance(0.5) ? DType::bf16 : DType::fp16;
    Case c(spec, random);
    if (change) change(c);
    c.options.num_threads = 2;
    EXPECT_GT(expect_all_kernels_verified(c, kWhere), 0) << to_string(spec);
  }
};

TEST_F(EmulatedAmxForward, Shapes) {
  Random random(1);
  SCOPED_TRACE(test_seed());
  for (const int64_t head_dim : {1, 16, 31, 32, 40, 59, 64, 80, 96, 111, 128, 192, 256, 500, 512}) {
    for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 147}, {64, 64}, {113, 203}, {70, 300}}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, head_dim);
      spec.causal = head_dim % 2 == 0 ? Causal::bottom_right : Causal::none;
      spec.lse = random.chance(0.5);
      check(spec, random);
    }
  }
}

TEST_F(EmulatedAmxForward, ProductsInInt8) {
  Random random(13);
  SCOPED_TRACE(test_seed());
  for (const int64_t head_dim : {1, 16, 31, 40, 64, 96, 111, 128, 256}) {
    for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 147}, {64, 64}, {70, 300}, {200, 700}}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, head_dim);
      spec.precision = Precision::int8;
      spec.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
      spec.lse = random.chance(0.5);
      spec.softcap = random.pick({0.0F, 0.0F, 20.0F});
      spec.bias = random.chance(0.3);
      spec.dropout = random.pick({0.0F, 0.0F, 0.2F});
      check(spec, random);
    }
  }
}

// More keys than are packed at once.
TEST_F(EmulatedAmxForward, SeveralChunksOfKeys) {
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
TEST_F(EmulatedAmxForward, ManyQueryTilesInATask) {
  Random random(8);
  SCOPED_TRACE(test_seed());
  for (const int64_t seqlen_q : {2048, 2100}) {
    CaseSpec spec = two_heads(seqlen_q, 150, 16);
    spec.num_heads = 8;
    spec.lse = seqlen_q == 2048;
    check(spec, random);
  }
}

TEST_F(EmulatedAmxForward, SequencesOfAnyLengths) {
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
TEST_F(EmulatedAmxForward, SeveralQueryTilesInATask) {
  Random random(3);
  SCOPED_TRACE(test_seed());
  for (const auto& [seqlen_q, seqlen_k] :
       {std::pair{128, 256}, {200, 390}, {449, 449}, {512, 130}}) {
    for (int variant = 0; variant < 4; ++variant) {
      CaseSpec spec;
      spec.batch = 1;
      spec.num_heads = 8;
      spec.num_kv_heads = 2;
      spec.seqlen_q = seqlen_q;
      spec.seqlen_k = seqlen_k;
      spec.head_dim = spec.head_dim_v = variant == 3 ? 72 : 32;
      spec.causal = variant == 1   ? Causal::bottom_right
                    : variant == 2 ? Causal::top_left
                                   : Causal::none;
      if (variant == 2) spec.window_left = 70;  // query tiles that skip key tiles
      spec.scale = 1.0F;                        // maxima move
      spec.lse = variant != 0;
      check(spec, random);
    }
  }
}

// Offsets of the first key tile that the scores of a later one leave far behind, so far that
// 2^(score - offset) would overflow; and a NaN among them, which the row keeps.
TEST_F(EmulatedAmxForward, LaterScoresThatAreMuchLarger) {
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
            reference::store_float(c.tensors.k.data, p.dtype, at,
                                   factor * reference::load_float(c.tensors.k.data, p.dtype, at));
          }
        };
        set(200, 30);
        set(333, 100);
        set(399, last);
      });
    }
  }
}

// One row of scores: queries as they lie or packed, one and two planes of keys, biases of each
// dtype, ends within a vector.
TEST_F(EmulatedAmxForward, ShortSequences) {
  Random random(10);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 60; ++i) {
    CaseSpec spec = random_spec(random);
    spec.seqlen_q = random.pick<int64_t>({16, 64, random.between(1, 150)});
    spec.seqlen_k = random.pick<int64_t>({64, 128, random.between(1, 128)});
    spec.head_dim = random.pick<int64_t>({32, 64, random.between(1, 256)});
    spec.head_dim_v = random.pick<int64_t>({spec.head_dim, random.between(1, 256)});
    if (i % 2 == 0) {  // no masks
      CaseSpec plain = two_heads(spec.seqlen_q, spec.seqlen_k, spec.head_dim);
      plain.head_dim_v = spec.head_dim_v;
      plain.layout = spec.layout;
      plain.bias = spec.bias;
      plain.bias_dtype = spec.bias_dtype;
      plain.bias_broadcast = spec.bias_broadcast;
      plain.lse = spec.lse;
      spec = plain;
    }
    check(spec, random);
  }
}

// Enough boards for outputs to go past the caches, all of them or those that begin a cache line,
// and for the next board's rows to be fetched.
TEST_F(EmulatedAmxForward, ManyShortSequences) {
  Random random(11);
  SCOPED_TRACE(test_seed());
  CaseSpec spec;
  spec.dtype = random.pick({DType::bf16, DType::fp16});
  spec.batch = 128;
  spec.num_heads = spec.num_kv_heads = 8;
  spec.seqlen_q = spec.seqlen_k = 64;
  spec.head_dim = spec.head_dim_v = 32;
  spec.bias = true;
  spec.bias_dtype = DType::bf16;
  spec.bias_broadcast = {true, false, false};
  spec.lse = false;
  Case c(spec, random);
  ASSERT_GT(expect_all_kernels_verified(c, kWhere), 0);
  const Tensor whole_lines = c.tensors.out;
  Tensor some_lines = whole_lines;
  some_lines.strides[0] += 8;  // 16 bytes
  const GuardedBuffer memory(static_cast<std::size_t>(spec.batch * some_lines.strides[0]) * 2,
                             GuardedBuffer::Flush::start);
  some_lines.data = memory.data();
  for (const std::string& kernel : kernels_for(c.problem(), kWhere.device)) {
    c.tensors.out = whole_lines;
    c.options.num_threads = 2;
    ASSERT_TRUE(run_kernel(c, kernel, kWhere).ok());
    const std::vector<float> expected = c.output_values();
    c.tensors.out = some_lines;
    for (const int threads : {1, 3}) {
      c.options.num_threads = threads;
      std::memset(memory.data(), 0xFF, memory.size());
      ASSERT_TRUE(run_kernel(c, kernel, kWhere).ok());
      EXPECT_TRUE(c.output_values() == expected) << kernel << " on " << threads << " threads";
    }
  }
}

TEST_F(EmulatedAmxForward, AnyFeatures) {
  Random random(2);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 60; ++i) {
    CaseSpec spec = random_spec(random);
    check(spec, random);
  }
}

}  // namespace
}  // namespace fulmen::testing
