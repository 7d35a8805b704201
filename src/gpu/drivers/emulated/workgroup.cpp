#include "gpu/drivers/emulated/workgroup.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <vector>

#include "gpu/drivers/emulated/fibers.h"
#include "gpu/drivers/emulated/lds.h"
#include "gpu/drivers/emulated/lds_banks.h"
#include "gpu/drivers/emulated/warpgroups.h"

namespace fulmen::gpu::emulated {
namespace {

constexpr int kMostExchangeBytes = 64;

struct AsyncCopy {
  int offset, bytes;
  std::byte data[16];
  Site site;
};

constexpr const char* kWaveBarrier = "wave_barrier";
constexpr const char* kArrive = "named_barrier_arrive";

// What a lane has begun and that is run at a wait.
struct Deferred {
  void (*run)(const void*) = nullptr;
  alignas(16) std::byte data[128];
  ProductRegisters registers;
};

enum class Waits { nowhere, exchange, named_barrier_sync, barrier, done };

// What one wave handed over and none took over yet.
struct HandedOver {
  int from = -1;
  int time = 0;
};
constexpr int kNamedBarriers = 16;  // of the hardware's barriers; the first is the workgroup's

struct Lane {
  Fiber fiber;
  int thread = 0;
  Waits waits = Waits::nowhere;
  const char* operation = "";
  int bytes = 0;
  Site site;
  std::vector<AsyncCopy> uncommitted;
  std::deque<std::vector<AsyncCopy>> in_flight;
  std::vector<Deferred> begun;
  std::deque<std::vector<Deferred>> deferred;
  LaneProducts products;
  bool follows = false;  // it has waited for earlier launches, or need not
};

class Workgroup {
 public:
  std::string run(const LaunchShape& shape, int64_t id, void (*kernel)(const void*), const void* arguments,
                  const MemoryCheck& accessible);

  // Called by lanes.
  void broken_rule(const char* what, Site site) { check(fmt::format("{} at {}: lane {}", what, to_string(site), thread())); }
  int thread() const { return current_->thread; }
  long long id() const { return id_; }
  void barrier(Site site) { wait(Waits::barrier, "barrier", 0, site); }
  void wave_barrier(Site site) { wait(Waits::exchange, kWaveBarrier, 0, site); }
  // The place is what lanes must agree upon.
  void named_barrier_arrive(int place, bool takes, Site site) {
    if (place < 1 || place >= kNamedBarriers)
      check(fmt::format("named_barrier_arrive: barrier {} at {}, of 1 to {}", place, to_string(site), kNamedBarriers - 1));
    wait(takes ? Waits::named_barrier_sync : Waits::exchange, takes ? "named_barrier_sync" : kArrive, place, site);
  }
  const void* exchange(const char* operation, const void* mine, int bytes, Site site);
  void lds_read(int offset, void* to, int bytes, Site site) {
    check(lds_.read(offset, to, bytes, thread(), site));
    note(false, offset, bytes, site);
  }
  void lds_write(int offset, const void* from, int bytes, Site site) {
    check_values(from, bytes, "writes", site);
    check(lds_.write(offset, from, bytes, thread(), site));
    note(true, offset, bytes, site);
  }
  void check_global(const void* address, int bytes, const char* verb, Site site, bool unaligned = false);
  void copy_async(int offset, const void* from, int bytes, int read_bytes, Site site);
  void copy_commit() {
    current_->in_flight.push_back(std::move(current_->uncommitted));
    current_->uncommitted.clear();
  }
  void copy_wait(int left);
  void grid_dependency_wait() { current_->follows = true; }
  void defer(void (*run)(const void*), const void* data, int bytes, const ProductRegisters& registers);
  void defer_commit() {
    current_->deferred.push_back(std::move(current_->begun));
    current_->begun.clear();
  }
  void defer_wait(int left);
  void lds_read_matrix(int offset, void* to, int bytes, Site site) {
    check(lds_.read_by_matrix_unit(offset, to, bytes, thread(), site));
  }
  void lds_fence() { lds_.fence(thread()); }
  void registers_fence() { current_->products.fence(); }
  void registers_hold(const void* sums, Site site) {
    check(current_->products.hold(static_cast<const std::byte*>(sums), thread(), site));
  }
  void join_warpgroup(const char* operation, const void* what, int bytes, bool anywhere, Site site) {
    check(warpgroups_.join(thread(), operation, what, bytes, anywhere, site));
  }
  void set_registers(int count, bool more, int min_workgroups, Site site) {
    check(warpgroups_.set_registers(thread(), count, more, min_workgroups, site));
  }
  void check_values(const void* data, int bytes, const char* verb, Site site);

