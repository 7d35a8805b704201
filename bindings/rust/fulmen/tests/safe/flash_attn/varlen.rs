//! Packed sequences and pages.

use fulmen::flash_attn::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_windowed,
};
use fulmen::{Attention, AttentionBuilder, Error, Forward, Result, Tensor, TensorMut};

use super::{assert_all, both, causal, on_cpu, slopes, windowed, Function, Inputs, SCALE};
use crate::numbers::numbers;

/// Heads, KV heads, head_dim.
const H: usize = 4;
const G: usize = 2;
const D: usize = 16;
/// Queries and keys of each sequence.
const LENGTHS: [(usize, usize); 4] = [(3, 7), (1, 4), (0, 2), (5, 5)];
const Q: [usize; 4] = [1, 9, H, D];
const KV: [usize; 4] = [1, 18, G, D];
static CU_Q: [i32; 5] = [0, 3, 4, 4, 9];
static CU_K: [i32; 5] = [0, 7, 11, 13, 18];

const PAGE: usize = 3;
const PAGES: [usize; 4] = [8, PAGE, G, D];
/// 99: no such page, where no sequence has rows.
#[rustfmt::skip]
static TABLE: [i32; 12] = [
    3, 1, 7,
    0, 5, 99,
    2, 99, 99,
    6, 4, 99,
];

fn cu_q() -> Tensor<'static> {
    Tensor::one_dim(&CU_Q).unwrap()
}

fn cu_k() -> Tensor<'static> {
    Tensor::one_dim(&CU_K).unwrap()
}

fn table() -> Tensor<'static> {
    Tensor::two_dims(&TABLE, 4, 3).unwrap()
}

