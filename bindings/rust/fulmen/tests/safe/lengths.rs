//! Packed sequences and pages give the bits of each sequence by itself.

use fulmen::{Attention, Causal, Error, Forward, Result, Tensor, TensorMut};

use crate::numbers::numbers;

/// Heads, KV heads, head_dim.
const H: usize = 4;
const G: usize = 2;
const D: usize = 16;
const LENGTHS: [(usize, usize); 3] = [(3, 7), (1, 4), (5, 5)];

fn alone(attention: &Attention, q: &[f32], k: &[f32], v: &[f32]) -> Result<Vec<f32>> {
    let (sq, sk) = (q.len() / (H * D), k.len() / (G * D));
    let mut out = vec![0f32; q.len()];
    attention.forward(&mut Forward::new(
        Tensor::bshd(q, [1, sq, H, D])?,
        Tensor::bshd(k, [1, sk, G, D])?,
        Tensor::bshd(v, [1, sk, G, D])?,
        TensorMut::bshd(&mut out, [1, sq, H, D])?,
    ))?;
    Ok(out)
}

fn sums(lengths: impl Iterator<Item = usize>) -> Vec<i32> {
    let mut sums = vec![0];
    for length in lengths {
        sums.push(sums[sums.len() - 1] + length as i32);
    }
    sums
}

#[test]
fn packed() -> Result<()> {
    let (total_q, total_k) = (9, 16);
    let q = numbers(1, total_q * H * D);
    let (k, v) = (numbers(2, total_k * G * D), numbers(3, total_k * G * D));
    let cu_q = sums(LENGTHS.iter().map(|l| l.0));
    let cu_k = sums(LENGTHS.iter().map(|l| l.1));
    let causal = || Attention::builder().causal(Causal::BottomRight);
    let attention = causal().max_seqlen_q(5).max_seqlen_k(7).build()?;
    let mut out = vec![0f32; q.len()];
    let mut call = Forward::new(
        Tensor::bshd(&q, [1, total_q, H, D])?,
        Tensor::bshd(&k, [1, total_k, G, D])?,
        Tensor::bshd(&v, [1, total_k, G, D])?,
        TensorMut::bshd(&mut out, [1, total_q, H, D])?,
    )
    .cu_seqlens_q(Tensor::one_dim(&cu_q)?)
    .cu_seqlens_k(Tensor::one_dim(&cu_k)?);
    attention.forward(&mut call)?;
    attention.verify(&call)?;
    let single = causal().build()?;
    for n in 0..LENGTHS.len() {
        let rows = |cu: &[i32], row| (cu[n] as usize * row)..(cu[n + 1] as usize * row);
        let (at_q, at_k) = (rows(&cu_q, H * D), rows(&cu_k, G * D));
        let expected = alone(&single, &q[at_q.clone()], &k[at_k.clone()], &v[at_k])?;
        for (x, y) in out[at_q].iter().zip(expected) {
            assert!((x - y).abs() < 1e-6, "{x}, {y}");
        }
    }
    Ok(())
}

#[test]
fn pages() -> Result<()> {
    let (page, pages) = (4, 5);
    let size = page * G * D;
    let (k, v) = (numbers(2, pages * size), numbers(3, pages * size));
    let q = numbers(1, 2 * H * D);
    let (table, used) = ([4i32, 0, 2, 1], [7i32, 3]);
    let mut out = vec![0f32; q.len()];
    let attention = Attention::default();
    let mut call = Forward::new(
        Tensor::bshd(&q, [2, 1, H, D])?,
        Tensor::bshd(&k, [pages, page, G, D])?,
        Tensor::bshd(&v, [pages, page, G, D])?,
        TensorMut::bshd(&mut out, [2, 1, H, D])?,
    )
    .block_table(Tensor::two_dims(&table, 2, 2)?)
    .seqlens_k(Tensor::one_dim(&used)?);
    attention.forward(&mut call)?;
    attention.verify(&call)?;
    for n in 0..2 {
        let gather = |memory: &[f32]| -> Vec<f32> {
            let pages = table[2 * n..2 * n + 2].iter().map(|p| *p as usize * size);
            let rows = pages.flat_map(|at| memory[at..at + size].to_vec());
            rows.take(used[n] as usize * G * D).collect()
        };
        let q = &q[n * H * D..(n + 1) * H * D];
        let expected = alone(&attention, q, &gather(&k), &gather(&v))?;
        for (x, y) in out[n * H * D..].iter().zip(expected) {
            assert!((x - y).abs() < 1e-6, "{x}, {y}");
        }
    }
    Ok(())
}

