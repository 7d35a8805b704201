// What integrations/llama.cpp makes of ggml's operation, without ggml: its own formula in double,
// over layouts as llama.cpp has them. integrations/llama.cpp/run.sh has ggml's own tests.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "integrations/llama.cpp/attention.h"
#include "integrations/llama.cpp/mask.h"
#include "integrations/rounding.h"
#include "runtime/float_formats.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace fulmen_ggml {
namespace {

using fulmen::reference::from_bf16;
using fulmen::reference::from_fp16;
using fulmen::reference::to_bf16;
using fulmen::reference::to_fp16;
using fulmen::testing::GuardedBuffer;
using fulmen::testing::Random;
using fulmen_integrations::round_row;
using fulmen_integrations::widen_row;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kFloatBytes[] = {4, 2, 2};
constexpr const char* kNames[] = {"f32", "f16", "bf16"};

uint16_t half(float x) {
  uint16_t bits = 0;
  round_row(&x, 1, FULMEN_FP16, &bits);
  return bits;
}

// A tensor in ggml's memory, and its numbers in double, [ne3, ne2, ne1, ne0].
struct Tensor {
  View view;
  GuardedBuffer memory;
  std::vector<double> numbers;

  double at(int64_t i0, int64_t i1, int64_t i2, int64_t i3) const {
    return numbers[static_cast<std::size_t>(
        ((i3 * view.ne[2] + i2) * view.ne[1] + i1) * view.ne[0] + i0)];
  }
};

// Where dims 1, 2 and 3 lie, with `spare` rows behind each sequence's own (a cache's unused end).
enum class Layout { heads_outside, rows_outside };

Tensor make_tensor(Random& random, int32_t dtype, const int64_t (&ne)[4], Layout layout,
                   int64_t spare) {
  Tensor t;
  t.view.dtype = dtype;
  t.view.type_name = dtype <= FULMEN_BF16 ? kNames[dtype] : "blocks";
  const bool blocks = dtype >= FULMEN_Q8_0;
  t.view.type_size =
      blocks ? static_cast<std::size_t>(fulmen_row_elements(dtype, 32)) : kFloatBytes[dtype];
  std::memcpy(t.view.ne, ne, sizeof ne);
  const auto width = static_cast<std::size_t>(blocks ? ne[0] / 32 : ne[0]) * t.view.type_size;
  const auto rows = static_cast<std::size_t>(ne[1] + spare),
             heads = static_cast<std::size_t>(ne[2]);
  t.view.nb[0] = t.view.type_size;
  t.view.nb[1] = layout == Layout::heads_outside ? width : width * heads;
  t.view.nb[2] = layout == Layout::heads_outside ? width * rows : width;
  t.view.nb[3] = width * rows * heads;
  t.memory = GuardedBuffer(t.view.nb[3] * static_cast<std::size_t>(ne[3]));
  std::memset(t.memory.data(), 0xFF, t.memory.size());  // NaN in every format
  t.view.data = t.memory.data();

  std::vector<float> row(static_cast<std::size_t>(ne[0]));
  for (int64_t i3 = 0; i3 < ne[3]; ++i3)
    for (int64_t i2 = 0; i2 < ne[2]; ++i2)
      for (int64_t i1 = 0; i1 < ne[1]; ++i1) {
        for (float& x : row) x = random.normal();
        std::byte* to = t.memory.data() + static_cast<std::size_t>(i1) * t.view.nb[1] +
                        static_cast<std::size_t>(i2) * t.view.nb[2] +
                        static_cast<std::size_t>(i3) * t.view.nb[3];
        if (blocks) {
          const fulmen_tensor from = fulmen_tensor_bshd(row.data(), FULMEN_FP32, 1, 1, 1, ne[0]);
          const fulmen_tensor stored = fulmen_tensor_bshd(to, dtype, 1, 1, 1, ne[0]);
          EXPECT_EQ(fulmen_quantize_kv(&from, &stored, nullptr, false), FULMEN_OK)
              << fulmen_last_error();
          EXPECT_EQ(fulmen_dequantize_kv(&stored, nullptr, &from), FULMEN_OK);
        } else if (dtype == FULMEN_FP32) {
          std::memcpy(to, row.data(), width);
        } else {
          std::vector<uint16_t> bits(row.size());
          round_row(row.data(), ne[0], dtype, bits.data());
          widen_row(bits.data(), ne[0], dtype, row.data());
          std::memcpy(to, bits.data(), width);
        }
        t.numbers.insert(t.numbers.end(), row.begin(), row.end());
      }
  return t;
}

struct Case {
  Operation operation;
  Tensor q, k, v, mask, sinks, out;
  std::string text;
};

enum class Mask { absent, causal, window, numbers, hidden, nothing_hidden };

// A mask's numbers, in llama.cpp's dims: columns behind the sequence's own keys are hidden.
void fill_mask(Random& random, Mask kind, Case& c, int64_t used) {
  Tensor& mask = c.mask;
  const int64_t keys = mask.view.ne[0], rows = c.q.view.ne[1];
  const int64_t width = random.between(1, keys);
  mask.numbers.clear();
  for (int64_t r = 0; r < mask.view.ne[1] * mask.view.ne[2] * mask.view.ne[3]; ++r)
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t i = r % mask.view.ne[1] + used - rows;  // its position
      bool keep = kind != Mask::hidden;
      if (kind == Mask::causal || kind == Mask::window) keep = j <= i;
      if (kind == Mask::window) keep = keep && j > i - width;
      if (kind == Mask::numbers) keep = j < used && !random.chance(0.2);
      const float number = kind == Mask::numbers ? random.normal() * 3 : 0.0F;
      const uint16_t bits = keep ? half(number) : half(-kInfinity);
      std::memcpy(mask.memory.data() + 2 * mask.numbers.size(), &bits, 2);
      mask.numbers.push_back(keep ? static_cast<double>(from_fp16(bits)) : -INFINITY);
    }
}

