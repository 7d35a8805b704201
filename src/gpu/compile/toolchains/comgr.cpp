// libamd_comgr as a disassembler. Its calls for one instruction are the same in all its versions,
// while the numbers of its actions changed with version 3.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/report/disassembly_line.h"
#include "gpu/compile/report/elf.h"
#include "runtime/file_piece.h"
#include "runtime/platform/libraries.h"

namespace fulmen::gpu {
namespace {

struct Info {
  uint64_t handle;
};

struct ComgrCalls {
  int (*create_disassembly_info)(const char* isa,
                                 uint64_t (*read)(uint64_t from, char* to, uint64_t bytes,
                                                  void* reader),
                                 void (*instruction)(const char* text, void* reader),
                                 void (*address)(uint64_t address, void* reader), Info* info);
  int (*disassemble_instruction)(Info info, uint64_t address, void* reader, uint64_t* bytes);
  int (*destroy_disassembly_info)(Info info);
};

struct Reader {
  std::span<const std::byte> code;
  uint64_t begin = 0;  // its address
  std::string text;    // of the instruction
};

// Bytes that were read; fewer at the end.
uint64_t read_code(uint64_t from, char* to, uint64_t bytes, void* user) {
  const auto* reader = static_cast<const Reader*>(user);
  if (from < reader->begin || from - reader->begin >= reader->code.size()) return 0;
  const auto at = static_cast<std::size_t>(from - reader->begin);
  const auto count = static_cast<std::size_t>(std::min<uint64_t>(bytes, reader->code.size() - at));
  std::memcpy(to, reader->code.data() + at, count);
  return count;
}

// The machine code of an ELF file: nothing where it has none.
Reader find_code(std::span<const std::byte> file) {
  elf::Header header;
  if (!read_piece(file, 0, header) || !header.is_elf()) return {};
  for (uint64_t i = 0; i < header.sections; ++i) {
    elf::Section section;
    if (!read_piece(file, header.sections_at + i * sizeof section, section)) return {};
    if (section.type != elf::kProgram || (section.flags & elf::kExecutable) == 0) continue;
    const auto code = file_piece(file, section.offset, section.bytes);
    return code ? Reader{*code, section.address, {}} : Reader{};
  }
  return {};
}

class Comgr final : public AmdDisassembler {
 public:
  explicit Comgr(const ComgrCalls& calls) : calls_(calls) {}

  Result<std::string> text_of(std::span<const std::byte> code_object,
                              const std::string& arch) const override {
    Reader reader = find_code(code_object);
    if (reader.code.empty())
      return Status(StatusCode::invalid_argument, "no machine code in the code object");
    const std::string isa = "amdgcn-amd-amdhsa--" + arch;
    Info info{};
    const auto print = [](const char* text, void* user) {
      static_cast<Reader*>(user)->text = text;
    };
    if (calls_.create_disassembly_info(
            isa.c_str(), read_code, print, [](uint64_t, void*) {}, &info) != 0) {
      return Status(StatusCode::unavailable, fmt::format("libamd_comgr does not know {}", isa));
    }
    std::string all;
    const uint64_t end = reader.begin + reader.code.size();
    for (uint64_t at = reader.begin, bytes = 0; at < end; at += bytes) {
      bytes = 0;
      reader.text.clear();
      const bool known =
          calls_.disassemble_instruction(info, at, &reader, &bytes) == 0 && bytes > 0;
      if (!known) bytes = 4;
      all += fmt::format("\t{} // {:012X}:\n", known ? trimmed(reader.text) : ".long", at);
    }
    calls_.destroy_disassembly_info(info);
    return all;
  }

 private:
  ComgrCalls calls_;
};

}  // namespace

Result<std::unique_ptr<const AmdDisassembler>> open_comgr(const LibrarySearch& search) {
  const Result<FoundLibrary> library = find_library(search);
  if (!library.ok()) return library.status();
  ComgrCalls calls{};
  std::string missing;
  const auto load = [&](auto& function, const char* name) {
    platform::find_symbol(library->handle, name, function);
    if (function == nullptr) missing += fmt::format(" {}", name);
  };
  load(calls.create_disassembly_info, "amd_comgr_create_disassembly_info");
  load(calls.disassemble_instruction, "amd_comgr_disassemble_instruction");
  load(calls.destroy_disassembly_info, "amd_comgr_destroy_disassembly_info");
  if (!missing.empty())
    return Status(StatusCode::unavailable, fmt::format("{} lacks{}", library->path, missing));
  return std::unique_ptr<const AmdDisassembler>(std::make_unique<Comgr>(calls));
}

}  // namespace fulmen::gpu
