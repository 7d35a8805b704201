// Compiled kernels in memory and on disk. Key: source, options, chip and the compiler's identity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/status.h"
#include "gpu/compile/toolchains/compiler.h"

namespace fulmen::gpu {

struct CacheEntry {
  std::string name;  // CompileRequest::name
  std::string arch;
  std::string file;
  std::size_t bytes = 0;
  int64_t last_used = 0;  // seconds since 1970
};

// Every entry on disk; files whose header does not fit are left out.
std::vector<CacheEntry> list_cache();
// Deletes every entry, and only files that are entries. Returns how many.
Result<int> clear_cache();

// The code of a request: from memory, $FULMEN_KERNEL_PATH (directories of prebuilt kernels, as PATH
// lists them), disk, else compiled and kept. The disk holds at most $FULMEN_CACHE_BYTES (1 GiB; 0:
// nothing); what cannot be used or written there is said in a line in the log (hooks.h), once.
// compiler may be null where prebuilt kernels must do; the reason is then in no_compiler. What does
// not compile is tried once a process; what breaks a rule of machine code (verification_failed)
// once, as the disk keeps why.
Result<CompiledCode> cached_compile(const Compiler* compiler, const Status& no_compiler,
                                    const CompileRequest& request);
// Whether the user or the program has named prebuilt kernels, or the program's source of them says
// that it has a chip's: a device without a compiler may then be of use.
bool has_prebuilt();
bool source_has_prebuilt(const std::string& arch);
// What was found out about compiled kernels, kept on disk among them by a text that names them.
// Empty where there is none, or it is damaged (which is said).
std::string kept_verdict(const std::string& identity);
// name and arch: for listings.
void keep_verdict(const std::string& identity, const std::string& name, const std::string& arch,
                  const std::string& verdict);
// Writes what FULMEN_KERNEL_PATH finds: a file for the request, by source and chip, whatever
// compiler made it.
Status write_prebuilt(const std::string& directory, const CompileRequest& request,
                      const CompiledCode& code);

}  // namespace fulmen::gpu
