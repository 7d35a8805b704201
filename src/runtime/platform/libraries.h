// Shared libraries, and what the process has loaded. The library's own code opens and closes them
// by runtime/fork_safe.h.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fulmen::platform {

struct OpeningError {
  std::string words;       // the loader's; may be empty
  bool is_absent = false;  // there is no library of that name
};

enum class Opening { usual, if_loaded };

// A name without a folder is looked for where the system's loader looks. Null: the error says why.
void* load_library(const std::string& name, Opening opening, OpeningError& error);
void unload_library(void* library) noexcept;
// Null where it has no such symbol.
void* find_symbol(void* library, const char* name) noexcept;
template <class Function>
void find_symbol(void* library, const char* name, Function*& function) noexcept {
  function = reinterpret_cast<Function*>(find_symbol(library, name));
}

// Its file; empty where the loader does not say.
std::string library_path(void* library);
// The name that the library itself has, whatever its file is called; empty where it has none.
std::string library_name(void* library);
// The file of the loaded library, or program, that holds an address.
std::string library_that_holds(const void* address);

// A library in memory, while it is visited.
class LoadedLibrary {
 public:
  // Notes of an ELF file, at multiples of 4 or 8 bytes.
  struct Notes {
    std::span<const std::byte> bytes;
    std::size_t alignment = 4;
  };
  explicit LoadedLibrary(const void* loaders) noexcept : loaders_(loaders) {}
  std::string path() const;
  bool holds(const void* address) const;
  // Those that are mapped; none on systems without ELF.
  std::vector<Notes> notes() const;

 private:
  const void* loaders_;  // what the system's loader keeps of it
};

// Calls visit for each until it returns true.
void visit_loaded(const std::function<bool(const LoadedLibrary&)>& visit);

}  // namespace fulmen::platform
