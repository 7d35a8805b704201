//! candle-flash-attn's functions over views give the bits of the same options.

mod varlen;

use fulmen::flash_attn::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed, flash_attn_with_dropout, flash_attn_with_mask, flash_attn_with_sinks,
    Place,
};
use fulmen::{
    Attention, AttentionBuilder, Causal, Error, Forward, Result, Stream, Tensor, TensorMut,
};

use crate::numbers::{numbers, product};

const Q: [usize; 4] = [2, 5, 4, 16];
const KV: [usize; 4] = [2, 9, 2, 16];
const SCALE: f32 = 0.3;
static SLOPES: [f32; 4] = [0.5, 0.25, 0.125, 0.0625];
static SINKS: [f32; 4] = [1., -1., 0.5, 2.];
/// The keep-mask of all rows.
static KEEP: [bool; 9] = [true, false, true, true, false, true, true, false, true];
static BIAS: [f32; 9] = [0., 1., -1., 0.5, 2., -0.5, 0.25, 1.5, 0.];

fn slopes() -> Tensor<'static> {
    Tensor::one_dim(&SLOPES).unwrap()
}

fn sinks() -> Tensor<'static> {
    Tensor::one_dim(&SINKS).unwrap()
}

fn of_all_rows<T: fulmen::Element>(keys: &'static [T; 9]) -> Tensor<'static> {
    Tensor::bhqk(keys, [1, 1, 1, 9]).unwrap()
}

type Function<'a> = &'a dyn Fn(Place<'_>, [Tensor<'_>; 3], TensorMut<'_>) -> Result<()>;
type Inputs<'a> = &'a dyn for<'b> Fn(Forward<'b>) -> Forward<'b>;

