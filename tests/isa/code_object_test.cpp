// Code objects of several kernels: one is decoded, whatever the others have.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "emulator/machine_code/decoding/decode.h"
#include "gpu/compile/toolchains/compiler.h"
#include "isa/machine.h"

namespace fulmen::testing {
namespace {

// The emulator does not know s_getpc_b64, and the first kernel has few registers.
constexpr const char* kSource = R"(
#define KERNEL extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 64))) void
KERNEL small(unsigned* x) { if (x[1] != 0) x[0] = 1; }
KERNEL unknown(unsigned* x) { asm volatile("s_getpc_b64 s[20:21]" : : : "s20", "s21"); }
KERNEL large(unsigned* x) { asm volatile("v_mov_b32 v90, 7" : : : "v90"); if (x[1] != 0) x[0] = 2; }
)";

TEST(IsaCodeObject, DecodesTheKernelThatIsNamedAlone) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  for (const std::string arch : {"gfx942", "gfx1100"}) {
    const auto code =
        gpu::offline_clang_compiler().value()->compile({"several", kSource, arch, 64});
    ASSERT_TRUE(code.ok()) << code.status().message();
    const auto read = [&](const std::string& kernel) {
      return gpu::isa::read_code_object(code->code, arch, {.kernel = kernel});
    };
    const auto count = [](const gpu::isa::Program& program, std::string_view name) {
      return std::count_if(program.lines.begin(), program.lines.end(),
                           [&](const gpu::isa::Line& line) { return line.text.name == name; });
    };
    const auto small = read("small"), large = read("large");
    ASSERT_TRUE(small.ok()) << small.status().message();
    ASSERT_TRUE(large.ok()) << large.status().message();
    EXPECT_EQ(count(small.value(), "s_endpgm"), 1) << arch;
    EXPECT_EQ(small->entry, 0U);
    EXPECT_LT(small->vector_registers, 91);
    EXPECT_GT(large->vector_registers, 90);
    for (const auto* program : {&small.value(), &large.value()}) {
      for (const gpu::isa::Instruction& i : program->code) {
        const bool inside = i.target < program->code.size();
        EXPECT_TRUE(inside || !program->lines[i.line].text.branches) << arch;
      }
    }
    const auto unknown = read("unknown");
    ASSERT_FALSE(unknown.ok());
    EXPECT_NE(unknown.status().message().find("s_getpc_b64"), std::string::npos);
  }
}

}  // namespace
}  // namespace fulmen::testing
