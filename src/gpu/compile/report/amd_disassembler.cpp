#include "gpu/compile/report/amd_disassembler.h"

#include <fmt/format.h>

#include <filesystem>

#include "gpu/compile/toolchains/first_llvm.h"
#include "gpu/libraries/amd_libraries.h"
#include "runtime/environment.h"
#include "runtime/found_once.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {
namespace {

class Objdump final : public AmdDisassembler {
 public:
  // features: of an instruction set, such as "+real-true16"; empty: as LLVM knows the chip.
  explicit Objdump(std::string program, std::string features = {})
      : program_(std::move(program)), features_(std::move(features)) {}
  Result<std::string> text_of(std::span<const std::byte> code_object,
                              const std::string& arch) const override {
    // One that does not know the chip crashes.
    if (const int version = version_in_name(program_); version > 0 && version < first_llvm(arch)) {
      return Status(StatusCode::unavailable,
                    fmt::format("{} does not know {}, LLVM {} is the first that does", program_,
                                arch, first_llvm(arch)));
    }
    if (!features_.empty() && !arch.starts_with("gfx12"))
      return Status(StatusCode::unavailable,
                    fmt::format("{} is no feature of {}", features_, arch));
    const TemporaryDirectory folder;
    if (!folder.status().ok()) return folder.status();
    const std::string file = folder.path() + "/kernel";
    const std::string code(reinterpret_cast<const char*>(code_object.data()), code_object.size());
    if (Status status = write_file(file, code); !status.ok()) return status;
    std::vector<std::string> command{program_, "-d", "--no-show-raw-insn", file};
    if (!features_.empty()) command.push_back("--mattr=" + features_);
    return run_program(command, folder.path());
  }

 private:
  std::string program_, features_;
};

class FirstThatKnows final : public AmdDisassembler {
 public:
  explicit FirstThatKnows(std::vector<std::unique_ptr<const AmdDisassembler>> all)
      : all_(std::move(all)) {}
  Result<std::string> text_of(std::span<const std::byte> code_object,
                              const std::string& arch) const override {
    std::string first, errors;
    for (const auto& disassembler : all_) {
      Result<std::string> text = disassembler->text_of(code_object, arch);
      if (!text.ok()) {
        errors += (errors.empty() ? "" : "; ") + text.status().message();
      } else if (text->find("\t.long") == std::string::npos) {
        return text;
      } else if (first.empty()) {
        first = std::move(text.value());
      }
    }
    if (!first.empty()) return first;
    return Status(StatusCode::unavailable, errors);
  }

 private:
  std::vector<std::unique_ptr<const AmdDisassembler>> all_;
};

}  // namespace

std::unique_ptr<const AmdDisassembler> first_that_knows(
    std::vector<std::unique_ptr<const AmdDisassembler>> disassemblers) {
  return std::make_unique<FirstThatKnows>(std::move(disassemblers));
}

Result<std::unique_ptr<const AmdDisassembler>> find_objdump() {
  std::vector<std::string> names;
  // The llvm-objdump beside the compiler comes first: it is of the same LLVM and knows what that
  // emits.
  std::error_code error;
  if (const std::string clang = find_program(environment("FULMEN_AMD_COMPILER")); !clang.empty()) {
    names.push_back(
        std::filesystem::canonical(clang, error).replace_filename("llvm-objdump").string());
  }
  for (const int version : {19, 22, 21, 20, 18, 17, 16})
    names.push_back(fmt::format("llvm-objdump-{}", version));
  names.insert(names.end(), {"llvm-objdump", "/opt/rocm/llvm/bin/llvm-objdump"});
  if (const std::string home = environment("ROCM_PATH"); !home.empty())
    names.push_back(home + "/llvm/bin/llvm-objdump");
  std::vector<std::unique_ptr<const AmdDisassembler>> all;
  for (const std::string& name : names) {
    std::string program = find_program(name);
    if (!program.empty()) all.push_back(std::make_unique<Objdump>(std::move(program)));
  }
  // LLVM after 22 names halves of registers on gfx12, too. 22 reads these when it is told.
  if (std::string program = find_program("llvm-objdump-22"); !program.empty())
    all.push_back(std::make_unique<Objdump>(std::move(program), "+real-true16"));
  if (!all.empty()) return first_that_knows(std::move(all));
  return Status(StatusCode::unavailable, "llvm-objdump is not in PATH (apt-get install llvm-19)");
}

Result<const AmdDisassembler*> amd_disassembler() {
  constinit static FoundOnce<Result<const AmdDisassembler*>> found;
  return found.get([]() -> Result<const AmdDisassembler*> {
    auto comgr = open_comgr(comgr_search());
    auto objdump = find_objdump();
    std::vector<std::unique_ptr<const AmdDisassembler>> all;
    if (comgr.ok()) all.push_back(std::move(comgr.value()));
    if (objdump.ok()) all.push_back(std::move(objdump.value()));
    if (!all.empty()) return first_that_knows(std::move(all)).release();
    return Status(StatusCode::unavailable,
                  fmt::format("{}; {}", comgr.status().message(), objdump.status().message()));
  });
}

}  // namespace fulmen::gpu
