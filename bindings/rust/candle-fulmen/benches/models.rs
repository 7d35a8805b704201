//! candle-transformers' BERT and Llama before and after, in tokens a second: the same seeded
//! weights, with candle's steps and with Fulmen's attention. On the first GPU with the feature
//! `cuda`, else on the CPU.
//!
//! `cargo bench -p candle-fulmen --bench models`, or with a number of rounds: `... -- 5`.
//!
//! Both alternate, and medians count. Results are compared, too.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::{bert, llama};

use models::bert::{Bert, Sequences};
use models::llama::Llama;
use models::{seeded, Numbers};

#[path = "../tests/models/mod.rs"]
mod models;

/// Seconds of the two, before and after.
type Pair = [f64; 2];

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn print(what: &str, tokens: usize, seconds: Vec<Pair>) {
    let of = |which: usize| median(seconds.iter().map(|pair| pair[which]).collect());
    let (before, after) = (of(0), of(1));
    let rate = |seconds: f64| tokens as f64 / seconds;
    let ratio = before / after;
    println!(
        "{what:44} {:9.0} {:9.0} {ratio:6.2}",
        rate(before),
        rate(after)
    );
}

fn check(what: &str, ours: &Tensor, theirs: &Tensor, tolerance: f32) -> Result<()> {
    let difference = (ours.to_dtype(DType::F32)? - theirs.to_dtype(DType::F32)?)?.abs()?;
    let worst = difference.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    if worst > tolerance || worst.is_nan() {
        candle_core::bail!("{what}: results differ by {worst}")
    }
    Ok(())
}

fn seconds<T>(device: &Device, call: impl FnOnce() -> Result<T>) -> Result<f64> {
    device.synchronize()?;
    let start = Instant::now();
    call()?;
    device.synchronize()?;
    Ok(start.elapsed().as_secs_f64())
}

fn tokens(batch: usize, seqlen: usize, vocabulary: usize, device: &Device) -> Result<Tensor> {
    let numbers = Numbers::new(5).tensor(&[batch * seqlen]).to_vec1::<f32>()?;
    let token = |x: f32| (x.abs() * 1e4) as u32 % vocabulary as u32;
    let tokens: Vec<u32> = numbers.into_iter().map(token).collect();
    Tensor::from_vec(tokens, (batch, seqlen), device)
}

/// The first rows of each sequence of a padded batch, one behind the other.
fn used(padded: &Tensor, lengths: &[usize]) -> Result<Tensor> {
    let rows = |(n, length): (usize, &usize)| padded.get(n)?.narrow(0, 0, *length);
    let rows: Vec<Tensor> = lengths
        .iter()
        .enumerate()
        .map(rows)
        .collect::<Result<_>>()?;
    Tensor::cat(&rows, 0)
}

/// Hidden size, heads, inner size, layers. Sequences of different lengths are padded before, and
/// packed after.
fn bert(
    what: &str,
    sizes: [usize; 4],
    lengths: &[usize],
    rounds: usize,
    device: &Device,
) -> Result<()> {
    let [hidden_size, num_attention_heads, intermediate_size, num_hidden_layers] = sizes;
    let (batch, longest) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
    let config = bert::Config {
        vocab_size: 1000,
        hidden_size,
        num_attention_heads,
        intermediate_size,
        num_hidden_layers,
        ..bert::Config::default()
    };
    let vb = seeded(DType::F32, device);
    let theirs = bert::BertModel::load(vb.clone(), &config)?;
    let ours = Bert::load(&vb, &config)?;
    let total = lengths.iter().sum();
    let is_padded = total == batch * longest;
    let tokens = tokens(batch, longest, config.vocab_size, device)?;
    let types = tokens.zeros_like()?;
    let positions = Tensor::arange(0, longest as u32, device)?;
    let is_used = |n: usize| (0..longest).map(move |i| u8::from(i < lengths[n]));
    let mask: Vec<u8> = (0..batch).flat_map(is_used).collect();
    let mask = Tensor::from_vec(mask, (batch, longest), device)?;
    let mut cu_seqlens = vec![0u32];
    for length in lengths {
        cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + *length as u32);
    }
    let (our_tokens, positions, sequences) = match is_padded {
        true => {
            let mask = mask.reshape((batch, 1, 1, longest))?;
            (tokens.clone(), positions, Sequences::Padded { mask })
        }
        false => {
            let cu_seqlens = Tensor::new(cu_seqlens, device)?;
            let positions = positions.broadcast_as((batch, longest))?.contiguous()?;
            let packed = Sequences::Packed {
                cu_seqlens,
                longest,
            };
            (used(&tokens, lengths)?, used(&positions, lengths)?, packed)
        }
    };
    let before = || theirs.forward(&tokens, &types, Some(&mask));
    let after = || ours.forward(&our_tokens, &positions, &sequences);
    let reference = match is_padded {
        true => before()?,
        false => used(&before()?, lengths)?,
    };
    check(what, &after()?, &reference, 1e-3)?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push([seconds(device, before)?, seconds(device, after)?]);
    }
    print(what, total, times);
    Ok(())
}

