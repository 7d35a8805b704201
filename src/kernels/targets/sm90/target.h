// NVIDIA's sm_90a, beside what sm80/target.h has: asynchronous products of a warpgroup, 4 waves
// from one with a multiple of 4 on. A product is 64 rows, 16 a wave, by 32, 64 or 128 columns, 16
// deep; of its sums, and of rows in registers, a wave holds what sm80's tiles of 16 x 16 have. The
// other operands lie in LDS, in panels of 64 columns of 16 bits: row after row, 128 bytes each,
// whose pieces of 16 bytes are swizzled by the row's number; panels begin at multiples of 1 KiB.
//   wgmma<T, kTurnA, kTurnB>(sums, a, b, add)   sums (+)= a b: a is 64 rows in LDS, or a wave's 16
//                              in registers (no kTurnA). Rows of LDS are a's rows, transposed: its
//                              columns; they are b's columns, transposed: its rows
//   wgmma_fence()              before the first product after other uses of its registers
//   wgmma_commit()             products until here are a group
//   wgmma_wait<n>()            until all groups but the last n are done
//   wgmma_hold(sums)           after the wait: no use of the sums moves before it
//   lds_fence_for_matrices()   after a lane wrote to LDS, or its copy arrived, before the barrier
//                              after which products read that
//   stmatrix_x4(at, words)     the opposite of ldmatrix_x4
//   warpgroup_barrier_arrive<n>(turn, w) warpgroup_barrier_wait<n>(turn, w)
//                              a split barrier of a workgroup of n warpgroups: what lanes did
//                              before they arrived is done when a lane's wait is over. turn is 0
//                              and 1 alternately, w the warpgroup's number
//   warpgroup_turn_wait(w) warpgroup_turn_pass(w)   a ring of warpgroups takes turns: warpgroup w
//                              waits for its turn, which the one before it passes on. It orders
//                              nothing in LDS
//   mbarrier_init(at, n) mbarrier_init_fence()   a barrier of 8 bytes in LDS, a phase of which ends
//                              after n arrivals and all bytes that they expect. The fence, then
//                              barrier(), before anybody else uses it
//   mbarrier_arrive(at) mbarrier_arrive_expect(at, bytes)   of one lane
//   mbarrier_wait(at, parity)  of a wave, until the phase of that parity has ended: phases are 0,
//                              1, 0, ..., and before the first one 1
//   mbarrier_test(at, parity)  true if it has ended, as far as the lane knows: no wait is needed
//                              then
//   tma_load(to, map, column, row, head, batch, barrier, policy)   of one lane: the TMA brings a
//                              box of a tensor, of 64 columns, as a panel of LDS; what is past the
//                              tensor's end as zeros. Its bytes arrive at the barrier
//   tma_prefetch(map)          a hint: the map is going to be used. L2Policy: how long lines stay
//                              in the L2
//   tma_add(to, at, bytes) tma_store(to, at, bytes)   of one lane: the TMA adds fp32 from LDS,
//                              which lanes wrote and fenced, to memory, or stores it there
//   tma_store(map, at, column, row, head, batch)   the same of a panel: a box of a tensor, but for
//                              what is past the tensor's end
//   tma_wait_read() tma_wait<n>()   until those of the lane have read LDS; until memory has what
//                              all but the last n of them brought
//   global_store_or_add<n>(to, words, stores, adds)   words of fp32 to memory, n floats further:
//                              stored, added, or neither
//   counter_wait(at, n) counter_pass(at)   of one lane: until a counter in memory is n or more; one
//                              more: what the lane, and the TMA for it, did before is done for
//                              whoever waited
//   counter_fetch_add(at)      of a wave: adds one; returns what the counter was before
//   setmaxnreg_dec<n>() setmaxnreg_inc<n>()   a wave has n from here on: fewer than at its start,
//                              or more
#pragma once

#include "targets/sm80/target.h"
#include "targets/sm90/panels.h"

#if defined(FULMEN_PLATFORM_EMULATED)
#include "targets/sm90/emulated.h"
#else
#include "targets/sm90/instruction.h"
#endif
