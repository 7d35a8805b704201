// A running workgroup of the emulated GPU, or those of a cluster. Each lane is a fiber, suspended
// where it waits for others.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <string>
#include <vector>

#include "emulator/source/fibers.h"
#include "emulator/source/lds.h"
#include "emulator/source/lds_banks.h"
#include "emulator/source/mbarriers.h"
#include "emulator/source/warpgroups.h"
#include "emulator/source/workgroup.h"

namespace fulmen::gpu::emulated {

inline constexpr int kMostExchangeBytes = 64;

struct AsyncCopy {
  int offset, bytes;
  std::byte data[16];
  Site site;
};

inline constexpr const char* kWaveBarrier = "wave_barrier";
inline constexpr const char* kArrive = "named_barrier_arrive";
inline constexpr const char* kTurnPass = "warpgroup_turn_pass";
inline constexpr const char* kTurnWait = "warpgroup_turn_wait";
inline constexpr int kMbarrierBytes = 8;
inline constexpr const char* kMbarrierWait = "mbarrier_wait";

// A TMA store from LDS to memory: read where the lane waits for the read, written where it waits
// for the write.
struct TmaStore {
  float* to;              // null: a box of a tensor, from `first` on
  EmulatedTensorMap map;  // the box's
  std::array<int, 4> first;
  int from, bytes;
  bool adds;
  Site site;
  std::vector<float> values;  // what was read
};

// A product that a lane has begun. It is computed at a wait.
struct Deferred {
  void (*run)(const void*) = nullptr;
  alignas(16) std::byte data[128];
  ProductRegisters registers;
};

enum class Waits { nowhere, exchange, named_barrier_sync, turn, mbarrier, counter, barrier, done };

// A wave's arrival at a named barrier that no wave has synchronised with yet.
struct HandedOver {
  int from = -1;
  int time = 0;
};
inline constexpr int kNamedBarriers = 16;  // the hardware's; barrier 0 is the workgroup's

struct Lane {
  Fiber fiber;
  int thread = 0;
  int rank = 0, thread_of_workgroup = 0;  // in a cluster
  Waits waits = Waits::nowhere;
  const char* operation = "";
  int bytes = 0;
  const int* counter = nullptr;  // the counter that it waits for, until it is at least `bytes`
  Site site;
  std::vector<AsyncCopy> uncommitted;
  std::deque<std::vector<AsyncCopy>> in_flight;
  std::vector<Deferred> begun;
  std::deque<std::vector<Deferred>> deferred;
  LaneProducts products;
  std::deque<TmaStore> stores;  // in flight
  bool follows = false;         // it has waited for earlier launches, or need not
};

// A cluster's workgroups are one whose lanes and LDS follow each other: lane 0 of the second comes
// after the last one of the first.
class Workgroup {
 public:
  std::string run(const LaunchShape& shape, int64_t id, void (*kernel)(const void*),
                  const void* arguments, const MemoryCheck& accessible);

  // Called by lanes.
  void broken_rule(const char* what, Site site) {
    check(fmt::format("{} at {}: lane {}", what, to_string(site), thread()));
  }
  int thread() const { return current_->thread; }
  int rank() const { return current_->rank; }
  int thread_of_workgroup() const { return current_->thread_of_workgroup; }
  long long id() const { return id_ * shape_.cluster + rank(); }
  void workgroup_barrier(Site site) {
    if (shape_.cluster > 1)
      check(fmt::format("barrier at {}: a cluster's workgroups have cluster_barrier",
                        to_string(site)));
    barrier("barrier", site);
  }
  void barrier(const char* operation, Site site) { wait(Waits::barrier, operation, 0, site); }
  void wave_barrier(Site site) { wait(Waits::exchange, kWaveBarrier, 0, site); }
  // All lanes of the wave must agree upon the place.
  void named_barrier_arrive(int place, bool takes, Site site) {
    if (place < 1 || place >= kNamedBarriers)
      check(fmt::format("named_barrier_arrive: barrier {} at {}, of 1 to {}", place,
                        to_string(site), kNamedBarriers - 1));
    no_cluster("named_barrier_arrive", site);
    wait(takes ? Waits::named_barrier_sync : Waits::exchange,
         takes ? "named_barrier_sync" : kArrive, place, site);
  }
  // Ordering barrier of two warpgroups: one arrives without waiting, the other waits for it. It
  // orders nothing in LDS.
  void turn(int place, bool waits, Site site) {
    no_cluster("warpgroup_turn", site);
    wait(waits ? Waits::turn : Waits::exchange, waits ? kTurnWait : kTurnPass, place, site);
  }
  void mbarrier_init(int at, int arrivals, Site site) {
    check(mbarriers_.init(own_place(at, kMbarrierBytes, site), arrivals, site));
  }
  void mbarrier_arrive(int rank, int at, int expected, Site site) {
    check(mbarriers_.arrive(place_of(rank, at, kMbarrierBytes, site), expected, thread(),
                            thread() / shape_.wave_size, lds_, site));
  }
  // Place and parity are what lanes must agree upon.
  void mbarrier_wait(int at, int parity, Site site) {
    wait(Waits::mbarrier, kMbarrierWait, 2 * own_place(at, kMbarrierBytes, site) + parity, site);
  }
  void cluster_copy(int rank, int to, int from, int bytes, int barrier, Site site);
  void tma_load(int to, const void* map, const int (&first)[4], int barrier, Site site);
  void tma_store(TmaStore store);
  void tma_store_box(int from, const void* map, const int (&first)[4], Site site);
  void tma_wait_read();
  void tma_wait(int left);
  void counter_wait(const int* at, int count, Site site);
  const void* exchange(const char* operation, const void* mine, int bytes, Site site);
  void lds_read(int offset, void* to, int bytes, Site site) {
    check(lds_.read(own_place(offset, bytes, site), to, bytes, thread(), site));
    note(false, offset, bytes, site);
  }
  void lds_write(int offset, const void* from, int bytes, Site site) {
    check_values(from, bytes, "writes", site);
    check(lds_.write(own_place(offset, bytes, site), from, bytes, thread(), site));
    note(true, offset, bytes, site);
  }
  void check_global(const void* address, int bytes, const char* verb, Site site,
                    bool unaligned = false);
  void copy_async(int offset, const void* from, int bytes, int read_bytes, Site site);
  void copy_commit() {
    current_->in_flight.push_back(std::move(current_->uncommitted));
    current_->uncommitted.clear();
  }
  void copy_wait(int left);
  void grid_dependency_wait() { current_->follows = true; }
  void defer(void (*run)(const void*), const void* data, int bytes,
             const ProductRegisters& registers);
  void defer_commit() {
    current_->deferred.push_back(std::move(current_->begun));
    current_->begun.clear();
  }
  void defer_wait(int left);
  void lds_read_matrix(int offset, void* to, int bytes, Site site) {
    check(lds_.read_by_matrix_unit(own_place(offset, bytes, site), to, bytes, thread(), site));
  }
  void lds_fence() { lds_.fence(thread()); }
  void registers_fence() { current_->products.fence(); }
  void registers_hold(const void* sums, Site site) {
    check(current_->products.hold(static_cast<const std::byte*>(sums), thread(), site));
  }
  void join_warpgroup(const char* operation, const void* what, int bytes, bool anywhere,
                      Site site) {
    check(warpgroups_.join(thread(), operation, what, bytes, anywhere, site));
  }
  void set_registers(int count, bool more, int min_workgroups, Site site) {
    check(warpgroups_.set_registers(thread(), count, more, min_workgroups, site));
  }
  void check_values(const void* data, int bytes, const char* verb, Site site);

