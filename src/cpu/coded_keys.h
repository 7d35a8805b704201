// The keys of a call as codes of int8, made before its tasks begin.
#pragma once

#include <cstdint>

#include "cpu/isa/table.h"
#include "cpu/tile/call.h"
#include "fulmen/backend.h"
#include "runtime/threading.h"

namespace fulmen::cpu {

class CodedKeys {
 public:
  using Function = void (*)(const ForwardCall&, const KeyCodesTask&, float* scratch);
  CodedKeys() = default;  // of a call whose products are not of codes
  // lanes: of the set's vectors.
  CodedKeys(const Problem& problem, const Int8Tasks& tasks, int lanes);

  // Bytes of workspace that they take, whole cache lines.
  int64_t bytes() const noexcept;
  // Where they lie in bytes() of memory.
  KeyCodes at(void* memory) const noexcept;
  // Codes the keys into call.codes. scratch: scratch_floats for each worker.
  void write(const ForwardCall& call, const ThreadSettings& threads, float* scratch,
             int64_t scratch_floats) const;

 private:
  const Problem* problem_ = nullptr;
  Function function_ = nullptr;
  KeyCodes places_;
  int64_t keys_ = 0;  // of all heads
};

// Whether the codes of a problem's keys, of 4 bytes at most, are no more than memory may hold.
Support codes_fit(const Problem& problem);

}  // namespace fulmen::cpu
