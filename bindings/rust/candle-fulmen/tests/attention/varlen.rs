//! Packed sequences and pages: each sequence as if it were alone.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fulmen::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_windowed, Attention, Lengths,
};

use crate::models::Numbers;
use crate::reference::{assert_close, attention, values, Options};

const SCALE: f32 = 0.3;
const LENGTHS_Q: [usize; 4] = [3, 1, 0, 5];
const LENGTHS_K: [usize; 4] = [4, 7, 2, 5];
const TOTAL_Q: usize = 9;
const TOTAL_K: usize = 18;

fn cumulative(lengths: &[usize]) -> Vec<u32> {
    let mut all = vec![0];
    for length in lengths {
        all.push(all[all.len() - 1] + *length as u32);
    }
    all
}

struct Packed {
    q: Var,
    k: Var,
    v: Var,
    cu_q: Tensor,
    cu_k: Tensor,
}

fn packed() -> Packed {
    let mut numbers = Numbers::new(31);
    let cu = |lengths: &[usize]| Tensor::new(cumulative(lengths), &Device::Cpu).unwrap();
    Packed {
        q: numbers.var(&[TOTAL_Q, 4, 16]),
        k: numbers.var(&[TOTAL_K, 2, 16]),
        v: numbers.var(&[TOTAL_K, 2, 16]),
        cu_q: cu(&LENGTHS_Q),
        cu_k: cu(&LENGTHS_K),
    }
}

fn slopes() -> Tensor {
    Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap()
}

/// Each sequence by itself, packed again.
fn one_by_one(x: &Packed, options: impl Fn(usize) -> Options) -> Result<Tensor> {
    let (cu_q, cu_k) = (cumulative(&LENGTHS_Q), cumulative(&LENGTHS_K));
    let mut parts = Vec::new();
    for n in (0..LENGTHS_Q.len()).filter(|n| LENGTHS_Q[*n] > 0) {
        let rows = |t: &Tensor, cu: &[u32], lengths: &[usize]| {
            t.narrow(0, cu[n] as usize, lengths[n])?.unsqueeze(0)
        };
        let q = rows(&x.q, &cu_q, &LENGTHS_Q)?;
        let (k, v) = (
            rows(&x.k, &cu_k, &LENGTHS_K)?,
            rows(&x.v, &cu_k, &LENGTHS_K)?,
        );
        parts.push(attention(&q, &k, &v, &options(n))?.squeeze(0)?);
    }
    Tensor::cat(&parts, 0)
}

fn options(left: Option<usize>, right: Option<usize>) -> Options {
    Options {
        scale: f64::from(SCALE),
        left,
        right,
        ..Options::default()
    }
}

#[test]
fn every_form() -> Result<()> {
    let x = packed();
    let slopes = slopes();
    let (q, k, v, cu_q, cu_k) = (&x.q, &x.k, &x.v, &x.cu_q, &x.cu_k);
    for causal in [false, true] {
        let mut of_one = options(None, causal.then_some(0));
        let ours = flash_attn_varlen(q, k, v, cu_q, cu_k, 5, 7, SCALE, causal)?;
        let reference = one_by_one(&x, |_| of_one.clone())?;
        assert_close("varlen", &ours, &reference, 1e-5);

        of_one.slopes = Some(slopes.clone());
        let ours = flash_attn_varlen_alibi(q, k, v, &slopes, cu_q, cu_k, 5, 7, SCALE, causal)?;
        let reference = one_by_one(&x, |_| of_one.clone())?;
        assert_close("alibi", &ours, &reference, 1e-5);
    }
    let (left, right, cap) = (Some(2), Some(1), 1.5);
    let mut of_one = options(left, right);
    let ours = flash_attn_varlen_windowed(q, k, v, cu_q, cu_k, 5, 7, SCALE, left, right)?;
    let reference = one_by_one(&x, |_| of_one.clone())?;
    assert_close("windowed", &ours, &reference, 1e-5);

    of_one.slopes = Some(slopes.clone());
    let ours =
        flash_attn_varlen_alibi_windowed(q, k, v, &slopes, cu_q, cu_k, 5, 7, SCALE, left, right)?;
    let reference = one_by_one(&x, |_| of_one.clone())?;
    assert_close("alibi, windowed", &ours, &reference, 1e-5);

    of_one.softcap = f64::from(cap);
    let ours = flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(&slopes),
        cu_q,
        cu_k,
        5,
        7,
        SCALE,
        left,
        right,
        cap,
    )?;
    let reference = one_by_one(&x, |_| of_one.clone())?;
    assert_close("softcap", &ours, &reference, 3e-4);
    Ok(())
}

