//! Every option and dtype of the forward pass, checked by the library's rule for right results.

use fulmen::half::{bf16, f16};
use fulmen::{Attention, AttentionBuilder, Causal, Forward, Precision, Result, Tensor, TensorMut};

use crate::numbers::{numbers, product, Rounded};

const Q: [usize; 4] = [2, 5, 4, 16];
const KV: [usize; 4] = [2, 9, 2, 16];

/// Runs attention of seeded tensors, with what `add` adds to the call, and verifies the result.
fn verified<T: Rounded>(
    builder: AttentionBuilder,
    add: impl for<'a> Fn(Forward<'a>, &'a Operands) -> Result<Forward<'a>>,
) -> Result<Vec<T>> {
    let of = |seed, shape| -> Vec<T> {
        let values = numbers(seed, product(shape));
        values.into_iter().map(T::from_f32).collect()
    };
    let (q, k, v) = (of(1, Q), of(2, KV), of(3, KV));
    let (mut out, mut lse) = (of(4, Q), vec![0f32; 2 * 4 * 5]);
    let operands = Operands::new();
    let call = Forward::new(
        Tensor::bshd(&q, Q)?,
        Tensor::bshd(&k, KV)?,
        Tensor::bshd(&v, KV)?,
        TensorMut::bshd(&mut out, Q)?,
    )
    .lse(TensorMut::bhqk(&mut lse, [2, 4, 5, 1])?);
    let mut call = add(call, &operands)?;
    let attention = builder.build()?;
    attention.forward(&mut call)?;
    let report = attention.verify(&call)?;
    assert_eq!(report.tensor, "out");
    assert!(report.worst_error <= report.bound, "{report:?}");
    Ok(out)
}

/// Optional inputs.
struct Operands {
    bias: Vec<f32>,
    keep: Vec<bool>,
    slopes: [f32; 4],
    sinks: [f32; 4],
}

impl Operands {
    fn new() -> Self {
        Self {
            bias: numbers(5, 4 * 5 * 9),
            keep: numbers(6, 9).iter().map(|x| *x > -0.5).collect(),
            slopes: [0.5, 0.25, 0.125, 0.0625],
            sinks: [0.5, -1., 2., 0.],
        }
    }
}

fn plain<T: Rounded>(builder: AttentionBuilder) -> Result<Vec<T>> {
    verified(builder, |call, _| Ok(call))
}

#[test]
fn products_in_8_bits() -> Result<()> {
    let exact = verified::<f32>(Attention::builder(), |call, _| Ok(call))?;
    for precision in [Precision::Int8, Precision::Fp8] {
        let out = verified::<f32>(Attention::builder().precision(precision), |call, _| {
            Ok(call)
        })?;
        let worst = out
            .iter()
            .zip(&exact)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst > 1e-4, "{precision:?}: nothing was rounded");
    }
    Ok(())
}

#[test]
fn every_dtype() -> Result<()> {
    let f32 = plain::<f32>(Attention::builder())?;
    let f16 = plain::<f16>(Attention::builder())?;
    let bf16 = plain::<bf16>(Attention::builder())?;
    for ((x, y), z) in f32.iter().zip(f16).zip(bf16) {
        assert!((x - y.to_f32()).abs() < 4e-3, "{x}, {y}");
        assert!((x - z.to_f32()).abs() < 3e-2, "{x}, {z}");
    }
    Ok(())
}

/// Each option changes the result, and the changed result is the reference's.
#[test]
fn every_option_counts() -> Result<()> {
    let defaults = plain::<f32>(Attention::builder())?;
    let options = [
        Attention::builder().softmax_scale(2.),
        Attention::builder().softcap(0.5),
        Attention::builder().causal(Causal::BottomRight),
        Attention::builder().causal(Causal::TopLeft),
        Attention::builder().window(Some(2), None),
        Attention::builder().window(None, Some(1)),
        Attention::builder().dropout(0.5),
    ];
    let mut seen = vec![defaults.clone()];
    for builder in options {
        let what = format!("{builder:?}");
        let result = plain::<f32>(builder)?;
        assert!(!seen.contains(&result), "{what}");
        seen.push(result);
    }
    // These choose how, not what.
    for builder in [
        Attention::builder().num_threads(1),
        Attention::builder().kernel("cpu.reference.double"),
        Attention::builder().verify(true),
    ] {
        for (x, y) in plain::<f32>(builder)?.iter().zip(&defaults) {
            assert!((x - y).abs() < 1e-5, "{x}, {y}");
        }
    }
    Ok(())
}