Case random_case(Random& random) {
  Case c;
  const bool blocks = random.chance(0.5);
  const auto pick = [&](bool block) {
    return block ? static_cast<int32_t>(random.between(FULMEN_Q8_0, FULMEN_Q5_1))
                 : static_cast<int32_t>(random.between(FULMEN_FP32, FULMEN_BF16));
  };
  const int32_t k_dtype = pick(blocks);
  int32_t v_dtype = random.chance(0.2) ? pick(!blocks) : pick(blocks);
  if (k_dtype <= FULMEN_BF16 && v_dtype <= FULMEN_BF16) v_dtype = k_dtype;
  const int64_t d = 32 * random.between(1, 4), dv = random.chance(0.5) ? d : 32;
  const int64_t kv_heads = random.between(1, 3), heads = kv_heads * random.between(1, 4);
  const int64_t batch = random.chance(0.2) ? 2 : 1;
  const int64_t rows = random.chance(0.4) ? 1 : random.between(1, 40);
  const int64_t keys = random.between(rows, 150);
  const auto layout = [&] { return random.pick({Layout::heads_outside, Layout::rows_outside}); };
  c.q = make_tensor(random, FULMEN_FP32, {d, rows, heads, batch}, layout(), 0);
  c.k = make_tensor(random, k_dtype, {d, keys, kv_heads, batch}, layout(), random.between(0, 3));
  c.v = make_tensor(random, v_dtype, {dv, keys, kv_heads, batch}, layout(), random.between(0, 3));
  c.out = make_tensor(random, FULMEN_FP32, {dv, heads, rows, batch}, Layout::heads_outside, 0);
  std::memset(c.out.memory.data(), 0xFF, c.out.memory.size());

  Operation& o = c.operation;
  o.scale = 1 / std::sqrt(static_cast<float>(d)) * (random.chance(0.5) ? 1.0F : 0.7F);
  o.logit_softcap = random.chance(0.25) ? 5.0F : 0.0F;
  const Mask kind = random.pick({Mask::absent, Mask::causal, Mask::causal, Mask::window,
                                 Mask::numbers, Mask::hidden, Mask::nothing_hidden});
  o.has_mask = kind != Mask::absent;
  if (o.has_mask) {
    const int64_t mask_heads = random.chance(0.1) ? heads : 1;
    const int64_t mask_batch = random.chance(0.5) ? batch : 1;
    c.mask = make_tensor(random, FULMEN_FP16,
                         {keys, rows + random.between(0, 2), mask_heads, mask_batch},
                         Layout::heads_outside, 0);
    fill_mask(random, kind, c, random.between(rows, keys));
    if (random.chance(0.4)) o.max_bias = 8;
  }
  o.has_sinks = random.chance(0.25);
  if (o.has_sinks)
    c.sinks = make_tensor(random, FULMEN_FP32, {heads, 1, 1, 1}, Layout::heads_outside, 0);
  o.q = c.q.view;
  o.k = c.k.view;
  o.v = c.v.view;
  o.mask = c.mask.view;
  o.sinks = c.sinks.view;
  o.out = c.out.view;
  c.text = "k " + std::to_string(k_dtype) + " v " + std::to_string(v_dtype) + " d " +
           std::to_string(d) + "/" + std::to_string(dv) + " heads " + std::to_string(heads) + "/" +
           std::to_string(kv_heads) + " batch " + std::to_string(batch) + " rows " +
           std::to_string(rows) + " keys " + std::to_string(keys) + " mask " +
           std::to_string(static_cast<int>(kind)) + " max_bias " + std::to_string(o.max_bias) +
           " softcap " + std::to_string(o.logit_softcap) + " sinks " + std::to_string(o.has_sinks);
  return c;
}

