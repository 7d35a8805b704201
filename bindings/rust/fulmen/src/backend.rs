//! Backends of the user's own.

use std::ffi::{c_char, c_void, CString};
use std::mem::{size_of, zeroed};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use fulmen_sys as sys;

use crate::backend_call::{BackendCall, BackendGradients, Shapes};
use crate::error::{check, panic_message, remember, Error, Result};
use crate::memory::device_name;

/// A backend: one device, called by the backend's name, with a kernel for the forward pass, and one
/// for the gradients if it likes.
///
/// [`crate::AttentionBuilder::device`] chooses it, [`crate::AttentionBuilder::kernel`] forces its
/// kernel by name, [`crate::devices`] lists it. It takes slices. A panic in it is an
/// [`Error::Internal`] of the call.
///
/// ```
/// use fulmen::{register_backend, unregister_backend, Attention, AttentionBackend, BackendCall};
/// use fulmen::{Error, Forward, Result, Shapes, Tensor, TensorMut};
///
/// /// The mean of the values: what attention is where all scores are equal.
/// struct Mean;
///
/// impl AttentionBackend for Mean {
///     fn name(&self) -> &str {
///         "mean"
///     }
///     fn supports(&self, shapes: &Shapes) -> std::result::Result<(), String> {
///         match shapes.k() {
///             Some(k) if k.shape[2] == 1 => Ok(()),
///             _ => Err("more than one KV head".into()),
///         }
///     }
///     fn run(&self, call: &mut BackendCall) -> Result<()> {
///         let [batch, seqlen_q, heads, dim] = call.out().shape();
///         let keys = call.v().shape()[1];
///         for index in 0..batch * seqlen_q * heads * dim {
///             let (b, i) = (index / (seqlen_q * heads * dim), index / (heads * dim) % seqlen_q);
///             let (h, d) = (index / dim % heads, index % dim);
///             let sum: f32 = (0..keys).filter_map(|j| call.v().get([b, j, 0, d])).sum();
///             call.out().set([b, i, h, d], sum / keys as f32)?;
///         }
///         Ok(())
///     }
/// }
///
/// register_backend(Mean)?;
/// let (q, v, mut out) = (vec![0f32; 32], vec![3f32; 32], vec![0f32; 32]);
/// let view = |data| Tensor::bshd(data, [1, 4, 1, 8]);
/// let mut call =
///     Forward::new(view(&q)?, view(&q)?, view(&v)?, TensorMut::bshd(&mut out, [1, 4, 1, 8])?);
/// let plan = Attention::builder().device("mean").build()?.plan(&call)?;
/// plan.run(&mut call, None)?;
/// assert_eq!((plan.config()?.kernel.as_str(), out[0]), ("mean.kernel", 3.));
/// unregister_backend("mean")?;
/// # Ok::<(), fulmen::Error>(())
/// ```
pub trait AttentionBackend: Send + Sync + 'static {
    /// The device's name, without `:`.
    fn name(&self) -> &str;

    /// The forward kernel's name.
    fn kernel_name(&self) -> String {
        format!("{}.kernel", self.name())
    }

    /// Its rank, the default 1; 0 or less runs only where the kernel is forced by name.
    fn rank(&self) -> f64 {
        1.
    }

    /// Whether the kernels run a call, or the reason why they do not.
    fn supports(&self, shapes: &Shapes<'_>) -> std::result::Result<(), String>;

    /// Computes out, and lse where the call has it. Many threads may be in it at once.
    fn run(&self, call: &mut BackendCall<'_>) -> Result<()>;

    /// The backward kernel's name; `None`, the default: there are no gradients.
    fn backward_kernel_name(&self) -> Option<String> {
        None
    }

    /// Computes the gradients that the call has.
    fn run_backward(&self, _call: &mut BackendGradients<'_>) -> Result<()> {
        Err(Error::Unsupported("the backend has no gradients".into()))
    }

    /// What else its kernels know. Other calls are refused before [`AttentionBackend::supports`].
    fn features(&self) -> Features {
        Features::default()
    }
}

/// What a backend's kernels know beyond attention of padded sequences.
///
/// ```
/// let features = fulmen::Features { dropout: true, ..Default::default() };
/// assert!(!features.paged);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Dropout.
    pub dropout: bool,
    /// `cu_seqlens_q`, `cu_seqlens_k`, `seqlens_k`, `leftpad_k`.
    pub variable_lengths: bool,
    /// `block_table`; needs `variable_lengths`, too.
    pub paged: bool,
    /// Gradients may differ in bits from run to run: refused unless the caller allows it.
    pub atomics: bool,
}

type Backend = Box<dyn AttentionBackend>;

fn name(argument: &str, name: &str) -> Result<CString> {
    CString::new(name)
        .map_err(|_| Error::InvalidArgument(format!("{argument} is {name:?}; a name has no NUL")))
}

