// Between a kernel compiled for the host and the emulator that runs it: the emulator hands over
// this table when it loads the kernel. Every call comes from one lane (a fiber); calls with an
// exchange or a barrier suspend it until the others have come. Positions are the kernel's source
// lines, for reports.
#pragma once

namespace fulmen::kernels {

struct EmulatorApi {
  // sizeof(EmulatorApi): both sides are built from the same source, or refuse each other.
  unsigned size;
  int wave_size;

  // The kernel broke a rule that only it can see; the lane does not return.
  void (*fail)(const char* what, const char* file, int line);

  int (*thread_id)();
  long long (*workgroup_id)();
  // The barrier of the whole workgroup, not of a cluster. A lane that ended, or waits at another
  // place, is a divergent barrier.
  void (*barrier)(const char* file, int line);
  // The barrier of all workgroups of a cluster; the rank of the lane's workgroup in it.
  void (*cluster_barrier)(const char* file, int line);
  int (*cluster_rank)();
  // The barrier of a wave, for what its lanes have in LDS.
  void (*wave_barrier)(const char* file, int line);
  // A named barrier of two waves: the producer arrives without a wait, the consumer (`takes`) waits
  // until it has.
  void (*named_barrier_arrive)(int place, bool takes, const char* file, int line);
  // An exchange in a wave: a lane gives `bytes` bytes and gets the address of all lanes' bytes, by
  // lane, valid until its next call. All lanes must come from the same place with the same
  // `operation` and `bytes`.
  const void* (*exchange)(const char* operation, const void* mine, int bytes, const char* file,
                          int line);

  void (*lds_read)(int offset, void* to, int bytes, const char* file, int line);
  void (*lds_write)(int offset, const void* from, int bytes, const char* file, int line);
  // At multiples of `bytes`, unless `unaligned`.
  void (*global_read)(const void* from, void* to, int bytes, bool unaligned, const char* file,
                      int line);
  void (*global_write)(void* to, const void* from, int bytes, const char* file, int line);
  void (*global_add)(float* at, const float* values, int count, const char* file, int line);
  void (*global_add_int64)(long long* at, long long x, const char* file, int line);

  // NVIDIA's cp.async: read_bytes from global memory, zeros up to `bytes`, arrive in LDS at the
  // wait, and not before.
  void (*copy_async)(int offset, const void* from, int bytes, int read_bytes, const char* file,
                     int line);
  void (*copy_commit)();
  void (*copy_wait)(int groups_left_in_flight, const char* file, int line);

  // Launch::programmatic_launch: from here on there is what earlier launches wrote.
  void (*grid_dependency_wait)();

  // NVIDIA's wgmma: run(data), with a copy of these bytes, is called at the wait, and not before;
  // groups as above. Until then the lane's sums, at sums, are the product's own, and so are 16
  // bytes of an operand in registers, at rows, unless that is null.
  void (*defer)(void (*run)(const void* data), const void* data, int bytes, void* sums,
                int sum_bytes, const void* rows, const char* file, int line);
  void (*defer_commit)();
  void (*defer_wait)(int groups_left_in_flight);
  // wgmma.fence: between other uses of these registers and the next product. hold: sums are used
  // from here on.
  void (*registers_fence)();
  void (*registers_hold)(const void* sums, const char* file, int line);
  // All lanes of four waves execute this `operation` in the same order, with these bytes the same;
  // at the same place, or anywhere.
  void (*join_warpgroup)(const char* operation, const void* what, int bytes, bool anywhere,
                         const char* file, int line);
  // setmaxnreg: so many registers a lane, more than it had, or fewer; of a kernel that
  // min_workgroups on a multiprocessor have room for.
  void (*set_registers)(int count, bool more, int min_workgroups, const char* file, int line);
  // It reads LDS by another way than lanes: what a lane wrote, it fences first (fence.proxy.async).
  void (*lds_read_matrix)(int offset, void* to, int bytes, const char* file, int line);
  void (*lds_fence)();

  // A barrier of two warpgroups: one passes the turn without a wait, the other waits for it.
  void (*turn)(int place, bool waits, const char* file, int line);
  // mbarriers, at a place in LDS: a phase ends after so many arrivals, and the bytes that they
  // said. Waits are a wave's, for the phase of this parity.
  void (*mbarrier_init)(int at, int arrivals, const char* file, int line);
  void (*mbarrier_arrive)(int at, int expected_bytes, const char* file, int line);
  void (*mbarrier_wait)(int at, int parity, const char* file, int line);
  // An arrival at another workgroup of the cluster, and a copy to it from the lane's LDS: `to` and
  // `barrier` are places of `rank`.
  void (*mbarrier_arrive_at)(int rank, int at, const char* file, int line);
  void (*cluster_copy)(int rank, int to, int from, int bytes, int barrier, const char* file,
                       int line);
  // A box of a tensor, from the element whose column, row, head and batch are `first`. It arrives
  // when somebody waits for the barrier, and not before.
  void (*tma_load)(int to, const void* map, const int (*first)[4], int barrier, const char* file,
                   int line);
  // The TMA adds fp32 from LDS to memory, or stores it there. LDS is read when the lane waits for
  // that, memory written when it waits for that, and not before.
  void (*tma_store)(float* to, int from, int bytes, bool adds, const char* file, int line);
  // A box of a tensor, as tma_load brings it, from LDS to memory.
  void (*tma_store_box)(int from, const void* map, const int (*first)[4], const char* file,
                        int line);
  void (*tma_wait_read)();
  void (*tma_wait)(int left);
  // Between workgroups: one lane waits until a counter in memory is `count`, which others add 1 to.
  // A workgroup may wait for those with lower numbers only.
  void (*counter_wait)(const int* at, int count, const char* file, int line);
  int (*counter_pass)(int* at, const char* file, int line);  // what it was before
};

// A kernel's shared object exports
//   void fulmen_bind(const EmulatorApi*)       once, after loading
//   void fulmen_kernel(const void* arguments)  one lane's whole run
//   long long fulmen_take_exponentials()       how many this thread's lanes have computed since the
//                                              last call
//   const int fulmen_argument_bytes            of the struct that arguments points to
//   const int fulmen_cluster                   how many workgroups share a cluster

}  // namespace fulmen::kernels