 private:
  static void enter(boost::context::detail::transfer_t from);
  void wait(Waits where, const char* operation, int bytes, Site site) {
    Lane& lane = *current_;
    lane.waits = where;
    lane.operation = operation;
    lane.bytes = bytes;
    lane.site = site;
    yield(scheduler_, lane.fiber, false);
  }
  // The lane that failed never runs on.
  void check(std::string error) {
    if (error.empty()) return;
    fail(std::move(error));
    yield(scheduler_, current_->fiber, false);
  }
  void fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
  }
  // For the count of bank conflicts.
  void note(bool write, int offset, int bytes, Site site) {
    if (shape_.banks != nullptr)
      accesses_[static_cast<std::size_t>(thread() % shape_.wave_size)].push_back({site, write, offset, bytes});
  }
  void check_end();
  void count_conflicts();
  bool run_wave(int wave);
  bool run_waves();
  bool hand(const Lane& lane);
  bool take(int wave, int place);
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
  std::vector<std::vector<LdsAccess>> accesses_;  // of each lane of the running wave since its last collective
  // Two each wave, in turn: a lane may be at the next exchange while others still read the last one's.
  std::vector<std::byte> exchanged_;
  std::vector<int> exchanges_;  // of each wave so far
  HandedOver handed_over_[kNamedBarriers];
  std::string error_;
};

thread_local Workgroup* running = nullptr;

void Workgroup::enter(boost::context::detail::transfer_t from) {
  Workgroup& group = *running;
  entered(group.scheduler_, from);
  group.kernel_(group.arguments_);
  group.check_end();
  group.current_->waits = Waits::done;
  yield(group.scheduler_, group.current_->fiber, true);
}

const void* Workgroup::exchange(const char* operation, const void* mine, int bytes, Site site) {
  if (bytes > kMostExchangeBytes)
    check(fmt::format("{} at {}: {} bytes, at most {} are exchanged", operation, to_string(site), bytes, kMostExchangeBytes));
  check_values(mine, bytes, "gives to other lanes", site);
  const int wave = thread() / shape_.wave_size, lane = thread() % shape_.wave_size;
  const std::size_t buffer = static_cast<std::size_t>(2) * wave + exchanges_[static_cast<std::size_t>(wave)] % 2;
  std::byte* all = exchanged_.data() + buffer * static_cast<std::size_t>(shape_.wave_size) * kMostExchangeBytes;
  std::memcpy(all + static_cast<std::ptrdiff_t>(lane) * bytes, mine, static_cast<std::size_t>(bytes));
  wait(Waits::exchange, operation, bytes, site);
  return all;
}

void Workgroup::check_global(const void* address, int bytes, const char* verb, Site site, bool unaligned) {
  if (!unaligned && reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) != 0) {
    check(
        fmt::format("misaligned global memory: lane {} {} {} bytes of {} at {}", thread(), verb, bytes, address, to_string(site)));
  }
  if (!current_->follows) {
    check(fmt::format("early launch: lane {} {} {} bytes of global memory at {} before it waits for the launches ahead of it",
                      thread(), verb, bytes, to_string(site)));
  }
  if ((*accessible_)(address, static_cast<std::size_t>(bytes))) return;
  check(fmt::format("global memory out of bounds: lane {} {} {} bytes of {} at {}, outside every allocation", thread(), verb, bytes,
                    address, to_string(site)));
}

void Workgroup::check_values(const void* data, int bytes, const char* verb, Site site) {
  if (!has_unfinished_sums(data, bytes)) return;
  check(fmt::format("sums of a product before its wait: lane {} {} some at {}", thread(), verb, to_string(site)));
}

void Workgroup::check_end() {
  const Lane& lane = *current_;
  if (!lane.follows) check(fmt::format("early launch: lane {} ends and has not waited for the launches ahead of it", thread()));
  const std::vector<Deferred>* begun = &lane.begun;
  for (const std::vector<Deferred>& group : lane.deferred) begun = group.empty() ? begun : &group;
  if (!begun->empty()) {
    check(fmt::format("lane {} ends before the wait for its wgmma at {}", thread(), to_string(begun->front().registers.site)));
  }
}

