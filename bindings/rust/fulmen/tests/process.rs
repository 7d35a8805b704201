//! What is set for the whole process: a program of its own, so that no other test is in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fulmen::{Attention, Error, Forward, Result, Tensor, TensorMut};

/// Counts what it gives and takes back, and gives nothing from a limit on.
struct Counting {
    given: Arc<AtomicUsize>,
    limit: usize,
}

// SAFETY: all memory is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= self.limit {
            return std::ptr::null_mut();
        }
        self.given.fetch_add(layout.size(), Ordering::Relaxed);
        System.alloc(layout)
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.given.fetch_sub(layout.size(), Ordering::Relaxed);
        System.dealloc(memory, layout);
    }
}

/// Each test sets what the other reads.
static ALONE: Mutex<()> = Mutex::new(());

/// A run whose workspace the library allocates; the bytes of it.
fn run() -> Result<usize> {
    let n = 256 * 64;
    let (q, mut out) = (vec![0.5f32; n], vec![0f32; n]);
    let view = Tensor::bshd(&q, [1, 256, 1, 64])?;
    let to = TensorMut::bshd(&mut out, [1, 256, 1, 64])?;
    let mut call = Forward::new(view, view, view, to);
    let attention = Attention::builder().kernel("cpu.prefill.scalar").build()?;
    let plan = attention.plan(&call)?;
    plan.run(&mut call, None)?;
    assert_eq!(out[0], 0.5);
    Ok(plan.workspace_bytes())
}

#[test]
fn an_allocator_of_the_programs() -> Result<()> {
    let _alone = ALONE.lock();
    let needed = run()?;
    assert!(needed > 0);
    let given = Arc::new(AtomicUsize::new(0));
    let limited = |limit| {
        let given = given.clone();
        fulmen::set_allocator(Counting { given, limit })
    };
    limited(needed)?;
    let error = run().unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
    limited(usize::MAX)?;
    run()?;
    assert_eq!(given.load(Ordering::Relaxed), 0, "all is given back");
    limited(needed)?;
    fulmen::reset_allocator()?;
    run()?;
    Ok(())
}

#[test]
fn the_log() -> Result<()> {
    let _alone = ALONE.lock();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = lines.clone();
    fulmen::set_log(move |line| kept.lock().unwrap().push(line.to_owned()))?;
    std::env::set_var("FLASH_ATTENTION_DEBUG", "1");
    let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    let to = TensorMut::bshd(&mut out, [1, 4, 1, 16])?;
    Attention::default().forward(&mut Forward::new(view, view, view, to))?;
    assert!(lines
        .lock()
        .unwrap()
        .iter()
        .any(|line| line.contains("cpu.")));
    Ok(())
}