 private:
  // Returns the offset in the cluster's LDS of `bytes` at a place in a workgroup's LDS. The
  // workgroup must not have ended.
  int place_of(int rank, int at, int bytes, Site site);
  int own_place(int at, int bytes, Site site) {
    return shape_.cluster == 1 ? at : place_of(rank(), at, bytes, site);
  }
  void no_cluster(const char* operation, Site site) {
    if (shape_.cluster > 1)
      check(
          fmt::format("{} at {}: the emulator has none in a cluster", operation, to_string(site)));
  }
  void read_for_tma(TmaStore& store);
  void write_line(const TmaStore& store);
  void write_box(const TmaStore& store);
  static void enter(boost::context::detail::transfer_t from);
  void wait(Waits where, const char* operation, int bytes, Site site) {
    Lane& lane = *current_;
    lane.waits = where;
    lane.operation = operation;
    lane.bytes = bytes;
    lane.site = site;
    yield(scheduler_, lane.fiber, false);
  }
  // A lane that failed never continues.
  void check(std::string error) {
    if (error.empty()) return;
    fail(std::move(error));
    yield(scheduler_, current_->fiber, false);
  }
  void fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
  }
  // Records an access for the count of bank conflicts.
  void note(bool write, int offset, int bytes, Site site) {
    if (shape_.banks != nullptr)
      accesses_[static_cast<std::size_t>(thread() % shape_.wave_size)].push_back(
          {site, write, offset, bytes});
  }
  void check_end();
  void count_conflicts();
  bool run_wave(int wave);
  bool run_waves();
  bool hand(const Lane& lane);
  bool take(int wave, int place);
  bool arrive_at_turn(int place);
  // Returns true if the wave, which waits for others, may continue.
  bool resumes(int wave);
  // Returns the lane of the wave that waits for a counter, or null.
  Lane* counting(int wave);
  static int counted(const int* at);
  std::string missing(const Lane& lane) const;
  std::string place(const Lane& lane) const {
    if (lane.waits == Waits::done) return fmt::format("lane {} has ended", lane.thread);
    return fmt::format("lane {} is at {} ({})", lane.thread, lane.operation, to_string(lane.site));
  }

  LaunchShape shape_;
  long long id_ = 0;
  void (*kernel_)(const void*) = nullptr;
  const void* arguments_ = nullptr;
  const MemoryCheck* accessible_ = nullptr;
  Stacks stacks_;
  Fiber scheduler_;
  std::vector<Lane> lanes_;
  Lane* current_ = nullptr;
  Lds lds_;
  Warpgroups warpgroups_;
  // [lane of the running wave], since its last collective.
  std::vector<std::vector<LdsAccess>> accesses_;
  // Two buffers a wave, used alternately: a lane may be at the next exchange while others still
  // read the last one's.
  std::vector<std::byte> exchanged_;
  std::vector<int> exchanges_;  // [wave] their number so far
  HandedOver handed_over_[kNamedBarriers];
  struct Turn {
    int lanes = 0;  // that have arrived
    int ended = 0;  // how often as many as it takes
  };
  Turn turns_[kNamedBarriers];
  // For each wave that waits: how often its barrier had ended; -1: it does not wait.
  std::vector<int> turn_waited_;
  Mbarriers mbarriers_;
  std::string error_;
};

// The workgroup that runs in this thread.
inline thread_local Workgroup* running = nullptr;

}  // namespace fulmen::gpu::emulated
