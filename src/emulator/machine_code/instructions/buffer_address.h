// Places in memory that a buffer descriptor gives to lanes (docs/internals/amd_facts.md).
#pragma once

#include <algorithm>

#include "emulator/machine_code/instructions/memory_parts.h"

namespace fulmen::gpu::isa {

// Raw buffers check each word of an access. RDNA: it is outside where offset + size is above
// num_records - soffset, which stops at 0. CDNA: soffset counts as a part of the offset.
// Structured buffers (CDNA, `idxen`) check the index alone.
template <int W>
class BufferAddress {
 public:
  // vector: the operand of the lanes' registers; the descriptor and the scalar offset follow it.
  BufferAddress(const Wave& w, const Instruction& i, std::size_t vector)
      : rdna_(!w.program->is("gfx9")), constant_(static_cast<uint64_t>(i.offset)) {
    const auto* const d = &w.scalars[static_cast<std::size_t>(i.operand[vector + 1].index)];
    base_ = d[0] | uint64_t{d[1] & 0xFFFFU} << 32U;
    stride_ = d[1] >> 16U & 0x3FFFU;
    records_ = d[2];
    soffset_ = scalar32(w, i.operand[vector + 2]);
    room_ = rdna_ ? records_ - std::min(records_, soffset_) : records_;
    constexpr uint32_t kSwizzles = 1U << 31U, kAddsLane = 1U << 23U;
    if ((d[1] & kSwizzles) != 0 || (!rdna_ && (d[3] & kAddsLane) != 0))
      fail("uses a swizzled buffer, which is not known to the emulator");
    if (rdna_ && (stride_ != 0 || i.idxen))
      fail("uses a buffer with a stride: the emulator knows raw buffers of RDNA");
    structured_ = i.idxen && stride_ != 0;
    const int r = i.operand[vector].index;
    if (i.idxen) index_ = row<W>(w, r);
    if (i.offen) varying_ = row<W>(w, r + (i.idxen ? 1 : 0));
  }

  // Whether `count` bytes from `byte` of the lane's access on are inside.
  bool is_inside(int l, int byte, int count) const {
    if (structured_) return index_[l] < records_;
    return offset_of(l, byte) + static_cast<uint64_t>(count) <= room_;
  }
  // Whether all of the access is, in one piece.
  bool is_inside(int l, int bytes) const {
    const int last = bytes - std::min(bytes, 4);
    return is_inside(l, last, bytes - last) &&
           offset_of(l, last) == offset_of(l, 0) + static_cast<uint64_t>(last) &&
           is_inside(l, 0, 1);
  }
  uint64_t address(int l, int byte) const {
    return base_ + offset_of(l, byte) + (rdna_ ? soffset_ : 0) +
           (index_ == nullptr ? 0 : stride_ * index_[l]);
  }

  // Calls copy(byte, count) for the parts of an access that are inside.
  template <int kBytes, class Copy>
  void each_inside(int l, const Copy& copy) const {
    if (is_inside(l, kBytes)) {
      copy(0, kBytes);
      return;
    }
    constexpr int kPiece = std::min(kBytes, 4);
    for (int byte = 0; byte < kBytes; byte += kPiece) {
      if (is_inside(l, byte, kPiece)) copy(byte, kPiece);
    }
  }

 private:
  // Vector offset and constant wrap at 32 bits on CDNA, not on RDNA.
  uint64_t offset_of(int l, int byte) const {
    const uint64_t sum =
        (varying_ == nullptr ? 0 : uint64_t{varying_[l]}) + constant_ + static_cast<uint64_t>(byte);
    return rdna_ ? sum : (sum & 0xFFFFFFFFU) + soffset_;
  }

  bool rdna_, structured_ = false;
  uint64_t constant_, base_ = 0, stride_ = 0, records_ = 0, soffset_ = 0, room_ = 0;
  const uint32_t *index_ = nullptr, *varying_ = nullptr;
};

}  // namespace fulmen::gpu::isa
