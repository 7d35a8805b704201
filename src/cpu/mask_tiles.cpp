#include "cpu/mask_tiles.h"

#include <algorithm>

namespace fulmen::cpu {
namespace {

// Bytes of a mask that one thread reads sooner than others wake up.
constexpr int64_t kSmallMask = 64 << 10;

// mask: [rows][keys], rows `stride` bytes apart, at most kBlockM by kMaskKeys.
Kept kept_of_tile(const uint8_t* mask, int64_t stride, int64_t rows, int64_t keys) {
  MaskBytes seen;
  for (int64_t row = 0; row < rows; ++row) {
    seen.add(mask + row * stride, keys);
    if (seen.kept() == Kept::some) return Kept::some;
  }
  return seen.kept();
}

}  // namespace

MaskTiles::MaskTiles(const Problem& p) : mask_(p.keep_mask) {
  if (!mask_.present) return;
  const auto stored = [&](std::size_t dim, int64_t size) {
    return mask_.strides[dim] == 0 ? std::min<int64_t>(size, 1) : size;
  };
  batch_ = stored(0, p.batch);
  heads_ = stored(1, p.num_heads);
  rows_ = stored(2, p.seqlen_q);
  keys_ = p.seqlen_k;
  row_tiles_ = (rows_ + kBlockM - 1) / kBlockM;
  key_tiles_ = (keys_ + kMaskKeys - 1) / kMaskKeys;
  tiles_ = batch_ * heads_ * row_tiles_ * key_tiles_;
}

MaskSummary MaskTiles::summarise(const AttentionTensors& tensors, const ThreadSettings& threads,
                                 void* memory) const {
  if (tiles_ == 0) return {};
  auto* tiles = static_cast<Kept*>(memory);
  const auto* mask = static_cast<const uint8_t*>(tensors.keep_mask.data);
  // The tiles of some query rows.
  const auto summarise_rows = [&](int64_t index) {
    const int64_t row = index % row_tiles_ * kBlockM, head = index / row_tiles_ % heads_,
                  batch = index / row_tiles_ / heads_;
    const int64_t rows = std::min<int64_t>(rows_ - row, kBlockM);
    const uint8_t* from =
        mask + batch * mask_.strides[0] + head * mask_.strides[1] + row * mask_.strides[2];
    for (int64_t tile = 0; tile < key_tiles_; ++tile) {
      const int64_t keys = std::min<int64_t>(keys_ - tile * kMaskKeys, kMaskKeys);
      tiles[index * key_tiles_ + tile] =
          kept_of_tile(from + tile * kMaskKeys, mask_.strides[2], rows, keys);
    }
  };
  const int64_t count = batch_ * heads_ * row_tiles_;
  if (batch_ * heads_ * rows_ * keys_ <= kSmallMask) {
    for (int64_t index = 0; index < count; ++index) summarise_rows(index);
  } else {
    parallel_tasks(threads, count, [&](int64_t index, int /*worker*/) { summarise_rows(index); });
  }
  const auto stride = [&](std::size_t dim, int64_t step) {
    return mask_.strides[dim] == 0 ? 0 : step;
  };
  return {tiles, stride(0, heads_ * row_tiles_ * key_tiles_), stride(1, row_tiles_ * key_tiles_),
          stride(2, key_tiles_)};
}

}  // namespace fulmen::cpu