/// Numbers in slices are checked before anything is read by them.
#[test]
fn lengths_and_pages_that_lead_outside() -> Result<()> {
    let (q, kv, mut out) = (numbers(1, H * D), numbers(2, 4 * G * D), vec![0f32; H * D]);
    let kv = Tensor::bshd(&kv, [1, 4, G, D])?;
    let (table, used) = ([3i32], [5i32]);
    let q = Tensor::bshd(&q, [1, 1, H, D])?;
    let attention = Attention::default();
    let error = attention
        .forward(
            &mut Forward::new(q, kv, kv, TensorMut::bshd(&mut out, [1, 1, H, D])?)
                .seqlens_k(Tensor::one_dim(&used)?),
        )
        .unwrap_err();
    assert!(
        matches!(&error, Error::InvalidArgument(m) if m.contains("seqlens_k[0] is 5")),
        "{error}"
    );
    let error = attention
        .forward(
            &mut Forward::new(q, kv, kv, TensorMut::bshd(&mut out, [1, 1, H, D])?)
                .block_table(Tensor::two_dims(&table, 1, 1)?),
        )
        .unwrap_err();
    assert!(
        matches!(&error, Error::InvalidArgument(m) if m.contains("block_table[0, 0] is 3")),
        "{error}"
    );
    Ok(())
}

#[test]
fn the_dropout_mask_of_packed_sequences() -> Result<()> {
    let (q, k, mut out) = (
        numbers(1, 9 * H * D),
        numbers(2, 16 * G * D),
        vec![0f32; 9 * H * D],
    );
    let cu_q = sums(LENGTHS.iter().map(|l| l.0));
    let cu_k = sums(LENGTHS.iter().map(|l| l.1));
    let kv = Tensor::bshd(&k, [1, 16, G, D])?;
    let out = TensorMut::bshd(&mut out, [1, 9, H, D])?;
    let call = Forward::new(Tensor::bshd(&q, [1, 9, H, D])?, kv, kv, out)
        .cu_seqlens_q(Tensor::one_dim(&cu_q)?)
        .cu_seqlens_k(Tensor::one_dim(&cu_k)?)
        .dropout_numbers(1, 2);
    let attention = Attention::builder()
        .dropout(0.5)
        .max_seqlen_q(5)
        .max_seqlen_k(7)
        .build()?;
    let mask = attention.dropout_mask(&call)?;
    assert_eq!(mask.len(), 3 * H * 5 * 7);
    let kept = mask.iter().filter(|x| **x == 1).count() as f32 / mask.len() as f32;
    assert!((kept - 0.5).abs() < 0.1, "{kept}");
    Ok(())
}

/// Rows before `leftpad_k` and from `seqlens_k` on are not there.
#[test]
fn padding_on_both_sides() -> Result<()> {
    let (rows, left, used) = (8, [2i32, 0], [7i32, 3]);
    let (q, k) = (numbers(1, 2 * H * D), numbers(2, 2 * rows * G * D));
    let v = numbers(3, 2 * rows * G * D);
    let mut out = vec![0f32; q.len()];
    let attention = Attention::default();
    attention.forward(
        &mut Forward::new(
            Tensor::bshd(&q, [2, 1, H, D])?,
            Tensor::bshd(&k, [2, rows, G, D])?,
            Tensor::bshd(&v, [2, rows, G, D])?,
            TensorMut::bshd(&mut out, [2, 1, H, D])?,
        )
        .seqlens_k(Tensor::one_dim(&used)?)
        .leftpad_k(Tensor::one_dim(&left)?),
    )?;
    for n in 0..2 {
        let row = |at: i32| (n * rows + at as usize) * G * D;
        let seen = row(left[n])..row(used[n]);
        let q = &q[n * H * D..(n + 1) * H * D];
        let expected = alone(&attention, q, &k[seen.clone()], &v[seen])?;
        for (x, y) in out[n * H * D..].iter().zip(expected) {
            assert!((x - y).abs() < 1e-6, "{x}, {y}");
        }
    }
    Ok(())
}

/// The check alone says what a call would say, of both passes.
#[test]
fn lengths_are_checked_without_a_call() -> Result<()> {
    let (q, lse, mut out) = (numbers(1, 4 * H * D), [0f32; 16], vec![7f32; 4 * H * D]);
    let view = Tensor::bshd(&q, [1, 4, H, D])?;
    let attention = Attention::builder()
        .max_seqlen_q(4)
        .max_seqlen_k(4)
        .build()?;
    for (cu, words) in [([0i32, 4], None), ([0, 5], Some("cu_seqlens_q[1] is 5"))] {
        let cu = Tensor::one_dim(&cu)?;
        let to = TensorMut::bshd(&mut out, [1, 4, H, D])?;
        let forward = Forward::new(view, view, view, to)
            .cu_seqlens_q(cu)
            .cu_seqlens_k(cu);
        let forward = attention.check_sequences(&forward);
        let lse = Tensor::bhqk(&lse, [1, H, 4, 1])?;
        let to = TensorMut::bshd(&mut out, [1, 4, H, D])?;
        let backward = fulmen::Backward::new(view, view, view, view, lse, view)
            .dq(to)
            .cu_seqlens_q(cu)
            .cu_seqlens_k(cu);
        let backward = attention.check_sequences(&backward);
        for result in [forward, backward] {
            match words {
                None => result?,
                Some(words) => {
                    let error = result.unwrap_err();
                    assert!(error.message().contains(words), "{error}");
                }
            }
        }
    }
    assert!(out.iter().all(|x| *x == 7.));
    Ok(())
}
