#include "cpu/isa/instruction_sets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/isa/tables.h"
#include "runtime/fork_safe.h"
#include "runtime/platform/system.h"
#ifdef FULMEN_HAVE_ISA_AMX
#include "cpu/isa/amx_support.h"
#endif

namespace fulmen::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}
bool has_avx_vnni() {
  constexpr unsigned kAvxVnni = 1U << 4U;  // CPUID leaf 7, subleaf 1, EAX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAvxVnni) != 0;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}
bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni") != 0; }
bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16") != 0; }
// Intel's cores run a bf16 dot product at a quarter of the rate of an FMA, for twice its products
// (measured on Sapphire Rapids, which has AMX for them), so there widening bf16 is faster.
[[maybe_unused]] bool has_fast_bf16_dot() { return __builtin_cpu_is("amd") != 0; }
// stream_prefetch.h and cpu/short/vector.h say why.
[[maybe_unused]] bool fetches_blocks() { return __builtin_cpu_is("intel") != 0; }
[[maybe_unused]] bool fetches_batches() { return __builtin_cpu_is("amd") != 0; }
#endif

struct Sets {
  std::vector<InstructionSet> built;
  std::string left_out;  // names of those that the processor has and the build lacks

  void leave_out(const char* name, bool on_processor) {
    if (on_processor) left_out += (left_out.empty() ? "" : " ") + std::string(name);
  }
};

// The one list: an instruction set is a line here, a line in cmake/InstructionSets.cmake,
// isa/<name>.h and isa_<name>.cpp.
Sets make_sets() {
  Sets sets;
#ifdef FULMEN_HAVE_ISA_SCALAR
  sets.built.push_back({&table_scalar(), 1, true, ""});
#endif
#ifdef FULMEN_HAVE_ISA_NEON
  sets.built.push_back({&table_neon(), 2, true, ""});
#endif
#ifdef FULMEN_HAVE_ISA_NEON_DOTPROD
  sets.built.push_back(
      {&table_neon_dotprod(), 3, platform::has_arm_dot_products(), "dot products"});
#endif
#ifdef FULMEN_HAVE_ISA_NEON_I8MM
  sets.built.push_back({&table_neon_i8mm(), 4, platform::has_arm_byte_matrices(),
                        "products of matrices of bytes (I8MM)"});
#endif
#if defined(__x86_64__)
#ifdef FULMEN_HAVE_ISA_AVX2
  sets.built.push_back(
      {&table_avx2(), 3, has_avx2(), "AVX2, FMA and F16C", false, fetches_batches()});
#else
  sets.leave_out("avx2", has_avx2());
#endif
#ifdef FULMEN_HAVE_ISA_AVX_VNNI
  sets.built.push_back({&table_avx_vnni(), 4, has_avx_vnni(), "AVX-VNNI"});
#else
  sets.leave_out("avx_vnni", has_avx_vnni());
#endif
#ifdef FULMEN_HAVE_ISA_AVX512
  sets.built.push_back({&table_avx512(), 5, has_avx512(), "AVX-512 F, BW, DQ and VL",
                        fetches_blocks(), fetches_batches()});
#else
  sets.leave_out("avx512", has_avx512());
#endif
#ifdef FULMEN_HAVE_ISA_AVX512_BF16
  sets.built.push_back({&table_avx512_bf16(), has_fast_bf16_dot() ? 6 : 4, has_avx512_bf16(),
                        "AVX-512 BF16 and VNNI", fetches_blocks(), fetches_batches()});
#else
  sets.leave_out("avx512_bf16", has_avx512_bf16());
#endif
#ifdef FULMEN_HAVE_ISA_AVX512_VNNI
  sets.built.push_back({&table_avx512_vnni(), 6, has_avx512_vnni(), "AVX-512 VNNI"});
#else
  sets.leave_out("avx512_vnni", has_avx512_vnni());
#endif
#ifdef FULMEN_HAVE_ISA_AMX
  sets.built.push_back({&table_amx(), 7, has_avx512_bf16() && amx_ready(),
                        "AMX bf16 tiles (in the processor, and allowed by the kernel)", true});
#else
  sets.leave_out("amx", has_avx512_bf16() && __builtin_cpu_supports("amx-bf16") != 0);
#endif
#ifdef FULMEN_HAVE_ISA_AMX_FP16
  sets.built.push_back(
      {&table_amx_fp16(), 7, has_avx512_bf16() && amx_fp16_ready(), "AMX fp16 tiles", true});
#endif
#endif
  return sets;
}

const Sets& sets() {
  constinit static MadeOnce<const Sets> made;
  return made.get(make_sets);
}

}  // namespace

const std::vector<InstructionSet>& instruction_sets() { return sets().built; }

const std::string& sets_left_out() { return sets().left_out; }

std::string chip_name() {
  const std::string name = platform::processor_name();
  return name.empty() ? "unknown processor" : name;
}

int64_t level2_cache_bytes() {
  // The system asks the processor: slow in virtual machines.
  constinit static MadeOnce<const int64_t> bytes;
  return bytes.get([] { return platform::cache_bytes(2); });
}

}  // namespace fulmen::cpu
