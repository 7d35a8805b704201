#include "runtime/shared_bytes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/tensor_checks.h"

namespace fulmen {
namespace {

constexpr int kMostSteps = 1 << 16;  // under a millisecond

// One index of an element's place in b minus one's in a: stride bytes times low to high.
struct Index {
  int64_t stride = 0, low = 0, high = 0;
};

int64_t row_bytes(const Tensor& t) { return row_elements(t.dtype, t.shape[3]) * size_of(t.dtype); }

// In an array, as a call that appends allocates nothing.
struct Indices {
  std::array<Index, 6> all{};
  std::size_t count = 0;

  void add(const Tensor& t, const TensorSpec& spec, int sign, std::size_t first_dim) {
    for (std::size_t d = first_dim; d < 3; ++d) {
      const int64_t stride = spec.strides[d] * size_of(t.dtype), last = t.shape[d] - 1;
      if (last == 0 || stride == 0) continue;
      std::size_t same = 0;
      while (same < count && all[same].stride != stride) ++same;
      if (same == count) all[count++].stride = stride;
      (sign > 0 ? all[same].high : all[same].low) += sign * last;
    }
  }
};

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }  // b > 0

class Search {
 public:
  // A row of b begins `distance` behind one of a: they overlap between -b_bytes and a_bytes.
  Search(const Indices& indices, int64_t a_bytes, int64_t b_bytes)
      : indices_(indices.all), count_(indices.count), a_bytes_(a_bytes), b_bytes_(b_bytes) {
    std::sort(indices_.data(), indices_.data() + count_,
              [](const Index& x, const Index& y) { return x.stride > y.stride; });
    for (std::size_t n = count_; n-- > 0;) {
      least_[n] = least_[n + 1] + indices_[n].stride * indices_[n].low;
      most_[n] = most_[n + 1] + indices_[n].stride * indices_[n].high;
    }
  }
  bool finds(int64_t distance, std::size_t n = 0) {
    if (++steps_ > kMostSteps) return true;
    if (distance + most_[n] <= -b_bytes_ || distance + least_[n] >= a_bytes_) return false;
    if (n == count_) return true;
    // Other values of this index leave a distance that the smaller strides do not bridge.
    const auto& [stride, low, high] = indices_[n];
    const int64_t first = floor_of(-b_bytes_ - most_[n + 1] - distance, stride) + 1,
                  last = floor_of(a_bytes_ - least_[n + 1] - distance - 1, stride);
    for (int64_t x = std::max(low, first); x <= std::min(high, last); ++x) {
      if (finds(distance + stride * x, n + 1)) return true;
    }
    return false;
  }

 private:
  std::array<Index, 6> indices_;
  std::size_t count_;
  std::array<int64_t, 7> least_{}, most_{};  // of the indices from n on
  int64_t a_bytes_, b_bytes_;
  int steps_ = 0;
};

}  // namespace

bool share_bytes(const Tensor& a, const TensorSpec& a_spec, const Tensor& b,
                 const TensorSpec& b_spec, bool pages) {
  const int64_t page = a_spec.strides[0] * size_of(a.dtype);
  const bool by_page = pages && page > 0 && page == b_spec.strides[0] * size_of(b.dtype);
  const std::size_t first_dim = by_page ? 1 : 0;
  Indices indices;
  indices.add(a, a_spec, -1, first_dim);
  indices.add(b, b_spec, 1, first_dim);
  const auto distance =
      reinterpret_cast<std::intptr_t>(b.data) - reinterpret_cast<std::intptr_t>(a.data);
  const auto found = [&](std::intptr_t apart) {
    return Search(indices, row_bytes(a), row_bytes(b)).finds(apart);
  };
  if (!by_page) return found(distance);
  if (distance != 0 && distance % page == 0) return false;  // whole pages of other numbers
  const std::intptr_t rest = (distance % page + page) % page;
  return found(rest) || found(rest - page);
}

}  // namespace fulmen
