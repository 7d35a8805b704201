//! The backward pass: gradients of everything, and by kernels with atomics of all but the bias, which
//! they do not know.

use fulmen::half::{bf16, f16};
use fulmen::{Attention, Backward, Causal, DType, Forward, Result};

use crate::memory::{device, one_dim, output, random};
use crate::numbers::Rounded;

const Q: [usize; 4] = [1, 40, 4, 64];
const KV: [usize; 4] = [1, 70, 2, 64];
const BIAS: [usize; 4] = [1, 4, 40, 70];

fn verified<T: Rounded>(deterministic: bool) -> Result<()> {
    let (q, k, v) = (random::<T>(1, Q)?, random::<T>(2, KV)?, random::<T>(3, KV)?);
    let (dout, bias) = (random::<T>(4, Q)?, random::<f32>(5, BIAS)?);
    let sinks = one_dim(&[0.5f32, -1., 2., 0.])?;
    let (mut out, mut lse) = (output::<T>(Q)?, output::<f32>([1, 4, 40, 1])?);
    let (mut dq, mut dk, mut dv) = (output::<T>(Q)?, output::<T>(KV)?, output::<T>(KV)?);
    let (mut dbias, mut dsinks) = (output::<f32>(BIAS)?, output::<f32>([1, 1, 1, 4])?);
    let options = Attention::builder()
        .causal(Causal::BottomRight)
        .deterministic(deterministic);
    let attention = options.clone().device(&device()).build()?;
    {
        let [q, k, v] = [q.on_device()?, k.on_device()?, v.on_device()?];
        let (bias, sinks) = (bias.on_device()?, sinks.on_device()?);
        let mut call = Forward::new(q, k, v, out.on_device_mut()?)
            .lse(lse.on_device_mut()?)
            .bias(bias)
            .sinks(sinks);
        attention.forward(&mut call)?;
        let (out, lse) = (out.on_device()?, lse.on_device()?);
        let mut call = Backward::new(q, k, v, out, lse, dout.on_device()?)
            .bias(bias)
            .sinks(sinks)
            .dq(dq.on_device_mut()?)
            .dk(dk.on_device_mut()?)
            .dv(dv.on_device_mut()?)
            .dsinks(dsinks.on_device_mut()?);
        if deterministic {
            call = call.dbias(dbias.on_device_mut()?);
        }
        let plan = attention.plan(&call)?;
        let kernel = plan.config()?.kernel;
        let nvidia = device().contains("cuda") || device().contains("sm_");
        let atomic = !deterministic && nvidia && T::DTYPE != DType::F32;
        assert_eq!(kernel.contains("atomic"), atomic, "{kernel}");
        let mut workspace = plan.workspace()?;
        plan.run(&mut call, Some(&mut workspace))?;
    }
    out.fetch()?;
    lse.fetch()?;
    dq.fetch()?;
    dk.fetch()?;
    dv.fetch()?;
    dsinks.fetch()?;
    let mut call = Backward::new(
        q.view()?,
        k.view()?,
        v.view()?,
        out.view()?,
        lse.view()?,
        dout.view()?,
    )
    .bias(bias.view()?)
    .sinks(sinks.view()?)
    .dq(dq.view_mut()?)
    .dk(dk.view_mut()?)
    .dv(dv.view_mut()?)
    .dsinks(dsinks.view_mut()?);
    if deterministic {
        dbias.fetch()?;
        call = call.dbias(dbias.view_mut()?);
    }
    let errors = options.build()?.gradient_errors(&call)?;
    assert_eq!(errors.len(), if deterministic { 5 } else { 4 });
    for error in errors {
        assert!(error.worst_error <= error.bound, "{error:?}");
    }
    Ok(())
}

#[test]
fn every_gradient() -> Result<()> {
    for deterministic in [true, false] {
        verified::<f16>(deterministic)?;
        verified::<bf16>(deterministic)?;
        verified::<f32>(deterministic)?;
    }
    Ok(())
}
