//! A paged KV cache in the device's memory: appending, then decoding over it.

use fulmen::half::f16;
use fulmen::{AppendKv, Attention, Forward, Result};

use crate::memory::{device, one_dim, output, random, Both};

/// Pages, rows of a page, KV heads, head_dim.
const CACHE: [usize; 4] = [6, 16, 2, 64];

#[test]
fn append_then_decode() -> Result<()> {
    let (mut k, mut v) = (random::<f16>(1, CACHE)?, random::<f16>(2, CACHE)?);
    let (new_k, new_v) = (
        random::<f16>(3, [2, 1, 2, 64])?,
        random::<f16>(4, [2, 1, 2, 64])?,
    );
    let table = Both::new(vec![5i32, 0, 2, 1, 3, 4], [1, 1, 2, 3])?;
    let (used, mut now) = (one_dim(&[40i32, 16])?, one_dim(&[0i32, 0])?);
    let (cos, sin) = (
        random::<f16>(5, [1, 1, 48, 32])?,
        random::<f16>(6, [1, 1, 48, 32])?,
    );
    let (q, mut rotated) = (
        random::<f16>(7, [2, 1, 4, 64])?,
        output::<f16>([2, 1, 4, 64])?,
    );

    let (mut host_k, mut host_v) = (
        Both::new(k.host.clone(), CACHE)?,
        Both::new(v.host.clone(), CACHE)?,
    );
    let (mut host_now, mut host_q) = (one_dim(&[0i32, 0])?, output::<f16>([2, 1, 4, 64])?);
    AppendKv::new(k.on_device_mut()?, v.on_device_mut()?, used.on_device()?)
        .block_table(table.on_device()?)
        .rows(new_k.on_device()?, new_v.on_device()?)
        .rotary(cos.on_device()?, sin.on_device()?)
        .rotary_interleaved(false)
        .rotate(q.on_device()?, rotated.on_device_mut()?)
        .seqlens_k_out(now.on_device_mut()?)
        .validate(true)
        .device(&device())?
        .run()?;
    AppendKv::new(host_k.view_mut()?, host_v.view_mut()?, used.view()?)
        .block_table(table.view()?)
        .rows(new_k.view()?, new_v.view()?)
        .rotary(cos.view()?, sin.view()?)
        .rotary_interleaved(false)
        .rotate(q.view()?, host_q.view_mut()?)
        .seqlens_k_out(host_now.view_mut()?)
        .device("cpu")?
        .run()?;
    now.fetch()?;
    assert_eq!((&now.host, &host_now.host), (&vec![41, 17], &vec![41, 17]));
    k.fetch()?;
    v.fetch()?;
    rotated.fetch()?;
    assert_eq!(v.host, host_v.host);
    for (x, y) in k
        .host
        .iter()
        .zip(&host_k.host)
        .chain(rotated.host.iter().zip(&host_q.host))
    {
        assert!((x.to_f32() - y.to_f32()).abs() < 4e-3, "{x}, {y}");
    }

    // The first row of each sequence is left out.
    let left = one_dim(&[1i32, 1])?;
    let mut out = output::<f16>([2, 1, 4, 64])?;
    let attention = Attention::builder().device(&device()).build()?;
    let mut call = Forward::new(
        rotated.on_device()?,
        k.on_device()?,
        v.on_device()?,
        out.on_device_mut()?,
    )
    .block_table(table.on_device()?)
    .seqlens_k(now.on_device()?)
    .leftpad_k(left.on_device()?);
    attention.forward(&mut call)?;
    out.fetch()?;
    let call = Forward::new(rotated.view()?, k.view()?, v.view()?, out.view_mut()?)
        .block_table(table.view()?)
        .seqlens_k(now.view()?)
        .leftpad_k(left.view()?);
    Attention::default().verify(&call)?;
    Ok(())
}
