//! Plans: which kernel runs, decided once.

use std::ffi::{CStr, CString};
use std::fmt;
use std::mem::{size_of, zeroed};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use fulmen_sys as sys;

use crate::attention::{text, window, Attention};
use crate::call::Call;
use crate::device::uses_host_memory;
use crate::error::{check, Error, Result};
use crate::memory::{DeviceBuffer, Stream};
use crate::pool::Pool;

/// The decision which kernel runs calls of certain shapes, made once, run any number of times from
/// any number of threads.
///
/// ```
/// use fulmen::{Attention, Forward, Tensor, TensorMut};
///
/// let shape = [1, 4, 2, 16];
/// let (q, mut out) = (vec![0.5f32; 128], vec![0f32; 128]);
/// let view = Tensor::bshd(&q, shape)?;
/// let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, shape)?);
/// let plan = Attention::builder().device("cpu").build()?.plan(&call)?;
/// let mut workspace = plan.workspace()?;
/// for _ in 0..3 {
///     plan.run(&mut call, Some(&mut workspace))?; // allocates nothing
/// }
/// assert!(plan.explain().contains(&plan.config()?.kernel));
/// # Ok::<(), fulmen::Error>(())
/// ```
///
/// A plan for a range takes every batch up to its own:
///
/// ```
/// use fulmen::{Attention, Forward, Tensor, TensorMut};
///
/// let (q, mut out) = (vec![0.5f32; 8 * 64], vec![0f32; 8 * 64]);
/// let attention = Attention::builder().vary_batch(true).build()?;
/// let view = |batch| Tensor::bshd(&q, [batch, 4, 1, 16]);
/// let largest = TensorMut::bshd(&mut out, [8, 4, 1, 16])?;
/// let plan = attention.plan(&Forward::new(view(8)?, view(8)?, view(8)?, largest))?;
/// for batch in [1, 3, 8] {
///     let part = TensorMut::bshd(&mut out, [batch, 4, 1, 16])?;
///     plan.run(&mut Forward::new(view(batch)?, view(batch)?, view(batch)?, part), None)?;
/// }
/// # Ok::<(), fulmen::Error>(())
/// ```
pub struct Plan {
    plan: NonNull<sys::fulmen_plan>,
    backward: bool,
    host_memory: bool,
    device: CString,
    /// The library keeps a pointer to it.
    pool: Option<Arc<Pool>>,
}

// SAFETY: the library's plans do not change, and any number of threads may run one.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("explain", &self.explain())
            .finish_non_exhaustive()
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the plan is this value's own.
        unsafe { sys::fulmen_plan_destroy(self.plan.as_ptr()) }
    }
}

/// Scratch of a plan's runs, in the memory of its device. Runs at the same time need one each.
///
/// ```
/// # use fulmen::{Attention, Forward, Tensor, TensorMut};
/// # let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
/// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
/// # let call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 4, 1, 16])?);
/// let plan = Attention::default().plan(&call)?;
/// assert_eq!(plan.workspace()?.bytes(), plan.workspace_bytes());
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Debug)]
pub struct Workspace(DeviceBuffer);

