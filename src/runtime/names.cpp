#include "fulmen/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "fulmen/printable.h"

namespace fulmen {
namespace {

constexpr std::size_t kShown = 6;

// How many characters have to be inserted, left out or replaced.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string names_like(std::string_view asked, const std::vector<std::string>& names) {
  asked = asked.substr(0, 200);  // the distance takes time by its square
  struct Known {
    std::string name, remark;
    std::size_t distance, place;
  };
  std::vector<Known> all;
  for (const std::string& text : names) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string name = text.substr(0, end);
    all.push_back({name, text.substr(std::min(end + 1, text.size())),
                   distance(asked, std::string_view(name).substr(0, 200)), all.size()});
  }
  std::sort(all.begin(), all.end(), [](const Known& a, const Known& b) {
    return std::pair(a.distance, a.place) < std::pair(b.distance, b.place);
  });
  if (all.empty()) return "none is known";
  std::string said;
  if (all[0].distance * 4 <= all[0].name.size() + 3) {
    said = fmt::format("did you mean \"{}\"? Known are ", printable(all[0].name));
  } else {
    said = "known are ";
  }
  for (std::size_t n = 0; n < std::min(kShown, all.size()); ++n) {
    said += fmt::format("{}\"{}\"", n == 0 ? "" : ", ", printable(all[n].name));
    if (!all[n].remark.empty()) said += fmt::format(" ({})", printable(all[n].remark));
  }
  if (all.size() > kShown) said += fmt::format(" and {} more", all.size() - kShown);
  return said;
}

}  // namespace fulmen
