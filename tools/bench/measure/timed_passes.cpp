#include "tools/bench/measure/timed_passes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/bench/measure/clock.h"

namespace fulmen::tools {
namespace {

// A timed span is at least so long: several calls where one is shorter.
constexpr double kSpanSeconds = 1e-3;
// A GPU's span: waiting at its end costs some 10 us, a thousandth of it.
constexpr double kDeviceSpanSeconds = 10e-3;
constexpr int kMaxWarmUps = 8;
constexpr double kLongSeconds = 20e-3;
constexpr double kCountsSeconds = 0.3;

}  // namespace

TimedPasses::TimedPasses(std::vector<Plan> plans, const DeviceTensors& tensors)
    : plans_(std::move(plans)),
      there_(tensors),
      on_host_(uses_host_memory(plans_.front().device())) {
  for (const Plan& plan : plans_)
    workspace_bytes_ = std::max(workspace_bytes_, plan.workspace_bytes());
  if (on_host_) {
    host_workspace_ = Memory(workspace_bytes_ + 1);
  } else {
    device_workspace_ = there_.workspace(workspace_bytes_);
  }
}

Status TimedPasses::call() const {
  void* workspace = on_host_ ? host_workspace_.data() : device_workspace_.data();
  if (workspace == nullptr && workspace_bytes_ > 0) {
    return {StatusCode::out_of_memory,
            fmt::format("no memory for a workspace of {} bytes", workspace_bytes_)};
  }
  for (const Plan& plan : plans_) {
    AttentionTensors tensors = there_.tensors();
    // Standard attention may be planned without it.
    if (!plan.problem().lse.present) tensors.lse = {};
    if (Status status = plan.run(nullptr, tensors, workspace, workspace_bytes_); !status.ok())
      return status;
  }
  return {};
}

Status TimedPasses::span() {
  const auto start = Clock::now();
  for (int64_t i = 0; i < calls_; ++i) {
    if (Status status = call(); !status.ok()) return status;
  }
  if (Status status = there_.synchronize(); !status.ok()) return status;
  span_seconds_ = seconds_since(start);
  seconds_.push_back(span_seconds_ / static_cast<double>(calls_));
  return {};
}

Status TimedPasses::warm_up() {
  const double target = on_host_ ? kSpanSeconds : kDeviceSpanSeconds;
  // A long first call has touched its memory in a small part of its time; a short one is measured
  // by a second.
  for (int i = 0; i < 2 && (seconds_.empty() || seconds_.back() < kLongSeconds); ++i) {
    if (Status status = span(); !status.ok()) return status;
  }
  if (seconds_.back() > kCountsSeconds) return {};
  const auto calls_for = [&](double length) {
    return std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(length / std::max(seconds_.back(), 1e-9))), 1, 1 << 20);
  };
  calls_ = calls_for(target);
  // One call on a GPU takes as long as waiting for it: only spans tell how short it is.
  for (int i = 0; !on_host_ && i < kMaxWarmUps; ++i) {
    if (Status status = span(); !status.ok()) return status;
    if (span_seconds_ >= target) break;
    calls_ = calls_for(1.2 * target);
  }
  seconds_.clear();
  return {};
}

double TimedPasses::flops() const noexcept {
  double all = 0;
  for (const Plan& plan : plans_) all += plan.problem().flops();
  return all;
}

double TimedPasses::min_seconds() const noexcept {
  return *std::min_element(seconds_.begin(), seconds_.end());
}

}  // namespace fulmen::tools