impl Workspace {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// What one run changes of its plan's options; `None` is the plan's.
///
/// ```
/// use fulmen::{Attention, Forward, RunOptions, Tensor, TensorMut};
///
/// let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
/// let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
/// let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 4, 1, 16])?);
/// let plan = Attention::default().plan(&call)?;
/// let options = RunOptions { window_left: Some(Some(2)), ..RunOptions::default() };
/// plan.run_with(&mut call, None, &options)?;
/// let exact = plan.at(&call, &options)?;
/// println!("{}", exact.explain());
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunOptions {
    /// The factor of `q . k`.
    pub softmax_scale: Option<f32>,
    /// 0 is off.
    pub softcap: Option<f32>,
    /// `Some(None)` is unlimited.
    pub window_left: Option<Option<usize>>,
    /// `Some(None)` is unlimited. A causal plan's is 0; another value takes its mask away.
    pub window_right: Option<Option<usize>>,
}

impl RunOptions {
    fn raw(&self) -> sys::fulmen_run_options {
        // SAFETY: zero is a value of each field, and the init function sets what is not 0.
        let mut raw: sys::fulmen_run_options = unsafe { zeroed() };
        unsafe {
            sys::fulmen_run_options_init_sized(&mut raw, size_of::<sys::fulmen_run_options>());
        }
        raw.softmax_scale = self.softmax_scale.unwrap_or(raw.softmax_scale);
        raw.softcap = self.softcap.unwrap_or(raw.softcap);
        raw.window_left = self.window_left.map_or(raw.window_left, window);
        raw.window_right = self.window_right.map_or(raw.window_right, window);
        raw
    }
}

/// The chosen kernel and its numbers; those that a kernel does not use are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelConfig {
    /// Its name, as [`crate::AttentionBuilder::kernel`] takes it.
    pub kernel: String,
    /// Query rows of a tile.
    pub block_m: i32,
    /// Key rows of a tile.
    pub block_n: i32,
    /// Parts that a query's keys are divided into.
    pub num_splits: i32,
    /// The most CPU threads of a run.
    pub num_threads: i32,
}

impl Plan {
    pub(crate) fn new<C: Call>(attention: &Attention, call: &C) -> Result<Self> {
        let create = match C::BACKWARD {
            true => sys::fulmen_plan_create_backward,
            false => sys::fulmen_plan_create,
        };
        let mut plan = ptr::null_mut();
        let (options, device) = (attention.options(), attention.device());
        // SAFETY: the structs are initialised; no memory of the tensors is read.
        check(unsafe { create(call.raw(), &options, device, &mut plan) })?;
        Self::owning(plan, C::BACKWARD, attention.pool())
    }

    fn owning(
        plan: *mut sys::fulmen_plan,
        backward: bool,
        pool: Option<Arc<Pool>>,
    ) -> Result<Self> {
        let Some(plan) = NonNull::new(plan) else {
            return Err(Error::Internal("the library gave no plan".into()));
        };
        // SAFETY: the name lives as long as the plan.
        let device = unsafe { CStr::from_ptr(sys::fulmen_plan_device(plan.as_ptr())) }.to_owned();
        let mut plan = Self {
            plan,
            backward,
            host_memory: false,
            device,
            pool,
        };
        plan.host_memory = uses_host_memory(plan.device())?;
        Ok(plan)
    }

    /// Computes into the call's outputs and waits for them. Shapes, dtypes and strides are the
    /// plan's, or in its range.
    ///
    /// With a workspace it allocates nothing; without one the library allocates it for the run.
    pub fn run<C: Call>(&self, call: &mut C, workspace: Option<&mut Workspace>) -> Result<()> {
        self.launch(ptr::null_mut(), call, workspace, None)?;
        self.wait()
    }

    /// [`Plan::run`] with options of this run's own.
    pub fn run_with<C: Call>(
        &self,
        call: &mut C,
        workspace: Option<&mut Workspace>,
        options: &RunOptions,
    ) -> Result<()> {
        self.launch(ptr::null_mut(), call, workspace, Some(options))?;
        self.wait()
    }

    /// [`Plan::run`] in a stream of a GPU, without waiting for it, so that it can be captured in a
    /// graph.
    ///
    /// ```no_run
    /// # use fulmen::{Forward, Plan, Stream, Workspace};
    /// # fn f(plan: &Plan, stream: &Stream, call: &mut Forward, workspace: &mut Workspace) -> fulmen::Result<()> {
    /// plan.run_in(stream, call, Some(workspace), None)?;
    /// stream.synchronize(plan.device())
    /// # }
    /// ```
    pub fn run_in<C: Call>(
        &self,
        stream: &Stream,
        call: &mut C,
        workspace: Option<&mut Workspace>,
        options: Option<&RunOptions>,
    ) -> Result<()> {
        self.launch(stream.raw(), call, workspace, options)
    }

