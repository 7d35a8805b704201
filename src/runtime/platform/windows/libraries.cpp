#include "runtime/platform/libraries.h"

#include <windows.h>
// It uses the types of the header above.
#include <psapi.h>

#include <algorithm>

#include "runtime/path_list.h"
#include "runtime/platform/files.h"
#include "runtime/platform/system.h"
#include "runtime/platform/windows/words.h"

namespace fulmen::platform {
namespace {

HMODULE module_of(const void* library) { return static_cast<HMODULE>(const_cast<void*>(library)); }

std::string file_of(HMODULE module) {
  std::wstring path(MAX_PATH, L'\0');
  for (;;) {
    const DWORD count = ::GetModuleFileNameW(module, path.data(), static_cast<DWORD>(path.size()));
    if (count < path.size()) {
      path.resize(count);
      return narrow(path);
    }
    path.resize(2 * path.size());
  }
}

bool is_absolute(std::string_view path) {
  return path.starts_with("\\\\") || path.starts_with("//") ||
         (path.size() > 2 && path[1] == ':' && (path[2] == '/' || path[2] == '\\'));
}

// Libraries that one needs are looked for beside it first, then where the system looks.
HMODULE open_file(const std::string& path) {
  return ::LoadLibraryExW(wide_path(path).c_str(), nullptr,
                          LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
}

// The program's folder, System32, and the folders of PATH; never the current folder, in which
// anybody may have put one.
HMODULE open_name(const std::string& name) {
  if (HMODULE module =
          ::LoadLibraryExW(wide(name).c_str(), nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS))
    return module;
  const DWORD number = ::GetLastError();
  for (const std::string& folder : listed_folders(environment_variable("PATH").value_or(""))) {
    const std::string file = folder + "\\" + name;
    if (!is_absolute(file) || !is_program(file)) continue;
    if (HMODULE module = open_file(file)) return module;
    return nullptr;
  }
  ::SetLastError(number);
  return nullptr;
}

}  // namespace

void* load_library(const std::string& name, Opening opening, OpeningError& error) {
  error = {};
  HMODULE module = nullptr;
  if (opening == Opening::if_loaded) {
    // A bare name is that of a loaded file in whatever folder.
    ::GetModuleHandleExW(0, wide_path(name).c_str(), &module);
  } else {
    // A damaged file is an error of the call, not a window.
    DWORD before = 0;
    ::SetThreadErrorMode(SEM_FAILCRITICALERRORS, &before);
    module = has_folder(name) ? open_file(name) : open_name(name);
    const DWORD number = ::GetLastError();
    ::SetThreadErrorMode(before, nullptr);
    ::SetLastError(number);
  }
  if (module != nullptr) return module;
  const DWORD number = ::GetLastError();
  error.words = name + ": " + error_words(number);
  error.is_absent = number == ERROR_MOD_NOT_FOUND;
  return nullptr;
}

void unload_library(void* library) noexcept { ::FreeLibrary(module_of(library)); }

void* find_symbol(void* library, const char* name) noexcept {
  return reinterpret_cast<void*>(::GetProcAddress(module_of(library), name));
}

std::string library_path(void* library) { return file_of(module_of(library)); }

// A DLL is found by its file's name alone.
std::string library_name(void* library) {
  const std::string path = library_path(library);
  return path.substr(path.find_last_of("\\/") + 1);
}

std::string library_that_holds(const void* address) {
  HMODULE module = nullptr;
  const auto found = ::GetModuleHandleExW(
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
      static_cast<const wchar_t*>(address), &module);
  return found != 0 ? file_of(module) : std::string();
}

std::string LoadedLibrary::path() const { return file_of(module_of(loaders_)); }

bool LoadedLibrary::holds(const void* address) const {
  HMODULE module = nullptr;
  return ::GetModuleHandleExW(
             GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
             static_cast<const wchar_t*>(address), &module) != 0 &&
         module == loaders_;
}

std::vector<LoadedLibrary::Notes> LoadedLibrary::notes() const { return {}; }

void visit_loaded(const std::function<bool(const LoadedLibrary&)>& visit) {
  std::vector<HMODULE> modules(256);
  DWORD bytes = 0;
  for (;;) {
    const auto room = static_cast<DWORD>(modules.size() * sizeof(HMODULE));
    if (::K32EnumProcessModules(::GetCurrentProcess(), modules.data(), room, &bytes) == 0) return;
    if (bytes <= room) break;
    modules.resize(bytes / sizeof(HMODULE));
  }
  modules.resize(bytes / sizeof(HMODULE));
  for (HMODULE module : modules) {
    if (visit(LoadedLibrary(module))) return;
  }
}

}  // namespace fulmen::platform
