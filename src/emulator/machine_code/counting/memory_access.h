// What a memory or LDS instruction accesses, by its text.
#pragma once

#include "gpu/compile/report/amd_disassembly.h"

namespace fulmen::gpu::isa {

struct MemoryAccess {
  int bytes = 0;            // of a lane at each of its addresses
  int addresses = 1;        // of a lane
  int stride = 0;           // of LDS: what the second address' offset counts; 0: bytes
  int address_operand = 0;  // of LDS
  bool reads = false;       // LDS alone, without writing it
  // Lanes exchange values by LDS's banks, whose memory is not used.
  bool without_conflicts = false;
  bool to_lds = false;  // of memory: what is loaded goes to LDS instead of registers
  bool flat = false;    // each lane's address is of memory, LDS or scratch
};

// "ds_read2st64_b32", "global_load_dwordx4", "buffer_store_b128", "buffer_load_dword ... lds".
MemoryAccess memory_access_of(const AmdInstruction& text);

}  // namespace fulmen::gpu::isa
