//! Plans: from many threads, for ranges, with options of a run's own, on pools.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;

use fulmen::{Attention, Error, Forward, ParallelFor, Plan, Result, RunOptions, Tensor, TensorMut};

use crate::numbers::numbers;

const SHAPE: [usize; 4] = [2, 16, 4, 16];
const N: usize = 2048;

fn call<'a>(q: &'a [f32], out: &'a mut [f32]) -> Result<Forward<'a>> {
    let q = Tensor::bshd(q, SHAPE)?;
    Ok(Forward::new(q, q, q, TensorMut::bshd(out, SHAPE)?))
}

fn plan(attention: &Attention) -> Result<Plan> {
    let (q, mut out) = (vec![0f32; N], vec![0f32; N]);
    let plan = attention.plan(&call(&q, &mut out)?);
    plan
}

/// Four threads run one plan, each on its own numbers, and get what one thread gets.
#[test]
fn threads_share_a_plan() -> Result<()> {
    let attention = Attention::builder().num_threads(2).build()?;
    let plan = plan(&attention)?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|seed| {
                let (plan, attention) = (&plan, &attention);
                scope.spawn(move || -> Result<()> {
                    let q = numbers(seed, N);
                    let mut expected = vec![0f32; N];
                    attention.forward(&mut call(&q, &mut expected)?)?;
                    let mut workspace = plan.workspace()?;
                    for _ in 0..25 {
                        let mut out = vec![0f32; N];
                        plan.run(&mut call(&q, &mut out)?, Some(&mut workspace))?;
                        assert_eq!(out, expected);
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap())
    })
}

fn shaped<'a>(
    [q, kv]: [&'a [f32]; 2],
    batch: usize,
    rows: usize,
    out: &'a mut [f32],
) -> Result<Forward<'a>> {
    let kv = Tensor::bshd(kv, [batch, rows, 1, 16])?;
    let q = Tensor::bshd(q, [batch, 1, 4, 16])?;
    let out = TensorMut::bshd(out, [batch, 1, 4, 16])?;
    Ok(Forward::new(q, kv, kv, out))
}

#[test]
fn a_range_of_batches_and_keys() -> Result<()> {
    let (q, kv) = (numbers(1, 4 * 64), numbers(2, 4 * 9 * 16));
    let range = Attention::builder()
        .vary_batch(true)
        .vary_seqlen_k(true)
        .build()?;
    let mut out = vec![0f32; 4 * 64];
    let plan = range.plan(&shaped([&q, &kv], 4, 9, &mut out)?)?;
    for (batch, rows) in [(1, 1), (2, 9), (3, 4), (4, 9), (0, 3)] {
        let (mut ours, mut exact) = (vec![0f32; 4 * 64], vec![0f32; 4 * 64]);
        plan.run(&mut shaped([&q, &kv], batch, rows, &mut ours)?, None)?;
        Attention::default().forward(&mut shaped([&q, &kv], batch, rows, &mut exact)?)?;
        assert_eq!(ours, exact, "{batch}, {rows}");
    }
    Ok(())
}

#[test]
fn more_than_the_range_is_refused() -> Result<()> {
    let (q, mut out) = (numbers(1, N), vec![0f32; N]);
    let attention = Attention::builder().vary_batch(true).build()?;
    let data = [&q[..], &q[..]];
    let plan = attention.plan(&shaped(data, 1, 4, &mut out)?)?;
    let mut two = shaped(data, 2, 4, &mut out)?;
    let error = plan.run(&mut two, None).unwrap_err();
    assert!(error.message().contains("batch is 2"), "{error}");
    Ok(())
}

#[test]
fn options_of_one_run() -> Result<()> {
    let q = numbers(1, N);
    let plan = plan(&Attention::default())?;
    let options = RunOptions {
        softmax_scale: Some(0.5),
        softcap: Some(2.),
        window_left: Some(Some(3)),
        window_right: Some(None),
    };
    let (mut ours, mut expected) = (vec![0f32; N], vec![0f32; N]);
    plan.run_with(&mut call(&q, &mut ours)?, None, &options)?;
    let same = Attention::builder()
        .softmax_scale(0.5)
        .softcap(2.)
        .window(Some(3), None);
    same.build()?.forward(&mut call(&q, &mut expected)?)?;
    assert_eq!(ours, expected);
    let exact = plan.at(&call(&q, &mut ours)?, &options)?;
    exact.run(&mut call(&q, &mut ours)?, None)?;
    assert_eq!(ours, expected);
    assert_eq!(exact.device(), "cpu");
    Ok(())
}

