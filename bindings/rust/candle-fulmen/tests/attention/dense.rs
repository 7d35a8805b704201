//! The forward pass of sequences of one length.

use candle_core::{DType, Device, Result, Tensor};
use candle_fulmen::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed, flash_attn_with_dropout, flash_attn_with_mask, flash_attn_with_sinks,
    Attention, FlashAttn,
};

use crate::models::Numbers;
use crate::reference::{assert_close, attention, values, Options};

/// 2 sequences, 5 queries, 9 keys, 4 heads on 2.
fn qkv(head_dim: usize) -> [Tensor; 3] {
    let mut numbers = Numbers::new(head_dim as u64);
    let q = numbers.tensor(&[2, 5, 4, head_dim]);
    let k = numbers.tensor(&[2, 9, 2, head_dim]);
    [q, k, numbers.tensor(&[2, 9, 2, head_dim])]
}

fn slopes() -> Tensor {
    Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap()
}

const SCALE: f32 = 0.2;

fn scaled() -> Options {
    Options {
        scale: f64::from(SCALE),
        ..Options::default()
    }
}

#[test]
fn every_dtype_and_head_dim() -> Result<()> {
    for head_dim in [8, 20, 64, 128] {
        let [q, k, v] = qkv(head_dim);
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 3e-3), (DType::BF16, 2e-2)] {
            let [q, k, v] = [q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?];
            for causal in [false, true] {
                let options = Options {
                    right: causal.then_some(0),
                    ..scaled()
                };
                let ours = flash_attn(&q, &k, &v, SCALE, causal)?;
                assert_eq!(ours.dtype(), dtype);
                let what = format!("{dtype:?}, head_dim {head_dim}, causal {causal}");
                assert_close(&what, &ours, &attention(&q, &k, &v, &options)?, tolerance);
            }
        }
    }
    Ok(())
}

#[test]
fn windows() -> Result<()> {
    let [q, k, v] = qkv(16);
    for (left, right) in [
        (Some(2), None),
        (None, Some(1)),
        (Some(3), Some(2)),
        (Some(1), Some(0)),
    ] {
        let options = Options {
            left,
            right,
            ..scaled()
        };
        let reference = attention(&q, &k, &v, &options)?;
        let ours = flash_attn_windowed(&q, &k, &v, SCALE, left, right)?;
        assert_close(&format!("{left:?}, {right:?}"), &ours, &reference, 1e-5);
    }
    // More than there are keys is no window, as in candle-flash-attn, even where queries outnumber
    // keys.
    let few = (k.narrow(1, 0, 2)?, v.narrow(1, 0, 2)?);
    let ours = flash_attn_windowed(&q, &few.0, &few.1, SCALE, Some(3), Some(3))?;
    let reference = attention(&q, &few.0, &few.1, &scaled())?;
    assert_close("a window of all keys", &ours, &reference, 1e-5);
    Ok(())
}

#[test]
fn alibi_and_softcap() -> Result<()> {
    let [q, k, v] = qkv(16);
    let slopes = slopes();
    let with_slopes = Options {
        slopes: Some(slopes.clone()),
        ..scaled()
    };
    let ours = flash_attn_alibi(&q, &k, &v, &slopes, SCALE, false)?;
    assert_close("alibi", &ours, &attention(&q, &k, &v, &with_slopes)?, 1e-5);

    let windowed = Options {
        left: Some(4),
        right: Some(1),
        ..with_slopes.clone()
    };
    let ours = flash_attn_alibi_windowed(&q, &k, &v, &slopes, SCALE, Some(4), Some(1))?;
    let reference = attention(&q, &k, &v, &windowed)?;
    assert_close("alibi, windowed", &ours, &reference, 1e-5);

    let (left, right, cap) = (Some(4), Some(1), 1.5);
    for slopes in [None, Some(&slopes)] {
        let options = Options {
            softcap: f64::from(cap),
            slopes: slopes.cloned(),
            ..windowed.clone()
        };
        let ours = flash_attn_alibi_windowed_softcap(&q, &k, &v, slopes, SCALE, left, right, cap)?;
        let reference = attention(&q, &k, &v, &options)?;
        assert_close("softcap", &ours, &reference, 3e-4);
    }
    Ok(())
}

