//! What the program gives the library once: kernels compiled before, memory for workspaces.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_void, CString};
use std::mem::size_of;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;

use fulmen_sys as sys;

use crate::error::{check, Error, Result};

/// Adds kernels that were compiled before, for machines without a compiler: a folder that `fulmen
/// compile --out` wrote, or a file that `--pack` wrote.
///
/// An error is [`Error::InvalidArgument`]: nothing is there, or it is no such file.
///
/// ```
/// let error = fulmen::add_prebuilt_path("/no/such/folder").unwrap_err();
/// assert!(error.message().contains("/no/such/folder"));
/// ```
pub fn add_prebuilt_path(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    // The library's paths are the system's bytes, on Windows UTF-8.
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| {
        Error::InvalidArgument(format!("path is {path:?}; a path has no NUL in it"))
    })?;
    // SAFETY: the name is NUL-terminated.
    check(unsafe { sys::fulmen_add_prebuilt_path(name.as_ptr()) })
}

/// [`add_prebuilt_path`] of such a file's bytes, which are copied: `include_bytes!` makes them part
/// of the program.
///
/// ```
/// assert!(fulmen::add_prebuilt_pack(b"not a pack of kernels").is_err());
/// ```
pub fn add_prebuilt_pack(pack: &[u8]) -> Result<()> {
    // SAFETY: the slice has so many bytes.
    check(unsafe { sys::fulmen_add_prebuilt_pack(pack.as_ptr().cast(), pack.len()) })
}

/// The alignment that the library asks for.
const ALIGNMENT: usize = 64;

/// The process's memory for workspaces of the host's that a run allocates because the caller gave
/// none, from now on. It is asked from any thread. What it gave is freed by it.
///
/// The allocator is kept until the process ends, since workspaces may be in use.
///
/// ```
/// use std::alloc::System;
///
/// fulmen::set_allocator(System)?;
/// fulmen::reset_allocator()?;
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn set_allocator<A: GlobalAlloc + Send + Sync + 'static>(allocator: A) -> Result<()> {
    unsafe extern "C" fn allocate<A: GlobalAlloc>(
        context: *mut c_void,
        bytes: usize,
        alignment: usize,
    ) -> *mut c_void {
        let give = || match Layout::from_size_align(bytes, ALIGNMENT) {
            Ok(layout) if bytes > 0 && alignment == ALIGNMENT => {
                (*context.cast::<A>()).alloc(layout).cast()
            }
            _ => ptr::null_mut(),
        };
        catch_unwind(AssertUnwindSafe(give)).unwrap_or(ptr::null_mut())
    }
    unsafe extern "C" fn free<A: GlobalAlloc>(
        context: *mut c_void,
        memory: *mut c_void,
        bytes: usize,
    ) {
        let take = || {
            if let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) {
                (*context.cast::<A>()).dealloc(memory.cast(), layout);
            }
        };
        // No caller is left to report a panic to.
        let _ = catch_unwind(AssertUnwindSafe(take));
    }
    let raw = sys::fulmen_allocator {
        struct_size: size_of::<sys::fulmen_allocator>(),
        allocate: Some(allocate::<A>),
        free: Some(free::<A>),
        context: Box::into_raw(Box::new(allocator)).cast(),
    };
    // SAFETY: the context is of the functions' type, and lives for ever.
    check(unsafe { sys::fulmen_set_allocator(&raw) })
}

/// The library's own memory again, the default.
///
/// ```
/// fulmen::reset_allocator()?;
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn reset_allocator() -> Result<()> {
    // SAFETY: null is a value that the function takes.
    check(unsafe { sys::fulmen_set_allocator(ptr::null()) })
}
