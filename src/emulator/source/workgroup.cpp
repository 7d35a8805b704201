#include "emulator/source/workgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "emulator/source/running_workgroup.h"

namespace fulmen::gpu::emulated {
namespace {

constexpr int kTurnLanes = 256;  // of two warpgroups: one passes its turn, the other waits for it

bool waits_for_wave(const Lane& lane) {
  return lane.waits == Waits::named_barrier_sync || lane.waits == Waits::turn ||
         lane.waits == Waits::mbarrier;
}

// Returns the flops of a wave's matrix instruction, whose name ends with its three sizes:
// "mma_f32_16x8x16". 0 for other collectives.
double flops_of(const char* operation) {
  int m = 0, n = 0, k = 0;
  const char* sizes = std::strrchr(operation, '_');
  return sizes != nullptr && std::sscanf(sizes, "_%dx%dx%d", &m, &n, &k) == 3 ? 2.0 * m * n * k : 0;
}

// Visits each piece of a box with its places in the box and in memory. Pieces past the tensor's end
// are left out.
template <class Visit>
void for_each_piece(const TmaStore& store, const Visit& visit) {
  const auto [column, row, head, batch] = store.first;
  for (int n = 0; n < store.map.box_rows; ++n) {
    for (int p = 0; p < TmaCopy::kPieces; ++p) {
      const EmulatedTensorMap::Piece piece =
          store.map.piece(column + TmaCopy::kPieceColumns * p, row + n, head, batch);
      if (piece.bytes > 0) visit(TmaCopy::place(n, p), piece);
    }
  }
}

}  // namespace

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
    check(fmt::format("{} at {}: {} bytes, at most {} are exchanged", operation, to_string(site),
                      bytes, kMostExchangeBytes));
  check_values(mine, bytes, "gives to other lanes", site);
  const int wave = thread() / shape_.wave_size, lane = thread() % shape_.wave_size;
  const std::size_t buffer =
      static_cast<std::size_t>(2) * wave + exchanges_[static_cast<std::size_t>(wave)] % 2;
  std::byte* all =
      exchanged_.data() + buffer * static_cast<std::size_t>(shape_.wave_size) * kMostExchangeBytes;
  std::memcpy(all + static_cast<std::ptrdiff_t>(lane) * bytes, mine,
              static_cast<std::size_t>(bytes));
  wait(Waits::exchange, operation, bytes, site);
  return all;
}

void Workgroup::check_global(const void* address, int bytes, const char* verb, Site site,
                             bool unaligned) {
  if (!unaligned &&
      reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) != 0) {
    check(fmt::format("misaligned global memory: lane {} {} {} bytes of {} at {}", thread(), verb,
                      bytes, address, to_string(site)));
  }
  if (shape_.work != nullptr) shape_.work->global_bytes += bytes;
  if (!current_->follows) {
    check(
        fmt::format("early launch: lane {} {} {} bytes of global memory at {} before it waits for "
                    "the launches ahead of it",
                    thread(), verb, bytes, to_string(site)));
  }
  if ((*accessible_)(address, static_cast<std::size_t>(bytes))) return;
  check(fmt::format(
      "global memory out of bounds: lane {} {} {} bytes of {} at {}, outside every allocation",
      thread(), verb, bytes, address, to_string(site)));
}

void Workgroup::check_values(const void* data, int bytes, const char* verb, Site site) {
  if (!has_unfinished_sums(data, bytes)) return;
  check(fmt::format("sums of a product before its wait: lane {} {} some at {}", thread(), verb,
                    to_string(site)));
}

void Workgroup::check_end() {
  const Lane& lane = *current_;
  if (!lane.follows)
    check(fmt::format("early launch: lane {} ends and has not waited for the launches ahead of it",
                      thread()));
  if (!lane.stores.empty()) {
    check(fmt::format("lane {} ends before the wait for its tma_store at {}", thread(),
                      to_string(lane.stores.front().site)));
  }
  const std::vector<Deferred>* begun = &lane.begun;
  for (const std::vector<Deferred>& group : lane.deferred) begun = group.empty() ? begun : &group;
  if (!begun->empty()) {
    check(fmt::format("lane {} ends before the wait for its wgmma at {}", thread(),
                      to_string(begun->front().registers.site)));
  }
}

