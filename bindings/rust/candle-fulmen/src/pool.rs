//! On the CPU attention runs on candle's own threads, rayon's. A second pool would wait for work
//! between calls on the cores that candle's products need.

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

use rayon::iter::{IntoParallelIterator, ParallelIterator};

struct Argument(*mut c_void);

// SAFETY: the library expects its tasks on any thread.
unsafe impl Sync for Argument {}

impl Argument {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// The library's `parallel_for`: each index once, on the current pool. One index needs no other
/// thread to wake up.
pub(crate) unsafe extern "C" fn parallel_for(
    _context: *mut c_void,
    count: i64,
    task: Option<unsafe extern "C" fn(*mut c_void, i64)>,
    argument: *mut c_void,
) {
    let Some(task) = task else { return };
    let argument = Argument(argument);
    // SAFETY: task and argument are valid until this callback returns, and tasks do not unwind.
    let run = |index| unsafe { task(argument.pointer(), index) };
    let all = || match count {
        1 => run(0),
        _ => (0..count).into_par_iter().for_each(run),
    };
    // A panic of rayon's must not cross C. The library finds that indices are missing and says so.
    let _ = catch_unwind(AssertUnwindSafe(all));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::parallel_for;
    use crate::Attention;

    const THREADS: usize = 3;

    fn pool() -> rayon::ThreadPool {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(THREADS);
        builder.build().expect("threads")
    }

    unsafe extern "C" fn count(argument: *mut std::ffi::c_void, index: i64) {
        let ran = unsafe { &*argument.cast::<Vec<AtomicUsize>>() };
        let is_here = rayon::current_num_threads() == THREADS;
        ran[index as usize].fetch_add(if is_here { 1 } else { 100 }, Ordering::Relaxed);
    }

    #[test]
    fn every_index_runs_once_on_the_callers_pool() {
        for indices in [0, 1, 2, 100] {
            let ran: Vec<AtomicUsize> = (0..indices).map(|_| AtomicUsize::new(0)).collect();
            let argument = (&raw const ran).cast_mut().cast::<std::ffi::c_void>() as usize;
            pool().install(|| unsafe {
                parallel_for(
                    std::ptr::null_mut(),
                    indices,
                    Some(count),
                    argument as *mut _,
                )
            });
            assert!(ran.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn the_pools_size_is_the_most_threads() {
        let of = |attention: &Attention| {
            let options = attention.options();
            (options.num_threads, options.parallel_for.is_some())
        };
        let (all, fewer) = (Attention::new(), Attention::new().num_threads(2));
        assert_eq!(pool().install(|| of(&all)), (THREADS as i32, true));
        assert_eq!(pool().install(|| of(&fewer)), (2, true));
    }
}
