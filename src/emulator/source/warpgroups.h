// Rules of Hopper's warpgroups: what a lane may do with the registers of a product in flight, which instructions all four
// waves of a warpgroup execute, and how many registers they have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator/source/lds.h"

namespace fulmen::gpu::emulated {

// A lane's part of a product (wgmma): its sums and, where a lies in registers, 16 bytes of that.
struct ProductRegisters {
  std::byte* sums = nullptr;
  int sum_bytes = 0;
  const std::byte* rows = nullptr;  // null: a lies in LDS
  Site site;
};

// Registers of a lane's products. Sums of one in flight are NaN, of a kind that use_of_sums() knows.
class LaneProducts {
 public:
  void reset();
  void fence();
  void wait() { fenced_ = false; }
  // These give an empty string, or what is wrong.
  std::string begin(const ProductRegisters& product, int thread);
  // Around its computation, at the wait: sums are again what they were, and NaN afterwards if there is one more in flight.
  std::string arrive(const ProductRegisters& product, int thread);
  void arrived(const ProductRegisters& product);
  std::string hold(const std::byte* sums, int thread, Site site) const;

 private:
  // What is known of an array of registers that products used.
  struct Array {
    std::vector<std::byte> content;  // at the last fence, or what the last product left; while in flight: what it begins with
    int in_flight = 0;               // products
    Site site;                       // of the last one
  };
  Array& array_at(const std::byte* at, int bytes, bool& known);
  std::string begin_sums(const ProductRegisters& product, int thread);
  std::string begin_rows(const ProductRegisters& product, int thread);

  std::map<const std::byte*, Array> arrays_;
  bool fenced_ = false;  // since the beginning, or the last wait
};

// Returns true if these bytes hold sums of a product that has not been waited for.
bool has_unfinished_sums(const void* data, int bytes);

// What all lanes of a warpgroup execute, in the same order.
class Warpgroups {
 public:
  static constexpr int kLanes = 128;

  void reset(int lanes, int workgroup_size);
  // what: in which they must not differ. anywhere: by whichever instruction.
  std::string join(int thread, const char* operation, const void* what, int bytes, bool anywhere, Site site);
  // All wait at a barrier, or have ended.
  std::string meet();
  // From here on the lane's wave has so many registers a lane. min_workgroups: that share a multiprocessor's.
  std::string set_registers(int thread, int count, bool more, int min_workgroups, Site site);

 private:
  struct Joined {
    const char* operation;
    std::vector<std::byte> what;
    Site site;
    int thread;  // the first
  };
  std::string check_registers() const;

  int lanes_ = 0, workgroup_size_ = 0;
  std::vector<std::vector<Joined>> joined_;  // of each warpgroup, since the last barrier
  std::vector<int> count_;                   // of each lane
  std::vector<int> registers_;               // of each lane; 0: as many as at the start
  int start_registers_ = 0;
  Site site_;  // where they were set last
};

}  // namespace fulmen::gpu::emulated
