//! Seeded numbers.

use fulmen::half::{bf16, f16};
use fulmen::Number;

/// `n` numbers from -1 to 1, the same for a seed.
pub fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.
    };
    (0..n).map(|_| next()).collect()
}

pub fn product(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// Types of elements that numbers are rounded to.
pub trait Rounded: Number + Default {
    fn from_f32(x: f32) -> Self;
}
impl Rounded for f32 {
    fn from_f32(x: f32) -> Self {
        x
    }
}
impl Rounded for f16 {
    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }
}
impl Rounded for bf16 {
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
}