fn with_lengths(call: Forward<'_>) -> Forward<'_> {
    call.cu_seqlens_q(cu_q()).cu_seqlens_k(cu_k())
}

fn run(
    kv: [usize; 4],
    function: Function<'_>,
    same: AttentionBuilder,
    inputs: Inputs<'_>,
) -> Result<[Vec<f32>; 2]> {
    let same = same.max_seqlen_q(5).max_seqlen_k(7);
    both([Q, kv], function, same, &|call| inputs(with_lengths(call)))
}

#[test]
fn packed() {
    let (l, r) = (Some(3), Some(1));
    let run = |function: Function<'_>, same, inputs: Inputs<'_>| run(KV, function, same, inputs);
    let (c_q, c_k) = (cu_q(), cu_k());
    assert_all(&[
        run(
            &|p, [q, k, v], o| flash_attn_varlen(p, q, k, v, o, c_q, c_k, 5, 7, SCALE, true),
            causal(),
            &|call| call,
        ),
        run(
            &|p, [q, k, v], o| {
                flash_attn_varlen_windowed(p, q, k, v, o, c_q, c_k, 5, 7, SCALE, l, r)
            },
            windowed(),
            &|call| call,
        ),
        run(
            &|p, [q, k, v], o| {
                flash_attn_varlen_windowed(p, q, k, v, o, c_q, c_k, 5, 7, SCALE, Some(8), Some(8))
            },
            Attention::builder(),
            &|call| call,
        ),
        run(
            &|p, [q, k, v], o| {
                flash_attn_varlen_alibi(p, q, k, v, o, slopes(), c_q, c_k, 5, 7, SCALE, true)
            },
            causal(),
            &|call| call.alibi_slopes(slopes()),
        ),
        run(
            &|p, [q, k, v], o| {
                let slopes = slopes();
                flash_attn_varlen_alibi_windowed(p, q, k, v, o, slopes, c_q, c_k, 5, 7, SCALE, l, r)
            },
            windowed(),
            &|call| call.alibi_slopes(slopes()),
        ),
        run(
            &|p, [q, k, v], o| {
                let slopes = Some(slopes());
                flash_attn_varlen_alibi_windowed_softcap(
                    p, q, k, v, o, slopes, c_q, c_k, 5, 7, SCALE, l, r, 0.5,
                )
            },
            windowed().softcap(0.5),
            &|call| call.alibi_slopes(slopes()),
        ),
        run(
            &|p, [q, k, v], o| {
                flash_attn_varlen_alibi_windowed_softcap(
                    p, q, k, v, o, None, c_q, c_k, 5, 7, SCALE, l, r, 0.5,
                )
            },
            windowed().softcap(0.5),
            &|call| call,
        ),
    ]);
}

fn paged(left: Option<usize>, right: Option<usize>, softcap: Option<f32>) -> Result<[Vec<f32>; 2]> {
    run(
        PAGES,
        &|p, [q, k, v], o| {
            let (cu_q, cu_k, table) = (cu_q(), cu_k(), table());
            flash_attn_varlen_paged_windowed(
                p, q, k, v, o, cu_q, cu_k, table, None, 5, 7, SCALE, left, right, PAGE, softcap,
            )
        },
        Attention::builder()
            .window(left, right)
            .softcap(softcap.unwrap_or(0.)),
        &|call| call.block_table(table()),
    )
}

#[test]
fn pages() {
    assert_all(&[
        paged(None, None, None),
        paged(None, Some(0), None),
        paged(Some(2), Some(1), None),
        paged(Some(2), Some(1), Some(0.5)),
    ]);
}

/// The rows of a sequence's keys or values.
fn gather(memory: &[f32], n: usize) -> Vec<f32> {
    let row = |i: usize| (TABLE[n * 3 + i / PAGE] as usize * PAGE + i % PAGE) * G * D;
    let rows = (0..LENGTHS[n].1).flat_map(|i| &memory[row(i)..row(i) + G * D]);
    rows.copied().collect()
}

/// Positions within one range see each other; elsewhere the window holds.
#[test]
fn prefix_ranges() -> Result<()> {
    // Two of each sequence, in rows of three numbers: the view leaves the last one out.
    let numbers_of = |range: [i32; 2]| [range[0], range[1], -1];
    let ranges = [
        [[0, 6], [0, 0]],
        [[2, 9], [0, 2]],
        [[0, 2], [0, 0]],
        [[1, 3], [3, 5]],
    ];
    let memory: Vec<i32> = ranges
        .iter()
        .flatten()
        .flat_map(|r| numbers_of(*r))
        .collect();
    let view = Tensor::strided(&memory, [1, 4, 2, 2], [0, 6, 3, 1])?;
    let size = PAGES.iter().product();
    let (q, k, v) = (numbers(1, 9 * H * D), numbers(2, size), numbers(3, size));
    let kv = |memory| Tensor::bshd(memory, PAGES);
    for (left, right) in [
        (Some(1), Some(0)),
        (None, Some(0)),
        (Some(0), None),
        (None, None),
    ] {
        let mut out = vec![0f32; q.len()];
        let (q_view, to) = (Tensor::bshd(&q, Q)?, TensorMut::bshd(&mut out, Q)?);
        let (k_view, v_view, table, some) = (kv(&k)?, kv(&v)?, table(), Some(view));
        on_cpu(|p| {
            let (cu_q, cu_k) = (cu_q(), cu_k());
            flash_attn_varlen_paged_windowed(
                p, q_view, k_view, v_view, to, cu_q, cu_k, table, some, 5, 7, SCALE, left, right,
                PAGE, None,
            )
        })?;
        for (n, (queries, keys)) in LENGTHS.into_iter().enumerate() {
            let mut keep = Vec::new();
            for i in (keys as i32 - queries as i32)..keys as i32 {
                for j in 0..keys as i32 {
                    let within = |[first, last]: &[i32; 2]| {
                        (*first..*last).contains(&i) && (*first..*last).contains(&j)
                    };
                    let window = left.map_or(true, |n| j >= i - n as i32)
                        && right.map_or(true, |n| j <= i + n as i32);
                    keep.push(window || ranges[n].iter().any(within));
                }
            }
            let rows = CU_Q[n] as usize * H * D..CU_Q[n + 1] as usize * H * D;
            let mut expected = vec![0f32; rows.len()];
            let (k, v) = (gather(&k, n), gather(&v, n));
            let mut call = Forward::new(
                Tensor::bshd(&q[rows.clone()], [1, queries, H, D])?,
                Tensor::bshd(&k, [1, keys, G, D])?,
                Tensor::bshd(&v, [1, keys, G, D])?,
                TensorMut::bshd(&mut expected, [1, queries, H, D])?,
            )
            .keep_mask(Tensor::bhqk(&keep, [1, 1, queries, keys])?);
            let attention = Attention::builder().softmax_scale(SCALE).build()?;
            attention.forward(&mut call)?;
            for (x, y) in out[rows].iter().zip(expected) {
                assert!((x - y).abs() < 1e-6, "{left:?}, {right:?}, {n}: {x}, {y}");
            }
        }
    }
    Ok(())
}

#[test]
fn varlen_errors() -> Result<()> {
    let (q, kv) = (numbers(1, 9 * H * D), numbers(2, PAGES.iter().product()));
    let (q, kv) = (Tensor::bshd(&q, Q)?, Tensor::bshd(&kv, PAGES)?);
    let two = Tensor::row_major(&[0i32; 4], [1, 2, 1, 2])?;
    let floats = Tensor::row_major(&[0f32; 8], [1, 4, 1, 2])?;
    let one_less = Tensor::one_dim(&CU_K[..4])?;
    let descending = Tensor::one_dim(&[0i32, 7, 5, 13, 18])?;
    let none = Tensor::row_major(&[0i32; 8], [1, 4, 1, 2])?;
    let outside = Tensor::two_dims(&[8i32; 12], 4, 3)?;
    for (cu_k, table, ranges, max_k, page, error) in [
        (cu_k(), table(), None, 7, 4, "page_block_size is 4"),
        (
            cu_k(),
            table(),
            Some(two),
            7,
            PAGE,
            "mm_prefix_ranges is I32",
        ),
        (
            cu_k(),
            table(),
            Some(floats),
            7,
            PAGE,
            "mm_prefix_ranges is F32",
        ),
        (one_less, table(), Some(none), 7, PAGE, "seqlens_k is I32"),
        (one_less, table(), None, 7, PAGE, "cu_seqlens_k"),
        (descending, table(), None, 7, PAGE, "cu_seqlens_k"),
        (cu_k(), table(), None, 6, PAGE, "cu_seqlens_k"),
        (cu_k(), outside, None, 7, PAGE, "block_table[0, 0] is 8"),
    ] {
        let mut out = [0f32; 9 * H * D];
        let to = TensorMut::bshd(&mut out, Q)?;
        let result = on_cpu(|p| {
            flash_attn_varlen_paged_windowed(
                p,
                q,
                kv,
                kv,
                to,
                cu_q(),
                cu_k,
                table,
                ranges,
                5,
                max_k,
                SCALE,
                Some(1),
                Some(0),
                page,
                None,
            )
        });
        assert_eq!(out, [0.; 9 * H * D]);
        match result {
            Err(Error::InvalidArgument(message)) => {
                assert!(message.contains(error), "{message}; {error}");
            }
            other => panic!("{error}: {other:?}"),
        }
    }
    for (softcap, slopes, error) in [
        (-1., slopes(), "softcap"),
        (f32::INFINITY, slopes(), "softcap"),
        (1., Tensor::one_dim(&[1f32; 3])?, "alibi_slopes"),
        (1., Tensor::one_dim(&[1i32; 4])?, "alibi_slopes"),
    ] {
        let mut out = [0f32; 9 * H * D];
        let (to, slopes) = (TensorMut::bshd(&mut out, Q)?, Some(slopes));
        let kv = Tensor::row_major(&[0f32; 18 * G * D], KV)?;
        let result = on_cpu(|p| {
            flash_attn_varlen_alibi_windowed_softcap(
                p,
                q,
                kv,
                kv,
                to,
                slopes,
                cu_q(),
                cu_k(),
                5,
                7,
                SCALE,
                None,
                None,
                softcap,
            )
        });
        assert!(
            matches!(&result, Err(Error::InvalidArgument(m)) if m.contains(error)),
            "{error}: {result:?}"
        );
    }
    let huge = on_cpu(|p| {
        let mut out = [0f32; 9 * H * D];
        let (to, max) = (TensorMut::bshd(&mut out, Q)?, usize::MAX / 2);
        flash_attn_varlen_paged_windowed(
            p,
            q,
            kv,
            kv,
            to,
            cu_q(),
            cu_k(),
            table(),
            Some(none),
            max,
            max,
            SCALE,
            Some(1),
            None,
            PAGE,
            None,
        )
    });
    assert!(matches!(huge, Err(Error::OutOfMemory(_))), "{huge:?}");
    Ok(())
}