void Workgroup::copy_async(int offset, const void* from, int bytes, int read_bytes, Site site) {
  if (read_bytes > 0) check_global(from, read_bytes, "copies", site);
  check(lds_.begin_copy(offset, bytes, thread(), site));
  AsyncCopy copy{offset, bytes, {}, site};
  std::memcpy(copy.data, from, static_cast<std::size_t>(read_bytes));
  current_->uncommitted.push_back(copy);
}

void Workgroup::copy_wait(int left) {
  auto& groups = current_->in_flight;
  for (; groups.size() > static_cast<std::size_t>(left); groups.pop_front()) {
    for (const AsyncCopy& copy : groups.front()) {
      check(lds_.arrive(copy.offset, copy.data, copy.bytes, thread(), copy.site));
      note(true, copy.offset, copy.bytes, copy.site);
    }
  }
}

void Workgroup::defer(void (*run)(const void*), const void* data, int bytes, const ProductRegisters& registers) {
  Deferred work;
  if (static_cast<std::size_t>(bytes) > sizeof(work.data)) {
    check(fmt::format("{} bytes of data at {}: at most {} wait", bytes, to_string(registers.site), sizeof(work.data)));
  }
  check(current_->products.begin(registers, thread()));
  work.run = run;
  work.registers = registers;
  std::memcpy(work.data, data, static_cast<std::size_t>(bytes));
  current_->begun.push_back(work);
}

void Workgroup::defer_wait(int left) {
  // It meets other lanes: this lane is current again when it goes on.
  Lane& lane = *current_;
  for (; lane.deferred.size() > static_cast<std::size_t>(left); lane.deferred.pop_front()) {
    for (const Deferred& work : lane.deferred.front()) {
      check(lane.products.arrive(work.registers, thread()));
      work.run(work.data);
      lane.products.arrived(work.registers);
    }
  }
  lane.products.wait();
}

void Workgroup::count_conflicts() {
  if (shape_.banks == nullptr) return;
  shape_.banks->count(accesses_);
  for (auto& lane : accesses_) lane.clear();
}

bool Workgroup::hand(const Lane& lane) {
  const int place = lane.bytes, wave = lane.thread / shape_.wave_size;
  HandedOver& there = handed_over_[place];
  if (there.from >= 0) {
    fail(fmt::format("{}, barrier {} again: no wave has synchronised on it since the last arrival", this->place(lane), place));
    return false;
  }
  there = {wave, lds_.named_barrier_arrive()};
  return true;
}

bool Workgroup::take(int wave, int place) {
  HandedOver& there = handed_over_[place];
  if (there.from < 0) return false;
  lds_.named_barrier_sync(there.from, wave, there.time);
  there = {};
  return true;
}

// Runs all waves until each waits at the workgroup's barrier or has ended.
bool Workgroup::run_waves() {
  const int waves = static_cast<int>(exchanges_.size());
  const auto first = [&](int wave) -> const Lane& {
    return lanes_[static_cast<std::size_t>(wave) * static_cast<std::size_t>(shape_.wave_size)];
  };
  std::vector<bool> rests(exchanges_.size());
  while (true) {
    const Lane* waits = nullptr;
    bool ran = false;
    for (int w = 0; w < waves; ++w) {
      if (rests[static_cast<std::size_t>(w)]) continue;
      if (first(w).waits == Waits::named_barrier_sync && !take(w, first(w).bytes)) {
        waits = &first(w);
        continue;
      }
      ran = true;
      if (!run_wave(w)) return false;
      rests[static_cast<std::size_t>(w)] = first(w).waits != Waits::named_barrier_sync;
      if (first(w).waits == Waits::named_barrier_sync) waits = &first(w);
    }
    if (waits == nullptr) return true;
    if (!ran) {
      fail(fmt::format("{}, at which no wave has arrived", place(*waits)));
      return false;
    }
  }
}

