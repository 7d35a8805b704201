#include "runtime/platform/system.h"

#include <sys/sysctl.h>
#include <unistd.h>

#include <array>

namespace fulmen::platform {
namespace {

bool has_feature(const char* name) noexcept {
  int has = 0;
  std::size_t size = sizeof has;
  return ::sysctlbyname(name, &has, &size, nullptr, 0) == 0 && has != 0;
}

}  // namespace

const System kThisSystem = System::macos;

bool has_more_rights_than_its_caller() noexcept { return ::issetugid() != 0; }

std::string processor_name() {
  std::array<char, 256> name{};
  std::size_t bytes = name.size() - 1;
  return ::sysctlbyname("machdep.cpu.brand_string", name.data(), &bytes, nullptr, 0) == 0
             ? name.data()
             : std::string();
}

std::int64_t cache_bytes(int level) noexcept {
  std::int64_t found = 0;
  std::size_t bytes = sizeof found;
  const char* name = level == 2 ? "hw.l2cachesize" : "hw.l3cachesize";
  return ::sysctlbyname(name, &found, &bytes, nullptr, 0) == 0 ? found : 0;
}

bool request_amx() noexcept { return false; }
bool has_arm_dot_products() noexcept { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_arm_byte_matrices() noexcept { return has_feature("hw.optional.arm.FEAT_I8MM"); }

}  // namespace fulmen::platform
