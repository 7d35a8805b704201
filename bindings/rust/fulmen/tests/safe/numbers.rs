//! Seeded numbers.

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