#[test]
fn masks_of_every_rank_and_dtype() -> Result<()> {
    let [q, k, v] = qkv(16);
    let mut numbers = Numbers::new(7);
    for dims in [
        &[9][..],
        &[5, 9],
        &[4, 5, 9],
        &[2, 4, 5, 9],
        &[2, 1, 1, 9],
        &[1, 4, 1, 9],
    ] {
        let bias = numbers.tensor(dims);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let bias = bias.to_dtype(dtype)?;
            let options = Options {
                right: Some(0),
                bias: Some(bias.clone()),
                ..scaled()
            };
            let ours = flash_attn_with_mask(&q, &k, &v, Some(&bias), SCALE, true)?;
            let reference = attention(&q, &k, &v, &options)?;
            assert_close(&format!("{dims:?} {dtype:?}"), &ours, &reference, 1e-5);
        }
        // The boolean mask: key 0 always, others where the bias is positive.
        let first = Tensor::new(&[1u8, 0, 0, 0, 0, 0, 0, 0, 0], &Device::Cpu)?;
        let keep = bias.gt(0f32)?.broadcast_maximum(&first)?;
        let zero = Tensor::zeros(keep.dims(), DType::F32, &Device::Cpu)?;
        let masked = Tensor::full(f32::NEG_INFINITY, keep.dims(), &Device::Cpu)?;
        let options = Options {
            bias: Some(keep.where_cond(&zero, &masked)?),
            ..scaled()
        };
        let ours = flash_attn_with_mask(&q, &k, &v, Some(&keep), SCALE, false)?;
        let reference = attention(&q, &k, &v, &options)?;
        assert_close(&format!("{dims:?} U8"), &ours, &reference, 1e-5);
    }
    let without = flash_attn_with_mask(&q, &k, &v, None, SCALE, true)?;
    let plain = flash_attn(&q, &k, &v, SCALE, true)?;
    assert_eq!(values(&without), values(&plain));
    Ok(())
}

#[test]
fn sinks() -> Result<()> {
    let [q, k, v] = qkv(16);
    let sinks = Tensor::new(&[0.5f32, -1., 2., 0.], &Device::Cpu)?;
    let options = Options {
        left: Some(3),
        right: Some(0),
        sinks: Some(sinks.clone()),
        ..scaled()
    };
    let ours = flash_attn_with_sinks(&q, &k, &v, &sinks, SCALE, Some(3), Some(0))?;
    assert_close("sinks", &ours, &attention(&q, &k, &v, &options)?, 1e-5);
    Ok(())
}

/// With v the identity, the result is the matrix of probabilities.
#[test]
fn dropout_drops_elements_of_the_softmax() -> Result<()> {
    let mut numbers = Numbers::new(3);
    let (seqlen, p) = (32, 0.25);
    let q = numbers.tensor(&[1, seqlen, 2, seqlen]);
    let k = numbers.tensor(&[1, seqlen, 2, seqlen]);
    let one = Tensor::eye(seqlen, DType::F32, &Device::Cpu)?;
    let v = one
        .reshape((1, seqlen, 1, seqlen))?
        .broadcast_as((1, seqlen, 2, seqlen))?;
    let whole = values(&flash_attn(&q, &k, &v, SCALE, false)?);
    let dropped = |offset| flash_attn_with_dropout(&q, &k, &v, SCALE, false, p, 11, offset);
    let first = values(&dropped(0)?);
    let mut kept = 0;
    for (x, y) in first.iter().zip(&whole) {
        kept += usize::from(*x != 0.);
        assert!(*x == 0. || (x - y / (1. - p)).abs() < 1e-5, "{x}, {y}");
    }
    let share = kept as f32 / whole.len() as f32;
    assert!((share - (1. - p)).abs() < 0.05, "{share}");
    assert_eq!(first, values(&dropped(0)?));
    assert_ne!(first, values(&dropped(1)?));
    Ok(())
}

