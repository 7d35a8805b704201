//! Chess boards: one plan for every batch up to 256, run by two search threads at once, with the
//! heads interleaved as engines keep them and a bias for each head and pair of squares.
//!
//! `cargo run --release -p fulmen --example boards`

use std::thread;
use std::time::Instant;

use fulmen::{Attention, Forward, Plan, Result, Tensor, TensorMut};

const SQUARES: usize = 64;
const HEADS: usize = 24;
const DEPTH: usize = 32;
const BOARDS: usize = 256;
const BOARD: usize = SQUARES * HEADS * DEPTH;

struct Search {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    bias: Vec<f32>,
    out: Vec<f32>,
}

impl Search {
    fn new(boards: usize) -> Self {
        let numbers = |n: usize, by: usize| (0..n).map(|i| (i % by) as f32 / by as f32).collect();
        Self {
            q: numbers(boards * BOARD, 7),
            k: numbers(boards * BOARD, 11),
            v: numbers(boards * BOARD, 13),
            bias: numbers(HEADS * SQUARES * SQUARES, 17),
            out: vec![0.; boards * BOARD],
        }
    }

    /// Attention of the first boards.
    fn call(&mut self, boards: usize) -> Result<Forward<'_>> {
        let shape = [boards, SQUARES, HEADS, DEPTH];
        Ok(Forward::new(
            Tensor::bshd(&self.q, shape)?,
            Tensor::bshd(&self.k, shape)?,
            Tensor::bshd(&self.v, shape)?,
            TensorMut::bshd(&mut self.out, shape)?,
        )
        .bias(Tensor::bhqk(&self.bias, [1, HEADS, SQUARES, SQUARES])?))
    }
}

fn evaluate(plan: &Plan, batches: &[usize]) -> Result<f32> {
    let mut search = Search::new(BOARDS);
    let mut workspace = plan.workspace()?;
    for &boards in batches {
        plan.run(&mut search.call(boards)?, Some(&mut workspace))?;
    }
    Ok(search.out[0])
}

fn main() -> Result<()> {
    let attention = Attention::builder()
        .vary_batch(true)
        .num_threads(1)
        .build()?;
    let plan = attention.plan(&Search::new(BOARDS).call(BOARDS)?)?;
    println!("{}", plan.config()?.kernel);
    let start = Instant::now();
    let results = thread::scope(|scope| {
        let threads = [[1, 7, 64], [3, 32, 256]].map(|batches| {
            let plan = &plan;
            scope.spawn(move || evaluate(plan, &batches))
        });
        threads.map(|thread| thread.join().expect("no panic"))
    });
    println!("{:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    for result in results {
        println!("{:.4}", result?);
    }
    Ok(())
}
