//! The forward pass: every dtype and option, plans, packed sequences, and what is refused.

use fulmen::half::{bf16, f16};
use fulmen::{Attention, AttentionBuilder, Causal, DType, Error};
use fulmen::{Forward, Result, Tensor, TensorMut};

use crate::memory::{device, one_dim, output, random, stream, Both};
use crate::numbers::{numbers, Rounded};

const Q: [usize; 4] = [2, 33, 4, 64];
const KV: [usize; 4] = [2, 65, 2, 64];

/// Optional inputs of the shapes above.
struct Inputs {
    bias: Both<f32>,
    keep: Both<u8>,
    slopes: Both<f32>,
    sinks: Both<f32>,
}

type Add = for<'a> fn(Forward<'a>, [Tensor<'a>; 4]) -> Forward<'a>;

fn verified<T: Rounded>(what: &str, options: AttentionBuilder, add: Add) -> Result<()> {
    let (q, k, v) = (random::<T>(1, Q)?, random::<T>(2, KV)?, random::<T>(3, KV)?);
    let keep = numbers(6, 65).iter().map(|x| u8::from(*x > -0.5)).collect();
    let inputs = Inputs {
        bias: random(5, [1, 4, 33, 65])?,
        keep: Both::new(keep, [1, 1, 1, 65])?,
        slopes: one_dim(&[0.5f32, 0.25, 0.125, 0.0625])?,
        sinks: one_dim(&[0.5f32, -1., 2., 0.])?,
    };
    let (mut out, mut lse) = (output::<T>(Q)?, output::<f32>([2, 4, 33, 1])?);
    let attention = options.clone().device(&device()).build()?;
    {
        let call = Forward::new(
            q.on_device()?,
            k.on_device()?,
            v.on_device()?,
            out.on_device_mut()?,
        )
        .lse(lse.on_device_mut()?);
        let extra = [
            inputs.bias.on_device()?,
            inputs.keep.on_device()?,
            inputs.slopes.on_device()?,
            inputs.sinks.on_device()?,
        ];
        let mut call = add(call, extra).dropout_numbers(7, 3);
        let plan = attention.plan(&call)?;
        let mut workspace = plan.workspace()?;
        plan.run(&mut call, Some(&mut workspace))?;
    }
    out.fetch()?;
    lse.fetch()?;
    let call = Forward::new(q.view()?, k.view()?, v.view()?, out.view_mut()?).lse(lse.view_mut()?);
    let extra = [
        inputs.bias.view()?,
        inputs.keep.view()?,
        inputs.slopes.view()?,
        inputs.sinks.view()?,
    ];
    let report = options
        .build()?
        .verify(&add(call, extra).dropout_numbers(7, 3))
        .unwrap_or_else(|error| panic!("{what}, {:?}: {error}", T::DTYPE));
    assert!(report.worst_error <= report.bound, "{what}: {report:?}");
    Ok(())
}

/// A case: its name, options, and optional inputs.
fn cases() -> Vec<(&'static str, AttentionBuilder, Add)> {
    let plain = Attention::builder;
    let none: Add = |call, _| call;
    vec![
        ("causal", plain().causal(Causal::BottomRight), none),
        ("bias", plain(), |call, [bias, ..]| call.bias(bias)),
        ("plain", plain(), none),
        ("window", plain().window(Some(9), Some(3)), none),
        ("softcap", plain().softcap(2.), none),
        ("mask", plain(), |call, [_, keep, ..]| call.keep_mask(keep)),
        ("alibi", plain(), |call, [_, _, slopes, _]| {
            call.alibi_slopes(slopes)
        }),
        ("sinks", plain(), |call, [.., sinks]| call.sinks(sinks)),
        ("dropout", plain().dropout(0.25), none),
    ]
}

#[test]
fn every_dtype_and_option() -> Result<()> {
    for (what, options, add) in cases() {
        verified::<f16>(what, options.clone(), add)?;
        verified::<bf16>(what, options.clone(), add)?;
        verified::<f32>(what, options, add)?;
    }
    Ok(())
}

/// Packed sequences, in a stream.
#[test]
fn packed_sequences() -> Result<()> {
    let cu = one_dim(&[0i32, 3, 133, 197])?;
    let (q, kv) = (
        random::<f16>(1, [1, 197, 4, 64])?,
        random::<f16>(2, [1, 197, 2, 64])?,
    );
    let mut out = output::<f16>([1, 197, 4, 64])?;
    let options = Attention::builder()
        .causal(Causal::BottomRight)
        .max_seqlen_q(130)
        .max_seqlen_k(130);
    let attention = options.clone().device(&device()).build()?;
    let kv_view = kv.on_device()?;
    let mut call = Forward::new(q.on_device()?, kv_view, kv_view, out.on_device_mut()?)
        .cu_seqlens_q(cu.on_device()?)
        .cu_seqlens_k(cu.on_device()?);
    attention.forward_in(&stream(), &mut call)?;
    stream().synchronize(&device())?;
    out.fetch()?;
    let call = Forward::new(q.view()?, kv.view()?, kv.view()?, out.view_mut()?)
        .cu_seqlens_q(cu.view()?)
        .cu_seqlens_k(cu.view()?);
    options.build()?.verify(&call)?;
    Ok(())
}

/// A plan for up to four sequences runs two, in a stream.
#[test]
fn a_plan_for_a_range() -> Result<()> {
    let (shape, two) = ([4, 40, 2, 64], 2 * 40 * 2 * 64);
    let (q, mut out) = (random::<f16>(1, shape)?, output::<f16>(shape)?);
    let options = Attention::builder().vary_batch(true);
    let attention = options.device(&device()).build()?;
    {
        let view = q.on_device()?;
        let call = Forward::new(view, view, view, out.on_device_mut()?);
        let plan = attention.plan(&call)?;
        let mut workspace = plan.workspace()?;
        let (part, strides) = ([2, 40, 2, 64], view.strides());
        // SAFETY: a part of the buffers, which live until the stream has come to the call's end.
        let (view, to) = unsafe {
            let to = out.on_device_mut()?.as_ptr();
            (
                Tensor::from_raw(view.as_ptr(), DType::F16, part, strides)?,
                TensorMut::from_raw(to, DType::F16, part, strides)?,
            )
        };
        let mut call = Forward::new(view, view, view, to);
        plan.run_in(&stream(), &mut call, Some(&mut workspace), None)?;
        stream().synchronize(plan.device())?;
    }
    out.fetch()?;
    assert!(out.host[two..].iter().all(|x| x.is_nan()));
    let part = |data| Tensor::bshd(data, [2, 40, 2, 64]);
    let q = part(&q.host[..two])?;
    let to = TensorMut::bshd(&mut out.host[..two], [2, 40, 2, 64])?;
    Attention::default().verify(&Forward::new(q, q, q, to))?;
    Ok(())
}

/// With `validate` numbers in the device's memory are checked before a kernel reads by them.
#[test]
fn validate_finds_lengths_that_lead_outside() -> Result<()> {
    let cu = one_dim(&[0i32, 5])?;
    let q = random::<f16>(1, [1, 4, 1, 64])?;
    let mut out = output::<f16>([1, 4, 1, 64])?;
    let view = q.on_device()?;
    let attention = Attention::builder()
        .max_seqlen_q(4)
        .max_seqlen_k(4)
        .validate(true)
        .device(&device())
        .build()?;
    let mut call = Forward::new(view, view, view, out.on_device_mut()?)
        .cu_seqlens_q(cu.on_device()?)
        .cu_seqlens_k(cu.on_device()?);
    let error = attention.forward(&mut call).unwrap_err();
    assert!(
        matches!(&error, Error::InvalidArgument(m) if m.contains("cu_seqlens_q")),
        "{error:?}"
    );
    out.fetch()?;
    assert!(out.host.iter().all(|x| x.is_nan()));
    Ok(())
}

/// Ordinary memory is refused by its argument's name, and nothing is written.
#[test]
fn host_memory_is_refused() -> Result<()> {
    let (q, mut out) = (vec![0.5f32; 64], vec![7f32; 64]);
    let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    let to = TensorMut::bshd(&mut out, [1, 4, 1, 16])?;
    let attention = Attention::builder().device(&device()).build()?;
    let error = attention
        .forward(&mut Forward::new(view, view, view, to))
        .unwrap_err();
    assert!(
        matches!(&error, Error::InvalidArgument(m) if m.starts_with("q.data is")),
        "{error:?}"
    );
    assert_eq!(out, [7.; 64]);
    Ok(())
}
