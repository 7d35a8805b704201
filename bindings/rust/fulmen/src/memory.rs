//! Memory and streams of devices.

use std::ffi::{c_void, CStr, CString};
use std::marker::PhantomData;
use std::mem::size_of_val;
use std::ptr;

use fulmen_sys as sys;

use crate::dtype::Element;
use crate::error::{check, Error, Result};

/// A stream of a GPU: a `cudaStream_t`, `CUstream` or `hipStream_t`.
#[derive(Debug)]
pub struct Stream(*mut c_void);

// SAFETY: vendors take a stream from any thread.
unsafe impl Send for Stream {}
unsafe impl Sync for Stream {}

impl Stream {
    /// A vendor's stream. Null is the device's default one.
    ///
    /// # Safety
    ///
    /// The stream is of the device on which calls are put into it, and lives longer than this
    /// value. For every call put into it: until the stream has come to the call's end
    /// ([`Stream::synchronize`]), the memory of its tensors and its workspace lives, no code writes
    /// an input, and an output or the workspace is read or written only in the order of the stream.
    /// Borrows end when a call returns, which is before that.
    ///
    /// ```no_run
    /// # let hip_stream = std::ptr::null_mut();
    /// // SAFETY: a stream of hip:0, whose work is waited for before its memory is freed.
    /// let stream = unsafe { fulmen::Stream::from_raw(hip_stream) };
    /// stream.synchronize("hip:0")?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub const unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream)
    }

    /// The vendor's stream.
    ///
    /// ```
    /// // SAFETY: nothing is put into it.
    /// let stream = unsafe { fulmen::Stream::from_raw(std::ptr::null_mut()) };
    /// assert!(stream.as_raw().is_null());
    /// ```
    pub const fn as_raw(&self) -> *mut c_void {
        self.0
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        self.0
    }

    /// Waits until all work of the stream is done.
    ///
    /// ```
    /// // SAFETY: the CPU has no streams.
    /// let stream = unsafe { fulmen::Stream::from_raw(std::ptr::null_mut()) };
    /// stream.synchronize("cpu")?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn synchronize(&self, device: &str) -> Result<()> {
        let device = device_name(device)?;
        // SAFETY: the stream lives, as its maker promised.
        check(unsafe { sys::fulmen_device_synchronize(device.as_ptr(), self.0) })
    }
}

pub(crate) fn device_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| {
        Error::InvalidArgument(format!("device is {name:?}; a device's name has no NUL"))
    })
}

/// Memory of a device, aligned to 64 bytes, freed when it is dropped.
///
/// Views of it are made by [`crate::Tensor::from_raw`] and [`crate::TensorMut::from_raw`], whose
/// callers promise that they are used on this device.
///
/// ```
/// use fulmen::DeviceBuffer;
///
/// let mut buffer = DeviceBuffer::new("cpu", 12)?;
/// buffer.copy_from(&[1f32, 2., 3.])?;
/// let mut back = [0f32; 3];
/// buffer.copy_to(&mut back)?;
/// assert_eq!(back, [1., 2., 3.]);
/// assert_eq!((buffer.len(), buffer.is_empty(), buffer.device()), (12, false, "cpu"));
/// assert!(!buffer.as_ptr().is_null());
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceBuffer {
    device: CString,
    memory: *mut c_void,
    bytes: usize,
    owned: PhantomData<Box<[u8]>>,
}

// SAFETY: the memory is the buffer's own, and devices take calls from any thread.
unsafe impl Send for DeviceBuffer {}
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// Memory of a device of [`crate::devices`], with zeros in it.
    pub fn new(device: &str, bytes: usize) -> Result<Self> {
        let mut buffer = Self::uninitialised(device_name(device)?, bytes)?;
        let zeros = vec![0u8; bytes.min(1 << 20)];
        for start in (0..bytes).step_by(zeros.len().max(1)) {
            let part = zeros.len().min(bytes - start);
            buffer.write(start, zeros.as_ptr().cast(), part)?;
        }
        Ok(buffer)
    }

    pub(crate) fn uninitialised(device: CString, bytes: usize) -> Result<Self> {
        let mut memory = ptr::null_mut();
        // SAFETY: the name is NUL-terminated, and `memory` is written.
        check(unsafe { sys::fulmen_device_allocate(device.as_ptr(), bytes, &mut memory) })?;
        Ok(Self {
            device,
            memory,
            bytes,
            owned: PhantomData,
        })
    }

    fn write(&mut self, start: usize, from: *const c_void, bytes: usize) -> Result<()> {
        // SAFETY: the caller's memory has so many bytes, and so has the buffer from `start` on.
        check(unsafe {
            let to = self.memory.cast::<u8>().add(start).cast();
            sys::fulmen_device_copy(self.device.as_ptr(), to, from, bytes)
        })
    }

    /// Copies a slice to the buffer's begin, after all work already given to the device.
    pub fn copy_from<T: Element>(&mut self, data: &[T]) -> Result<()> {
        self.check_size(size_of_val(data))?;
        self.write(0, data.as_ptr().cast(), size_of_val(data))
    }

    /// Copies the buffer's begin into a slice, after all work already given to the device.
    pub fn copy_to<T: crate::Number>(&self, data: &mut [T]) -> Result<()> {
        self.check_size(size_of_val(data))?;
        let bytes = size_of_val(data);
        let to = data.as_mut_ptr().cast();
        // SAFETY: both have so many bytes; any of them are a number of the type.
        check(unsafe { sys::fulmen_device_copy(self.device.as_ptr(), to, self.memory, bytes) })
    }

    fn check_size(&self, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "the slice has {bytes} bytes, and the buffer on {} has {}",
            self.device(),
            self.bytes
        )))
    }

    /// The address of its first byte, on its device.
    pub fn as_ptr(&self) -> *mut c_void {
        self.memory
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        self.device.to_str().unwrap_or("")
    }

    pub(crate) fn device_c(&self) -> &CStr {
        &self.device
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory is of this device, and this is its only owner.
        unsafe { sys::fulmen_device_free(self.device.as_ptr(), self.memory) }
    }
}
