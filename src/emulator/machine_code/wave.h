// The state of a wave and of its workgroup.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulator/machine_code/instruction.h"
#include "emulator/memory_map.h"
#include "gpu/compile/amd_rules/registers.h"

namespace fulmen::gpu::isa {

// What a kernel did wrong. Handlers throw it; run_workgroup() reports it with the instruction and
// the wave.
struct Fault {
  std::string what;
};
[[noreturn]] inline void fail(std::string what) { throw Fault{std::move(what)}; }

using gpu::MemoryMap;

// Sizes of a launch in its three dimensions.
struct Grid {
  std::array<uint32_t, 3> workgroups{1, 1, 1}, workgroup_size{1, 1, 1};

  int64_t count() const { return product(workgroups); }
  int64_t lanes() const { return product(workgroup_size); }
  uint32_t dimensions() const {
    return workgroups[2] * workgroup_size[2] > 1   ? 3
           : workgroups[1] * workgroup_size[1] > 1 ? 2
                                                   : 1;
  }
  int waves(int wave_size) const { return static_cast<int>((lanes() + wave_size - 1) / wave_size); }

 private:
  static int64_t product(const std::array<uint32_t, 3>& n) {
    return int64_t{n[0]} * int64_t{n[1]} * int64_t{n[2]};
  }
};

// What a launch tells its waves. Scalar loads read the kernel's arguments and what the hardware was
// told (hsa_kernel_dispatch_packet_t).
struct LaunchData {
  Grid grid;
  int dynamic_lds_bytes = 0;  // besides the kernel's own
  std::vector<std::byte> arguments;
  std::array<uint32_t, 16> packet{};

  bool contains(uint64_t address, uint64_t bytes) const {
    const auto in = [&](const void* data, std::size_t size) {
      const auto begin = reinterpret_cast<uint64_t>(data);
      return address >= begin && address + bytes <= begin + size;
    };
    return in(arguments.data(), arguments.size()) || in(packet.data(), sizeof packet);
  }
};

// What one load brings to LDS: `bytes` of each of `lanes`, `stride` bytes apart.
struct LdsArrival {
  uint32_t begin = 0, stride = 0, bytes = 0;
  uint64_t lanes = 0;
};

// The words of LDS that loads bring and that no wave has waited for yet.
class Arriving {
 public:
  void add(const LdsArrival& arrival) { count(arrival, 1); }
  void remove(const LdsArrival& arrival) { count(arrival, -1); }
  bool any(uint32_t at, std::size_t bytes) const {
    for (std::size_t word = at / 4; loads_ > 0 && word < (at + bytes + 3) / 4; ++word) {
      if (word < words_.size() && words_[word] != 0) return true;
    }
    return false;
  }

 private:
  void count(const LdsArrival& arrival, int by) {
    if (arrival.lanes == 0) return;  // no lane was on
    loads_ += by;
    for (uint64_t left = arrival.lanes; left != 0; left &= left - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(left));
      const std::size_t first = (arrival.begin + arrival.stride * lane) / 4;
      words_.resize(std::max(words_.size(), first + arrival.bytes / 4));
      for (std::size_t word = first; word < first + arrival.bytes / 4; ++word)
        words_[word] = static_cast<uint16_t>(words_[word] + by);
    }
  }

  std::vector<uint16_t> words_;  // loads that bring the word
  int loads_ = 0;
};

struct Workgroup {
  MemoryMap& memory;
  std::span<std::byte> lds;
  const LaunchData& launch;
  Arriving arriving{};
};

// A counter of outstanding accesses. Results arrive in order, those of scalar loads in any order.
class Outstanding {
 public:
  explicit Outstanding(uint8_t counter) : counter_(counter) {}
  void add(RegisterRange writes, const LdsArrival& arrival = {}) {
    queue_.push_back({writes, arrival});
  }
  // On CDNA flat accesses, of which some go to memory and some to LDS, arrive in any order.
  void add_flat(RegisterRange writes, bool in_any_order) {
    queue_.push_back({writes, {}});
    in_any_order_ = in_any_order_ || in_any_order;
  }
  void wait(std::size_t left, std::array<uint8_t, kRegisters>& pending, int& total,
            Arriving& arriving) {
    if (left > 0 && in_any_order_) return;
    if (left == 0) in_any_order_ = false;
    for (; queue_.size() > left; queue_.pop_front()) {
      const auto& [range, arrival] = queue_.front();
      for (int r = range.first; r < range.first + range.count; ++r) {
        uint8_t& counters = pending[static_cast<std::size_t>(r)];
        counters = static_cast<uint8_t>(counters & ~counter_);
      }
      total -= range.count > 0 ? 1 : 0;
      if (arrival.lanes != 0) arriving.remove(arrival);
    }
  }
  bool empty() const { return queue_.empty(); }
  bool has_stores() const {
    for (const Access& access : queue_) {
      if (access.writes.count == 0) return true;
    }
    return false;
  }

 private:
  struct Access {
    RegisterRange writes;
    LdsArrival arrival;
  };
  std::deque<Access> queue_;
  uint8_t counter_;  // its bit of a register that is pending
  bool in_any_order_ = false;
};

struct Wave {
  Workgroup* group = nullptr;
  const Program* program = nullptr;
  uint32_t* vectors = nullptr;   // register r of lane l: [r * wave size + l], accumulators from
                                 // register 256 on
  std::byte* scratch = nullptr;  // program->scratch_bytes of each lane
  uint64_t all_lanes = 0;
  std::array<uint32_t, kScalarRegisters> scalars{};  // EXEC, VCC and M0 among them
  bool scc = false;
  int number = 0;   // in its workgroup
  uint32_t at = 0;  // the next instruction
  bool ended = false, at_barrier = false;
  uint64_t signals = 0, waits = 0;  // number of barriers that it signalled, and left

  enum Counter : uint8_t { memory = 1, lds = 2, scalar = 4 };
  // The counters of a register's outstanding load: a flat one has two.
  std::array<uint8_t, kRegisters> pending{};
  int loads = 0;  // number of outstanding loads
  Outstanding memory_loads{memory}, lds_loads{lds}, scalar_loads{scalar};
  LdsArrival arrival;  // of the load to LDS that was executed last

  uint64_t exec() const {
    return (scalars[kExecLow] | uint64_t{scalars[kExecLow + 1]} << 32U) & all_lanes;
  }
  bool all_on() const { return exec() == all_lanes; }
};

}  // namespace fulmen::gpu::isa
