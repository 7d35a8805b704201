#include "cpu/isa/amx_support.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "runtime/fork_safe.h"
#include "runtime/platform/system.h"
#endif

namespace fulmen::cpu {

#if defined(__x86_64__)
namespace {

constexpr unsigned kAmxBf16 = 1U << 22U, kAmxTile = 1U << 24U,
                   kAmxInt8 = 1U << 25U;  // CPUID leaf 7, EDX

bool ask() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kNeeded = kAmxBf16 | kAmxTile | kAmxInt8;
  return (edx & kNeeded) == kNeeded && platform::request_amx();
}

}  // namespace

bool amx_ready() noexcept {
  constinit static MadeOnce<const bool> ready;
  return ready.get(ask);
}

bool amx_fp16_ready() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxFp16 = 1U << 21U;  // CPUID leaf 7, subleaf 1, EAX
  return amx_ready() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAmxFp16) != 0;
}
#else
bool amx_ready() noexcept { return false; }
bool amx_fp16_ready() noexcept { return false; }
#endif

}  // namespace fulmen::cpu
