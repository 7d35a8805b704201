#include "amx/emulated_backend.h"

#include <memory>
#include <string_view>
#include <vector>

#include "cpu/backward_kernel.h"
#include "cpu/decode_kernel.h"
#include "cpu/instruction_sets.h"
#include "cpu/tile_kernel.h"
#include "fulmen/fulmen.h"

namespace fulmen::testing {

const cpu::IsaTable& emulated_amx_table();
const cpu::IsaTable& emulated_amx_fp16_table();

namespace {

bool has_avx512() {
  for (const cpu::InstructionSet& isa : cpu::instruction_sets()) {
    if (std::string_view(isa.table->name) == "avx512") return isa.available;
  }
  return false;
}

class EmulatedBackend final : public Backend {
 public:
  EmulatedBackend() : bf16_{&emulated_amx_table(), 1, true, "", true}, fp16_{&emulated_amx_fp16_table(), 1, true, "", true} {
    for (const cpu::InstructionSet* isa : {&bf16_, &fp16_}) {
      owned_.push_back(cpu::make_prefill_kernel(*isa));
      owned_.push_back(cpu::make_short_kernel(*isa));
      owned_.push_back(cpu::make_decode_kernel(*isa));
    }
    owned_.push_back(cpu::make_backward_kernel(bf16_));
    for (const auto& kernel : owned_) kernels_.push_back(kernel.get());
  }
  std::string_view name() const noexcept override { return "amx_emulated"; }
  std::vector<DeviceInfo> devices() const override { return {{"amx_emulated", "emulated tiles", "", true, ""}}; }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  cpu::InstructionSet bf16_, fp16_;
  std::vector<std::unique_ptr<const Kernel>> owned_;
  std::vector<const Kernel*> kernels_;
};

}  // namespace

void EmulatedAmx::SetUpTestSuite() {
  static bool registered = false;
  if (!has_avx512() || registered) return;
  ASSERT_TRUE(register_backend(std::make_shared<EmulatedBackend>()).ok());
  registered = true;
}

void EmulatedAmx::SetUp() {
  if (!has_avx512()) GTEST_SKIP() << "this processor lacks AVX-512, which the tile kernels need beside the tiles";
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
