//! candle-flash-attn's functions over views give the bits of the same options.

use fulmen::flash_attn::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_varlen, flash_attn_windowed, Place,
};
use fulmen::{Attention, AttentionBuilder, Causal, Forward, Result, Stream, Tensor, TensorMut};

use crate::numbers::{numbers, product};

const Q: [usize; 4] = [2, 5, 4, 16];
const KV: [usize; 4] = [2, 9, 2, 16];
const SCALE: f32 = 0.3;
const SLOPES: [f32; 4] = [0.5, 0.25, 0.125, 0.0625];

type Function<'a> = &'a dyn Fn(Place<'_>, [Tensor<'_>; 3], TensorMut<'_>) -> Result<()>;

/// A function's result, and that of `same` with or without slopes.
fn both(function: Function<'_>, same: AttentionBuilder, slopes: bool) -> Result<[Vec<f32>; 2]> {
    // SAFETY: the CPU has no streams.
    let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
    let place = Place {
        device: "cpu",
        stream: &stream,
    };
    let of = |seed, shape| numbers(seed, product(shape));
    let (q, k, v) = (of(1, Q), of(2, KV), of(3, KV));
    let (mut ours, mut expected) = (vec![0f32; q.len()], vec![0f32; q.len()]);
    let q = Tensor::bshd(&q, Q)?;
    let (k, v) = (Tensor::bshd(&k, KV)?, Tensor::bshd(&v, KV)?);
    function(place, [q, k, v], TensorMut::bshd(&mut ours, Q)?)?;
    let mut call = Forward::new(q, k, v, TensorMut::bshd(&mut expected, Q)?);
    if slopes {
        call = call.alibi_slopes(Tensor::one_dim(&SLOPES)?);
    }
    same.softmax_scale(SCALE).build()?.forward(&mut call)?;
    Ok([ours, expected])
}

fn causal() -> AttentionBuilder {
    Attention::builder().causal(Causal::BottomRight)
}

fn windowed() -> AttentionBuilder {
    Attention::builder().window(Some(3), Some(1))
}

#[test]
fn dense() -> Result<()> {
    let slopes = Tensor::one_dim(&SLOPES)?;
    let (left, right) = (Some(3), Some(1));
    let results = [
        both(
            &|p, [q, k, v], out| flash_attn(p, q, k, v, out, SCALE, true),
            causal(),
            false,
        )?,
        both(
            &|p, [q, k, v], out| flash_attn_windowed(p, q, k, v, out, SCALE, left, right),
            windowed(),
            false,
        )?,
        both(
            &|p, [q, k, v], out| flash_attn_alibi(p, q, k, v, out, slopes, SCALE, true),
            causal(),
            true,
        )?,
        both(
            &|p, [q, k, v], o| flash_attn_alibi_windowed(p, q, k, v, o, slopes, SCALE, left, right),
            windowed(),
            true,
        )?,
        both(
            &|p, [q, k, v], out| {
                let slopes = Some(slopes);
                flash_attn_alibi_windowed_softcap(p, q, k, v, out, slopes, SCALE, left, right, 2.)
            },
            windowed().softcap(2.),
            true,
        )?,
    ];
    for (i, [ours, expected]) in results.iter().enumerate() {
        assert_eq!(ours, expected, "{i}");
        assert!(results[..i].iter().all(|[other, _]| other != ours), "{i}");
    }
    Ok(())
}

#[test]
fn packed() -> Result<()> {
    let (cu_q, cu_k) = ([0i32, 4, 10], [0i32, 9, 18]);
    let flat = |[batch, rows, heads, dim]: [usize; 4]| [1, batch * rows, heads, dim];
    let packed = |t: Tensor<'_>| {
        let [_, _, heads, dim] = t.shape();
        let strides = [0, heads * dim, dim, 1];
        // SAFETY: row-major memory of the same elements, which lives as long as the call.
        unsafe { Tensor::from_raw(t.as_ptr(), t.dtype(), flat(t.shape()), strides) }
    };
    let [ours, _] = both(
        &|p, [q, k, v], out| {
            let (shape, strides) = (flat(Q), [0, 64, 16, 1]);
            // SAFETY: as above, and `out` is used here alone.
            let out = unsafe { TensorMut::from_raw(out.as_ptr(), out.dtype(), shape, strides) }?;
            let (q, k, v) = (packed(q)?, packed(k)?, packed(v)?);
            let (cu_q, cu_k) = (Tensor::one_dim(&cu_q)?, Tensor::one_dim(&cu_k)?);
            flash_attn_varlen(p, q, k, v, out, cu_q, cu_k, 6, 9, SCALE, true)
        },
        causal(),
        false,
    )?;
    // The second sequence's last query is the padded call's: the same keys, the same diagonal.
    let [_, padded] = both(&|_, _, _| Ok(()), causal(), false)?;
    for (x, y) in ours[9 * 64..].iter().zip(&padded[9 * 64..]) {
        assert!((x - y).abs() < 1e-6, "{x}, {y}");
    }
    assert!(ours.iter().all(|x| *x != 0.));
    Ok(())
}
