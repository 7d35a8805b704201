//! Attention in candle before and after, on the CPU, as a ratio.
//!
//! `cargo bench -p candle-fulmen`, or with a number of rounds: `cargo bench -p candle-fulmen --
//! 20`.
//!
//! Both are called in turn, so that a machine whose speed changes does so for both, and the fastest
//! call of each counts. "Before" is what candle-transformers' Llama does: to F32, `matmul`, scale,
//! mask, `softmax_last_dim`, `matmul`, and back. It gets its inputs as it likes them, `[batch,
//! heads, seqlen, head_dim]` and contiguous, with K and V repeated for its heads; neither is timed.
//! Between them stands candle-nn's own attention for CPUs, which those models do not call, where it
//! takes the case.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_fulmen::flash_attn;
use candle_nn::attention::{self, AttnMask};
use half::bf16;

struct Case {
    name: &'static str,
    batch: usize,
    seqlen_q: usize,
    seqlen_k: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    causal: bool,
    dtype: DType,
}

/// `batch`, `seqlen_q`, `seqlen_k`, `heads`, `kv_heads`, `head_dim`
type Sizes = [usize; 6];

fn case(name: &'static str, sizes: Sizes, causal: bool, dtype: DType) -> Case {
    let [batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim] = sizes;
    Case {
        name,
        batch,
        seqlen_q,
        seqlen_k,
        heads,
        kv_heads,
        head_dim,
        causal,
        dtype,
    }
}

fn cases() -> Vec<Case> {
    let prefill = [1, 1024, 1024, 16, 16, 64];
    let decode = [1, 1, 8192, 32, 8, 128];
    let boards = [64, 64, 64, 24, 24, 32];
    vec![
        case("prefill 1k, 16 x 64", prefill, true, DType::F32),
        case("prefill 1k, 16 x 64", prefill, true, DType::BF16),
        case("decode over 8k, 32/8 x 128", decode, false, DType::F32),
        case("decode over 8k, 32/8 x 128", decode, false, DType::BF16),
        case("64 boards, 24 x 32", boards, false, DType::F32),
        case("64 boards, 24 x 32", boards, false, DType::BF16),
    ]
}

/// candle's steps, of tensors `[batch, heads, seqlen, head_dim]`.
fn steps(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: Option<&Tensor>) -> Result<Tensor> {
    let dtype = q.dtype();
    let f32 = |t: &Tensor| t.to_dtype(DType::F32);
    let (q, k, v) = (f32(q)?, f32(k)?, f32(v)?);
    let mut scores = (q.matmul(&k.t()?)? * scale)?;
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    candle_nn::ops::softmax_last_dim(&scores)?
        .matmul(&v)?
        .to_dtype(dtype)
}

/// candle-nn's attention, of tensors `[batch, seqlen, heads, head_dim]`; its result is `[batch,
/// heads, ...]`.
fn candle_nn_flash(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32, causal: bool) -> Result<Tensor> {
    let mask = match causal {
        true => AttnMask::causal_with_offset(k.dim(1)? - q.dim(1)?),
        false => AttnMask::None,
    };
    match q.dtype() {
        DType::BF16 => attention::flash_attn::<bf16>(q, k, v, scale, mask, None, None),
        _ => attention::flash_attn::<f32>(q, k, v, scale, mask, None, None),
    }
}

/// Microseconds of one call.
fn time(call: &mut dyn FnMut() -> Result<Tensor>) -> Result<f64> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

fn run(case: &Case, rounds: usize) -> Result<()> {
    let random = |seqlen, heads| {
        let dims = (case.batch, seqlen, heads, case.head_dim);
        Tensor::randn(0f32, 1., dims, &Device::Cpu)?.to_dtype(case.dtype)
    };
    let q = random(case.seqlen_q, case.heads)?;
    let k = random(case.seqlen_k, case.kv_heads)?;
    let v = random(case.seqlen_k, case.kv_heads)?;
    let by_head = |t: &Tensor| {
        let repeats = case.heads / t.dim(2)?;
        let index: Vec<u32> = (0..case.heads).map(|h| (h / repeats) as u32).collect();
        let repeated = t.index_select(&Tensor::new(index, &Device::Cpu)?, 2)?;
        repeated.transpose(1, 2)?.contiguous()
    };
    let (q_heads, k_heads, v_heads) = (by_head(&q)?, by_head(&k)?, by_head(&v)?);
    let mask = match case.causal {
        true => {
            let (rows, columns) = (case.seqlen_q, case.seqlen_k);
            let value = |at: usize| match at % columns > at / columns + columns - rows {
                true => f32::NEG_INFINITY,
                false => 0.,
            };
            let values: Vec<f32> = (0..rows * columns).map(value).collect();
            Some(Tensor::from_vec(values, (rows, columns), &Device::Cpu)?)
        }
        false => None,
    };
    let scale = 1. / (case.head_dim as f64).sqrt();
    let mut before = || steps(&q_heads, &k_heads, &v_heads, scale, mask.as_ref());
    let mut after = || flash_attn(&q, &k, &v, scale as f32, case.causal);

    let difference = (before()?.transpose(1, 2)? - after()?)?.to_dtype(DType::F32)?;
    let worst = difference
        .abs()?
        .flatten_all()?
        .max(0)?
        .to_scalar::<f32>()?;
    let tolerance = if case.dtype == DType::F32 { 1e-4 } else { 5e-2 };
    if worst > tolerance {
        candle_core::bail!("{}: results differ by {worst}", case.name)
    }
    let mut flash = || candle_nn_flash(&q, &k, &v, scale as f32, case.causal);
    let has_flash = flash().is_ok();
    let mut best = [f64::INFINITY; 3];
    for _ in 0..rounds {
        best[0] = best[0].min(time(&mut before)?);
        if has_flash {
            best[1] = best[1].min(time(&mut flash)?);
        }
        best[2] = best[2].min(time(&mut after)?);
    }
    println!(
        "{:28} {:5} {:9.0} {:9.0} {:9.0} {:7.1} {:7.1} {worst:10.1e}",
        case.name,
        format!("{:?}", case.dtype),
        best[0],
        best[1],
        best[2],
        best[0] / best[2],
        best[1] / best[2]
    );
    Ok(())
}

fn main() -> Result<()> {
    let rounds = std::env::args().find_map(|argument| argument.parse().ok());
    println!("Microseconds of the fastest call, and how many times Fulmen's candle's two take.");
    println!(
        "{:28} {:5} {:>9} {:>9} {:>9} {:>7} {:>7} {:>10}",
        "", "dtype", "steps", "candle-nn", "Fulmen", "steps", "nn", "difference"
    );
    for case in cases() {
        run(&case, rounds.unwrap_or(15))?;
    }
    Ok(())
}
