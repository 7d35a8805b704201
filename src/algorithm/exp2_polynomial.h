// Polynomials for 2^f. Minimax of the relative error, found by Lawson's iteration; the largest
// relative error in exact arithmetic is beside each. All have the constant term 1, so that a
// running maximum that stays rescales by exactly 1.
#pragma once

namespace fulmen::algorithm {

// f in [-1/2, 1/2], what rounding to the nearest integer leaves.
template <int kDegree>
struct Exp2Centered;

template <>
struct Exp2Centered<3> {  // 1.0e-4: under half an ulp of bf16 (2^-9)
  static constexpr float kCoefficients[] = {1.0F, 0.6932829022407532F, 0.2422109693288803F,
                                            0.05500893294811249F};
};

template <>
struct Exp2Centered<5> {  // 9.1e-8: under an ulp of fp32 (2^-23)
  static constexpr float kCoefficients[] = {1.0F,
                                            0.6931470036506653F,
                                            0.24022242426872253F,
                                            0.05550733581185341F,
                                            0.009671512991189957F,
                                            0.001326472731307149F};
};

// f in [0, 1], what the integer below leaves.
template <int kDegree>
struct Exp2OnUnit;

template <>
struct Exp2OnUnit<3> {  // 8.6e-5
  static constexpr float kCoefficients[] = {1.0F, 0.6951168179512024F, 0.22764497995376587F,
                                            0.0770670473575592F};
};

template <>
struct Exp2OnUnit<5> {  // 8.2e-8
  static constexpr float kCoefficients[] = {1.0F,
                                            0.6931512951850891F,
                                            0.24016444385051727F,
                                            0.05579991266131401F,
                                            0.009017029777169228F,
                                            0.0018671301659196615F};
};

}  // namespace fulmen::algorithm