#[test]
fn lengths_of_either_integer_type_and_half_precision() -> Result<()> {
    let x = packed();
    let [q, k, v] = [&x.q, &x.k, &x.v].map(|t| t.to_dtype(DType::BF16).unwrap());
    let signed = x.cu_k.to_dtype(DType::I32)?;
    let ours = flash_attn_varlen(&q, &k, &v, &x.cu_q, &signed, 5, 7, SCALE, true)?;
    assert_eq!(ours.dtype(), DType::BF16);
    let reference = one_by_one(&x, |_| options(None, Some(0)))?;
    assert_close("", &ours, &reference, 4e-2);
    Ok(())
}

#[test]
fn gradients() -> Result<()> {
    let x = packed();
    let weights = Numbers::new(32).tensor(&[TOTAL_Q, 4, 16]);
    let ours = flash_attn_varlen(&x.q, &x.k, &x.v, &x.cu_q, &x.cu_k, 5, 7, SCALE, true)?;
    let ours = (ours * &weights)?.sum_all()?.backward()?;
    let reference = one_by_one(&x, |_| options(None, Some(0)))?;
    let reference = (reference * &weights)?.sum_all()?.backward()?;
    for (name, variable) in [("q", &x.q), ("k", &x.k), ("v", &x.v)] {
        let (ours, reference) = (
            ours.get(variable).unwrap(),
            reference.get(variable).unwrap(),
        );
        assert_close(name, ours, reference, 1e-4);
    }
    Ok(())
}

/// Rows before the first sequence and behind the last: zeros, and so are their gradients.
#[test]
fn rows_of_no_sequence_are_zeros() -> Result<()> {
    let x = packed();
    let cu = Tensor::new(&[2u32, 5], &Device::Cpu)?;
    let out = flash_attn_varlen(&x.q, &x.k, &x.v, &cu, &cu, 3, 3, SCALE, false)?;
    let gradients = out.sum_all()?.backward()?;
    let outside = |t: &Tensor| -> Result<bool> {
        let (before, rows) = (t.narrow(0, 0, 2)?, t.dim(0)?);
        let behind = t.narrow(0, 5, rows - 5)?;
        Ok([before, behind]
            .iter()
            .all(|t| values(t).iter().all(|x| *x == 0.)))
    };
    assert!(outside(&out)?);
    for variable in [&x.q, &x.k, &x.v] {
        assert!(outside(gradients.get(variable).unwrap())?);
    }
    Ok(())
}

/// The rows of each sequence in pages of 2, in the order of `table`.
fn pages(rows: &Tensor, table: &[[u32; 4]; 4]) -> Result<Tensor> {
    let page_size = 2;
    let (_, heads, head_dim) = rows.dims3()?;
    let empty = Tensor::full(f32::NAN, (page_size, heads, head_dim), &Device::Cpu)?;
    let mut pages = vec![empty; 16];
    let cu = cumulative(&LENGTHS_K);
    for (n, length) in LENGTHS_K.into_iter().enumerate() {
        for at in (0..length).step_by(page_size) {
            let used = page_size.min(length - at);
            let page = &mut pages[table[n][at / page_size] as usize];
            let rows = rows.narrow(0, cu[n] as usize + at, used)?;
            let rest = page.narrow(0, used, page_size - used)?;
            *page = Tensor::cat(&[&rows, &rest], 0)?;
        }
    }
    Tensor::stack(&pages, 0)
}

