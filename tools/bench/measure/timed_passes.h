// Plans that are timed: one, or a forward and a backward pass behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "tools/tensors/device_tensors.h"
#include "tools/tensors/memory.h"

namespace fulmen::tools {

class TimedPasses {
 public:
  // tensors must outlive this. The plans are for the device that they are on.
  TimedPasses(std::vector<Plan> plans, const DeviceTensors& tensors);

  // Gives the plans to the device, one after the other.
  Status call() const;
  // Times calls one behind the other and waits for the last. Adds one to seconds().
  Status span();
  // Runs spans until one is long enough to be timed. Their times are dropped, unless a span is so
  // long that being first changes nothing.
  Status warm_up();

  const std::vector<Plan>& plans() const noexcept { return plans_; }
  // Scratch that the plans share.
  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  double flops() const noexcept;
  const std::vector<double>& seconds() const noexcept { return seconds_; }  // [span] a call's time
  double min_seconds() const noexcept;
  double last_call_seconds() const noexcept { return seconds_.back(); }
  double last_span_seconds() const noexcept { return span_seconds_; }
  int64_t calls_per_span() const noexcept { return calls_; }

 private:
  std::vector<Plan> plans_;
  const DeviceTensors& there_;
  std::size_t workspace_bytes_ = 0;
  bool on_host_;
  Memory host_workspace_;  // on huge pages
  DeviceMemory device_workspace_;
  std::vector<double> seconds_;
  int64_t calls_ = 1;
  double span_seconds_ = 0;
};

}  // namespace fulmen::tools