fn on_cpu<T>(run: impl FnOnce(Place<'_>) -> T) -> T {
    // SAFETY: the CPU has no streams.
    let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
    run(Place {
        device: "cpu",
        stream: &stream,
    })
}

/// A function's result for q, k and v of these shapes, and that of `same` options with `inputs`.
fn both(
    [q_shape, kv_shape]: [[usize; 4]; 2],
    function: Function<'_>,
    same: AttentionBuilder,
    inputs: Inputs<'_>,
) -> Result<[Vec<f32>; 2]> {
    let of = |seed, shape| numbers(seed, product(shape));
    let (q, k, v) = (of(1, q_shape), of(2, kv_shape), of(3, kv_shape));
    let (mut ours, mut expected) = (vec![0f32; q.len()], vec![0f32; q.len()]);
    let q = Tensor::bshd(&q, q_shape)?;
    let (k, v) = (Tensor::bshd(&k, kv_shape)?, Tensor::bshd(&v, kv_shape)?);
    let out = TensorMut::bshd(&mut ours, q_shape)?;
    on_cpu(|place| function(place, [q, k, v], out))?;
    let out = TensorMut::bshd(&mut expected, q_shape)?;
    let mut call = inputs(Forward::new(q, k, v, out));
    let attention = same.softmax_scale(SCALE).build()?;
    attention.forward(&mut call)?;
    attention.verify(&call)?;
    Ok([ours, expected])
}

/// Each function gives its options' bits, and no two of them the same.
fn assert_all(results: &[Result<[Vec<f32>; 2]>]) {
    let results: Vec<_> = results.iter().map(|r| r.as_ref().unwrap()).collect();
    for (i, [ours, expected]) in results.iter().enumerate() {
        assert_eq!(ours, expected, "{i}");
        assert!(results[..i].iter().all(|[other, _]| other != ours), "{i}");
    }
}

fn causal() -> AttentionBuilder {
    Attention::builder().causal(Causal::BottomRight)
}

fn windowed() -> AttentionBuilder {
    Attention::builder().window(Some(3), Some(1))
}

fn dropped() -> AttentionBuilder {
    causal().dropout(0.25)
}

#[test]
fn dense() {
    let (l, r) = (Some(3), Some(1));
    let run = |function: Function<'_>, same: fn() -> AttentionBuilder, inputs: Inputs<'_>| {
        both([Q, KV], function, same(), inputs)
    };
    assert_all(&[
        run(
            &|p, [q, k, v], o| flash_attn(p, q, k, v, o, SCALE, true),
            causal,
            &|call| call,
        ),
        run(
            &|p, [q, k, v], o| flash_attn_windowed(p, q, k, v, o, SCALE, l, r),
            windowed,
            &|call| call,
        ),
        run(
            &|p, [q, k, v], o| flash_attn_alibi(p, q, k, v, o, slopes(), SCALE, true),
            causal,
            &|call| call.alibi_slopes(slopes()),
        ),
        run(
            &|p, [q, k, v], o| flash_attn_alibi_windowed(p, q, k, v, o, slopes(), SCALE, l, r),
            windowed,
            &|call| call.alibi_slopes(slopes()),
        ),
        run(
            &|p, [q, k, v], o| {
                let slopes = Some(slopes());
                flash_attn_alibi_windowed_softcap(p, q, k, v, o, slopes, SCALE, l, r, 2.)
            },
            || windowed().softcap(2.),
            &|call| call.alibi_slopes(slopes()),
        ),
        run(
            &|p, [q, k, v], o| {
                flash_attn_with_mask(p, q, k, v, o, Some(of_all_rows(&KEEP)), SCALE, true)
            },
            causal,
            &|call| call.keep_mask(of_all_rows(&KEEP)),
        ),
        run(
            &|p, [q, k, v], o| {
                flash_attn_with_mask(p, q, k, v, o, Some(of_all_rows(&BIAS)), SCALE, true)
            },
            causal,
            &|call| call.bias(of_all_rows(&BIAS)),
        ),
        run(
            &|p, [q, k, v], o| flash_attn_with_mask(p, q, k, v, o, None, SCALE, false),
            Attention::builder,
            &|call| call,
        ),
        run(
            &|p, [q, k, v], o| flash_attn_with_sinks(p, q, k, v, o, sinks(), SCALE, l, r),
            windowed,
            &|call| call.sinks(sinks()),
        ),
        run(
            &|p, [q, k, v], o| flash_attn_with_dropout(p, q, k, v, o, SCALE, true, 0.25, 7, 9),
            dropped,
            &|call| call.dropout_numbers(7, 9),
        ),
        run(
            &|p, [q, k, v], o| flash_attn_with_dropout(p, q, k, v, o, SCALE, true, 0.25, 7, 10),
            dropped,
            &|call| call.dropout_numbers(7, 10),
        ),
    ]);
}

/// Without a limit the queries before the first key attend keys, too.
#[test]
fn a_window_of_more_than_all_keys() -> Result<()> {
    let window = |left, right| {
        let function: Function<'_> =
            &|p, [q, k, v], o| flash_attn_windowed(p, q, k, v, o, SCALE, left, right);
        both(
            [KV, [2, 3, 2, 16]],
            function,
            Attention::builder(),
            &|call| call,
        )
    };
    let [ours, expected] = window(Some(4), Some(4))?;
    assert_eq!(ours, expected);
    let [ours, expected] = window(None, Some(3))?;
    assert_ne!(ours, expected);
    Ok(())
}

#[test]
fn dense_errors() -> Result<()> {
    let integers = [0i32; 9];
    let refused = |function: Function<'_>| {
        let mut out = [0f32; 640];
        let (q, kv) = (numbers(1, 640), numbers(2, 576));
        let (q, kv) = (Tensor::bshd(&q, Q)?, Tensor::bshd(&kv, KV)?);
        let to = TensorMut::bshd(&mut out, Q)?;
        let result = on_cpu(|place| function(place, [q, kv, kv], to));
        assert_eq!(out, [0.; 640]);
        match result {
            Err(Error::InvalidArgument(message)) => Result::Ok(message),
            other => panic!("{other:?}"),
        }
    };
    for (mask, word) in [
        (Tensor::bhqk(&KEEP[..8], [1, 1, 1, 8])?, "keep_mask"),
        (Tensor::bhqk(&BIAS[..8], [1, 1, 1, 8])?, "bias"),
        (Tensor::bhqk(&integers, [1, 1, 1, 9])?, "bias"),
    ] {
        let message = refused(&|p, [q, k, v], o| {
            flash_attn_with_mask(p, q, k, v, o, Some(mask), SCALE, false)
        })?;
        assert!(message.contains(word), "{message}");
    }
    let two = Tensor::one_dim(&SINKS[..2])?;
    let message =
        refused(&|p, [q, k, v], o| flash_attn_with_sinks(p, q, k, v, o, two, SCALE, None, None))?;
    assert!(message.contains("sinks"), "{message}");
    for dropout in [1., -0.5, f32::NAN] {
        let message = refused(&|p, [q, k, v], o| {
            flash_attn_with_dropout(p, q, k, v, o, SCALE, false, dropout, 0, 0)
        })?;
        assert!(message.contains("dropout"), "{message}");
    }
    Ok(())
}
