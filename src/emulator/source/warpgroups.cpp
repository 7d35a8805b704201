#include "emulator/source/warpgroups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace fulmen::gpu::emulated {
namespace {

// A quiet NaN that arithmetic keeps and no test writes.
constexpr uint32_t kUnfinished = 0x7FF5EED1U;

void make_unfinished(std::byte* sums, int bytes) {
  for (int n = 0; n < bytes; n += 4) std::memcpy(sums + n, &kUnfinished, 4);
}
bool is_unfinished(const std::byte* sums, int bytes) {
  for (int n = 0; n < bytes; n += 4) {
    if (std::memcmp(sums + n, &kUnfinished, 4) != 0) return false;
  }
  return true;
}

// The array may be gone and its place reused, or free. The sanitizer need not know.
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
__attribute__((no_sanitize("address")))
#endif
void copy_of_stack(std::byte* to, const std::byte* from, std::size_t bytes) {
  const volatile std::byte* source = from;
  for (std::size_t n = 0; n < bytes; ++n) to[n] = source[n];
}

constexpr int kRowBytes = 16;

}  // namespace

bool has_unfinished_sums(const void* data, int bytes) {
  const auto* words = static_cast<const std::byte*>(data);
  for (int n = 0; n + 4 <= bytes; n += 4) {
    if (std::memcmp(words + n, &kUnfinished, 4) == 0) return true;
  }
  return false;
}

void LaneProducts::reset() {
  arrays_.clear();
  fenced_ = false;
}

void LaneProducts::fence() {
  fenced_ = true;
  for (auto& [at, array] : arrays_) {
    if (array.in_flight == 0) copy_of_stack(array.content.data(), at, array.content.size());
  }
}

LaneProducts::Array& LaneProducts::array_at(const std::byte* at, int bytes, bool& known) {
  Array& array = arrays_[at];
  known = array.content.size() == static_cast<std::size_t>(bytes);
  if (!known) array.content.assign(at, at + bytes);
  return array;
}

std::string LaneProducts::begin_sums(const ProductRegisters& product, int thread) {
  bool known = false;
  const auto found = arrays_.find(product.sums);
  if (found != arrays_.end() && found->second.in_flight > 0) {
    const Array& before = found->second;
    const bool same_shape = before.content.size() == static_cast<std::size_t>(product.sum_bytes);
    if (!same_shape || !is_unfinished(product.sums, product.sum_bytes)) {
      return fmt::format(
          "wgmma at {}: lane {}'s sums {} since the product at {}, which is in flight",
          to_string(product.site), thread, same_shape ? "were written" : "have had another shape",
          to_string(before.site));
    }
  }
  Array& array = array_at(product.sums, product.sum_bytes, known);
  if (array.in_flight == 0) {
    if (known && std::memcmp(array.content.data(), product.sums, array.content.size()) != 0) {
      return fmt::format(
          "wgmma without a fence: lane {}'s sums at {} were written after its last wgmma_fence()",
          thread, to_string(product.site));
    }
    make_unfinished(product.sums, product.sum_bytes);
  }
  ++array.in_flight;
  array.site = product.site;
  return {};
}

std::string LaneProducts::begin_rows(const ProductRegisters& product, int thread) {
  bool known = false;
  const Array& array = array_at(product.rows, kRowBytes, known);
  if (std::memcmp(array.content.data(), product.rows, kRowBytes) == 0) return {};
  return fmt::format(
      "wgmma without a fence: lane {}'s operand in registers at {} was written after its last "
      "wgmma_fence()",
      thread, to_string(product.site));
}

std::string LaneProducts::begin(const ProductRegisters& product, int thread) {
  if (!fenced_) {
    return fmt::format(
        "wgmma without a fence: lane {} begins one at {} with no wgmma_fence() since its last "
        "wait, or its beginning",
        thread, to_string(product.site));
  }
  if (product.rows != nullptr) {
    if (std::string wrong = begin_rows(product, thread); !wrong.empty()) return wrong;
  }
  return begin_sums(product, thread);
}

std::string LaneProducts::arrive(const ProductRegisters& product, int thread) {
  const Array& array = arrays_.at(product.sums);
  if (!is_unfinished(product.sums, product.sum_bytes)) {
    return fmt::format("wgmma at {}: lane {}'s sums were written before its wait",
                       to_string(product.site), thread);
  }
  if (product.rows != nullptr &&
      std::memcmp(arrays_.at(product.rows).content.data(), product.rows, kRowBytes) != 0) {
    return fmt::format("wgmma at {}: lane {}'s operand in registers was written before its wait",
                       to_string(product.site), thread);
  }
  std::memcpy(product.sums, array.content.data(), array.content.size());
  return {};
}