const DECODED: usize = 16;

/// Hidden size, heads, KV heads, inner size, layers.
fn llama(
    what: &str,
    sizes: [usize; 5],
    prompt: usize,
    dtype: DType,
    rounds: usize,
    device: &Device,
) -> Result<()> {
    let [hidden_size, num_attention_heads, num_key_value_heads, ..] = sizes;
    let [.., intermediate_size, num_hidden_layers] = sizes;
    let config = llama::Config {
        hidden_size,
        intermediate_size,
        vocab_size: 1000,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: prompt + DECODED,
        tie_word_embeddings: false,
    };
    let vb = seeded(dtype, device);
    let theirs = llama::Llama::load(vb.clone(), &config)?;
    let mut ours = Llama::load(&vb, &config)?;
    let all = tokens(1, prompt + DECODED, config.vocab_size, device)?;
    let first = all.narrow(1, 0, prompt)?.contiguous()?;
    let next = |at: usize| all.narrow(1, prompt + at, 1)?.contiguous();
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let mut cache = llama::Cache::new(true, dtype, &config, device)?;
        ours.reset();
        let mut results = [None, None];
        let first_pair = [
            seconds(device, || theirs.forward(&first, 0, &mut cache))?,
            seconds(device, || ours.forward(&first, 0))?,
        ];
        let next_pair = [
            seconds(device, || {
                for at in 0..DECODED {
                    results[0] = Some(theirs.forward(&next(at)?, prompt + at, &mut cache)?);
                }
                Ok(())
            })?,
            seconds(device, || {
                for at in 0..DECODED {
                    results[1] = Some(ours.forward(&next(at)?, prompt + at)?);
                }
                Ok(())
            })?,
        ];
        if let [Some(theirs), Some(ours)] = &results {
            check(
                what,
                ours,
                theirs,
                if dtype == DType::F32 { 1e-2 } else { 0.5 },
            )?;
        }
        // The first round warms up.
        if round > 0 {
            prefill.push(first_pair);
            decode.push(next_pair);
        }
    }
    print(
        &format!("{what} {dtype:?}, prompt of {prompt}"),
        prompt,
        prefill,
    );
    print(
        &format!("{what} {dtype:?}, decode behind {prompt}"),
        DECODED,
        decode,
    );
    Ok(())
}

fn main() -> Result<()> {
    let rounds = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(5);
    let device = Device::cuda_if_available(0)?;
    println!(
        "{:44} {:>9} {:>9} {:>6}",
        "median tokens a second", "candle", "Fulmen", "ratio"
    );
    let small = [128, 2, 512, 2];
    let what = "BERT, 2 layers of 2 x 64, encode 8 x 128";
    bert(what, small, &[128; 8], 4 * rounds, &device)?;
    let base = [768, 12, 3072, 1];
    let what = "BERT base, 1 layer of 12 x 64, encode 4 x 512";
    bert(what, base, &[512; 4], rounds, &device)?;
    let what = "the same, of 512, 300, 200 and 100 tokens";
    bert(what, base, &[512, 300, 200, 100], rounds, &device)?;
    let tiny = [256, 8, 4, 768, 2];
    llama(
        "Llama, 2 layers of 8/4 x 32",
        tiny,
        128,
        DType::F32,
        4 * rounds,
        &device,
    )?;
    // The sizes of Llama 3.2 1B.
    let large = [2048, 32, 8, 8192, 1];
    for dtype in [DType::F32, DType::BF16] {
        llama(
            "Llama 1B, 1 layer of 32/8 x 64",
            large,
            1024,
            dtype,
            rounds,
            &device,
        )?;
    }
    Ok(())
}