/// Every layout that candle's views make gives the bits of a copy.
#[test]
fn strides() -> Result<()> {
    let mut numbers = Numbers::new(5);
    let (batch, seqlen, heads, head_dim) = (2, 6, 3, 16);
    let by_head = |n: &mut Numbers| n.tensor(&[batch, heads, seqlen, head_dim]);
    let transposed = [0; 3].map(|_| by_head(&mut numbers).transpose(1, 2).unwrap());

    let packed = numbers.tensor(&[batch, seqlen, 3, heads, head_dim]);
    let slot = |n| packed.narrow(2, n, 1).unwrap().squeeze(2).unwrap();
    let packed = [slot(0), slot(1), slot(2)];

    let cache = numbers.tensor(&[batch, 4 * seqlen, heads, head_dim]);
    let used = cache.narrow(1, 3, 2 * seqlen)?;
    let cached = [transposed[0].clone(), used.clone(), used];

    let one = numbers.tensor(&[1, seqlen, 1, head_dim]);
    let repeated = one.broadcast_as((batch, seqlen, heads, head_dim))?;
    let repeated = [transposed[1].clone(), repeated.clone(), repeated];

    for (what, inputs) in [
        ("transposed", transposed),
        ("packed", packed),
        ("cached", cached),
        ("repeated", repeated),
    ] {
        let copies = inputs.clone().map(|t| t.force_contiguous().unwrap());
        let [q, k, v] = &inputs;
        let ours = flash_attn(q, k, v, SCALE, true)?;
        let [q, k, v] = &copies;
        let of_copies = flash_attn(q, k, v, SCALE, true)?;
        assert_eq!(values(&ours), values(&of_copies), "{what}");
        let options = Options {
            right: Some(0),
            ..scaled()
        };
        assert_close(what, &ours, &attention(q, k, v, &options)?, 1e-5);
    }
    Ok(())
}

#[test]
fn head_dim_of_v_may_differ() -> Result<()> {
    let [q, k, _] = qkv(16);
    let v = Numbers::new(1).tensor(&[2, 9, 2, 40]);
    let ours = flash_attn(&q, &k, &v, SCALE, false)?;
    assert_close("", &ours, &attention(&q, &k, &v, &scaled())?, 1e-5);
    Ok(())
}

#[test]
fn no_queries_or_no_keys() -> Result<()> {
    let [q, k, v] = qkv(16);
    let none = flash_attn(&q.narrow(1, 0, 0)?, &k, &v, SCALE, true)?;
    assert_eq!(none.dims(), [2, 0, 4, 16]);
    let (k, v) = (k.narrow(1, 0, 0)?, v.narrow(1, 0, 0)?);
    let zeros = flash_attn(&q, &k, &v, SCALE, false)?;
    assert!(values(&zeros).iter().all(|x| *x == 0.));
    Ok(())
}

#[test]
fn the_operation_by_itself() -> Result<()> {
    let [q, k, v] = qkv(16);
    let operation = FlashAttn {
        softmax_scale: SCALE,
        alibi_slopes: Some(slopes()),
        window_size_left: Some(3),
        window_size_right: Some(1),
        softcap: Some(2.),
    };
    let by_function = flash_attn_alibi_windowed_softcap(
        &q,
        &k,
        &v,
        Some(&slopes()),
        SCALE,
        Some(3),
        Some(1),
        2.,
    )?;
    let by_hand = q.apply_op3(&k, &v, operation)?;
    assert_eq!(values(&by_hand), values(&by_function));
    Ok(())
}

#[test]
fn a_kernel_and_threads_can_be_chosen() -> Result<()> {
    let [q, k, v] = qkv(16);
    let plain = Attention::new().run(&q, &k, &v)?;
    let options = Options {
        scale: 1. / 4.,
        ..Options::default()
    };
    let reference = attention(&q, &k, &v, &options)?;
    assert_close("the default scale", &plain, &reference, 1e-5);
    let forced = Attention::new()
        .kernel("cpu.reference.double")?
        .num_threads(1)
        .run(&q, &k, &v)?;
    assert_close("cpu.reference.double", &forced, &plain, 1e-5);
    Ok(())
}
