#include "runtime/platform/system.h"

#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace fulmen::platform {

const System kThisSystem = System::linux;

bool has_more_rights_than_its_caller() noexcept { return ::getauxval(AT_SECURE) != 0; }

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return {};
}

std::int64_t cache_bytes([[maybe_unused]] int level) noexcept {
#ifdef _SC_LEVEL2_CACHE_SIZE
  return std::max(0L, ::sysconf(level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE));
#else
  return 0;
#endif
}

bool has_arm_dot_products() noexcept {
#if defined(__aarch64__)
  constexpr unsigned long kDotProducts = 1UL << 20U;  // HWCAP_ASIMDDP
  return (::getauxval(AT_HWCAP) & kDotProducts) != 0;
#else
  return false;
#endif
}

bool has_arm_byte_matrices() noexcept {
#if defined(__aarch64__)
  constexpr unsigned long kByteMatrices = 1UL << 13U;  // HWCAP2_I8MM
  return (::getauxval(AT_HWCAP2) & kByteMatrices) != 0;
#else
  return false;
#endif
}

bool request_amx() noexcept {
#if defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023;  // arch_prctl's ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // the state component of tile data
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace fulmen::platform
