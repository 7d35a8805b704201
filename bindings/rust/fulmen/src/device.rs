//! Devices, kernels and what the process sets for all calls.

use std::ffi::{c_char, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use fulmen_sys as sys;

use crate::attention::text;
use crate::error::{check, panic_message, remember, Result};
use crate::memory::device_name;

/// A device, usable or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// What [`crate::AttentionBuilder::device`] takes.
    pub name: String,
    /// The chip's name.
    pub chip: String,
    /// Instruction sets, memory and the like.
    pub features: String,
    /// Why it cannot be used; `None`: it can.
    pub reason: Option<String>,
    /// Whether it takes slices; else tensors and workspaces are memory of its own.
    pub host_memory: bool,
}

/// A kernel of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// `cpu`, `cuda`, `hip`, `emulated`, or a user's.
    pub backend: String,
    /// Its name, as [`crate::AttentionBuilder::kernel`] takes it.
    pub name: String,
    /// The memory layout that it needs, in words.
    pub layout: String,
}

/// Collects what a visitor of the library's is called with.
pub(crate) struct Visits<T> {
    items: Vec<T>,
}

impl<T> Visits<T> {
    /// Calls the library with a context, which `push` takes.
    pub(crate) fn collect(visit: impl FnOnce(*mut c_void) -> i32) -> Result<Vec<T>> {
        let mut visits = Self { items: Vec::new() };
        check(visit(ptr::from_mut(&mut visits).cast()))?;
        Ok(visits.items)
    }

    /// # Safety
    ///
    /// `context` is what `collect` has given, and nobody else uses it.
    pub(crate) unsafe fn push(context: *mut c_void, make: impl FnOnce() -> T) {
        let add = || (*context.cast::<Self>()).items.push(make());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(add)) {
            remember(format!("a visitor panicked: {}", panic_message(&*panic)));
        }
    }
}

/// All devices, those that cannot be used with their reason.
///
/// ```
/// let devices = fulmen::devices()?;
/// let cpu = devices.iter().find(|device| device.name == "cpu").unwrap();
/// assert!(cpu.reason.is_none() && cpu.host_memory);
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn devices() -> Result<Vec<Device>> {
    unsafe extern "C" fn visit(context: *mut c_void, info: *const sys::fulmen_device_info) {
        Visits::push(context, || {
            let info = &*info;
            Device {
                name: text(info.name),
                chip: text(info.chip),
                features: text(info.features),
                reason: (!info.usable).then(|| text(info.reason)),
                host_memory: info.host_memory,
            }
        });
    }
    // SAFETY: the context is of `visit`'s type.
    Visits::collect(|context| unsafe { sys::fulmen_visit_devices(Some(visit), context) })
}

pub(crate) fn uses_host_memory(device: &str) -> Result<bool> {
    if device == "cpu" {
        return Ok(true);
    }
    let found = devices()?.into_iter().find(|other| other.name == device);
    Ok(found.is_some_and(|device| device.host_memory))
}

/// Every kernel of every backend.
///
/// ```
/// assert!(fulmen::kernels()?.iter().any(|kernel| kernel.name == "cpu.reference.double"));
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn kernels() -> Result<Vec<Kernel>> {
    unsafe extern "C" fn visit(
        context: *mut c_void,
        backend: *const c_char,
        kernel: *const c_char,
        layout: *const c_char,
    ) {
        Visits::push(context, || Kernel {
            backend: text(backend),
            name: text(kernel),
            layout: text(layout),
        });
    }
    // SAFETY: the context is of `visit`'s type.
    Visits::collect(|context| unsafe { sys::fulmen_visit_kernels(Some(visit), context) })
}

/// Where calls run that name no device: [`set_default_device`]'s, else `$FULMEN_DEVICE`, else
/// `cpu`.
///
/// ```
/// fulmen::set_default_device(Some("cpu"))?;
/// assert_eq!(fulmen::default_device(), "cpu");
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn default_device() -> String {
    // SAFETY: the string lives until this thread's next call.
    unsafe { text(sys::fulmen_default_device()) }
}

/// Sets the process's default device; `None` forgets it.
///
/// ```
/// assert!(fulmen::set_default_device(Some("no such device")).is_err());
/// ```
pub fn set_default_device(device: Option<&str>) -> Result<()> {
    let device = device.map(device_name).transpose()?;
    let name = device.as_ref().map_or(ptr::null(), |d| d.as_ptr());
    // SAFETY: null, or NUL-terminated.
    check(unsafe { sys::fulmen_set_default_device(name) })
}

/// The version of the library that is loaded.
///
/// ```
/// assert_eq!(fulmen::version(), env!("CARGO_PKG_VERSION"));
/// ```
pub fn version() -> String {
    // SAFETY: the string is static.
    unsafe { text(sys::fulmen_version()) }
}

type Log = Box<dyn Fn(&str) + Send + Sync>;

/// Gives the library's log to a function, a line a call, from any thread: the lines of
/// `FLASH_ATTENTION_DEBUG=1`, troubles of the kernel cache. Without it they go to stderr.
///
/// The function is kept until the process ends, since another thread may be in it.
///
/// ```
/// fulmen::set_log(|line| eprintln!("fulmen: {line}"))?;
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn set_log(log: impl Fn(&str) + Send + Sync + 'static) -> Result<()> {
    unsafe extern "C" fn write(context: *mut c_void, line: *const c_char) {
        let write = || {
            let line = CStr::from_ptr(line).to_string_lossy();
            (*context.cast::<Log>())(&line);
        };
        // No caller is left to report a panic to.
        let _ = catch_unwind(AssertUnwindSafe(write));
    }
    let log: Log = Box::new(log);
    let context = Box::into_raw(Box::new(log)).cast();
    // SAFETY: the context is of `write`'s type, and lives for ever.
    check(unsafe { sys::fulmen_set_log_callback(Some(write), context) })
}
