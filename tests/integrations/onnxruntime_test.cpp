// What integrations/onnxruntime computes itself, without ONNX Runtime. Its check.py runs whole
// nodes in ONNX Runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fulmen/fulmen_c.h"
#include "integrations/onnxruntime/numbers.h"
#include "integrations/onnxruntime/sliding_window.h"
#include "runtime/float_formats.h"
#include "support/random.h"

namespace fulmen_ort {
namespace {

using fulmen::testing::Random;

TEST(OnnxRuntime, RowsAreWidenedAndNarrowedAsTheFormatsSay) {
  std::vector<uint16_t> all(65536), back(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  widen(all.data(), FULMEN_FP16, 65536, wide.data());
  narrow(wide.data(), FULMEN_FP16, 65536, back.data());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float right = fulmen::reference::from_fp16(all[i]);
    if (std::isnan(right)) {
      EXPECT_TRUE(std::isnan(wide[i])) << i;
      continue;
    }
    EXPECT_EQ(wide[i], right);
    EXPECT_EQ(back[i], all[i]);
  }
}

TEST(OnnxRuntime, QuantizesToTheNearestStepWithinTheFormat) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t count = random.between(1, 67);
    const bool per_channel = random.chance(0.5);
    std::vector<float> row(static_cast<std::size_t>(count)), scale(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<float>(random.between(-3000, 3000)) / 100;
      scale[i] = static_cast<float>(random.between(0, 40)) / 100;
    }
    const Scales scales{scale.data(), per_channel};
    std::vector<int8_t> eight(row.size()), four(row.size());
    std::vector<uint8_t> nibbles(row.size() / 2 + row.size() % 2);
    to_int8(row.data(), scales, count, eight.data());
    to_int4(row.data(), scales, count, nibbles.data());
    int4_to_int8(nibbles.data(), count, four.data());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double given = scale[per_channel ? i : 0];
      const double steps = static_cast<double>(row[i]) / (given == 0 ? 1 : given);
      // A tie may fall either way: the product with 1 / scale is rounded.
      EXPECT_LE(std::abs(eight[i] - std::clamp(steps, -128.0, 127.0)), 0.5001) << steps;
      EXPECT_LE(std::abs(four[i] - std::clamp(steps, -8.0, 7.0)), 0.5001) << steps;
    }
    if (count % 2 == 1) {
      EXPECT_EQ(nibbles.back() >> 4, 8);  // the number behind the last is 0
    }
  }
}

TEST(OnnxRuntime, ASlidingWindowKeepsItsRowsAndLosesABlockAtOnce) {
  for (int64_t rows = 1; rows < 12; ++rows)
    for (int64_t window = 1; window <= rows; ++window) {
      int64_t kept = 0;
      for (int64_t length = 0; length < 60; ++length) {
        EXPECT_EQ(kept_rows(length, rows, window), kept) << rows << ' ' << window << ' ' << length;
        EXPECT_GE(kept, std::min(length, window - 1));
        // The next token goes behind, or the oldest rows go first.
        if (++kept > rows) kept -= rows - window + 1;
      }
    }
}

}  // namespace
}  // namespace fulmen_ort