#[test]
fn every_optional_input_counts() -> Result<()> {
    let mut seen = vec![plain::<f32>(Attention::builder())?];
    let results = [
        verified::<f32>(Attention::builder(), |call, o| {
            Ok(call.bias(Tensor::bhqk(&o.bias, [1, 4, 5, 9])?))
        })?,
        verified::<f32>(Attention::builder(), |call, o| {
            Ok(call.keep_mask(Tensor::bhqk(&o.keep, [1, 1, 1, 9])?))
        })?,
        verified::<f32>(Attention::builder(), |call, o| {
            Ok(call.alibi_slopes(Tensor::one_dim(&o.slopes)?))
        })?,
        verified::<f32>(Attention::builder(), |call, o| {
            Ok(call.sinks(Tensor::one_dim(&o.sinks)?))
        })?,
        verified::<f32>(Attention::builder().dropout(0.5), |call, _| {
            Ok(call.dropout_numbers(1, 2))
        })?,
        verified::<f32>(Attention::builder().dropout(0.5), |call, _| {
            Ok(call.dropout_numbers(1, 3))
        })?,
    ];
    for result in results {
        assert!(!seen.contains(&result));
        seen.push(result);
    }
    Ok(())
}

/// Views of other layouts have the bits of row-major copies.
#[test]
fn layouts() -> Result<()> {
    let shape = [2, 6, 3, 16];
    let n = product(shape);
    let attention = Attention::builder().causal(Causal::BottomRight).build()?;
    // Packed, [batch, seqlen, 3, heads, dim], and out by head, [batch, heads, seqlen, dim].
    let packed = numbers(7, 3 * n);
    let strides = [6 * 3 * 48, 3 * 48, 16, 1];
    let slot = |i: usize| Tensor::strided(&packed[48 * i..], shape, strides);
    let mut by_head = vec![0f32; n];
    let out = TensorMut::bhsd(&mut by_head, shape)?;
    attention.forward(&mut Forward::new(slot(0)?, slot(1)?, slot(2)?, out))?;
    // The same from copies.
    let copy = |i: usize| -> Vec<f32> {
        let rows = packed.chunks(48).skip(i).step_by(3);
        rows.flatten().copied().collect()
    };
    let (q, k, v) = (copy(0), copy(1), copy(2));
    let mut row_major = vec![0f32; n];
    attention.forward(&mut Forward::new(
        Tensor::bshd(&q, shape)?,
        Tensor::bshd(&k, shape)?,
        Tensor::bshd(&v, shape)?,
        TensorMut::bshd(&mut row_major, shape)?,
    ))?;
    for (i, x) in row_major.iter().enumerate() {
        let [b, s, h, d] = [i / 288, i / 48 % 6, i / 16 % 3, i % 16];
        assert_eq!(*x, by_head[((b * 3 + h) * 6 + s) * 16 + d]);
    }
    Ok(())
}

#[test]
fn in_place() -> Result<()> {
    let shape = [1, 8, 2, 16];
    let (mut q, kv, mut out) = (numbers(8, 256), numbers(9, 256), vec![0f32; 256]);
    let kv = Tensor::bshd(&kv, shape)?;
    let attention = Attention::default();
    let apart = TensorMut::bshd(&mut out, shape)?;
    attention.forward(&mut Forward::new(Tensor::bshd(&q, shape)?, kv, kv, apart))?;
    attention.forward(&mut Forward::in_place(
        TensorMut::bshd(&mut q, shape)?,
        kv,
        kv,
    ))?;
    assert_eq!(q, out);
    Ok(())
}

#[test]
fn nothing_to_do() -> Result<()> {
    let (none, mut out): ([f32; 0], [f32; 0]) = ([], []);
    let empty = Tensor::bshd(&none, [0, 4, 2, 16])?;
    let out = TensorMut::bshd(&mut out, [0, 4, 2, 16])?;
    Attention::default().forward(&mut Forward::new(empty, empty, empty, out))
}

#[test]
fn the_reference_is_the_mean_where_scores_are_equal() -> Result<()> {
    let (q, v, mut out) = (vec![0f32; 32], numbers(10, 32), vec![0f32; 32]);
    let view = |data| Tensor::bshd(data, [1, 4, 1, 8]);
    let out = TensorMut::bshd(&mut out, [1, 4, 1, 8])?;
    let exact =
        Attention::default().reference(&Forward::new(view(&q)?, view(&q)?, view(&v)?, out))?;
    for (d, exact) in exact.iter().enumerate() {
        let mean = (0..4).map(|j| f64::from(v[8 * j + d % 8])).sum::<f64>() / 4.;
        assert!((exact - mean).abs() < 1e-12, "{exact}, {mean}");
    }
    Ok(())
}

/// A new call is what the library's own init function makes.
#[test]
fn absent_tensors_are_zeros() {
    use std::mem::{size_of, zeroed};
    type Raw = fulmen_sys::fulmen_tensors;
    // SAFETY: zero is a value of each field, and of all bytes of the struct.
    let (raw, bytes) = unsafe {
        let mut raw: Raw = zeroed();
        fulmen_sys::fulmen_tensors_init_sized(&mut raw, size_of::<Raw>());
        let bytes: [u8; size_of::<Raw>()] = std::mem::transmute_copy(&raw);
        (raw, bytes)
    };
    assert_eq!(raw.struct_size, size_of::<Raw>());
    assert!(bytes[size_of::<usize>()..].iter().all(|byte| *byte == 0));
}
