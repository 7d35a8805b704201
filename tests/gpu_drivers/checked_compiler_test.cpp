// Machine code is checked before it is loaded: by a fake libamd_comgr, and clang's by llvm-objdump.
#include "gpu/compile/toolchains/checked_compiler.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu/compile/report/amd_check.h"

namespace fulmen::testing {
namespace {

// An ELF file whose machine code is these words.
std::vector<std::byte> code_object(const std::vector<uint32_t>& words) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = sizeof header;
  header.e_shnum = 1;
  Elf64_Shdr section{};
  section.sh_type = SHT_PROGBITS;
  section.sh_flags = SHF_ALLOC | SHF_EXECINSTR;
  section.sh_addr = 0x1000;
  section.sh_offset = sizeof header + sizeof section;
  section.sh_size = words.size() * sizeof words[0];
  std::vector<std::byte> file(section.sh_offset + section.sh_size);
  std::memcpy(file.data(), &header, sizeof header);
  std::memcpy(file.data() + sizeof header, &section, sizeof section);
  if (!words.empty()) std::memcpy(file.data() + section.sh_offset, words.data(), section.sh_size);
  return file;
}

constexpr uint32_t kEnd = 0, kNarrow = 1, kBarrier = 2, kNop = 3, kNoInstruction = 99;

class Maker final : public gpu::Compiler {
 public:
  explicit Maker(std::vector<std::byte> code) : code_(std::move(code)) {}
  std::string_view name() const noexcept override { return "maker"; }
  std::string identity(std::string_view /*arch*/) const override { return "maker 1"; }
  Result<gpu::CompiledCode> compile(const gpu::CompileRequest&) const override {
    return gpu::CompiledCode{code_, "log"};
  }

 private:
  std::vector<std::byte> code_;
};

Result<std::unique_ptr<const gpu::AmdDisassembler>> fake_comgr() {
  return gpu::open_comgr({.names = {FULMEN_FAKE_COMGR "/lib/libamd_comgr.so.3"},
                          .home_variables = {},
                          .system_folders = {},
                          .python_folders = {},
                          .install = ""});
}

Status compile_for(const std::string& arch, const std::vector<uint32_t>& words) {
  const auto comgr = fake_comgr();
  if (!comgr.ok()) return comgr.status();
  const Maker maker(code_object(words));
  const gpu::CheckedCompiler checked(maker, *comgr.value());
  EXPECT_EQ(checked.name(), "maker");
  EXPECT_NE(checked.identity("gfx1100"), maker.identity("gfx1100"))
      << "unchecked code would be taken from the cache";
  const auto compiled = checked.compile({"tiny", "", arch, 64});
  EXPECT_TRUE(!compiled.ok() || compiled->log == "log");
  return compiled.status();
}

TEST(CheckedCompiler, RefusesWhatComgrShows) {
  const auto right = compile_for("gfx1100", {kNop, kBarrier, kEnd, kNoInstruction});
  EXPECT_TRUE(right.ok()) << right.message();
  const auto narrow = compile_for("gfx1100", {kNop, kNarrow, kBarrier, kEnd});
  ASSERT_FALSE(narrow.ok());
  for (const char* part : {"\"tiny\" for gfx1100", "maker", "s_barrier at address 0x1008",
                           "lanes may be off", "FULMEN_AMD_CHECK=0"}) {
    EXPECT_NE(narrow.message().find(part), std::string::npos)
        << part << " in: " << narrow.message();
  }
  const auto unknown = compile_for("gfx1100", {kNop, kNoInstruction, kNarrow, kBarrier, kEnd});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.message().find("no instruction of this chip, and 1 more"), std::string::npos)
      << unknown.message();
}

TEST(CheckedCompiler, TakesWhatCannotBeDisassembled) {
  EXPECT_TRUE(compile_for("gfx1201", {kNarrow, kBarrier, kEnd}).ok())
      << "the fake knows gfx1100 alone";
  EXPECT_TRUE(compile_for("gfx1100", {}).ok());
  const auto comgr = fake_comgr();
  ASSERT_TRUE(comgr.ok()) << comgr.status().message();
  std::vector<std::byte> cut = code_object({kNarrow, kBarrier, kEnd});
  cut.pop_back();
  EXPECT_FALSE(comgr.value()->text_of(cut, "gfx1100").ok());
}