void LaneProducts::arrived(const ProductRegisters& product) {
  Array& array = arrays_.at(product.sums);
  std::memcpy(array.content.data(), product.sums, array.content.size());
  if (--array.in_flight > 0) make_unfinished(product.sums, product.sum_bytes);
}

std::string LaneProducts::hold(const std::byte* sums, int thread, Site site) const {
  const auto found = arrays_.find(sums);
  if (found == arrays_.end() || found->second.in_flight == 0) return {};
  return fmt::format(
      "sums of a product before its wait: lane {} uses at {} what the wgmma at {} computes", thread,
      to_string(site), to_string(found->second.site));
}

void Warpgroups::reset(int lanes, int workgroup_size) {
  lanes_ = lanes;
  workgroup_size_ = workgroup_size;
  const auto count = static_cast<std::size_t>(lanes);
  joined_.assign((count + kLanes - 1) / kLanes, {});
  count_.assign(count, 0);
  registers_.assign(count, 0);
  start_registers_ = 0;
}

std::string Warpgroups::join(int thread, const char* operation, const void* what, int bytes,
                             bool anywhere, Site site) {
  if ((thread % workgroup_size_ / kLanes + 1) * kLanes > workgroup_size_) {
    return fmt::format("{} at {}: lane {}'s warpgroup has fewer than four waves", operation,
                       to_string(site), thread);
  }
  std::vector<Joined>& all = joined_[static_cast<std::size_t>(thread / kLanes)];
  const auto n = static_cast<std::size_t>(count_[static_cast<std::size_t>(thread)]++);
  const auto* content = static_cast<const std::byte*>(what);
  if (n == all.size()) {
    all.push_back({operation, std::vector<std::byte>(content, content + bytes), site, thread});
    return {};
  }
  const Joined& first = all[n];
  const auto size = static_cast<std::size_t>(bytes);
  const bool same_place =
      anywhere || (first.site.line == site.line && std::strcmp(first.site.file, site.file) == 0);
  const bool same = same_place && std::strcmp(first.operation, operation) == 0;
  if (same && first.what.size() == size &&
      (size == 0 || std::memcmp(first.what.data(), what, size) == 0))
    return {};
  return fmt::format("warpgroup disagrees: lane {} is at {} ({}), lane {} at {} ({}){}",
                     first.thread, first.operation, to_string(first.site), thread, operation,
                     to_string(site), same ? " with other operands" : "");
}

std::string Warpgroups::meet() {
  for (int t = 0; t < lanes_; ++t) {
    const std::vector<Joined>& all = joined_[static_cast<std::size_t>(t / kLanes)];
    const auto n = static_cast<std::size_t>(count_[static_cast<std::size_t>(t)]);
    if (n == all.size()) continue;
    return fmt::format("warpgroup disagrees: lane {} was at {} ({}), lane {} never came",
                       all[n].thread, all[n].operation, to_string(all[n].site), t);
  }
  for (std::vector<Joined>& all : joined_) all.clear();
  std::fill(count_.begin(), count_.end(), 0);
  return check_registers();
}

std::string Warpgroups::check_registers() const {
  const int there = start_registers_ * workgroup_size_;
  for (int first = 0; first < lanes_; first += workgroup_size_) {
    int all = 0;
    for (int t = first; t < first + workgroup_size_; ++t) {
      const int count = registers_[static_cast<std::size_t>(t)];
      all += count == 0 ? start_registers_ : count;
    }
    if (all <= there) continue;
    return fmt::format(
        "registers: from {} on the workgroup's lanes have {}, it began with {} of {} each",
        to_string(site_), all, there, start_registers_);
  }
  return {};
}

std::string Warpgroups::set_registers(int thread, int count, bool more, int min_workgroups,
                                      Site site) {
  constexpr int kRegisters = 65536, kMost = 255, kStep = 8, kFewest = 24, kMostSet = 256;
  start_registers_ = std::min(kMost, kRegisters / min_workgroups / workgroup_size_ / kStep * kStep);
  site_ = site;
  int& own = registers_[static_cast<std::size_t>(thread)];
  const int before = own == 0 ? start_registers_ : own;
  if (count < kFewest || count > kMostSet || count % kStep != 0) {
    return fmt::format("setmaxnreg at {}: {} registers: multiples of {} from {} to {} are accepted",
                       to_string(site), count, kStep, kFewest, kMostSet);
  }
  if (more ? count < before : count > before) {
    return fmt::format("setmaxnreg at {}: lane {} has {} registers, {} are no {}", to_string(site),
                       thread, before, count, more ? "more" : "fewer");
  }
  own = count;
  return {};
}

}  // namespace fulmen::gpu::emulated
