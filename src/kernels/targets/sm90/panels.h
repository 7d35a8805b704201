// Panels: how tiles lie in LDS for products of a warpgroup (target.h).
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

constexpr int kWgmmaDepth = 16;  // of a product of 16-bit elements
constexpr int kPanelColumns = 64, kPanelRowBytes = 2 * kPanelColumns;

// A 16-byte piece of a tile of `rows` rows that begins a panel.
FULMEN_DEVICE constexpr int panel_place(int row, int column, int rows) {
  return column / kPanelColumns * rows * kPanelRowBytes + row * kPanelRowBytes +
         (column / 8 % 8 ^ row % 8) * 16;
}

FULMEN_DEVICE unsigned lds_matrix_place(int lds_offset);

// Where an operand lies: what PTX calls a matrix descriptor, for swizzled rows of 128 bytes, 8 of
// which are 1 KiB. Only the lower half differs: the place, and from bit 16 on the distance of
// panels, both in 16 bytes.
struct LdsMatrix {
  static constexpr unsigned kUpper = 1U << 30U | 8 * kPanelRowBytes / 16;
  unsigned lower;

  FULMEN_DEVICE static LdsMatrix of(int at, int rows) {
    return {lds_matrix_place(at) | static_cast<unsigned>(rows * kPanelRowBytes / 16) << 16U};
  }
  FULMEN_DEVICE unsigned long long bits() const {
    return static_cast<unsigned long long>(kUpper) << 32U | lower;
  }
  FULMEN_DEVICE LdsMatrix further(int bytes) const { return {lower + bytes / 16}; }
  FULMEN_DEVICE LdsMatrix rows_further(int count) const { return further(count * kPanelRowBytes); }
  // To a multiple of 16 columns.
  FULMEN_DEVICE LdsMatrix columns_further(int count, int rows) const {
    return further(count / kPanelColumns * rows * kPanelRowBytes + count % kPanelColumns * 2);
  }
};

}  // namespace fulmen::kernels
