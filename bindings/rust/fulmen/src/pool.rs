//! Threads of the user's instead of the library's.

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use fulmen_sys as sys;

use crate::error::{panic_message, remember};

/// A thread pool that the library's work runs on.
///
/// ```
/// use fulmen::{Attention, ParallelFor};
///
/// /// As many threads as there are tasks: a pool would keep its threads.
/// struct Threads;
///
/// impl ParallelFor for Threads {
///     fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
///         std::thread::scope(|scope| {
///             for index in 0..count {
///                 scope.spawn(move || task(index));
///             }
///         });
///     }
/// }
///
/// let attention = Attention::builder().num_threads(2).parallel_for(Threads).build()?;
/// # Ok::<(), fulmen::Error>(())
/// ```
pub trait ParallelFor: Send + Sync + 'static {
    /// Runs `task(index)` once for every index below `count`, in any order, on any threads, and
    /// returns when all are done. A pool that does otherwise, or panics, makes the call fail with
    /// [`crate::Error::Internal`].
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync));
}

/// A pool behind a thin pointer.
pub(crate) struct Pool(Box<dyn ParallelFor>);

impl Pool {
    pub(crate) fn new(pool: impl ParallelFor) -> Arc<Self> {
        Arc::new(Self(Box::new(pool)))
    }

    /// What the library's options take. The context is valid as long as the pool.
    pub(crate) fn callback(self: &Arc<Self>) -> (sys::fulmen_parallel_for, *mut c_void) {
        (Some(parallel_for), Arc::as_ptr(self).cast_mut().cast())
    }
}

/// The library's argument for its tasks, which any thread may pass on.
struct Argument(*mut c_void);

// SAFETY: the library expects its tasks on any thread.
unsafe impl Sync for Argument {}

impl Argument {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

unsafe extern "C" fn parallel_for(
    context: *mut c_void,
    count: i64,
    task: Option<unsafe extern "C" fn(*mut c_void, i64)>,
    argument: *mut c_void,
) {
    let Some(task) = task else { return };
    let argument = Argument(argument);
    let run = || {
        // SAFETY: the context is a Pool's, which lives as long as the plan or call.
        let pool = unsafe { &*context.cast::<Pool>() };
        let count = usize::try_from(count).unwrap_or(0);
        let task = |index: usize| {
            // Beyond the range the library says so; it runs nothing then.
            let index = i64::try_from(index).unwrap_or(i64::MAX);
            // SAFETY: task and argument are valid until this callback returns, and the pool cannot
            // keep the closure any longer.
            unsafe { task(argument.pointer(), index) }
        };
        pool.0.run(count, &task);
    };
    // The library finds that indices are missing, and says that the pool did not run them.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        remember(format!("the pool panicked: {}", panic_message(&*panic)));
    }
}

/// The current pool of rayon's.
///
/// The library's threads are faster where attention runs by itself; one pool for all is better where
/// other work of rayon's runs beside it.
///
/// ```
/// use fulmen::{Attention, Rayon};
///
/// let attention = Attention::builder().parallel_for(Rayon).build()?;
/// # Ok::<(), fulmen::Error>(())
/// ```
#[cfg(feature = "rayon")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rayon;

#[cfg(feature = "rayon")]
impl ParallelFor for Rayon {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        use rayon::iter::{IntoParallelIterator, ParallelIterator};
        (0..count).into_par_iter().for_each(task);
    }
}
