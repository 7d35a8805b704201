// Which LLVM is the first to know a chip.
#pragma once

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>

namespace fulmen::gpu {

struct FirstLlvm {
  std::string_view arch;
  int version;
};

// Chips that some LLVM from 16 on does not know.
inline constexpr FirstLlvm kFirstLlvm[]{
    {"gfx942", 17},  {"gfx950", 20},  {"gfx1150", 17}, {"gfx1151", 17}, {"gfx1152", 19},
    {"gfx1153", 20}, {"gfx1170", 23}, {"gfx1171", 23}, {"gfx1172", 23}, {"gfx1200", 18},
    {"gfx1201", 18}, {"gfx1250", 21}, {"gfx1251", 22}};

// 0 for a chip without a row: every LLVM knows it, or none is known to.
inline int first_llvm(std::string_view arch) {
  const auto* const row = std::find_if(std::begin(kFirstLlvm), std::end(kFirstLlvm),
                                       [&](const FirstLlvm& f) { return f.arch == arch; });
  return row == std::end(kFirstLlvm) ? 0 : row->version;
}

// The version at the end of a program's name, "clang++-19"; 0 where there is none.
inline int version_in_name(std::string_view name) {
  int version = 0;
  const std::size_t at = name.rfind('-');
  if (at == std::string_view::npos) return 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + at + 1, end, version);
  return error == std::errc() && stop == end ? version : 0;
}

}  // namespace fulmen::gpu
