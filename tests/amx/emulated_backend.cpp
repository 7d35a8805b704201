#include "amx/emulated_backend.h"

#include <memory>

#include "cpu/families.h"
#include "fulmen/fulmen.h"
#include "support/cpu_backend.h"

namespace fulmen::testing {

const cpu::IsaTable& emulated_amx_table();
const cpu::IsaTable& emulated_amx_fp16_table();

namespace {

class EmulatedBackend final : public CpuBackend {
 public:
  EmulatedBackend()
      : CpuBackend("amx_emulated", "emulated tiles"),
        bf16_{&emulated_amx_table(), 1, true, "", true},
        fp16_{&emulated_amx_fp16_table(), 1, true, "", true} {
    for (const cpu::InstructionSet* isa : {&bf16_, &fp16_}) {
      add(cpu::make_kernel("prefill", *isa));
      add(cpu::make_kernel("prefill_int8", *isa));
      add(cpu::make_kernel("short", *isa));
      add(cpu::make_kernel("decode", *isa));
    }
    add(cpu::make_kernel("backward", bf16_));
  }

 private:
  cpu::InstructionSet bf16_, fp16_;
};

}  // namespace

void EmulatedAmx::SetUpTestSuite() {
  static bool registered = false;
  if (!has_avx512() || registered) return;
  ASSERT_TRUE(register_backend(std::make_shared<EmulatedBackend>()).ok());
  registered = true;
}

void EmulatedAmx::SetUp() {
  if (!has_avx512())
    GTEST_SKIP() << "this processor lacks AVX-512, which the tile kernels need beside the tiles";
}

CaseSpec EmulatedAmx::two_heads(int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim) {
  CaseSpec spec;
  spec.batch = head_dim < 16 ? 8 : 1;  // of two elements, standard attention's may be right by luck
  spec.num_heads = 2;
  spec.num_kv_heads = 1;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_k = seqlen_k;
  spec.head_dim = head_dim;
  spec.head_dim_v = head_dim % 3 == 0 ? 48 : head_dim;
  return spec;
}

}  // namespace fulmen::testing
