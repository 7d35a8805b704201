//! Attention in candle before and after, as a ratio: on the CPU, and with the feature `cuda` on the
//! first GPU.
//!
//! `cargo bench -p candle-fulmen --bench attention`, or with a number of rounds: `... -- 20`.
//!
//! The candidates alternate, so that changes of the machine's speed affect all of them. Medians
//! count. "Steps" is what candle-transformers' Llama does: to F32, `matmul`, scale, mask,
//! `softmax_last_dim`, `matmul`, and back. It gets its inputs as it likes them, `[batch, heads,
//! seqlen, head_dim]` and contiguous, with K and V repeated for its heads; neither is timed. On the
//! CPU candle-nn's own attention, which those models do not call, takes its turn where it takes the
//! case.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_fulmen::flash_attn;
use candle_nn::attention::{self, AttnMask};
use half::bf16;

struct Case {
    /// `batch`, `seqlen_q`, `seqlen_k`, `heads`, `kv_heads`, `head_dim`
    sizes: [usize; 6],
    causal: bool,
    dtype: DType,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim] = self.sizes;
        let causal = if self.causal { " causal" } else { "" };
        let dtype = self.dtype;
        write!(
            f,
            "{batch}x{seqlen_q}x{seqlen_k} {heads}/{kv_heads}x{head_dim}{causal} {dtype:?}"
        )
    }
}

fn cases(device: &Device) -> Vec<Case> {
    // Prefill, decode, chess boards.
    let (sizes, dtypes) = match device.is_cpu() {
        true => (
            [
                [1, 1024, 1024, 16, 16, 64],
                [1, 1, 8192, 32, 8, 128],
                [64, 64, 64, 24, 24, 32],
            ],
            [DType::F32, DType::BF16],
        ),
        false => (
            [
                [1, 4096, 4096, 32, 8, 128],
                [16, 1, 8192, 32, 8, 128],
                [1024, 64, 64, 24, 24, 32],
            ],
            [DType::F16, DType::BF16],
        ),
    };
    let of_both = |sizes: [usize; 6]| {
        dtypes.map(|dtype| Case {
            sizes,
            causal: sizes[1] > 64,
            dtype,
        })
    };
    sizes.into_iter().flat_map(of_both).collect()
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

/// candle-nn's attention on the CPU, of tensors `[batch, seqlen, heads, head_dim]`; its result is
/// `[batch, heads, ...]`.
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

/// Seconds until `calls` calls, one behind the other, have ended.
fn seconds(device: &Device, calls: u32, call: &mut dyn FnMut() -> Result<Tensor>) -> Result<f64> {
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    device.synchronize()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Microseconds of a call: of one on the CPU, of each that follows ten others on a GPU. After each
/// synchronisation CUDA's memory pool maps memory anew, about a millisecond. A first span is not
/// counted: meanwhile CUDA clears the gigabytes that the candidate before gave back.
fn time(device: &Device, call: &mut dyn FnMut() -> Result<Tensor>) -> Result<f64> {
    if device.is_cpu() {
        return Ok(seconds(device, 1, call)? * 1e6);
    }
    const FEW: u32 = 10;
    const MANY: u32 = 30;
    seconds(device, MANY, call)?;
    let added = seconds(device, MANY, call)? - seconds(device, FEW, call)?;
    Ok(added * 1e6 / f64::from(MANY - FEW))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run(case: &Case, rounds: usize, device: &Device) -> Result<()> {
    let [batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim] = case.sizes;
    let random = |seqlen, heads| {
        Tensor::randn(0f32, 1., (batch, seqlen, heads, head_dim), device)?.to_dtype(case.dtype)
    };
    let q = random(seqlen_q, heads)?;
    let k = random(seqlen_k, kv_heads)?;
    let v = random(seqlen_k, kv_heads)?;
    let by_head = |t: &Tensor| {
        let repeats = heads / t.dim(2)?;
        let index: Vec<u32> = (0..heads).map(|h| (h / repeats) as u32).collect();
        let repeated = t.index_select(&Tensor::new(index, device)?, 2)?;
        repeated.transpose(1, 2)?.contiguous()
    };
    let (q_heads, k_heads, v_heads) = (by_head(&q)?, by_head(&k)?, by_head(&v)?);
    let mask = match case.causal {
        true => {
            let value = |at: usize| match at % seqlen_k > at / seqlen_k + seqlen_k - seqlen_q {
                true => f32::NEG_INFINITY,
                false => 0.,
            };
            let values: Vec<f32> = (0..seqlen_q * seqlen_k).map(value).collect();
            Some(Tensor::from_vec(values, (seqlen_q, seqlen_k), device)?)
        }
        false => None,
    };
    let scale = 1. / (head_dim as f64).sqrt();
    let mut before = || steps(&q_heads, &k_heads, &v_heads, scale, mask.as_ref());
    let mut after = || flash_attn(&q, &k, &v, scale as f32, case.causal);
    let mut flash = || candle_nn_flash(&q, &k, &v, scale as f32, case.causal);

    let f32 = |t: Tensor| t.to_dtype(DType::F32);
    let difference = (f32(before()?.transpose(1, 2)?)? - f32(after()?)?)?.abs()?;
    let worst = difference.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    let tolerance = if case.dtype == DType::F32 { 1e-4 } else { 5e-2 };
    if worst > tolerance || worst.is_nan() {
        candle_core::bail!("{case}: results differ by {worst}")
    }
    let has_flash = device.is_cpu() && flash().is_ok();
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        times[0].push(time(device, &mut before)?);
        if has_flash {
            times[1].push(time(device, &mut flash)?);
        }
        times[2].push(time(device, &mut after)?);
    }
    let [steps, nn, ours] = times.map(median);
    let ratios = [steps / ours, nn / ours];
    println!(
        "{:36} {steps:9.0} {nn:9.0} {ours:9.1} {:7.1} {:7.1} {worst:10.1e}",
        case.to_string(),
        ratios[0],
        ratios[1]
    );
    Ok(())
}

fn main() -> Result<()> {
    let rounds = std::env::args().find_map(|argument| argument.parse().ok());
    let device = Device::cuda_if_available(0)?;
    println!("Median microseconds of a call, and how many times Fulmen's candle's two take.");
    println!(
        "{:36} {:>9} {:>9} {:>9} {:>7} {:>7} {:>10}",
        "", "steps", "candle-nn", "Fulmen", "steps", "nn", "difference"
    );
    for case in cases(&device) {
        run(&case, rounds.unwrap_or(15), &device)?;
    }
    Ok(())
}
