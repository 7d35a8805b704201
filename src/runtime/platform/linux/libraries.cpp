#include "runtime/platform/libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>

namespace fulmen::platform {
namespace {

using Header = ElfW(Phdr);

const dl_phdr_info& info_of(const void* loaders) {
  return *static_cast<const dl_phdr_info*>(loaders);
}

std::span<const Header> headers(const dl_phdr_info& library) {
  return {library.dlpi_phdr, library.dlpi_phnum};
}

// Returns true if [begin, begin + bytes) of the library's own addresses is mapped and readable.
bool is_mapped(const dl_phdr_info& library, std::uintptr_t begin, std::size_t bytes) {
  for (const Header& h : headers(library)) {
    if (h.p_type != PT_LOAD || (h.p_flags & PF_R) == 0 || begin < h.p_vaddr) continue;
    // Only the file's bytes count: those after them are zero, and no notes.
    const std::uintptr_t at = begin - h.p_vaddr;
    if (at <= h.p_filesz && bytes <= h.p_filesz - at) return true;
  }
  return false;
}

link_map* map_of(void* library) {
  link_map* map = nullptr;
  return ::dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 ? map : nullptr;
}

}  // namespace

std::string library_path(void* library) {
  const link_map* map = map_of(library);
  return map != nullptr ? map->l_name : std::string();
}

std::string library_name(void* library) {
  const link_map* map = map_of(library);
  if (map == nullptr) return {};
  const char* strings = nullptr;
  const ElfW(Dyn)* name = nullptr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): ELF gives addresses as numbers
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SONAME) name = entry;
  }
  if (strings == nullptr || name == nullptr) return {};
  // glibc has put the library's address into the entry, musl and some processors' glibc have not.
  const auto at = reinterpret_cast<std::uintptr_t>(strings);
  return (at < map->l_addr ? strings + map->l_addr : strings) + name->d_un.d_val;
}

std::string LoadedLibrary::path() const { return info_of(loaders_).dlpi_name; }

bool LoadedLibrary::holds(const void* address) const {
  const dl_phdr_info& library = info_of(loaders_);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const Header& h : headers(library)) {
    const std::uintptr_t begin = library.dlpi_addr + h.p_vaddr;
    if (h.p_type == PT_LOAD && at >= begin && at - begin < h.p_memsz) return true;
  }
  return false;
}

std::vector<LoadedLibrary::Notes> LoadedLibrary::notes() const {
  const dl_phdr_info& library = info_of(loaders_);
  std::vector<Notes> found;
  for (const Header& h : headers(library)) {
    if (h.p_type != PT_NOTE || !is_mapped(library, h.p_vaddr, h.p_filesz)) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
    const auto* bytes = reinterpret_cast<const std::byte*>(library.dlpi_addr + h.p_vaddr);
    found.push_back({{bytes, h.p_filesz}, h.p_align == 8 ? std::size_t{8} : std::size_t{4}});
  }
  return found;
}

void visit_loaded(const std::function<bool(const LoadedLibrary&)>& visit) {
  const auto call = [](dl_phdr_info* info, std::size_t, void* function) {
    const auto& visit_one =
        *static_cast<const std::function<bool(const LoadedLibrary&)>*>(function);
    return visit_one(LoadedLibrary(info)) ? 1 : 0;
  };
  ::dl_iterate_phdr(call, const_cast<void*>(static_cast<const void*>(&visit)));
}

}  // namespace fulmen::platform