// Runs a wave's lanes until all wait for other waves or have ended.
bool Workgroup::run_wave(int wave) {
  Lane* first = lanes_.data() + static_cast<std::ptrdiff_t>(wave) * shape_.wave_size;
  while (true) {
    for (int l = 0; l < shape_.wave_size; ++l) {
      current_ = first + l;
      current_->waits = Waits::nowhere;
      resume(scheduler_, current_->fiber);
      if (!error_.empty()) return false;
    }
    count_conflicts();
    for (int l = 1; l < shape_.wave_size; ++l) {
      const Lane &a = *first, &b = first[l];
      const bool same_site = a.site.line == b.site.line && std::strcmp(a.site.file, b.site.file) == 0 && a.bytes == b.bytes &&
                             std::strcmp(a.operation, b.operation) == 0;
      if (a.waits == b.waits && (a.waits == Waits::done || same_site)) continue;
      fail(fmt::format("lanes disagree: {}, {}", place(a), place(b)));
      return false;
    }
    if (first->waits == Waits::named_barrier_sync && take(wave, first->bytes)) continue;
    if (first->waits != Waits::exchange) return true;
    ++exchanges_[static_cast<std::size_t>(wave)];
    if (std::strcmp(first->operation, kWaveBarrier) == 0) lds_.wave_barrier(wave);
    if (std::strcmp(first->operation, kArrive) == 0 && !hand(*first)) return false;
  }
}

std::string Workgroup::run(const LaunchShape& shape, int64_t id, void (*kernel)(const void*), const void* arguments,
                           const MemoryCheck& accessible) {
  shape_ = shape;
  id_ = id;
  kernel_ = kernel;
  arguments_ = arguments;
  accessible_ = &accessible;
  error_.clear();
  accesses_.assign(shape.banks != nullptr ? static_cast<std::size_t>(shape.wave_size) : 0, {});
  const int waves = shape.workgroup_size / shape.wave_size;
  lds_.reset(shape.lds_bytes, waves, shape.wave_size, shape.lds_alignment);
  warpgroups_.reset(shape.workgroup_size);
  for (HandedOver& place : handed_over_) place = {};
  exchanges_.assign(static_cast<std::size_t>(waves), 0);
  exchanged_.resize(static_cast<std::size_t>(2) * waves * shape.wave_size * kMostExchangeBytes);
  lanes_.resize(static_cast<std::size_t>(shape.workgroup_size));
  for (int t = 0; t < shape.workgroup_size; ++t) {
    Lane& lane = lanes_[static_cast<std::size_t>(t)];
    lane.thread = t;
    lane.waits = Waits::nowhere;
    lane.uncommitted.clear();
    lane.in_flight.clear();
    lane.begun.clear();
    lane.deferred.clear();
    lane.products.reset();
    lane.follows = !shape.programmatic_launch;
    char* stack = stacks_.get(t);
    if (stack == nullptr) return "no memory for the lanes' stacks";
    start(lane.fiber, stack, enter);
  }
  running = this;
  while (error_.empty()) {
    if (!run_waves()) break;
    for (const Lane& lane : lanes_) {
      const Lane& first = lanes_.front();
      const bool same =
          lane.waits == first.waits &&
          (lane.waits == Waits::done || (lane.site.line == first.site.line && std::strcmp(lane.site.file, first.site.file) == 0));
      if (!same) {
        fail(fmt::format("divergent barrier: {}, {}", place(first), place(lane)));
        break;
      }
    }
    if (error_.empty()) error_ = warpgroups_.meet();
    if (!error_.empty() || lanes_.empty() || lanes_.front().waits == Waits::done) break;
    lds_.barrier();
  }
  running = nullptr;
  return error_.empty() ? error_ : fmt::format("workgroup {}: {}", id, error_);
}

