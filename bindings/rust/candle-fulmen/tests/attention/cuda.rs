//! On a CUDA device, in candle's own memory and stream, against candle's operations on the CPU.
//! Without a GPU these tests fail.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fulmen::{flash_attn, flash_attn_varlen, Attention, Lengths};
use candle_transformers::models::llama::{self, Cache};

use crate::models::llama::Llama;
use crate::models::{seeded, Numbers};
use crate::reference::{assert_close, attention, Options};

const SCALE: f32 = 0.3;

fn gpu() -> Result<Device> {
    Device::new_cuda(0)
}

fn on_cpu(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)
}

/// On the GPU, rounded to a dtype, and the same numbers on the CPU in F32.
fn both(seed: u64, dims: &[usize], dtype: DType) -> Result<(Tensor, Tensor)> {
    let tensor = Numbers::new(seed).tensor(dims).to_dtype(dtype)?;
    Ok((tensor.to_device(&gpu()?)?, tensor.to_dtype(DType::F32)?))
}

#[test]
fn every_dtype_head_dim_and_option() -> Result<()> {
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu)?;
    for head_dim in [16, 40, 64, 128] {
        for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            let (q, q_cpu) = both(1, &[2, 33, 4, head_dim], dtype)?;
            // The views of a cache [batch, heads, rows, dim], of which 65 rows are used.
            let (k, k_cpu) = both(2, &[2, 2, 80, head_dim], dtype)?;
            let (v, v_cpu) = both(3, &[2, 2, 80, head_dim], dtype)?;
            let used = |t: &Tensor| t.narrow(2, 7, 65)?.transpose(1, 2);
            let (bias, bias_cpu) = both(4, &[4, 33, 65], DType::F32)?;
            for causal in [false, true] {
                for (what, softcap, alibi, with_bias) in [
                    ("plain", 0., false, false),
                    ("softcap, alibi", 20., true, false),
                    ("bias", 0., false, true),
                ] {
                    let mut ours = Attention::new().softmax_scale(SCALE).softcap(softcap);
                    let mut options = Options {
                        scale: f64::from(SCALE),
                        softcap: f64::from(softcap),
                        ..Options::default()
                    };
                    if causal {
                        ours = ours.causal();
                        options.right = Some(0);
                    }
                    if alibi {
                        ours = ours.alibi_slopes(&slopes.to_device(&gpu()?)?);
                        options.slopes = Some(slopes.clone());
                    }
                    if with_bias {
                        ours = ours.mask(&bias);
                        options.bias = Some(bias_cpu.clone());
                    }
                    let ours = on_cpu(&ours.run(&q, &used(&k)?, &used(&v)?)?)?;
                    let reference = attention(&q_cpu, &used(&k_cpu)?, &used(&v_cpu)?, &options)?;
                    let what = format!("{what}, {dtype:?}, head_dim {head_dim}, {causal}");
                    assert_close(&what, &ours, &reference, tolerance);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn packed_sequences() -> Result<()> {
    let device = gpu()?;
    let (lengths, total) = ([3, 130, 64], 197);
    let (q, q_cpu) = both(5, &[total, 4, 64], DType::F16)?;
    let (k, k_cpu) = both(6, &[total, 2, 64], DType::F16)?;
    let cu = Tensor::new(&[0u32, 3, 133, 197], &device)?;
    let ours = on_cpu(&flash_attn_varlen(
        &q, &k, &k, &cu, &cu, 130, 130, SCALE, true,
    )?)?;
    let options = Options {
        scale: f64::from(SCALE),
        right: Some(0),
        ..Options::default()
    };
    let mut first = 0;
    for rows in lengths {
        let part = |t: &Tensor| t.narrow(0, first, rows)?.unsqueeze(0);
        let reference = attention(&part(&q_cpu)?, &part(&k_cpu)?, &part(&k_cpu)?, &options)?;
        assert_close(&format!("{rows} rows"), &part(&ours)?, &reference, 4e-3);
        first += rows;
    }
    Ok(())
}

#[test]
fn gradients_of_all_inputs() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-3), (DType::BF16, 0.2)] {
        let inputs = [
            both(7, &[2, 40, 4, 64], dtype)?,
            both(8, &[2, 70, 2, 64], dtype)?,
            both(9, &[2, 70, 2, 64], dtype)?,
            both(10, &[4, 40, 70], DType::F32)?,
            both(11, &[4], DType::F32)?,
        ];
        let var = |tensor: &Tensor| Var::from_tensor(tensor);
        let gpu = inputs
            .iter()
            .map(|(t, _)| var(t))
            .collect::<Result<Vec<_>>>()?;
        let cpu = inputs
            .iter()
            .map(|(_, t)| var(t))
            .collect::<Result<Vec<_>>>()?;
        let ours = Attention::new()
            .softmax_scale(SCALE)
            .causal()
            .mask(&gpu[3])
            .sinks(&gpu[4])
            .run(&gpu[0], &gpu[1], &gpu[2])?;
        let options = Options {
            scale: f64::from(SCALE),
            right: Some(0),
            bias: Some(cpu[3].as_tensor().clone()),
            sinks: Some(cpu[4].as_tensor().clone()),
            ..Options::default()
        };
        let reference = attention(&cpu[0], &cpu[1], &cpu[2], &options)?;
        let weights = Numbers::new(12).tensor(reference.dims());
        let ours = ours
            .to_dtype(DType::F32)?
            .mul(&weights.to_device(ours.device())?)?;
        let ours = ours.sum_all()?.backward()?;
        let reference = reference.mul(&weights)?.sum_all()?.backward()?;
        for (n, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
            let ours = on_cpu(ours.get(gpu).expect("it is tracked"))?;
            let reference = reference.get(cpu).expect("it is tracked");
            assert_close(
                &format!("{dtype:?}, input {n}"),
                &ours,
                reference,
                tolerance,
            );
        }
    }
    Ok(())
}

