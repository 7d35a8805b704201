//! Wrong calls: candle's error, with a sentence that names the argument.

use candle_core::{DType, Device, Result, Tensor};
use candle_fulmen::{flash_attn, flash_attn_varlen, flash_attn_with_mask, Attention};

fn zeros(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(dims, dtype, &Device::Cpu).unwrap()
}

#[track_caller]
fn refused(result: Result<Tensor>, words: &[&str]) {
    let message = result.unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "{word} is not in: {message}");
    }
}

#[test]
fn wrong_calls_are_refused_in_words() {
    let q = zeros(&[1, 4, 2, 16], DType::F32);
    let run = |q: &Tensor, k: &Tensor, v: &Tensor| flash_attn(q, k, v, 1., false);

    let f16 = q.to_dtype(DType::F16).unwrap();
    refused(run(&q, &f16, &q), &["k.dtype", "fp16"]);
    let f64 = q.to_dtype(DType::F64).unwrap();
    refused(run(&f64, &f64, &f64), &["q", "F64"]);
    refused(
        run(&zeros(&[4, 2, 16], DType::F32), &q, &q),
        &["q has shape [4, 2, 16]", "[batch, seqlen, heads, head_dim]"],
    );
    refused(
        run(&q, &zeros(&[1, 4, 2, 8], DType::F32), &q),
        &["k.shape", "[1, 4, 2, 8]"],
    );
    let three_heads = zeros(&[1, 4, 3, 16], DType::F32);
    refused(run(&q, &three_heads, &three_heads), &["3", "2"]);
    let sideways = zeros(&[1, 4, 16, 2], DType::F32);
    let sideways = sideways.transpose(2, 3).unwrap();
    refused(run(&sideways, &q, &q), &["q.strides", "contiguous"]);
    let wide = zeros(&[1, 4, 2, 577], DType::F32);
    refused(run(&wide, &wide, &wide), &["577", "576"]);

    let mask = zeros(&[3, 4], DType::F32);
    let masked = flash_attn_with_mask(&q, &q, &q, Some(&mask), 1., false);
    refused(masked, &["bias", "[1, 1, 3, 4]"]);
    let mask = zeros(&[1, 1, 1, 4, 4], DType::F32);
    let masked = flash_attn_with_mask(&q, &q, &q, Some(&mask), 1., false);
    refused(masked, &["mask has shape [1, 1, 1, 4, 4]"]);

    refused(flash_attn(&q, &q, &q, f32::INFINITY, false), &["scale"]);
    let dropout = Attention::new().dropout(1., 0, 0).run(&q, &q, &q);
    refused(dropout, &["dropout", "1"]);
    let kernel = Attention::new().kernel("cpu.of.my.dreams").unwrap();
    refused(kernel.run(&q, &q, &q), &["cpu.of.my.dreams"]);
    assert!(Attention::new().kernel("a\0b").is_err());
}

#[test]
fn wrong_lengths_are_refused_in_words() {
    let q = zeros(&[6, 2, 16], DType::F32);
    let run = |q: &Tensor, cu: &[u32], max: usize| {
        let cu = Tensor::new(cu, &Device::Cpu).unwrap();
        flash_attn_varlen(q, q, q, &cu, &cu, max, max, 1., false)
    };
    refused(run(&q, &[0, 4, 7], 4), &["cu_seqlens", "7"]);
    refused(run(&q, &[0, 4, 6], 3), &["4", "3"]);
    refused(run(&q, &[0, 4, 3], 4), &["cu_seqlens"]);
    let four = zeros(&[1, 6, 2, 16], DType::F32);
    refused(run(&four, &[0, 6], 6), &["[total_q, heads, head_dim]"]);
    let cu = Tensor::new(&[0i64, 6], &Device::Cpu).unwrap();
    let wrong_dtype = flash_attn_varlen(&q, &q, &q, &cu, &cu, 6, 6, 1., false);
    refused(wrong_dtype, &["seqlens_q", "I64"]);
}

#[test]
fn an_error_leaves_the_next_call_as_it_was() -> Result<()> {
    let q = zeros(&[1, 4, 2, 16], DType::F32);
    assert!(
        flash_attn(&q, &q, &q, f32::NAN, false).is_ok(),
        "NaN is the default scale"
    );
    assert!(flash_attn(&q, &q, &q, f32::INFINITY, false).is_err());
    let out = flash_attn(&q, &q, &q, 1., false)?;
    assert_eq!(out.dims(), q.dims());
    Ok(())
}
