// Polynomials for 2^f, f in [-1/2, 1/2], with constant term exactly 1 (so that 2^0 is 1 and a masked score gives exactly 0). Minimax of
// the relative error, found by Lawson's iteration; the largest relative error in exact arithmetic is beside each.
#pragma once

namespace fulmen::algorithm {

template <int kDegree>
struct Exp2Polynomial;

template <>
struct Exp2Polynomial<3> {  // 1.0e-4: under half an ulp of bf16 (2^-9)
  static constexpr float kCoefficients[] = {1.0F, 0.6932829022407532F, 0.2422109693288803F, 0.05500893294811249F};
};

template <>
struct Exp2Polynomial<5> {  // 9.1e-8: under an ulp of fp32 (2^-23)
  static constexpr float kCoefficients[] = {1.0F,
                                            0.6931470036506653F,
                                            0.24022242426872253F,
                                            0.05550733581185341F,
                                            0.009671512991189957F,
                                            0.001326472731307149F};
};

}  // namespace fulmen::algorithm
