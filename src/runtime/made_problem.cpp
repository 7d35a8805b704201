#include "runtime/made_problem.h"

namespace fulmen {

Status check_made(const Problem& problem) {
  const bool heads = problem.num_heads > 0 && problem.num_kv_heads > 0 &&
                     problem.num_heads % problem.num_kv_heads == 0;
  if (problem.q.present && heads && problem.head_dim > 0 && problem.head_dim_v > 0) return {};
  return {StatusCode::invalid_argument,
          "problem is empty: one of make_problem or make_backward_problem is needed"};
}

}  // namespace fulmen
