//! candle-flash-attn's functions over the device's memory.

use fulmen::flash_attn::{flash_attn, flash_attn_varlen_paged_windowed, Place};
use fulmen::half::f16;
use fulmen::{Attention, Causal, Forward, Result};

use crate::memory::{device, one_dim, output, random, stream, Both};

#[test]
fn dense_and_paged() -> Result<()> {
    let (name, stream) = (device(), stream());
    let place = Place {
        device: &name,
        stream: &stream,
    };
    let causal = || Attention::builder().causal(Causal::BottomRight);
    let shape = [2, 33, 4, 64];
    let (q, kv, mut out) = (
        random::<f16>(1, shape)?,
        random::<f16>(2, shape)?,
        output::<f16>(shape)?,
    );
    let kv_view = kv.on_device()?;
    flash_attn(
        place,
        q.on_device()?,
        kv_view,
        kv_view,
        out.on_device_mut()?,
        0.125,
        true,
    )?;
    stream.synchronize(&name)?;
    out.fetch()?;
    let call = Forward::new(q.view()?, kv.view()?, kv.view()?, out.view_mut()?);
    causal().build()?.verify(&call)?;

    let pages = random::<f16>(3, [4, 16, 2, 64])?;
    let table = Both::new(vec![3i32, 1, 0, 2], [1, 1, 2, 2])?;
    let (q, cu_q) = (random::<f16>(4, [1, 5, 4, 64])?, one_dim(&[0i32, 2, 5])?);
    let (cu_k, mut out) = (one_dim(&[0i32, 30, 47])?, output::<f16>([1, 5, 4, 64])?);
    let kv_view = pages.on_device()?;
    flash_attn_varlen_paged_windowed(
        place,
        q.on_device()?,
        kv_view,
        kv_view,
        out.on_device_mut()?,
        cu_q.on_device()?,
        cu_k.on_device()?,
        table.on_device()?,
        None,
        3,
        32,
        0.125,
        None,
        Some(0),
        16,
        None,
    )?;
    stream.synchronize(&name)?;
    out.fetch()?;
    let call = Forward::new(q.view()?, pages.view()?, pages.view()?, out.view_mut()?)
        .cu_seqlens_q(cu_q.view()?)
        .cu_seqlens_k(cu_k.view()?)
        .block_table(table.view()?);
    let attention = causal().max_seqlen_q(3).max_seqlen_k(32);
    attention.build()?.verify(&call)?;
    Ok(())
}
