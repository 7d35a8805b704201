// The launch before pack_mask.h that makes a table of a block mask's lists: what each block of
// queries attends of each block of keys (core/arguments.h: BlockMask). A workgroup has a row.
#include "core/config.h"

namespace fulmen::kernels {

FULMEN_DEVICE void mark_listed(const BlockMask& mask, const BlockLists& lists, Int64 batch,
                               Int64 head, Int64 row, unsigned char* states, int state) {
  if (lists.counts == nullptr) return;
  const int listed = global_load(lists.counts + batch * lists.counts_batch +
                                 head * lists.counts_head + row * lists.counts_row);
  const int count = listed < mask.key_blocks ? listed : mask.key_blocks;
  const int* const indices = lists.indices + batch * lists.indices_batch +
                             head * lists.indices_head + row * lists.indices_row;
  for (int n = thread_id(); n < count; n += kWorkgroup) {
    const int block = global_load(indices + n);
    // A number that names no block is none.
    if (block >= 0 && block < mask.key_blocks)
      global_store(states + block, static_cast<unsigned char>(state));
  }
}

FULMEN_DEVICE void block_states(const ForwardArguments& a) {
  const BlockMask& mask = a.block_mask;
  const Int64 id = workgroup_id(), row = id % mask.query_blocks, plane = id / mask.query_blocks;
  const Int64 heads = mask.head_planes == 0 ? 1 : a.num_heads;
  const Int64 batch = plane / heads, head = plane % heads;
  unsigned char* const states = mask.states + id * mask.key_blocks;
  for (int n = thread_id(); n < mask.key_blocks; n += kWorkgroup)
    global_store(states + n, static_cast<unsigned char>(kMaskedBlock));
  barrier();
  mark_listed(mask, mask.partial, batch, head, row, states, kPartialBlock);
  barrier();
  mark_listed(mask, mask.full, batch, head, row, states, kFullBlock);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::block_states)
