//! CUDA storage: candle's own device memory, in candle's own stream.

use std::ffi::{c_void, CString};
use std::mem::size_of;
use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{bail, DType, DeviceLocation, Result, Storage};
use fulmen_sys as sys;
use half::{bf16, f16};

use crate::memory::{check, Address, Memory, Pass};

/// The device address of an element, and what tells other streams of the use when it is dropped.
fn read_at<'a, T: CudaDType + 'a>(
    storage: &'a CudaStorage,
    offset: usize,
    stream: &'a CudaStream,
) -> Result<Address<'a, SyncOnDrop<'a>>> {
    let slice: &CudaSlice<T> = storage.as_cuda_slice()?;
    let (first, guard) = slice.device_ptr(stream);
    let address = first as usize + offset * size_of::<T>();
    Ok(Address::new(address as *mut c_void, Some(guard)))
}

fn write_at<'a, T: CudaDType + 'a>(
    storage: &'a mut CudaStorage,
    stream: &'a CudaStream,
) -> Result<Address<'a, SyncOnDrop<'a>>> {
    let slice: &mut CudaSlice<T> = storage.as_cuda_slice_mut()?;
    let (first, guard) = slice.device_ptr_mut(stream);
    Ok(Address::new(first as *mut c_void, Some(guard)))
}

impl Memory for CudaStorage {
    type Stream = Arc<CudaStream>;
    type Guard<'a> = SyncOnDrop<'a>;

    fn stream(device: &Self::Device) -> Self::Stream {
        device.cuda_stream()
    }

    fn of<'a>(storage: &'a Storage, name: &str) -> Result<&'a Self> {
        match storage {
            Storage::Cuda(storage) => Ok(storage),
            other => bail!(
                "{name} is on {:?}, but q is on a CUDA device",
                other.device().location()
            ),
        }
    }

    fn into_storage(self) -> Storage {
        Storage::Cuda(self)
    }

    fn read<'a>(
        &'a self,
        offset: usize,
        stream: &'a Self::Stream,
    ) -> Result<Address<'a, SyncOnDrop<'a>>> {
        match self.dtype() {
            DType::F32 => read_at::<f32>(self, offset, stream),
            DType::F16 => read_at::<f16>(self, offset, stream),
            DType::BF16 => read_at::<bf16>(self, offset, stream),
            DType::U8 => read_at::<u8>(self, offset, stream),
            DType::U32 => read_at::<u32>(self, offset, stream),
            DType::I32 => read_at::<i32>(self, offset, stream),
            other => bail!("Fulmen does not read {other:?}"),
        }
    }

    fn write<'a>(&'a mut self, stream: &'a Self::Stream) -> Result<Address<'a, SyncOnDrop<'a>>> {
        match self.dtype() {
            DType::F32 => write_at::<f32>(self, stream),
            DType::F16 => write_at::<f16>(self, stream),
            DType::BF16 => write_at::<bf16>(self, stream),
            other => bail!("Fulmen does not write {other:?}"),
        }
    }

    fn run(
        device: &Self::Device,
        stream: &Self::Stream,
        pass: Pass,
        tensors: &sys::fulmen_tensors,
        options: &sys::fulmen_options,
    ) -> Result<()> {
        let run = match pass {
            Pass::Forward => sys::fulmen_attention_in_stream,
            Pass::Backward => sys::fulmen_attention_backward_in_stream,
        };
        let DeviceLocation::Cuda { gpu_id } = device.location() else {
            bail!("q is not on a CUDA device")
        };
        let name = CString::new(format!("cuda:{gpu_id}")).map_err(candle_core::Error::wrap)?;
        let stream = stream.cu_stream().cast::<c_void>();
        // SAFETY: the structs are initialised and their addresses are memory of the device, which
        // candle frees in the order of its stream.
        check(unsafe { run(tensors, options, name.as_ptr(), stream) })
    }
}