/// Options that the CPU's tests compare with candle's operations: here with the CPU. Dropout by the
/// same seed and offset drops the same elements on both.
#[test]
fn the_gpu_and_the_cpu_agree() -> Result<()> {
    let (mask, mask_cpu) = {
        let kept = Numbers::new(20).tensor(&[33, 65]).gt(-0.5)?; // U8
        (kept.to_device(&gpu()?)?, kept)
    };
    let plain = || Attention::new().softmax_scale(SCALE);
    let cases = [
        ("window", plain().window(Some(9), Some(3)), None),
        ("left window", plain().window(Some(9), None).causal(), None),
        ("U8 mask", plain(), Some((mask, mask_cpu))),
        ("dropout", plain().dropout(0.3, 11, 4), None),
    ];
    for (what, options, mask) in cases {
        for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            let (q, q_cpu) = both(21, &[2, 33, 4, 64], dtype)?;
            let (k, k_cpu) = both(22, &[2, 65, 2, 64], dtype)?;
            let (gpu, cpu) = match &mask {
                Some((gpu, cpu)) => (options.clone().mask(gpu), options.clone().mask(cpu)),
                None => (options.clone(), options.clone()),
            };
            let ours = on_cpu(&gpu.run(&q, &k, &k)?)?;
            let reference = cpu.run(&q_cpu, &k_cpu, &k_cpu)?;
            assert_close(&format!("{what}, {dtype:?}"), &ours, &reference, tolerance);
        }
    }
    Ok(())
}

/// Keys and values in pages.
#[test]
fn pages() -> Result<()> {
    let device = gpu()?;
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let (q, q_cpu) = both(23, &[5, 4, 64], dtype)?;
        let (pages, pages_cpu) = both(24, &[6, 16, 2, 64], dtype)?;
        let run = |q: &Tensor, pages: &Tensor, device: &Device| {
            let cu_q = Tensor::new(&[0u32, 2, 5], device)?;
            let cu_k = Tensor::new(&[0u32, 40, 70], device)?;
            let table = Tensor::new(&[[5u32, 0, 2], [3, 1, 1]], device)?;
            let lengths = Lengths::new(&cu_q, &cu_k, 3, 40).block_table(&table);
            let attention = Attention::new().softmax_scale(SCALE).causal();
            attention.run_varlen(q, pages, pages, &lengths)
        };
        let ours = on_cpu(&run(&q, &pages, &device)?)?;
        let reference = run(&q_cpu, &pages_cpu, &Device::Cpu)?;
        assert_close(&format!("{dtype:?}"), &ours, &reference, tolerance);
    }
    Ok(())
}

