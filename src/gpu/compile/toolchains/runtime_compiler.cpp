#include "gpu/compile/toolchains/runtime_compiler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "gpu/libraries/library_build.h"
#include "runtime/platform/libraries.h"

namespace fulmen::gpu {
namespace {

using Program = struct ProgramHandle*;

struct RuntimeCompilerCalls {
  int (*Version)(int* major, int* minor);
  int (*CreateProgram)(Program* program, const char* source, const char* name, int headers,
                       const char* const* texts, const char* const* names);
  int (*CompileProgram)(Program program, int count, const char* const* options);
  int (*GetProgramLogSize)(Program program, std::size_t* bytes);
  int (*GetProgramLog)(Program program, char* log);
  int (*GetCodeSize)(Program program, std::size_t* bytes);
  int (*GetCode)(Program program, char* code);
  int (*DestroyProgram)(Program* program);
  const char* (*GetErrorString)(int result);
};

class RuntimeCompiler final : public Compiler {
 public:
  RuntimeCompiler(RuntimeCompilerKind kind, const RuntimeCompilerCalls& calls, std::string path)
      : kind_(std::move(kind)), calls_(calls), path_(std::move(path)) {
    calls_.Version(&major_, &minor_);
    build_ = build();
  }
  std::string_view name() const noexcept override { return kind_.name; }
  std::string identity(std::string_view arch) const override {
    return fmt::format("{} {}.{} {} {} {}", kind_.name, major_, minor_, build_,
                       fmt::join(kind_.options, " "),
                       fmt::join(options_for(arch, kind_.family_options), " "));
  }

  Result<CompiledCode> compile(const CompileRequest& request) const override {
    Program program = nullptr;
    const std::string source = fmt::format("{}{}{}", kind_.before, request.source, kind_.after);
    if (int error = calls_.CreateProgram(&program, source.c_str(), "kernel", 0, nullptr, nullptr);
        error != 0) {
      return Status(StatusCode::internal,
                    fmt::format("{}CreateProgram: {}", kind_.prefix, calls_.GetErrorString(error)));
    }
    const std::string arch = std::string(kind_.arch_option) + request.arch;
    std::vector<const char*> options{arch.c_str()};
    for (const std::string& option : kind_.options) options.push_back(option.c_str());
    const std::vector<std::string> more = options_for(request.arch, kind_.family_options);
    for (const std::string& option : more) options.push_back(option.c_str());
    const int error =
        calls_.CompileProgram(program, static_cast<int>(options.size()), options.data());
    Result<CompiledCode> result = take(program, request, error);
    calls_.DestroyProgram(&program);
    return result;
  }

 private:
  // The version is 9.0 of every hipRTC: only the files tell the one that miscompiles from the one
  // that was mended.
  std::string build() const {
    std::set<std::string> parts;  // without the same file by two names
    if (!kind_.generators.empty()) {
      // hipRTC opens its code generator for the first program.
      Program program = nullptr;
      if (calls_.CreateProgram(&program, " ", "nothing", 0, nullptr, nullptr) == 0)
        calls_.DestroyProgram(&program);
    }
    for (const std::string& name : kind_.generators) parts.insert(builds_of_loaded(name));
    if (!kind_.beside.empty()) {
      std::error_code error;
      const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
      for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        if (entry.path().filename().string().starts_with(kind_.beside))
          parts.insert(file_build(entry.path().string()));
      }
    }
    parts.insert(library_build(reinterpret_cast<const void*>(calls_.CompileProgram)));
    parts.erase("");
    return fmt::format("{}", fmt::join(parts, " "));
  }

  Result<CompiledCode> take(Program program, const CompileRequest& request, int error) const {
    CompiledCode result;
    std::size_t bytes = 0;
    if (calls_.GetProgramLogSize(program, &bytes) == 0 && bytes > 1) {
      result.log.resize(bytes);
      calls_.GetProgramLog(program, result.log.data());
      result.log.resize(bytes - 1);  // without its NUL
    }
    if (const std::string_view option = kind_.arch_option.substr(0, kind_.arch_option.size() - 1);
        error != 0 && !kind_.other_chips.empty() && result.log.find(option) != std::string::npos) {
      return Status(StatusCode::unavailable,
                    fmt::format("{} {}.{} ({}) does not compile for {}: {}", kind_.name, major_,
                                minor_, path_, request.arch, kind_.other_chips));
    }
    if (error != 0) {
      return Status(StatusCode::internal,
                    fmt::format("kernel \"{}\" for {}: {}: {}\n{}", request.name, request.arch,
                                path_, calls_.GetErrorString(error), result.log));
    }
    error = calls_.GetCodeSize(program, &bytes);
    result.code.resize(bytes);
    if (error == 0) error = calls_.GetCode(program, reinterpret_cast<char*>(result.code.data()));
    if (error == 0) return result;
    return Status(StatusCode::internal,
                  fmt::format("{}{}: {}", kind_.prefix, kind_.code, calls_.GetErrorString(error)));
  }

  RuntimeCompilerKind kind_;
  RuntimeCompilerCalls calls_;
  std::string path_, build_;
  int major_ = 0, minor_ = 0;
};

}  // namespace

Result<std::unique_ptr<const Compiler>> open_runtime_compiler(const RuntimeCompilerKind& kind,
                                                              const LibrarySearch& search) {
  Result<FoundLibrary> library = find_library(search);
  if (!library.ok()) return library.status();
  RuntimeCompilerCalls calls{};
  std::string missing;
  const auto load = [&](auto& function, std::string_view name) {
    const std::string symbol = fmt::format("{}{}", kind.prefix, name);
    platform::find_symbol(library->handle, symbol.c_str(), function);
    if (function == nullptr) missing += fmt::format(" {}", symbol);
  };
  load(calls.Version, "Version");
  load(calls.CreateProgram, "CreateProgram");
  load(calls.CompileProgram, "CompileProgram");
  load(calls.GetProgramLogSize, "GetProgramLogSize");
  load(calls.GetProgramLog, "GetProgramLog");
  load(calls.GetCodeSize, kind.code_size);
  load(calls.GetCode, kind.code);
  load(calls.DestroyProgram, "DestroyProgram");
  load(calls.GetErrorString, "GetErrorString");
  if (!missing.empty()) {
    return Status(StatusCode::unavailable,
                  fmt::format("{} lacks{}: {}", library->path, missing, kind.needed));
  }
  return std::unique_ptr<const Compiler>(
      std::make_unique<RuntimeCompiler>(kind, calls, library->path));
}

Result<const Compiler*> open_lasting_compiler(const RuntimeCompilerKind& kind,
                                              const LibrarySearch& search) {
  Result<std::unique_ptr<const Compiler>> opened = open_runtime_compiler(kind, search);
  if (!opened.ok()) return opened.status();
  return opened.value().release();
}

}  // namespace fulmen::gpu
