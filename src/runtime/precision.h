// Whether a kernel has the products that a problem asks for.
#pragma once

#include <string>

#include "fulmen/backend.h"
#include "fulmen/problem.h"

namespace fulmen {

// has_them: the kernel has products of the problem's precision. Without a product there is none of
// another precision.
inline Support takes_precision(const Problem& problem, bool has_them) {
  if (has_them || !problem.has_products()) return {};
  return Support::no(problem.precision == Precision::exact
                         ? "its products are in 8 bits alone (precision)"
                         : std::string("it has no products in ") + to_string(problem.precision));
}

}  // namespace fulmen