/// Adds a backend, which then is a device. It is kept until the process ends, since plans may use it
/// after [`unregister_backend`].
pub fn register_backend(backend: impl AttentionBackend) -> Result<()> {
    let backend: Backend = Box::new(backend);
    let device = device_name(backend.name())?;
    let kernel = name("kernel_name", &backend.kernel_name())?;
    let backward = backend.backward_kernel_name();
    let backward = backward
        .map(|kernel| name("backward_kernel_name", &kernel))
        .transpose()?;
    let features = backend.features();
    // SAFETY: zero is a value of each field.
    let mut raw: sys::fulmen_backend = unsafe { zeroed() };
    raw.struct_size = size_of::<sys::fulmen_backend>();
    raw.name = device.as_ptr();
    raw.kernel_name = kernel.as_ptr();
    raw.rank = backend.rank();
    raw.supports = Some(supports);
    raw.run = Some(run);
    if let Some(backward) = &backward {
        raw.backward_kernel_name = backward.as_ptr();
        raw.run_backward = Some(run_backward);
    }
    raw.dropout = features.dropout;
    raw.atomics = features.atomics;
    if features.variable_lengths {
        raw.features |= u64::from(sys::FULMEN_FEATURE_VARIABLE_LENGTHS);
    }
    if features.paged {
        raw.features |= u64::from(sys::FULMEN_FEATURE_PAGED);
    }
    let context = Box::into_raw(Box::new(backend));
    raw.context = context.cast();
    // SAFETY: names are copied; the context is of the callbacks' type and lives for ever.
    let registered = check(unsafe { sys::fulmen_register_backend(&raw) });
    if registered.is_err() {
        // SAFETY: the library has refused it, so nobody else has the context.
        drop(unsafe { Box::from_raw(context) });
    }
    registered
}

/// Takes a backend away: no plan is made on it from now on, and its name is free. Built-in ones are
/// refused.
pub fn unregister_backend(name: &str) -> Result<()> {
    let name = device_name(name)?;
    // SAFETY: NUL-terminated.
    check(unsafe { sys::fulmen_unregister_backend(name.as_ptr()) })
}

/// A callback's result as a status, with its message kept for the caller.
fn status(name: &str, result: std::thread::Result<Result<()>>) -> i32 {
    match result {
        Ok(Ok(())) => sys::FULMEN_OK as i32,
        Ok(Err(error)) => {
            remember(error.message().to_owned());
            error.status()
        }
        Err(panic) => {
            remember(format!("{name} panicked: {}", panic_message(&*panic)));
            sys::FULMEN_INTERNAL as i32
        }
    }
}

unsafe extern "C" fn supports(
    context: *mut c_void,
    tensors: *const sys::fulmen_tensors,
    options: *const sys::fulmen_options,
    reason: *mut c_char,
    reason_size: usize,
) -> bool {
    // SAFETY (of this function): the library gives what `register_backend` gave it, structs of its
    // own, and so many bytes for the reason.
    let backend = &*context.cast::<Backend>();
    let shapes = Shapes::new(&*tensors, &*options);
    let answer = catch_unwind(AssertUnwindSafe(|| backend.supports(&shapes)));
    let message = match answer {
        Ok(Ok(())) => return true,
        Ok(Err(message)) => message,
        Err(panic) => format!("supports() panicked: {}", panic_message(&*panic)),
    };
    if reason_size > 0 {
        let room = reason_size - 1;
        let whole = (0..=room.min(message.len())).rev();
        let bytes = whole.into_iter().find(|&n| message.is_char_boundary(n));
        let bytes = bytes.unwrap_or(0);
        ptr::copy_nonoverlapping(message.as_ptr(), reason.cast(), bytes);
        *reason.add(bytes) = 0;
    }
    false
}

unsafe extern "C" fn run(
    context: *mut c_void,
    stream: *mut c_void,
    tensors: *const sys::fulmen_tensors,
    options: *const sys::fulmen_options,
) -> i32 {
    let backend = &*context.cast::<Backend>();
    let mut call = BackendCall::new(&*tensors, &*options, stream);
    let result = catch_unwind(AssertUnwindSafe(|| backend.run(&mut call)));
    status("run()", result)
}

unsafe extern "C" fn run_backward(
    context: *mut c_void,
    stream: *mut c_void,
    tensors: *const sys::fulmen_tensors,
    options: *const sys::fulmen_options,
) -> i32 {
    let backend = &*context.cast::<Backend>();
    let mut call = BackendGradients::new(&*tensors, &*options, stream);
    let result = catch_unwind(AssertUnwindSafe(|| backend.run_backward(&mut call)));
    status("run_backward()", result)
}