// Press et al. (arXiv:2108.12409), as ggml has it: powers of two of the nearest smaller power of
// heads, and for the heads beyond it every second one of twice as many.
double slope_of(int64_t h, int64_t heads, double max_bias) {
  if (max_bias <= 0) return 1;
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  const auto p = static_cast<double>(power), i = static_cast<double>(h < power ? h : h - power);
  return h < power ? std::exp2(-max_bias * (i + 1) / p)
                   : std::exp2(-max_bias * (2 * i + 1) / (2 * p));
}

// The largest |out - formula|, in units of the largest |v|; NaN where out has NaN.
double worst_error(const Case& c) {
  const Operation& o = c.operation;
  const int64_t d = o.q.ne[0], dv = o.v.ne[0], heads = o.q.ne[2], keys = o.k.ne[1];
  const int64_t group = heads / o.k.ne[2];
  double worst = 0, largest = 1e-30;
  for (const double x : c.v.numbers) largest = std::max(largest, std::abs(x));
  const auto* out = reinterpret_cast<const float*>(c.out.memory.data());
  for (int64_t b = 0; b < o.q.ne[3]; ++b)
    for (int64_t i = 0; i < o.q.ne[1]; ++i)
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> scores;
        double most = o.has_sinks ? c.sinks.at(h, 0, 0, 0) : -INFINITY;
        for (int64_t j = 0; j < keys; ++j) {
          double s = 0;
          for (int64_t e = 0; e < d; ++e) s += c.q.at(e, i, h, b) * c.k.at(e, j, h / group, b);
          s *= o.scale;
          if (o.logit_softcap != 0) s = o.logit_softcap * std::tanh(s / o.logit_softcap);
          if (o.has_mask)
            s += slope_of(h, heads, o.max_bias) *
                 c.mask.at(j, i, h % o.mask.ne[2], b % o.mask.ne[3]);
          scores.push_back(s);
          most = std::max(most, s);
        }
        double z = o.has_sinks ? std::exp(c.sinks.at(h, 0, 0, 0) - most) : 0;
        for (double& s : scores) z += s = most == -INFINITY ? 0 : std::exp(s - most);
        for (int64_t e = 0; e < dv; ++e, ++out) {
          double right = 0;
          for (int64_t j = 0; j < keys && z > 0; ++j)
            right += scores[static_cast<std::size_t>(j)] / z * c.v.at(e, j, h / group, b);
          const double error = std::abs(static_cast<double>(*out) - right) / largest;
          if (!(error <= worst)) worst = error;
          if (std::isnan(worst)) return worst;
        }
      }
  return worst;
}

// Roundings of q, probabilities and out to the working dtype.
double bound(const Operation& operation) {
  switch (working_dtype(operation)) {
    case FULMEN_FP16:
      return 4e-3;
    case FULMEN_BF16:
      return 3e-2;
    default:
      return operation.logit_softcap != 0 ? 3e-4 : 2e-5;
  }
}

