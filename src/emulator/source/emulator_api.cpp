// The table of functions by which kernels call the emulator (kernels/platforms/emulator_api.h).
#include <atomic>
#include <cstring>

#include "emulator/source/running_workgroup.h"

namespace fulmen::gpu::emulated {
namespace {

void api_fail(const char* what, const char* file, int line) {
  running->broken_rule(what, {file, line});
}
int api_thread_id() { return running->thread_of_workgroup(); }
long long api_workgroup_id() { return running->id(); }
void api_barrier(const char* file, int line) { running->workgroup_barrier({file, line}); }
void api_cluster_barrier(const char* file, int line) {
  running->barrier("cluster_barrier", {file, line});
}
int api_cluster_rank() { return running->rank(); }
void api_wave_barrier(const char* file, int line) { running->wave_barrier({file, line}); }
void api_named_barrier_arrive(int place, bool takes, const char* file, int line) {
  running->named_barrier_arrive(place, takes, {file, line});
}
const void* api_exchange(const char* operation, const void* mine, int bytes, const char* file,
                         int line) {
  return running->exchange(operation, mine, bytes, {file, line});
}
void api_lds_read(int offset, void* to, int bytes, const char* file, int line) {
  running->lds_read(offset, to, bytes, {file, line});
}
void api_lds_write(int offset, const void* from, int bytes, const char* file, int line) {
  running->lds_write(offset, from, bytes, {file, line});
}
void api_global_read(const void* from, void* to, int bytes, bool unaligned, const char* file,
                     int line) {
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
  for (int n = 0; n < count; ++n)
    std::atomic_ref<float>(at[n]).fetch_add(values[n], std::memory_order_relaxed);
}
void api_global_add_int64(long long* at, long long x, const char* file, int line) {
  running->check_global(at, sizeof(long long), "adds to", {file, line});
  std::atomic_ref<long long>(*at).fetch_add(x, std::memory_order_relaxed);
}
void api_copy_async(int offset, const void* from, int bytes, int read_bytes, const char* file,
                    int line) {
  running->copy_async(offset, from, bytes, read_bytes, {file, line});
}
void api_copy_commit() { running->copy_commit(); }
void api_copy_wait(int left, const char* /*file*/, int /*line*/) { running->copy_wait(left); }
void api_grid_dependency_wait() { running->grid_dependency_wait(); }
void api_defer(void (*run)(const void*), const void* data, int bytes, void* sums, int sum_bytes,
               const void* rows, const char* file, int line) {
  running->defer(run, data, bytes,
                 {static_cast<std::byte*>(sums),
                  sum_bytes,
                  static_cast<const std::byte*>(rows),
                  {file, line}});
}
void api_defer_commit() { running->defer_commit(); }
void api_defer_wait(int left) { running->defer_wait(left); }
void api_registers_fence() { running->registers_fence(); }
void api_registers_hold(const void* sums, const char* file, int line) {
  running->registers_hold(sums, {file, line});
}
void api_join_warpgroup(const char* operation, const void* what, int bytes, bool anywhere,
                        const char* file, int line) {
  running->join_warpgroup(operation, what, bytes, anywhere, {file, line});
}
void api_set_registers(int count, bool more, int min_workgroups, const char* file, int line) {
  running->set_registers(count, more, min_workgroups, {file, line});
}
void api_lds_read_matrix(int offset, void* to, int bytes, const char* file, int line) {
  running->lds_read_matrix(offset, to, bytes, {file, line});
}
void api_lds_fence() { running->lds_fence(); }
void api_turn(int place, bool waits, const char* file, int line) {
  running->turn(place, waits, {file, line});
}
void api_mbarrier_init(int at, int arrivals, const char* file, int line) {
  running->mbarrier_init(at, arrivals, {file, line});
}
void api_mbarrier_arrive(int at, int expected, const char* file, int line) {
  running->mbarrier_arrive(running->rank(), at, expected, {file, line});
}
void api_mbarrier_arrive_at(int rank, int at, const char* file, int line) {
  running->mbarrier_arrive(rank, at, 0, {file, line});
}
void api_cluster_copy(int rank, int to, int from, int bytes, int barrier, const char* file,
                      int line) {
  running->cluster_copy(rank, to, from, bytes, barrier, {file, line});
}
void api_mbarrier_wait(int at, int parity, const char* file, int line) {
  running->mbarrier_wait(at, parity, {file, line});
}
void api_tma_load(int to, const void* map, const int (*first)[4], int barrier, const char* file,
                  int line) {
  running->tma_load(to, map, *first, barrier, {file, line});
}

void api_tma_store(float* to, int from, int bytes, bool adds, const char* file, int line) {
  running->tma_store({to, {}, {}, from, bytes, adds, {file, line}, {}});
}
void api_tma_store_box(int from, const void* map, const int (*first)[4], const char* file,
                       int line) {
  running->tma_store_box(from, map, *first, {file, line});
}
void api_tma_wait_read() { running->tma_wait_read(); }
void api_tma_wait(int left) { running->tma_wait(left); }
void api_counter_wait(const int* at, int count, const char* file, int line) {
  running->counter_wait(at, count, {file, line});
}
int api_counter_pass(int* at, const char* file, int line) {
  running->check_global(at, sizeof(int), "adds to", {file, line});
  return std::atomic_ref<int>(*at).fetch_add(1, std::memory_order_acq_rel);
}

constexpr kernels::EmulatorApi make_api(int wave_size) {
  return {.size = sizeof(kernels::EmulatorApi),
          .wave_size = wave_size,
          .fail = api_fail,
          .thread_id = api_thread_id,
          .workgroup_id = api_workgroup_id,
          .barrier = api_barrier,
          .cluster_barrier = api_cluster_barrier,
          .cluster_rank = api_cluster_rank,
          .wave_barrier = api_wave_barrier,
          .named_barrier_arrive = api_named_barrier_arrive,
          .exchange = api_exchange,
          .lds_read = api_lds_read,
          .lds_write = api_lds_write,
          .global_read = api_global_read,
          .global_write = api_global_write,
          .global_add = api_global_add,
          .global_add_int64 = api_global_add_int64,
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
          .lds_fence = api_lds_fence,
          .turn = api_turn,
          .mbarrier_init = api_mbarrier_init,
          .mbarrier_arrive = api_mbarrier_arrive,
          .mbarrier_wait = api_mbarrier_wait,
          .mbarrier_arrive_at = api_mbarrier_arrive_at,
          .cluster_copy = api_cluster_copy,
          .tma_load = api_tma_load,
          .tma_store = api_tma_store,
          .tma_store_box = api_tma_store_box,
          .tma_wait_read = api_tma_wait_read,
          .tma_wait = api_tma_wait,
          .counter_wait = api_counter_wait,
          .counter_pass = api_counter_pass};
}

}  // namespace

const kernels::EmulatorApi& api(int wave_size) {
  static constexpr kernels::EmulatorApi kWave32 = make_api(32), kWave64 = make_api(64);
  return wave_size == 64 ? kWave64 : kWave32;
}

}  // namespace fulmen::gpu::emulated