    fn launch<C: Call>(
        &self,
        stream: *mut std::ffi::c_void,
        call: &mut C,
        workspace: Option<&mut Workspace>,
        options: Option<&RunOptions>,
    ) -> Result<()> {
        self.check_pass::<C>()?;
        let (memory, bytes) = match workspace {
            Some(Workspace(buffer)) if buffer.device_c() == self.device.as_c_str() => {
                (buffer.as_ptr(), buffer.len())
            }
            Some(Workspace(buffer)) => {
                return Err(Error::InvalidArgument(format!(
                    "the workspace is memory of {}; this plan runs on {}",
                    buffer.device(),
                    self.device()
                )))
            }
            None => (ptr::null_mut(), 0),
        };
        let (plan, tensors) = (self.plan.as_ptr(), call.raw());
        // SAFETY: the views of a call are valid, it borrows what is written, and the workspace is
        // this run's own.
        check(unsafe {
            match options {
                None => sys::fulmen_plan_run(plan, stream, tensors, memory, bytes),
                Some(options) => {
                    sys::fulmen_plan_run_with(plan, stream, tensors, &options.raw(), memory, bytes)
                }
            }
        })
    }

    /// Borrows end with a run, so a device must be done with its memory.
    fn wait(&self) -> Result<()> {
        if self.host_memory {
            return Ok(());
        }
        // SAFETY: the default stream.
        check(unsafe { sys::fulmen_device_synchronize(self.device.as_ptr(), ptr::null_mut()) })
    }

    /// A forward plan writes what a backward call only lends it.
    fn check_pass<C: Call>(&self) -> Result<()> {
        let name = |backward| if backward { "backward" } else { "forward" };
        if C::BACKWARD == self.backward {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "the call is of the {} pass; this plan is of the {} pass",
            name(C::BACKWARD),
            name(self.backward)
        )))
    }

    /// A plan of just this call's sizes and these options: to look at, or to have its kernels
    /// loaded before a graph is captured.
    pub fn at<C: Call>(&self, call: &C, options: &RunOptions) -> Result<Self> {
        self.check_pass::<C>()?;
        let mut exact = ptr::null_mut();
        let (plan, tensors) = (self.plan.as_ptr(), call.raw());
        // SAFETY: the structs are initialised; no memory of the tensors is read.
        check(unsafe { sys::fulmen_plan_at(plan, tensors, &options.raw(), &mut exact) })?;
        Self::owning(exact, self.backward, self.pool.clone())
    }

    /// Bytes of scratch that a run needs; of a plan for a range, the most of its sizes.
    pub fn workspace_bytes(&self) -> usize {
        // SAFETY: the plan lives.
        unsafe { sys::fulmen_plan_workspace_bytes(self.plan.as_ptr()) }
    }

    /// A workspace for runs of this plan.
    pub fn workspace(&self) -> Result<Workspace> {
        let memory = DeviceBuffer::uninitialised(self.device.clone(), self.workspace_bytes())?;
        Ok(Workspace(memory))
    }

    /// Which kernel runs, and why each other does not.
    pub fn explain(&self) -> String {
        // SAFETY: the string lives as long as the plan.
        unsafe { text(sys::fulmen_plan_explain(self.plan.as_ptr())) }
    }

    /// The name of the device that it runs on.
    pub fn device(&self) -> &str {
        self.device.to_str().unwrap_or("")
    }

    /// The chosen kernel and its numbers.
    pub fn config(&self) -> Result<KernelConfig> {
        // SAFETY: zero is a value of each field; the library fills a struct of this size.
        let raw = unsafe {
            let mut raw: sys::fulmen_kernel_config = zeroed();
            raw.struct_size = size_of::<sys::fulmen_kernel_config>();
            check(sys::fulmen_plan_config(self.plan.as_ptr(), &mut raw))?;
            raw
        };
        Ok(KernelConfig {
            // SAFETY: the string lives as long as the plan.
            kernel: unsafe { text(raw.kernel) },
            block_m: raw.block_m,
            block_n: raw.block_n,
            num_splits: raw.num_splits,
            num_threads: raw.num_threads,
        })
    }
}
