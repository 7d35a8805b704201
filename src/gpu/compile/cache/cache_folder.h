// Folders of kernel files: the user's cache and folders of prebuilt kernels. Safe with many
// processes at once: a file is complete under its name or not there.
#pragma once

#include <string>
#include <vector>

#include "fulmen/read_file.h"
#include "fulmen/status.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/compile/cache/cache_file.h"

namespace fulmen::gpu {

// folder/<first half of the key in hexadecimal>.kernel
std::string kernel_path(const std::string& folder, const Digest& key);

// `found` is false where there is no file. Errors: a file that cannot be taken, with the reason.
struct LoadedKernel {
  bool found = false;
  CompiledCode compiled;
};
Result<LoadedKernel> load_kernel(const std::string& folder, const Digest& key, FileTrust trust);
// Makes a folder that the user named and sees whether files can be written there. Leaves no file.
Status make_folder(const std::string& folder);
// Makes the folder; the user's cache (FileTrust::own) may be entered, and its files read, by nobody
// else. Errors: a folder that cannot be written, a full disk.
Status store_kernel(const std::string& folder, const CacheFile& file, FileTrust trust);

std::vector<CacheEntry> list_kernels(const std::string& folder);
// Returns how many.
Result<int> remove_kernels(const std::string& folder);
// Removes the least recently used files until the rest is at most max_bytes, and what ended
// processes left half-written.
void bound_kernels(const std::string& folder, uint64_t max_bytes);

}  // namespace fulmen::gpu
