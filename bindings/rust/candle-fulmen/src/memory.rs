//! Where candle keeps a tensor's elements, and how the library reaches them.

use std::ffi::{c_void, CStr};
use std::marker::PhantomData;
use std::ptr;

use candle_core::backend::BackendStorage;
use candle_core::{bail, CpuStorage, DType, Error, Result, Storage};
use fulmen_sys as sys;

/// Which of the library's two passes runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Backward,
}

/// The address of an operand, and what must live until the pass that uses it has been launched.
pub(crate) struct Address<'a, G> {
    pub(crate) data: *mut c_void,
    _guard: Option<G>,
    _memory: PhantomData<&'a ()>,
}

impl<G> Address<'_, G> {
    pub(crate) fn new(data: *mut c_void, guard: Option<G>) -> Self {
        Self {
            data,
            _guard: guard,
            _memory: PhantomData,
        }
    }
}

/// A kind of candle storage that the library computes on: the CPU's, or CUDA's.
pub(crate) trait Memory: BackendStorage {
    /// What orders the work of one call: nothing on the CPU, a stream on a GPU.
    type Stream;
    /// Held from the moment an address is taken to the launch.
    type Guard<'a>
    where
        Self: 'a;

    fn stream(device: &Self::Device) -> Self::Stream;
    /// The storage of an operand called `name`, or an error if it is on another kind of device.
    fn of<'a>(storage: &'a Storage, name: &str) -> Result<&'a Self>;
    fn into_storage(self) -> Storage;
    /// The address of the element at `offset`, for reading.
    fn read<'a>(
        &'a self,
        offset: usize,
        stream: &'a Self::Stream,
    ) -> Result<Address<'a, Self::Guard<'a>>>;
    /// The address of the first element, for writing.
    fn write<'a>(&'a mut self, stream: &'a Self::Stream) -> Result<Address<'a, Self::Guard<'a>>>;
    /// Runs one pass. The addresses in `tensors` are valid until it returns.
    fn run(
        device: &Self::Device,
        stream: &Self::Stream,
        pass: Pass,
        tensors: &sys::fulmen_tensors,
        options: &sys::fulmen_options,
    ) -> Result<()>;
}

/// The status of a C call as candle's error, with the library's sentence.
pub(crate) fn check(status: i32) -> Result<()> {
    if status == sys::FULMEN_OK as i32 {
        return Ok(());
    }
    // SAFETY: the sentence is NUL-terminated and lives until this thread's next call.
    let sentence = unsafe { CStr::from_ptr(sys::fulmen_last_error()) };
    Err(Error::Msg(sentence.to_string_lossy().into_owned()).bt())
}

/// The library's number for candle's dtype.
pub(crate) fn dtype(name: &str, dtype: DType) -> Result<i32> {
    Ok(match dtype {
        DType::F32 => sys::FULMEN_FP32,
        DType::F16 => sys::FULMEN_FP16,
        DType::BF16 => sys::FULMEN_BF16,
        DType::U8 => sys::FULMEN_BOOLEAN,
        DType::U32 | DType::I32 => sys::FULMEN_INT32,
        other => bail!(
            "{name} has dtype {other:?}; Fulmen takes F32, F16 and BF16, masks of U8, and lengths \
             of U32 or I32"
        ),
    } as i32)
}

impl Memory for CpuStorage {
    type Stream = ();
    type Guard<'a> = ();

    fn stream(_: &Self::Device) {}

    fn of<'a>(storage: &'a Storage, name: &str) -> Result<&'a Self> {
        match storage {
            Storage::Cpu(storage) => Ok(storage),
            other => bail!(
                "{name} is on {:?}, but q is on the CPU",
                other.device().location()
            ),
        }
    }

    fn into_storage(self) -> Storage {
        Storage::Cpu(self)
    }

    fn read<'a>(&'a self, offset: usize, (): &'a ()) -> Result<Address<'a, ()>> {
        // Each slice begins at the operand's first element; an offset outside is a defect of
        // candle's.
        fn at<T>(elements: &[T], offset: usize) -> *mut c_void {
            elements[offset..].as_ptr().cast_mut().cast()
        }
        let data = match self {
            Self::F32(x) => at(x, offset),
            Self::F16(x) => at(x, offset),
            Self::BF16(x) => at(x, offset),
            Self::U8(x) => at(x, offset),
            Self::U32(x) => at(x, offset),
            Self::I32(x) => at(x, offset),
            other => bail!("Fulmen does not read {:?}", other.dtype()),
        };
        Ok(Address::new(data, None))
    }

    fn write<'a>(&'a mut self, (): &'a ()) -> Result<Address<'a, ()>> {
        let data: *mut c_void = match self {
            Self::F32(x) => x.as_mut_ptr().cast(),
            Self::F16(x) => x.as_mut_ptr().cast(),
            Self::BF16(x) => x.as_mut_ptr().cast(),
            other => bail!("Fulmen does not write {:?}", other.dtype()),
        };
        Ok(Address::new(data, None))
    }

    fn run(
        _: &Self::Device,
        (): &(),
        pass: Pass,
        tensors: &sys::fulmen_tensors,
        options: &sys::fulmen_options,
    ) -> Result<()> {
        let run = match pass {
            Pass::Forward => sys::fulmen_attention_in_stream,
            Pass::Backward => sys::fulmen_attention_backward_in_stream,
        };
        // SAFETY: the structs are initialised and their addresses valid, as `Memory::run` demands.
        check(unsafe { run(tensors, options, c"cpu".as_ptr(), ptr::null_mut()) })
    }
}