#[test]
fn gradients_of_packed_sequences() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-3), (DType::F16, 3e-2)] {
        let inputs = [
            both(25, &[197, 4, 64], dtype)?,
            both(26, &[197, 2, 64], dtype)?,
            both(27, &[197, 2, 64], dtype)?,
        ];
        let weights = Numbers::new(28).tensor(&[197, 4, 64]);
        let run = |inputs: Vec<&Tensor>, device: &Device| -> Result<Vec<Tensor>> {
            let vars = inputs.into_iter().map(Var::from_tensor);
            let vars = vars.collect::<Result<Vec<_>>>()?;
            let cu = Tensor::new(&[0u32, 3, 133, 197], device)?;
            let out = flash_attn_varlen(
                &vars[0], &vars[1], &vars[2], &cu, &cu, 130, 130, SCALE, true,
            )?;
            let loss = out.to_dtype(DType::F32)?.mul(&weights.to_device(device)?)?;
            let gradients = loss.sum_all()?.backward()?;
            let gradient = |var: &Var| on_cpu(gradients.get(var).expect("it is tracked"));
            vars.iter().map(gradient).collect()
        };
        let ours = run(inputs.iter().map(|(t, _)| t).collect(), &gpu()?)?;
        let reference = run(inputs.iter().map(|(_, t)| t).collect(), &Device::Cpu)?;
        for (n, (ours, reference)) in ours.iter().zip(&reference).enumerate() {
            let what = format!("{dtype:?}, input {n}");
            assert_close(&what, ours, reference, tolerance);
        }
    }
    Ok(())
}

/// Tensors of different devices, and dims that are not contiguous, are refused by name.
#[test]
fn wrong_tensors_are_refused_in_words() -> Result<()> {
    let (q, q_cpu) = both(29, &[1, 8, 2, 64], DType::F16)?;
    let q_cpu = q_cpu.to_dtype(DType::F16)?;
    let refused = |result: Result<Tensor>, words: &str| {
        let message = result.expect_err(words).to_string();
        assert!(message.contains(words), "{words} is not in: {message}");
    };
    refused(flash_attn(&q, &q_cpu, &q, SCALE, false), "k is on");
    refused(flash_attn(&q_cpu, &q, &q, SCALE, false), "k is on");
    let mask = Tensor::zeros((8, 8), DType::F16, &Device::Cpu)?;
    refused(Attention::new().mask(&mask).run(&q, &q, &q), "mask is on");
    let sideways = q.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
    refused(flash_attn(&sideways, &q, &q, SCALE, false), "q.strides");
    refused(
        flash_attn(&q, &q.to_dtype(DType::F32)?, &q, SCALE, false),
        "k.dtype",
    );
    let out = flash_attn(&q, &q, &q, SCALE, false)?; // and nothing is left behind
    assert_eq!(out.dims(), q.dims());
    Ok(())
}

/// What candle computes before and after a call is in the order of its stream, without waiting.
#[test]
fn calls_are_in_the_order_of_candles_stream() -> Result<()> {
    let (mut x, mut x_cpu) = both(13, &[1, 512, 8, 64], DType::F32)?;
    let options = Options {
        scale: f64::from(SCALE),
        ..Options::default()
    };
    for _ in 0..20 {
        let q = (&x * 1.25)?;
        x = (flash_attn(&q, &x, &x, SCALE, false)? + &q)?;
        let q = (&x_cpu * 1.25)?;
        x_cpu = (attention(&q, &x_cpu, &x_cpu, &options)? + &q)?;
        // Numbers stay of size 1.
        let norm = |x: &Tensor| x.broadcast_div(&x.sqr()?.mean_all()?.sqrt()?);
        (x, x_cpu) = (norm(&x)?, norm(&x_cpu)?);
    }
    assert_close("x", &on_cpu(&x)?, &x_cpu, 2e-3);
    Ok(())
}

#[test]
fn a_llama_generates_the_same_tokens() -> Result<()> {
    let device = gpu()?;
    let (config, vb) = (crate::llama::config(), seeded(DType::F32, &device));
    let theirs = llama::Llama::load(vb.clone(), &config)?;
    let mut cache = Cache::new(true, DType::F32, &config, &device)?;
    let mut ours = Llama::load(&vb, &config)?;
    let mut tokens = Tensor::new(&[[3u32, 14, 15, 9, 2]], &device)?;
    let mut position = 0;
    for step in 0..12 {
        let reference = theirs.forward(&tokens, position, &mut cache)?;
        let logits = ours.forward(&tokens, position)?;
        let (logits, reference) = (on_cpu(&logits)?, on_cpu(&reference)?);
        assert_close(&format!("step {step}"), &logits, &reference, 5e-3);
        let greedy = reference.argmax(1)?.to_vec1::<u32>()?;
        assert_eq!(logits.argmax(1)?.to_vec1::<u32>()?, greedy, "step {step}");
        position += tokens.dim(1)?;
        tokens = Tensor::new(greedy, &device)?.unsqueeze(1)?;
    }
    Ok(())
}
