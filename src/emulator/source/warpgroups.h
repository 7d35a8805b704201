// Rules of Hopper's warpgroups: what a lane may do with the registers of a product in flight, which
// instructions all four waves of a warpgroup execute, and how many registers they have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator/source/lds.h"

namespace fulmen::gpu::emulated {

// A lane's part of a product (wgmma): its sums and, where A lies in registers, 16 bytes of A.
struct ProductRegisters {
  std::byte* sums = nullptr;
  int sum_bytes = 0;
  const std::byte* rows = nullptr;  // null: A lies in LDS
  Site site;
};

// Registers of a lane's products. Sums of a product in flight are NaN, of a kind that
// has_unfinished_sums() knows.
class LaneProducts {
 public:
  void reset();
  void fence();
  void wait() { fenced_ = false; }
  // The functions below return an empty string, or what is wrong.
  std::string begin(const ProductRegisters& product, int thread);
  // To be called around the computation, at the wait. arrive() restores the sums; arrived() makes
  // them NaN again if one more product is in flight.
  std::string arrive(const ProductRegisters& product, int thread);
  void arrived(const ProductRegisters& product);
  std::string hold(const std::byte* sums, int thread, Site site) const;

 private:
  // An array of registers that products used.
  struct Array {
    // The registers at the last fence, or as the last product left them; in flight: as it began.
    std::vector<std::byte> content;
    int in_flight = 0;  // products
    Site site;          // the last product's
  };
  Array& array_at(const std::byte* at, int bytes, bool& known);
  std::string begin_sums(const ProductRegisters& product, int thread);
  std::string begin_rows(const ProductRegisters& product, int thread);

  std::map<const std::byte*, Array> arrays_;
  bool fenced_ = false;  // since the beginning, or the last wait
};

// Returns true if these bytes hold sums of a product that has not been waited for.
bool has_unfinished_sums(const void* data, int bytes);

// The instructions that all lanes of a warpgroup execute in the same order.
class Warpgroups {
 public:
  static constexpr int kLanes = 128;

  void reset(int lanes, int workgroup_size);
  // what: the operands, equal in all lanes. anywhere: lanes may use different instructions.
  std::string join(int thread, const char* operation, const void* what, int bytes, bool anywhere,
                   Site site);
  // To be called when all lanes wait at a barrier or have ended.
  std::string meet();
  // Gives the lane's wave `count` registers a lane. min_workgroups: how many share a
  // multiprocessor.
  std::string set_registers(int thread, int count, bool more, int min_workgroups, Site site);

 private:
  struct Joined {
    const char* operation;
    std::vector<std::byte> what;
    Site site;
    int thread;  // the first lane
  };
  std::string check_registers() const;

  int lanes_ = 0, workgroup_size_ = 0;
  std::vector<std::vector<Joined>> joined_;  // [warpgroup], since the last barrier
  std::vector<int> count_;                   // [lane]
  std::vector<int> registers_;               // [lane]; 0: as many as at the start
  int start_registers_ = 0;
  Site site_;  // where the registers were set last
};

}  // namespace fulmen::gpu::emulated
