#include "mask.h"

#include <algorithm>
#include <cstring>

namespace fulmen_ggml {
namespace {

constexpr uint16_t kMinusInfinity = 0xFC00, kMagnitude = 0x7FFF;

// Sets keep; returns whether an element is neither 0 nor -inf. Without branches: compilers make
// vectors of it.
bool keep_row(const uint16_t* mask, int64_t keys, uint8_t* keep) {
  uint16_t other = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const uint16_t attends = mask[j] != kMinusInfinity;
    keep[j] = static_cast<uint8_t>(attends);
    other = static_cast<uint16_t>(other | (attends != 0 ? mask[j] & kMagnitude : 0));
  }
  return other != 0;
}

}  // namespace

MaskSummary summarize_mask(const Operation& operation, std::vector<uint8_t>& keep) {
  const View& mask = operation.mask;
  const int64_t rows = operation.q.ne[1], all = operation.k.ne[1];
  keep.resize(static_cast<std::size_t>(mask.ne[3] * mask.ne[2] * rows * all));
  MaskSummary summary{MaskForm::none, {all, 0}};
  Keys& keys = summary.keys;
  bool numbers = false;
  uint8_t* row = keep.data();
  for (int64_t i3 = 0; i3 < mask.ne[3]; ++i3)
    for (int64_t i2 = 0; i2 < mask.ne[2]; ++i2)
      for (int64_t i1 = 0; i1 < rows; ++i1, row += all) {
        const char* data =
            static_cast<const char*>(mask.data) + static_cast<std::size_t>(i1) * mask.nb[1] +
            static_cast<std::size_t>(i2) * mask.nb[2] + static_cast<std::size_t>(i3) * mask.nb[3];
        numbers |= keep_row(static_cast<const uint16_t*>(static_cast<const void*>(data)), all, row);
        const void* first = std::memchr(row, 1, static_cast<std::size_t>(all));
        if (first == nullptr) continue;
        int64_t last = all;
        while (row[last - 1] == 0) --last;
        keys.first = std::min<int64_t>(keys.first, static_cast<const uint8_t*>(first) - row);
        keys.last = std::max(keys.last, last);
      }
  if (keys.last == 0) {
    keys.first = 0;
    return summary;
  }
  if (numbers) {
    summary.form = MaskForm::bias;
    return summary;
  }
  const auto wanted = static_cast<std::size_t>(keys.last - keys.first);
  for (const uint8_t* at = keep.data() + keys.first; at < keep.data() + keep.size(); at += all)
    if (std::memchr(at, 0, wanted) != nullptr) {
      summary.form = MaskForm::keep;
      break;
    }
  return summary;
}

}  // namespace fulmen_ggml