// The table's functions.
void api_fail(const char* what, const char* file, int line) { running->broken_rule(what, {file, line}); }
int api_thread_id() { return running->thread(); }
long long api_workgroup_id() { return running->id(); }
void api_barrier(const char* file, int line) { running->barrier({file, line}); }
void api_wave_barrier(const char* file, int line) { running->wave_barrier({file, line}); }
void api_named_barrier_arrive(int place, bool takes, const char* file, int line) {
  running->named_barrier_arrive(place, takes, {file, line});
}
const void* api_exchange(const char* operation, const void* mine, int bytes, const char* file, int line) {
  return running->exchange(operation, mine, bytes, {file, line});
}
void api_lds_read(int offset, void* to, int bytes, const char* file, int line) {
  running->lds_read(offset, to, bytes, {file, line});
}
void api_lds_write(int offset, const void* from, int bytes, const char* file, int line) {
  running->lds_write(offset, from, bytes, {file, line});
}
void api_global_read(const void* from, void* to, int bytes, bool unaligned, const char* file, int line) {
  running->check_global(from, bytes, "reads", {file, line}, unaligned);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void api_global_write(void* to, const void* from, int bytes, const char* file, int line) {
  running->check_values(from, bytes, "writes", {file, line});
  running->check_global(to, bytes, "writes", {file, line});
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void api_global_add(float* at, const float* values, int count, const char* file, int line) {
  running->check_values(values, count * static_cast<int>(sizeof(float)), "adds", {file, line});
  running->check_global(at, count * static_cast<int>(sizeof(float)), "adds to", {file, line});
  // Workgroups run on several threads.
  for (int n = 0; n < count; ++n) std::atomic_ref<float>(at[n]).fetch_add(values[n], std::memory_order_relaxed);
}
void api_copy_async(int offset, const void* from, int bytes, int read_bytes, const char* file, int line) {
  running->copy_async(offset, from, bytes, read_bytes, {file, line});
}
void api_copy_commit() { running->copy_commit(); }
void api_copy_wait(int left, const char* /*file*/, int /*line*/) { running->copy_wait(left); }
void api_grid_dependency_wait() { running->grid_dependency_wait(); }
void api_defer(void (*run)(const void*), const void* data, int bytes, void* sums, int sum_bytes, const void* rows, const char* file,
               int line) {
  running->defer(run, data, bytes, {static_cast<std::byte*>(sums), sum_bytes, static_cast<const std::byte*>(rows), {file, line}});
}
void api_defer_commit() { running->defer_commit(); }
void api_defer_wait(int left) { running->defer_wait(left); }
void api_registers_fence() { running->registers_fence(); }
void api_registers_hold(const void* sums, const char* file, int line) { running->registers_hold(sums, {file, line}); }
void api_join_warpgroup(const char* operation, const void* what, int bytes, bool anywhere, const char* file, int line) {
  running->join_warpgroup(operation, what, bytes, anywhere, {file, line});
}
void api_set_registers(int count, bool more, int min_workgroups, const char* file, int line) {
  running->set_registers(count, more, min_workgroups, {file, line});
}
void api_lds_read_matrix(int offset, void* to, int bytes, const char* file, int line) {
  running->lds_read_matrix(offset, to, bytes, {file, line});
}
void api_lds_fence() { running->lds_fence(); }

EmulatorApi make_api(int wave_size) {
  return {.size = sizeof(EmulatorApi),
          .wave_size = wave_size,
          .fail = api_fail,
          .thread_id = api_thread_id,
          .workgroup_id = api_workgroup_id,
          .barrier = api_barrier,
          .wave_barrier = api_wave_barrier,
          .named_barrier_arrive = api_named_barrier_arrive,
          .exchange = api_exchange,
          .lds_read = api_lds_read,
          .lds_write = api_lds_write,
          .global_read = api_global_read,
          .global_write = api_global_write,
          .global_add = api_global_add,
          .copy_async = api_copy_async,
          .copy_commit = api_copy_commit,
          .copy_wait = api_copy_wait,
          .grid_dependency_wait = api_grid_dependency_wait,
          .defer = api_defer,
          .defer_commit = api_defer_commit,
          .defer_wait = api_defer_wait,
          .registers_fence = api_registers_fence,
          .registers_hold = api_registers_hold,
          .join_warpgroup = api_join_warpgroup,
          .set_registers = api_set_registers,
          .lds_read_matrix = api_lds_read_matrix,
          .lds_fence = api_lds_fence};
}

}  // namespace

const EmulatorApi& api(int wave_size) {
  static const EmulatorApi kWave32 = make_api(32), kWave64 = make_api(64);
  return wave_size == 64 ? kWave64 : kWave32;
}

std::string run_workgroup(const LaunchShape& shape, int64_t workgroup, void (*kernel)(const void*), const void* arguments,
                          const MemoryCheck& accessible) {
  static thread_local Workgroup group;
  return group.run(shape, workgroup, kernel, arguments, accessible);
}

}  // namespace fulmen::gpu::emulated
