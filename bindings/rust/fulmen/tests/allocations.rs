//! A run with a workspace allocates nothing on this side of the C ABI; `tests/api` sees to the other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fulmen::{Attention, Backward, Forward, Result, Tensor, TensorMut};

/// Counts the allocations of the current thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        System.alloc(layout)
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        System.dealloc(memory, layout)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce() -> Result<()>) -> Result<usize> {
    let before = COUNT.get();
    work()?;
    Ok(COUNT.get() - before)
}

#[test]
fn a_run_allocates_nothing() -> Result<()> {
    let (shape, rows) = ([2, 8, 2, 16], [2, 2, 8, 1]);
    let (q, mut out, mut lse) = (vec![0.5f32; 512], vec![0f32; 512], vec![0f32; 32]);
    let view = Tensor::bshd(&q, shape)?;
    let attention = Attention::builder().num_threads(1).build()?;
    let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, shape)?)
        .lse(TensorMut::bhqk(&mut lse, rows)?);
    let plan = attention.plan(&call)?;
    let mut workspace = plan.workspace()?;
    plan.run(&mut call, Some(&mut workspace))?;
    let count = allocations(|| plan.run(&mut call, Some(&mut workspace)))?;
    assert_eq!(count, 0, "forward");

    // Views and the call, too, are made without.
    let count = allocations(|| {
        let view = Tensor::bshd(&q, shape)?;
        let call = Forward::new(view, view, view, TensorMut::bshd(&mut out, shape)?);
        plan.run(
            &mut call.lse(TensorMut::bhqk(&mut lse, rows)?),
            Some(&mut workspace),
        )
    })?;
    assert_eq!(count, 0, "forward, with its views");

    let mut dq = vec![0f32; 512];
    let lse = Tensor::bhqk(&lse, rows)?;
    let mut call = Backward::new(view, view, view, Tensor::bshd(&out, shape)?, lse, view)
        .dq(TensorMut::bshd(&mut dq, shape)?);
    let plan = attention.plan(&call)?;
    let mut workspace = plan.workspace()?;
    let count = allocations(|| plan.run(&mut call, Some(&mut workspace)))?;
    assert_eq!(count, 0, "backward");

    // The counter counts.
    let count = allocations(|| {
        drop(plan.explain());
        Ok(())
    })?;
    assert_eq!(count, 1);
    Ok(())
}