// Gives a text, or refuses.
class Teller final : public gpu::AmdDisassembler {
 public:
  explicit Teller(Result<std::string> answer) : answer_(std::move(answer)) {}
  Result<std::string> text_of(std::span<const std::byte>, const std::string&) const override {
    return answer_;
  }

 private:
  Result<std::string> answer_;
};

std::string told(const std::vector<Result<std::string>>& answers) {
  std::vector<std::unique_ptr<const gpu::AmdDisassembler>> all;
  for (const auto& answer : answers) all.push_back(std::make_unique<Teller>(answer));
  const auto text = gpu::first_that_knows(std::move(all))->text_of({}, "gfx1100");
  return text.ok() ? text.value() : text.status().message();
}

TEST(CheckedCompiler, AsksTheNextDisassemblerWhereOneDoesNotKnow) {
  const Result<std::string> old(
      Status(StatusCode::unavailable, "the old one does not know gfx1201"));
  const Result<std::string> none(Status(StatusCode::unavailable, "the new one does not, either"));
  const std::string part = "\ts_nop 0\n\t.long // 8:\n", whole = "\ts_nop 0\n\ts_endpgm // 8:\n";
  EXPECT_EQ(told({old, whole}), whole);
  EXPECT_EQ(told({part, whole}), whole)
      << "an instruction that the old one does not know is no finding";
  EXPECT_EQ(told({part, old}), part) << "a finding stays one where nobody knows the instruction";
  EXPECT_EQ(told({whole, part}), whole);
  const std::string neither = told({old, none});
  EXPECT_NE(neither.find("the old one"), std::string::npos) << neither;
  EXPECT_NE(neither.find("the new one"), std::string::npos) << neither;
}

// A barrier that only some waves of a workgroup come to.
constexpr const char* kSource = R"(
extern "C" __attribute__((global, amdgpu_flat_work_group_size(128, 128))) void fulmen_kernel(float* p) {
  const unsigned id = __builtin_amdgcn_workitem_id_x();
  if (CONDITION) {
    __builtin_amdgcn_s_barrier();
    p[id] = 1;
  }
}
)";

TEST(CheckedCompiler, RefusesWhatClangMakesOfAWrongKernel) {
  const auto clang = gpu::offline_clang_compiler();
  const auto objdump = gpu::find_objdump();
  if (!clang.ok() || !objdump.ok()) GTEST_SKIP() << "clang and llvm-objdump are not installed";
  const gpu::CheckedCompiler checked(*clang.value(), *objdump.value());
  for (const char* arch : {"gfx1100", "gfx1201", "gfx942"}) {
    const auto source = [](const char* condition) {
      return std::string("#define CONDITION ") + condition + kSource;
    };
    const auto right = checked.compile({"right", source("p[3] == 1"), arch, 128});
    EXPECT_TRUE(right.ok()) << right.status().message();
    const auto wrong = checked.compile({"wrong", source("id < 64"), arch, 128});
    ASSERT_FALSE(wrong.ok());
    EXPECT_NE(wrong.status().message().find("s_barrier"), std::string::npos)
        << wrong.status().message();
  }
}

TEST(CheckedCompiler, CanBeLeftOut) {
  const Maker maker({});
  const Result<const gpu::Compiler*> given(&maker);
  ::setenv("FULMEN_AMD_CHECK", "0", 1);
  EXPECT_EQ(gpu::checked_compiler(given).value(), &maker);
  ::unsetenv("FULMEN_AMD_CHECK");
  if (!gpu::amd_disassembler().ok()) GTEST_SKIP() << gpu::amd_disassembler().status().message();
  const auto checked = gpu::checked_compiler(given);
  EXPECT_NE(checked.value(), &maker);
  EXPECT_EQ(checked.value(), gpu::checked_compiler(given).value());
  const Result<const gpu::Compiler*> none(Status(StatusCode::unavailable, "no compiler"));
  EXPECT_EQ(gpu::checked_compiler(none).status().message(), "no compiler");
}

}  // namespace
}  // namespace fulmen::testing