const TABLE: [[u32; 4]; 4] = [
    [3, 1, 99, 99],
    [0, 7, 5, 2],
    [9, 99, 99, 99],
    [15, 4, 6, 99],
];

#[test]
fn paged() -> Result<()> {
    let x = packed();
    let q = x.q.as_detached_tensor();
    let (k, v) = (pages(&x.k, &TABLE)?.detach(), pages(&x.v, &TABLE)?.detach());
    let table = Tensor::new(&TABLE, &Device::Cpu)?;
    let run = |table: &Tensor, left, right, softcap| {
        flash_attn_varlen_paged_windowed(
            &q, &k, &v, &x.cu_q, &x.cu_k, table, None, 5, 7, SCALE, left, right, 2, softcap,
        )
    };
    for (left, right, softcap) in [
        (None, None, None),
        (None, Some(0), None),
        (Some(2), Some(0), Some(1.5)),
    ] {
        let of_one = Options {
            softcap: softcap.map_or(0., f64::from),
            ..options(left, right)
        };
        let reference = one_by_one(&x, |_| of_one.clone())?;
        let ours = run(&table, left, right, softcap)?;
        assert_close("paged", &ours, &reference, 3e-4);
        // A view of a wider table.
        let wide = Tensor::cat(&[&table, &table], 1)?.to_dtype(DType::I32)?;
        let of_view = run(&wide.narrow(1, 0, 4)?, left, right, softcap)?;
        assert_eq!(values(&of_view), values(&ours));
    }
    let wrong_size = flash_attn_varlen_paged_windowed(
        &q, &k, &v, &x.cu_q, &x.cu_k, &table, None, 5, 7, SCALE, None, None, 4, None,
    );
    let message = wrong_size.unwrap_err().to_string();
    assert!(message.contains("page_block_size is 4"), "{message}");

    let tracked = Attention::new().run_varlen(
        &x.q,
        &k,
        &v,
        &Lengths::new(&x.cu_q, &x.cu_k, 5, 7).block_table(&table),
    )?;
    let message = tracked.sum_all()?.backward().unwrap_err().to_string();
    assert!(message.contains("block_table"), "{message}");
    Ok(())
}

/// Positions within one range see each other; elsewhere the window holds.
#[test]
fn prefix_ranges() -> Result<()> {
    let x = packed();
    let q = x.q.as_detached_tensor();
    let (k, v) = (pages(&x.k, &TABLE)?.detach(), pages(&x.v, &TABLE)?.detach());
    let table = Tensor::new(&TABLE, &Device::Cpu)?;
    let ranges = [
        [[0i32, 3], [0, 0]],
        [[4, 7], [0, 2]],
        [[0, 0], [0, 0]],
        [[1, 3], [3, 5]],
    ];
    let (left, right) = (Some(1), Some(0));
    let ours = flash_attn_varlen_paged_windowed(
        &q,
        &k,
        &v,
        &x.cu_q,
        &x.cu_k,
        &table,
        Some(&Tensor::new(&ranges, &Device::Cpu)?),
        5,
        7,
        SCALE,
        left,
        right,
        2,
        None,
    )?;
    let reference = one_by_one(&x, |n| {
        let (queries, keys) = (LENGTHS_Q[n] as i64, LENGTHS_K[n] as i64);
        let mut bias = Vec::new();
        for i in (keys - queries)..keys {
            for j in 0..keys {
                let both = |r: &[i32; 2]| {
                    (i64::from(r[0])..i64::from(r[1])).contains(&i)
                        && (i64::from(r[0])..i64::from(r[1])).contains(&j)
                };
                let seen = (i - 1 <= j && j <= i) || ranges[n].iter().any(both);
                bias.push(if seen { 0. } else { f32::NEG_INFINITY });
            }
        }
        let shape = (LENGTHS_Q[n], LENGTHS_K[n]);
        Options {
            bias: Some(Tensor::from_vec(bias, shape, &Device::Cpu).unwrap()),
            ..options(None, None)
        }
    })?;
    assert_close("", &ours, &reference, 1e-5);
    Ok(())
}
