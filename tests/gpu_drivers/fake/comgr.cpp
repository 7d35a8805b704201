// libamd_comgr.so for instructions of one word that the tests make up.
#include <cstdint>
#include <cstring>
#include <string>

#include "gpu_drivers/fake/fake_gpu.h"

namespace {

struct Info {
  uint64_t handle;
};
struct Disassembly {
  uint64_t (*read)(uint64_t from, char* to, uint64_t bytes, void* user);
  void (*instruction)(const char* text, void* user);
};

}  // namespace

FULMEN_FAKE_EXPORT int amd_comgr_create_disassembly_info(
    const char* isa, uint64_t (*read)(uint64_t, char*, uint64_t, void*),
    void (*instruction)(const char*, void*), void (*)(uint64_t, void*), Info* info) {
  if (std::strcmp(isa, "amdgcn-amd-amdhsa--gfx1100") != 0) return 2;
  info->handle = reinterpret_cast<uint64_t>(new Disassembly{read, instruction});
  return 0;
}
FULMEN_FAKE_EXPORT int amd_comgr_destroy_disassembly_info(Info info) {
  delete reinterpret_cast<Disassembly*>(info.handle);
  return 0;
}
FULMEN_FAKE_EXPORT int amd_comgr_disassemble_instruction(Info info, uint64_t address, void* user,
                                                         uint64_t* bytes) {
  const auto* disassembly = reinterpret_cast<const Disassembly*>(info.handle);
  uint32_t word = 0;
  if (disassembly->read(address, reinterpret_cast<char*>(&word), sizeof word, user) != sizeof word)
    return 1;
  const char* const texts[] = {"\ts_endpgm", "\tv_cmpx_gt_u32_e32 16, v0", "\ts_barrier",
                               "\ts_nop 0"};
  if (word >= 4) return 1;
  disassembly->instruction(texts[word], user);
  *bytes = sizeof word;
  return 0;
}
