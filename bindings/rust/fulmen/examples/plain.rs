//! Causal attention of two sequences: a call by itself.
//!
//! `cargo run -p fulmen --example plain`

use fulmen::{Attention, Causal, Forward, Result, Tensor, TensorMut};

fn main() -> Result<()> {
    let shape = [2, 128, 8, 64]; // [batch, seqlen, heads, head_dim]
    let n = shape.iter().product();
    let (q, k) = (vec![0.5f32; n], vec![0.25f32; n]);
    let v: Vec<f32> = (0..n).map(|i| (i / (8 * 64) % 128) as f32).collect(); // its row's number
    let mut out = vec![0f32; n];

    let attention = Attention::builder().causal(Causal::BottomRight).build()?;
    attention.forward(&mut Forward::new(
        Tensor::bshd(&q, shape)?,
        Tensor::bshd(&k, shape)?,
        Tensor::bshd(&v, shape)?,
        TensorMut::bshd(&mut out, shape)?,
    ))?;

    // All scores are equal, so row i is the mean of 0 to i.
    for row in [0, 1, 127] {
        println!("row {row:3}: {}", out[row * 8 * 64]);
    }
    Ok(())
}