#[test]
fn a_plan_says_what_it_runs() -> Result<()> {
    let forced = Attention::builder()
        .kernel("cpu.reference.double")
        .build()?;
    let plan = plan(&forced)?;
    assert_eq!(plan.config()?.kernel, "cpu.reference.double");
    assert!(plan.explain().contains("cpu.reference.double"));
    assert!(format!("{plan:?}").contains("cpu.reference.double"));
    let (q, mut out) = (vec![0f32; N], vec![0f32; N]);
    let candidates = Attention::default().candidates(&call(&q, &mut out)?)?;
    let chosen = Attention::default()
        .plan(&call(&q, &mut out)?)?
        .config()?
        .kernel;
    let able = candidates.iter().filter(|c| c.reason.is_none());
    let best = able.max_by(|a, b| a.rank.total_cmp(&b.rank)).unwrap();
    assert_eq!(chosen, best.kernel);
    assert!(candidates
        .iter()
        .any(|c| c.reason.as_ref().is_some_and(|r| !r.is_empty())));
    Ok(())
}

/// A kernel's parameters by name change its numbers; those that it does not have are refused.
#[test]
fn tuning() -> Result<()> {
    let of = |parameters: &str| {
        Attention::builder()
            .kernel("cpu.prefill.scalar")
            .tuning(parameters)
            .build()
    };
    for block_n in [64, 128] {
        let plan = plan(&of(&format!("block_n={block_n}"))?)?;
        assert_eq!(plan.config()?.block_n, block_n);
    }
    let error = plan(&of("block_q=3")?).unwrap_err();
    assert!(
        matches!(&error, Error::InvalidArgument(m) if m.contains("block_q")),
        "{error:?}"
    );
    Ok(())
}

/// Threads of its own, and how many tasks they ran.
struct Threads(Arc<AtomicUsize>);

impl ParallelFor for Threads {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(count, Ordering::Relaxed);
        thread::scope(|scope| {
            for index in 0..count {
                scope.spawn(move || task(index));
            }
        });
    }
}

fn on(pool: impl ParallelFor) -> Result<Attention> {
    Attention::builder()
        .num_threads(3)
        .parallel_for(pool)
        .build()
}

#[test]
fn a_pool_of_the_callers() -> Result<()> {
    let q = numbers(1, N);
    let (mut ours, mut expected) = (vec![0f32; N], vec![0f32; N]);
    let tasks = Arc::new(AtomicUsize::new(0));
    // The plan keeps the pool.
    let plan = plan(&on(Threads(tasks.clone()))?)?;
    plan.run(&mut call(&q, &mut ours)?, None)?;
    Attention::default().forward(&mut call(&q, &mut expected)?)?;
    assert_eq!(ours, expected);
    assert!(tasks.load(Ordering::Relaxed) > 0);
    Ok(())
}

struct Panics;
impl ParallelFor for Panics {
    fn run(&self, _: usize, _: &(dyn Fn(usize) + Sync)) {
        panic!("no threads today");
    }
}

struct Forgets;
impl ParallelFor for Forgets {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        (1..count).for_each(task);
    }
}

struct Late;
impl ParallelFor for Late {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(task);
        panic!("after the work");
    }
}

/// A pool's mistakes are errors with its words, and the next call knows nothing of them.
#[test]
fn pools_that_fail() -> Result<()> {
    let (q, mut out) = (numbers(1, N), vec![0f32; N]);
    for (attention, words) in [
        (on(Panics)?, "no threads today"),
        (on(Forgets)?, "parallel_for"),
        (on(Late)?, "after the work"),
    ] {
        let error = attention.forward(&mut call(&q, &mut out)?).unwrap_err();
        assert!(
            matches!(&error, Error::Internal(m) if m.contains(words)),
            "{error:?}"
        );
        Attention::default().forward(&mut call(&q, &mut out)?)?;
    }
    Ok(())
}

#[cfg(feature = "rayon")]
#[test]
fn rayon() -> Result<()> {
    let q = numbers(1, N);
    let (mut ours, mut expected) = (vec![0f32; N], vec![0f32; N]);
    on(fulmen::Rayon)?.forward(&mut call(&q, &mut ours)?)?;
    Attention::default().forward(&mut call(&q, &mut expected)?)?;
    assert_eq!(ours, expected);
    Ok(())
}
