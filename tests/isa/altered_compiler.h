// A script around clang, for FULMEN_AMD_COMPILER, that changes the kernel's source or adds an
// option.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gpu/compile/toolchains/first_llvm.h"
#include "runtime/run_program.h"

namespace fulmen::testing {

// Kernels that it compiles are kept apart from others in the cache, and from those of the last run
// of the tests, by what it says of its version. It is in use during this object's lifetime. A
// process keeps loaded kernels, so problems must need kernels that no other test of the program
// runs.
class AlteredCompiler {
 public:
  // sed: an expression for the source, or empty. option: for clang, or empty. arch: what the clang
  // has to know.
  AlteredCompiler(const std::string& what, const std::string& sed, const std::string& option,
                  const std::string& arch = "gfx1100") {
    for (const char* name : {"clang++-19", "clang++-20", "clang++-21", "clang++-22", "clang++"}) {
      const int version = gpu::version_in_name(name);
      const bool knows_it = version == 0 || version >= gpu::first_llvm(arch);
      if (clang_.empty() && knows_it) clang_ = find_program(name);
    }
    const std::string script = folder_.path() + "/altered";
    const std::string text =
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo \"clang of a test: " + what + ", " +
        folder_.path() + ", $(\"" + clang_ +
        "\" --version | head -n 1)\"; exit; fi\nfor a; do case \"$a\" in *.hip) cp \"$a\" "
        "\"$a.before\"; " +
        (sed.empty() ? "" : "sed -i '" + sed + "' \"$a\"; ") +
        "cmp -s \"$a\" \"$a.before\" || : > \"$(dirname \"$0\")/changed\";; esac; done\nexec \"" +
        clang_ + "\" \"$@\" " + option + "\n";
    if (!write_file(script, text).ok()) return;
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    ::setenv("FULMEN_AMD_COMPILER", script.c_str(), 1);
  }
  ~AlteredCompiler() { ::unsetenv("FULMEN_AMD_COMPILER"); }
  AlteredCompiler(const AlteredCompiler&) = delete;
  AlteredCompiler& operator=(const AlteredCompiler&) = delete;

  bool found() const { return !clang_.empty(); }
  // Whether the expression was anywhere in a source that was compiled.
  bool changed_a_source() const { return std::filesystem::exists(folder_.path() + "/changed"); }

 private:
  TemporaryDirectory folder_;
  std::string clang_;
};

}  // namespace fulmen::testing