void Workgroup::copy_async(int offset, const void* from, int bytes, int read_bytes, Site site) {
  if (read_bytes > 0) check_global(from, read_bytes, "copies", site);
  offset = own_place(offset, bytes, site);
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

void Workgroup::defer(void (*run)(const void*), const void* data, int bytes,
                      const ProductRegisters& registers) {
  Deferred work;
  if (static_cast<std::size_t>(bytes) > sizeof(work.data)) {
    check(fmt::format("{} bytes of data at {}: at most {} wait", bytes, to_string(registers.site),
                      sizeof(work.data)));
  }
  check(current_->products.begin(registers, thread()));
  work.run = run;
  work.registers = registers;
  std::memcpy(work.data, data, static_cast<std::size_t>(bytes));
  current_->begun.push_back(work);
  // Flops of a lane's part of a warpgroup's product of 64 rows and 16 dims, per byte of its fp32
  // sums.
  constexpr double kFlopsPerByte = 8;
  if (shape_.work != nullptr) shape_.work->matrix_flops += kFlopsPerByte * registers.sum_bytes;
}

void Workgroup::defer_wait(int left) {
  // Products meet other lanes. This lane is the current one again when it continues.
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
  shape_.banks->count(accesses_, shape_.lds_reads);
  for (auto& lane : accesses_) lane.clear();
}

bool Workgroup::hand(const Lane& lane) {
  const int place = lane.bytes, wave = lane.thread / shape_.wave_size;
  HandedOver& there = handed_over_[place];
  if (there.from >= 0) {
    fail(fmt::format("{}, barrier {} again: no wave has synchronised on it since the last arrival",
                     this->place(lane), place));
    return false;
  }
  there = {wave, lds_.named_barrier_arrive()};
  return true;
}

bool Workgroup::arrive_at_turn(int place) {
  Turn& turn = turns_[place];
  turn.lanes += shape_.wave_size;
  if (turn.lanes < kTurnLanes) return false;
  turn.lanes = 0;
  ++turn.ended;
  return true;
}

bool Workgroup::resumes(int wave) {
  if (const Lane* lane = counting(wave); lane != nullptr)
    return counted(lane->counter) >= lane->bytes;
  const Lane& first =
      lanes_[static_cast<std::size_t>(wave) * static_cast<std::size_t>(shape_.wave_size)];
  if (first.waits == Waits::named_barrier_sync) return take(wave, first.bytes);
  if (first.waits == Waits::mbarrier) {
    return mbarriers_.try_wait(first.bytes / 2, first.bytes % 2, wave, lds_, *accessible_, error_);
  }
  // A turn: the wave arrives when it comes.
  int& waited = turn_waited_[static_cast<std::size_t>(wave)];
  if (waited < 0) {
    waited = turns_[first.bytes].ended;
    arrive_at_turn(first.bytes);
  }
  if (turns_[first.bytes].ended == waited) return false;
  waited = -1;
  return true;
}

void Workgroup::tma_load(int to, const void* map, const int (&first)[4], int barrier, Site site) {
  TmaCopy copy{to, {}, first[0], first[1], first[2], first[3], thread(), site};
  std::memcpy(&copy.map, map, sizeof(copy.map));
  copy.to = own_place(to, copy.bytes(), site);
  check(mbarriers_.load(own_place(barrier, kMbarrierBytes, site), copy, lds_));
  if (shape_.work != nullptr) shape_.work->global_bytes += copy.bytes();
}

void Workgroup::cluster_copy(int rank, int to, int from, int bytes, int barrier, Site site) {
  const ClusterCopy copy{place_of(rank, to, bytes, site), own_place(from, bytes, site), bytes,
                         thread(), site};
  // The copy must not be made within check(): a lane that failed does not return from it, so the
  // copy would stay.
  std::string wrong = mbarriers_.copy(place_of(rank, barrier, kMbarrierBytes, site), copy, lds_);
  check(std::move(wrong));
}

int Workgroup::place_of(int rank, int at, int bytes, Site site) {
  if (rank < 0 || rank >= shape_.cluster || at < 0 || at + bytes > shape_.lds_bytes) {
    check(
        fmt::format("{} bytes at {} of workgroup {} of a cluster at {}: {} workgroups have {} "
                    "bytes of LDS each",
                    bytes, at, rank, to_string(site), shape_.cluster, shape_.lds_bytes));
  }
  const auto first = lanes_.begin() + static_cast<std::ptrdiff_t>(rank) * shape_.workgroup_size;
  if (rank != this->rank() &&
      std::all_of(first, first + shape_.workgroup_size,
                  [](const Lane& lane) { return lane.waits == Waits::done; })) {
    check(
        fmt::format("lane {} reaches at {} for LDS of workgroup {} of the cluster, which has ended",
                    thread(), to_string(site), rank));
  }
  return rank * shape_.lds_stride() + at;
}

void Workgroup::tma_store(TmaStore store) {
  constexpr int kPiece = 16;
  if (store.bytes <= 0 || store.bytes % kPiece != 0 || store.from % kPiece != 0 ||
      reinterpret_cast<std::uintptr_t>(store.to) % kPiece != 0) {
    check(fmt::format(
        "{} at {}: lane {} brings {} bytes at {} of LDS to {}: multiples of {} are accepted",
        store.adds ? "tma_add" : "tma_store", to_string(store.site), thread(), store.bytes,
        store.from, static_cast<const void*>(store.to), kPiece));
  }
  current_->stores.push_back(std::move(store));
}

void Workgroup::tma_store_box(int from, const void* map, const int (&first)[4], Site site) {
  TmaStore store{nullptr, {}, std::to_array(first), from, 0, false, site, {}};
  std::memcpy(&store.map, map, sizeof(store.map));
  store.bytes = store.map.box_rows * TmaCopy::kRowBytes;
  if (from % TmaCopy::kAlignment != 0) {
    check(fmt::format("tma_store_box at {}: from {}, no multiple of {}", to_string(site), from,
                      TmaCopy::kAlignment));
  }
  current_->stores.push_back(std::move(store));
}

void Workgroup::tma_wait_read() {
  for (TmaStore& store : current_->stores) read_for_tma(store);
}

void Workgroup::read_for_tma(TmaStore& store) {
  if (!store.values.empty()) return;
  store.values.resize(static_cast<std::size_t>(store.bytes) / sizeof(float));
  auto* const values = reinterpret_cast<std::byte*>(store.values.data());
  if (store.to == nullptr) {
    for_each_piece(store, [&](int place, const EmulatedTensorMap::Piece& piece) {
      lds_read_matrix(store.from + place, values + place, static_cast<int>(piece.bytes),
                      store.site);
    });
  } else {
    lds_read_matrix(store.from, values, store.bytes, store.site);
  }
  check_values(store.values.data(), store.bytes, "brings", store.site);
}

void Workgroup::tma_wait(int left) {
  for (auto& stores = current_->stores; stores.size() > static_cast<std::size_t>(left);
       stores.pop_front()) {
    TmaStore& store = stores.front();
    read_for_tma(store);
    store.to == nullptr ? write_box(store) : write_line(store);
  }
}

void Workgroup::write_line(const TmaStore& store) {
  constexpr int kFloats = 4;  // in a piece
  for (std::size_t n = 0; n < store.values.size(); ++n) {
    if (n % kFloats == 0)
      check_global(store.to + n, kFloats * sizeof(float), store.adds ? "adds to" : "writes",
                   store.site);
    const std::atomic_ref<float> element(store.to[n]);
    if (store.adds) {
      element.fetch_add(store.values[n], std::memory_order_relaxed);
    } else {
      element.store(store.values[n], std::memory_order_relaxed);
    }
  }
}

void Workgroup::write_box(const TmaStore& store) {
  const auto* values = reinterpret_cast<const std::byte*>(store.values.data());
  for_each_piece(store, [&](int place, const EmulatedTensorMap::Piece& piece) {
    check_global(piece.at, static_cast<int>(piece.bytes), "writes", store.site);
    std::memcpy(const_cast<std::byte*>(piece.at), values + place, piece.bytes);
  });
}

// Workgroups with lower numbers have ended; another wave of this one may still count.
void Workgroup::counter_wait(const int* at, int count, Site site) {
  check_global(at, sizeof(int), "reads", site);
  current_->counter = at;
  while (counted(at) < count) wait(Waits::counter, "counter_wait", count, site);
}

int Workgroup::counted(const int* at) {
  return std::atomic_ref<const int>(*at).load(std::memory_order_acquire);
}

Lane* Workgroup::counting(int wave) {
  const auto first = lanes_.begin() + static_cast<std::ptrdiff_t>(wave) * shape_.wave_size;
  const auto lane = std::find_if(first, first + shape_.wave_size,
                                 [](const Lane& l) { return l.waits == Waits::counter; });
  return lane == first + shape_.wave_size ? nullptr : &*lane;
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
  const auto waiting = [&](int wave) -> const Lane* {
    if (const Lane* lane = counting(wave); lane != nullptr) return lane;
    return waits_for_wave(first(wave)) ? &first(wave) : nullptr;
  };
  std::vector<bool> rests(exchanges_.size());
  while (true) {
    const Lane* waits = nullptr;
    bool ran = false;
    // If all lanes wait, a counter is more likely the cause than an mbarrier.
    const auto note_waiting = [&](int wave) {
      if (waits == nullptr || waits->waits != Waits::counter) waits = waiting(wave);
    };
    for (int w = 0; w < waves; ++w) {
      if (rests[static_cast<std::size_t>(w)]) continue;
      if (waiting(w) != nullptr && !resumes(w)) {
        if (!error_.empty()) return false;
        note_waiting(w);
        continue;
      }
      ran = true;
      if (!run_wave(w)) return false;
      rests[static_cast<std::size_t>(w)] = waiting(w) == nullptr;
      if (waiting(w) != nullptr) note_waiting(w);
    }
    if (waits == nullptr) return true;
    if (!ran) {
      fail(missing(*waits));
      return false;
    }
  }
}

// Returns what a lane that waits for another wave or workgroup lacks.
std::string Workgroup::missing(const Lane& lane) const {
  if (lane.waits == Waits::mbarrier)
    return fmt::format("{}, {}", place(lane), mbarriers_.missing(lane.bytes / 2));
  if (lane.waits != Waits::counter)
    return fmt::format("{}, at which no wave has arrived", place(lane));
  return fmt::format(
      "counter_wait at {}: the counter at {} is {} when all workgroups below {} have ended and no "
      "wave can go on, lane {} waits "
      "for {}",
      to_string(lane.site), static_cast<const void*>(lane.counter), counted(lane.counter), id(),
      lane.thread, lane.bytes);
}

// Runs a wave's lanes until all wait for other waves or have ended. Where one waits for a counter
// the others have gone as far as they get without it.
bool Workgroup::run_wave(int wave) {
  Lane* first = lanes_.data() + static_cast<std::ptrdiff_t>(wave) * shape_.wave_size;
  while (true) {
    const bool counts = counting(wave) != nullptr;
    for (int l = 0; l < shape_.wave_size; ++l) {
      current_ = first + l;
      if (counts && current_->waits != Waits::counter) continue;
      current_->waits = Waits::nowhere;
      resume(scheduler_, current_->fiber);
      if (!error_.empty()) return false;
    }
    if (counting(wave) != nullptr) return true;
    count_conflicts();
    for (int l = 1; l < shape_.wave_size; ++l) {
      const Lane &a = *first, &b = first[l];
      const auto same = [](const char* x, const char* y) {
        return x == y || std::strcmp(x, y) == 0;
      };
      const bool same_site = a.site.line == b.site.line && same(a.site.file, b.site.file) &&
                             a.bytes == b.bytes && same(a.operation, b.operation);
      if (a.waits == b.waits && (a.waits == Waits::done || same_site)) continue;
      fail(fmt::format("lanes disagree: {}, {}", place(a), place(b)));
      return false;
    }
    if (waits_for_wave(*first)) {
      if (resumes(wave)) continue;
      return error_.empty();
    }
    if (first->waits != Waits::exchange) return true;
    ++exchanges_[static_cast<std::size_t>(wave)];
    if (shape_.work != nullptr) shape_.work->matrix_flops += flops_of(first->operation);
    if (std::strcmp(first->operation, kWaveBarrier) == 0) lds_.wave_barrier(wave);
    if (std::strcmp(first->operation, kArrive) == 0 && !hand(*first)) return false;
    if (std::strcmp(first->operation, kTurnPass) == 0) arrive_at_turn(first->bytes);
  }
}

std::string Workgroup::run(const LaunchShape& shape, int64_t id, void (*kernel)(const void*),
                           const void* arguments, const MemoryCheck& accessible) {
  shape_ = shape;
  id_ = id;
  kernel_ = kernel;
  arguments_ = arguments;
  accessible_ = &accessible;
  error_.clear();
  accesses_.assign(shape.banks != nullptr ? static_cast<std::size_t>(shape.wave_size) : 0, {});
  const int waves = shape.lanes() / shape.wave_size;
  lds_.reset(shape.cluster == 1 ? shape.lds_bytes : shape.cluster * shape.lds_stride(), waves,
             shape.wave_size, shape.lds_alignment);
  warpgroups_.reset(shape.lanes(), shape.workgroup_size);
  for (HandedOver& place : handed_over_) place = {};
  for (Turn& turn : turns_) turn = {};
  turn_waited_.assign(static_cast<std::size_t>(waves), -1);
  mbarriers_.reset(waves);
  exchanges_.assign(static_cast<std::size_t>(waves), 0);
  exchanged_.resize(static_cast<std::size_t>(2) * waves * shape.wave_size * kMostExchangeBytes);
  lanes_.resize(static_cast<std::size_t>(shape.lanes()));
  for (int t = 0; t < shape.lanes(); ++t) {
    Lane& lane = lanes_[static_cast<std::size_t>(t)];
    lane.thread = t;
    lane.rank = t / shape.workgroup_size;
    lane.thread_of_workgroup = t % shape.workgroup_size;
    lane.waits = Waits::nowhere;
    lane.operation = "";
    lane.site = {};  // the last kernel's text may be gone
    lane.uncommitted.clear();
    lane.in_flight.clear();
    lane.begun.clear();
    lane.deferred.clear();
    lane.stores.clear();
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
          (lane.waits == Waits::done || (lane.site.line == first.site.line &&
                                         std::strcmp(lane.site.file, first.site.file) == 0));
      if (!same) {
        fail(fmt::format("divergent barrier: {}, {}", place(first), place(lane)));
        break;
      }
    }
    if (error_.empty()) error_ = warpgroups_.meet();
    if (!error_.empty() || lanes_.empty() || lanes_.front().waits == Waits::done) break;
    lds_.barrier();
    if (shape_.work != nullptr) ++shape_.work->barriers;
  }
  running = nullptr;
  if (error_.empty()) error_ = mbarriers_.end();
  return error_.empty()
             ? error_
             : fmt::format("{} {}: {}", shape.cluster == 1 ? "workgroup" : "cluster", id, error_);
}

std::string run_workgroup(const LaunchShape& shape, int64_t nth, void (*kernel)(const void*),
                          const void* arguments, const MemoryCheck& accessible) {
  static thread_local Workgroup group;
  return group.run(shape, nth, kernel, arguments, accessible);
}

}  // namespace fulmen::gpu::emulated
