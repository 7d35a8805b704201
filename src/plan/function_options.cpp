#include "plan/function_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "score/band.h"
#include "score/functions.h"
#include "score/softcap.h"

namespace fulmen {
namespace {

using score::Distances;

// A diagonal that options can say.
struct Alignment {
  bool top_left = false;
  int64_t diagonal = 0;
};

// Distances that a problem's windows allow, of those of all pairs.
Distances window_of(const Problem& p, const Distances& all) {
  return {p.window_left < 0 ? all.least : std::max(all.least, p.diagonal - p.window_left),
          p.window_right < 0 ? all.most : std::min(all.most, p.diagonal + p.window_right)};
}

// The nearest band around `wanted` that has the diagonal inside.
Distances widened(const Distances& wanted, int64_t diagonal) {
  return {std::min(wanted.least, diagonal), std::max(wanted.most, diagonal)};
}

// The alignment whose band is the narrowest around `wanted`, the problem's own where it will do,
// without a pair that the problem's windows leave out. Nothing: these are by diagonals that only
// sequences know.
std::optional<Alignment> alignment_for(const Problem& p, const Distances& wanted,
                                       const Distances& windows_have) {
  const bool windows = p.window_left >= 0 || p.window_right >= 0,
             free = !windows || !p.variable_lengths();
  std::vector<Alignment> allowed;
  if (!p.variable_lengths() || p.top_left) allowed.push_back({p.top_left, p.diagonal});
  // ALiBi's distances are from the diagonal.
  if (free && !p.alibi_slopes.present) {
    allowed.push_back({true, 0});
    if (!p.variable_lengths()) allowed.push_back({false, p.seqlen_k - p.seqlen_q});
  }
  std::erase_if(allowed, [&](const Alignment& one) {
    const Distances band = widened(wanted, one.diagonal);
    return both(band, windows_have) != band;
  });
  if (allowed.empty()) return {};
  const auto pairs = [&](const Alignment& one) {
    const Distances band = widened(wanted, one.diagonal);
    return band.most - band.least;
  };
  return *std::min_element(
      allowed.begin(), allowed.end(),
      [&](const Alignment& x, const Alignment& y) { return pairs(x) < pairs(y); });
}

void set_window(const Alignment& alignment, const Distances& band, const Distances& all,
                Problem& p) {
  p.top_left = alignment.top_left;
  p.diagonal = alignment.diagonal;
  p.window_left = band.least <= all.least ? -1 : p.diagonal - band.least;
  p.window_right = band.most >= all.most ? -1 : band.most - p.diagonal;
}

Problem with_band(const Problem& p) {
  const ScoreFunctions::Impl* functions = p.functions.impl();
  if (functions == nullptr || !functions->has_mask() || p.seqlen_q == 0 || p.seqlen_k == 0)
    return p;
  const Distances all = score::all_distances(p.seqlen_q, p.seqlen_k);
  const std::vector<score::Conjunct> conjuncts =
      score::conjuncts_of(functions->mask, p.seqlen_q, p.seqlen_k);
  Distances wanted = all;
  for (const score::Conjunct& one : conjuncts) {
    if (one.is_band) wanted = both(wanted, one.distances);
  }
  Problem to = p;
  Distances taken = all;
  // mask_mod does not mask full blocks.
  if (!p.full_kv_indices.present && wanted != all) {
    const Distances windows_have = p.variable_lengths() && !p.top_left ? all : window_of(p, all);
    wanted = both(wanted, windows_have);
    // Nothing is attended: the function says so.
    if (wanted.least > wanted.most) return p;
    if (const auto alignment = alignment_for(p, wanted, windows_have)) {
      taken = both(all, widened(wanted, alignment->diagonal));
      set_window(*alignment, taken, all, to);
    }
  }
  const bool any = std::any_of(conjuncts.begin(), conjuncts.end(),
                               [&](const auto& one) { return holds_in(one, taken); });
  if (any) {
    to.functions =
        score::with_mask(p.functions, score::without_bands(functions->mask, conjuncts, taken));
  }
  return to;
}

}  // namespace

Problem for_kernels(const Problem& p) {
  Problem to = with_band(p);
  if (const float softcap = score::softcap_of_function(p); softcap > 0) {
    to.softcap = softcap;
    to.functions = score::without_score(to.functions);
  }
  return to;
}

std::string options_of_functions(const Problem& p, const Problem& to) {
  if (p == to) return {};
  std::string text;
  if (to.softcap != p.softcap) text = fmt::format("softcap={:g} from score_mod", to.softcap);
  const bool band = to.window_left != p.window_left || to.window_right != p.window_right ||
                    to.diagonal != p.diagonal || to.top_left != p.top_left;
  const bool had_mask = p.functions.impl()->has_mask();
  const auto* functions = to.functions.impl();
  const bool rest = functions != nullptr && functions->has_mask();
  if (!band && rest == had_mask) return text;
  return fmt::format("{}{}band from mask_mod: window={},{} {}; {}", text, text.empty() ? "" : "; ",
                     to.window_left, to.window_right,
                     to.variable_lengths() ? "top_left" : fmt::format("diagonal={}", to.diagonal),
                     rest ? "the rest of it is evaluated" : "nothing else is left of it");
}

}  // namespace fulmen
