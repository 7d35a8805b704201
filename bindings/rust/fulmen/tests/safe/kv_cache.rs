//! Appending to a cache and attention over it are attention over all rows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use fulmen::{AppendKv, Attention, Causal, Forward, ParallelFor, Result, Tensor, TensorMut};

use crate::numbers::numbers;

/// Decoding row by row, over pages, has the bits of each row's attention over what came before.
#[test]
fn decoding_over_pages() -> Result<()> {
    let (rows, heads, dim, page) = (7, 2, 16, 2);
    let row = heads * dim;
    let (q, k, v) = (
        numbers(1, rows * row),
        numbers(2, rows * row),
        numbers(3, rows * row),
    );
    let (mut k_cache, mut v_cache) = (vec![0f32; 5 * page * row], vec![0f32; 5 * page * row]);
    let cache = [5, page, heads, dim];
    let table = [3i32, 0, 4, 1];
    let mut used = [0i32];
    let mut decoded = vec![0f32; rows * row];
    for n in 0..rows {
        let new = |memory| Tensor::bshd(memory, [1, 1, heads, dim]);
        let before = used;
        AppendKv::new(
            TensorMut::bshd(&mut k_cache, cache)?,
            TensorMut::bshd(&mut v_cache, cache)?,
            Tensor::one_dim(&before)?,
        )
        .block_table(Tensor::two_dims(&table, 1, 4)?)
        .rows(new(&k[n * row..][..row])?, new(&v[n * row..][..row])?)
        .seqlens_k_out(TensorMut::one_dim(&mut used)?)
        .num_threads(1)
        .run()?;
        assert_eq!(used, [n as i32 + 1]);
        let out = TensorMut::bshd(&mut decoded[n * row..][..row], [1, 1, heads, dim])?;
        let mut call = Forward::new(
            Tensor::bshd(&q[n * row..][..row], [1, 1, heads, dim])?,
            Tensor::bshd(&k_cache, cache)?,
            Tensor::bshd(&v_cache, cache)?,
            out,
        )
        .block_table(Tensor::two_dims(&table, 1, 4)?)
        .seqlens_k(Tensor::one_dim(&used)?);
        Attention::default().forward(&mut call)?;
    }
    let mut whole = vec![0f32; rows * row];
    let shape = [1, rows, heads, dim];
    let view = |data| Tensor::bshd(data, shape);
    let causal = Attention::builder().causal(Causal::BottomRight).build()?;
    let out = TensorMut::bshd(&mut whole, shape)?;
    causal.forward(&mut Forward::new(view(&q)?, view(&k)?, view(&v)?, out))?;
    for (x, y) in decoded.iter().zip(whole) {
        assert!((x - y).abs() < 1e-5, "{x}, {y}");
    }
    Ok(())
}

#[test]
fn a_full_cache_is_refused() -> Result<()> {
    let (mut k, mut v, new) = (vec![0f32; 16], vec![0f32; 16], [1f32; 8]);
    let new = Tensor::bshd(&new, [1, 1, 1, 8])?;
    let cache = [1, 2, 1, 8];
    let error = AppendKv::new(
        TensorMut::bshd(&mut k, cache)?,
        TensorMut::bshd(&mut v, cache)?,
        Tensor::one_dim(&[2i32])?,
    )
    .rows(new, new)
    .run()
    .unwrap_err();
    assert!(error.message().contains("seqlens_k[0] is 2"), "{error}");
    assert!(k.iter().chain(&v).all(|x| *x == 0.));
    Ok(())
}

/// One thread, and how many tasks it ran.
struct Counts(Arc<AtomicUsize>);

impl ParallelFor for Counts {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(count, Ordering::Relaxed);
        (0..count).for_each(task);
    }
}

/// Options that choose what is written, and one that chooses who writes it.
#[test]
fn options_of_appending() -> Result<()> {
    let rows = 64;
    let new = numbers(1, rows * 16);
    let (cos, sin) = (numbers(2, rows * 8), numbers(3, rows * 8));
    let tasks = Arc::new(AtomicUsize::new(0));
    let append = |options: fn(AppendKv<'_>) -> AppendKv<'_>| -> Result<[Vec<f32>; 2]> {
        let cache = [1, rows, 1, 16];
        let (mut k, mut v) = (vec![0f32; rows * 16], vec![0f32; rows * 16]);
        let mut q = new[..32].to_vec();
        let rows_of = |n| Tensor::bshd(&new, [1, n, 1, 16]);
        let angles = |data| Tensor::two_dims(data, rows, 8);
        let call = AppendKv::new(
            TensorMut::bshd(&mut k, cache)?,
            TensorMut::bshd(&mut v, cache)?,
            Tensor::one_dim(&[3i32])?,
        )
        .rows(rows_of(rows - 3)?, rows_of(rows - 3)?)
        .rotary(angles(&cos)?, angles(&sin)?)
        .rotate_in_place(TensorMut::bshd(&mut q, [1, 2, 1, 16])?)
        .num_threads(3)
        .parallel_for(Counts(tasks.clone()));
        options(call).run()?;
        Ok([k, q])
    };
    let [k, q] = append(|call| call)?;
    assert!(tasks.load(Ordering::Relaxed) > 0);
    let [halves, _] = append(|call| call.rotary_interleaved(false))?;
    assert_ne!(k, halves);
    // The first query stays where it was, the second does not advance.
    let [same, still] = append(|call| call.queries_advance(false))?;
    assert_eq!((&same, &still[..16]), (&k, &q[..16]));
    assert_ne!(still[16..], q[16..]);
    Ok(())
}

/// A latent cache's rows are written as they are, the values with them; quantized ones have one
/// scale for both.
#[test]
fn latent_caches() -> Result<()> {
    let (rows, dim, dim_v) = (3, 40, 32);
    let new = numbers(5, 2 * dim);
    let (shape, used) = ([1, rows, 1, dim], [1i32]);
    let mut cache = vec![f32::NAN; rows * dim];
    AppendKv::latent(
        TensorMut::bshd(&mut cache, shape)?,
        dim_v,
        Tensor::one_dim(&used)?,
    )?
    .latent_rows(Tensor::bshd(&new, [1, 2, 1, dim])?)
    .run()?;
    assert!(cache[..dim].iter().all(|x| x.is_nan()));
    assert_eq!(cache[dim..], new);

    let (mut codes, mut scale) = (vec![0i8; rows * dim], vec![0f32; rows]);
    AppendKv::latent(
        TensorMut::bshd(&mut codes, shape)?,
        dim_v,
        Tensor::one_dim(&used)?,
    )?
    .latent_rows(Tensor::bshd(&new, [1, 2, 1, dim])?)
    .k_scale(TensorMut::bshd(&mut scale, [1, rows, 1, 1])?)
    .run()?;
    for (n, row) in new.chunks(dim).enumerate() {
        let largest = row.iter().fold(0f32, |a, x| a.max(x.abs()));
        assert!((scale[n + 1] * 127. - largest).abs() <= 1e-5 * largest);
        for (x, code) in row.iter().zip(&codes[(n + 1) * dim..]) {
            assert!((x - f32::from(*code) * scale[n + 1]).abs() <= 0.51 * scale[n + 1]);
        }
    }

    for refused in [0, dim + 1] {
        let error = AppendKv::latent(
            TensorMut::bshd(&mut cache, shape)?,
            refused,
            Tensor::one_dim(&used)?,
        )
        .unwrap_err();
        assert!(
            error
                .message()
                .starts_with(&format!("head_dim_v is {refused}: 1 to")),
            "{error}"
        );
    }
    Ok(())
}