void parallel_for(void*, int64_t count, void (*task)(void*, int64_t), void* arg) {
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < count; ++i) threads.emplace_back(task, arg, i);
  task(arg, 0);
  for (std::thread& thread : threads) thread.join();
}

TEST(Ggml, RandomOperationsAreGgmlsFormula) {
  Random random(1);
  Attention attention;  // plans and memory are shared by the calls
  attention.set_num_threads(2);
  for (int n = 0; n < 60; ++n) {
    const Case c = random_case(random);
    SCOPED_TRACE(c.text);
    ASSERT_EQ(refusal(c.operation), "");
    ASSERT_EQ(attention.run(c.operation), "");
    EXPECT_LE(worst_error(c), bound(c.operation)) << attention.explain();
  }
}

TEST(Ggml, BackendsInThreadsOfTheirOwnAndThreadsOfTheHost) {
  std::vector<std::thread> threads;
  std::vector<std::string> findings(3);
  for (std::size_t t = 0; t < findings.size(); ++t)
    threads.emplace_back([t, &findings] {
      Random random(100 + t);
      Attention attention(parallel_for);
      attention.set_num_threads(3);
      for (int n = 0; n < 4; ++n) {
        const Case c = random_case(random);
        const std::string error = attention.run(c.operation);
        if (!error.empty() || !(worst_error(c) <= bound(c.operation)))
          findings[t] += c.text + ": " + error + "\n";
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& finding : findings) EXPECT_EQ(finding, "");
}

TEST(Ggml, HeadDimsOfLatentAttention) {
  Random random(2);
  Case c;
  c.q = make_tensor(random, FULMEN_FP32, {576, 2, 8, 1}, Layout::rows_outside, 0);
  c.k = make_tensor(random, FULMEN_FP16, {576, 70, 1, 1}, Layout::heads_outside, 0);
  c.out = make_tensor(random, FULMEN_FP32, {512, 8, 2, 1}, Layout::heads_outside, 0);
  c.operation.scale = 1.0F / 24;
  c.v.view = c.k.view;  // V is the first 512 numbers of each row of K
  c.v.view.ne[0] = 512;
  for (int64_t j = 0; j < 70; ++j)
    for (int64_t e = 0; e < 512; ++e) c.v.numbers.push_back(c.k.at(e, j, 0, 0));
  c.operation.q = c.q.view;
  c.operation.k = c.k.view;
  c.operation.v = c.v.view;
  c.operation.out = c.out.view;
  ASSERT_EQ(refusal(c.operation), "");
  Attention attention;
  ASSERT_EQ(attention.run(c.operation), "");
  EXPECT_LE(worst_error(c), bound(c.operation));
}

TEST(Ggml, RoundingsAreThoseOfTheLibrary) {
  Random random(4);
  std::vector<float> numbers;
  for (int i = 0; i < 4099; ++i)  // no multiple of a vector; any bits, and those that fp16 has
    numbers.push_back(random.chance(0.5)
                          ? std::bit_cast<float>(static_cast<uint32_t>(random.between(0, ~0U)))
                          : from_fp16(static_cast<uint16_t>(random.between(0, 0xFFFF))) *
                                random.pick({1.0F, 1.00048828125F, 1.00024414F, 0.5F}));
  const auto count = static_cast<int64_t>(numbers.size());
  std::vector<uint16_t> bits(numbers.size());
  std::vector<float> back(numbers.size());
  for (const int32_t dtype : {FULMEN_FP16, FULMEN_BF16}) {
    const bool fp16 = dtype == FULMEN_FP16;
    round_row(numbers.data(), count, dtype, bits.data());
    widen_row(bits.data(), count, dtype, back.data());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const uint16_t right = fp16 ? to_fp16(numbers[i]) : to_bf16(numbers[i]);
      const float number = fp16 ? from_fp16(right) : from_bf16(right);
      if (std::isnan(numbers[i])) {
        EXPECT_TRUE(std::isnan(back[i])) << numbers[i];
      } else {
        EXPECT_EQ(bits[i], right) << numbers[i];
        EXPECT_EQ(back[i], number) << numbers[i];
      }
    }
  }
}

TEST(Ggml, MasksAreReadAsWhatTheyAre) {
  Operation o;
  o.k.ne[1] = 6;
  o.q.ne[1] = 2;
  const uint16_t hide = half(-kInfinity);
  uint16_t mask[2][8] = {};
  o.has_mask = true;
  o.mask = {mask, FULMEN_FP16, "f16", 2, {8, 2, 1, 1}, {2, 16, 32, 32}};
  std::vector<uint8_t> keep;
  const auto expect = [&](MaskForm form, int64_t first, int64_t last) {
    const MaskSummary summary = summarize_mask(o, keep);
    EXPECT_EQ(summary.form, form);
    EXPECT_EQ(summary.keys.first, first);
    EXPECT_EQ(summary.keys.last, last);
  };
  expect(MaskForm::none, 0, 6);
  for (auto& row : mask) row[0] = row[5] = hide;
  expect(MaskForm::none, 1, 5);
  mask[0][4] = hide;
  expect(MaskForm::keep, 1, 5);
  EXPECT_EQ(keep, (std::vector<uint8_t>{0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0}));
  mask[1][2] = 0x8000;  // -0
  expect(MaskForm::keep, 1, 5);
  mask[1][2] = 1;  // the smallest number
  expect(MaskForm::bias, 1, 5);
  mask[1][2] = 0x7E00;  // NaN
  expect(MaskForm::bias, 1, 5);
  for (auto& row : mask)
    for (uint16_t& number : row) number = hide;
  expect(MaskForm::none, 0, 0);
}

TEST(Ggml, RefusalsSayWhy) {
  Random random(3);
  Case c;
  c.q = make_tensor(random, FULMEN_FP32, {64, 3, 4, 1}, Layout::heads_outside, 0);
  c.k = make_tensor(random, FULMEN_FP16, {64, 5, 2, 1}, Layout::heads_outside, 0);
  c.out = make_tensor(random, FULMEN_FP32, {64, 4, 3, 1}, Layout::heads_outside, 0);
  Operation& o = c.operation;
  o.q = c.q.view;
  o.k = o.v = c.k.view;
  o.out = c.out.view;
  o.has_mask = true;
  o.mask = {nullptr, FULMEN_FP16, "f16", 2, {5, 3, 1, 1}, {2, 10, 30, 30}};
  ASSERT_EQ(refusal(o), "");
  const auto expect = [&](const char* words, auto change) {
    Operation changed = o;
    change(changed);
    EXPECT_NE(refusal(changed).find(words), std::string::npos) << refusal(changed);
  };
  expect("K is q4_K; f32, f16, bf16, q8_0,", [](Operation& x) {
    x.k.dtype = -1;
    x.k.type_name = "q4_K";
  });
  expect("K is f16 and V is bf16", [](Operation& x) {
    x.v.dtype = FULMEN_BF16;
    x.v.type_name = "bf16";
  });
  expect("Q has gaps", [](Operation& x) { x.q.nb[0] = 8; });
  expect("K's strides are no multiples", [](Operation& x) { x.k.nb[1] = 129; });
  expect("differ in their heads", [](Operation& x) { x.v.ne[2] = 1; });
  expect("no multiple of K's", [](Operation& x) { x.k.ne[2] = x.v.ne[2] = 3; });
  expect("contradict", [](Operation& x) { x.v.ne[1] = 4; });
  expect("fewer rows or columns", [](Operation& x) { x.mask.ne[1] = 2; });
  expect("neither one row of masks", [](Operation& x) { x.mask.ne[2] = 2; });
  expect("the mask is f32, not f16", [](Operation& x) {
    x.mask.dtype = FULMEN_FP32;
    x.mask.type_name = "f32";
  });
  expect("softcap", [](Operation& x) { x.logit_softcap = 2000; });
  expect("head_dim", [](Operation& x) {
    x.q.ne[0] = x.k.ne[0] = 1024;
    x.v.ne[0] = 64;
  });
}

}  // namespace
}  // namespace fulmen_ggml
