//! One call of the library: its tensors' addresses, shapes and strides.
//!
//! These are the C structs, not the crate `fulmen`'s views. The operands of a call are a list that
//! both passes share, and one C struct takes them for both; `fulmen` has a type for each pass, whose
//! setters and lifetimes say nothing here, since candle's guards hold the memory.

use std::mem::{size_of, zeroed};

use candle_core::{bail, Layout, Result};
use fulmen_sys as sys;

use crate::memory::{dtype, Address, Memory, Pass};

/// The field of the library's struct that an operand fills.
pub(crate) type Place = fn(&mut sys::fulmen_tensors) -> &mut sys::fulmen_tensor;

/// The operands of one pass, and the guards of their memory.
pub(crate) struct Call<'a, S: Memory + 'a> {
    tensors: sys::fulmen_tensors,
    addresses: Vec<Address<'a, S::Guard<'a>>>,
    stream: &'a S::Stream,
}

impl<'a, S: Memory + 'a> Call<'a, S> {
    pub(crate) fn new(stream: &'a S::Stream) -> Self {
        // SAFETY: zero is a value of each field, and the init function sets what is not 0.
        let mut tensors: sys::fulmen_tensors = unsafe { zeroed() };
        unsafe { sys::fulmen_tensors_init_sized(&mut tensors, size_of::<sys::fulmen_tensors>()) };
        Self {
            tensors,
            addresses: Vec::new(),
            stream,
        }
    }

    /// Adds an input. Its dims are the last ones of the library's four: a missing leading dim has
    /// size 1.
    pub(crate) fn read(
        &mut self,
        name: &str,
        storage: &'a S,
        layout: &Layout,
        place: Place,
    ) -> Result<()> {
        let dtype = dtype(name, storage.dtype())?;
        let address = storage.read(layout.start_offset(), self.stream)?;
        let tensor = place(&mut self.tensors);
        tensor.data = address.data;
        tensor.dtype = dtype;
        (tensor.shape, tensor.strides) = four_dims(name, layout.dims(), layout.stride())?;
        self.addresses.push(address);
        Ok(())
    }

    /// Adds a row-major output.
    pub(crate) fn write(
        &mut self,
        name: &str,
        storage: &'a mut S,
        dims: &[usize],
        place: Place,
    ) -> Result<()> {
        let dtype = dtype(name, storage.dtype())?;
        let layout = Layout::contiguous(dims);
        let address = storage.write(self.stream)?;
        let tensor = place(&mut self.tensors);
        tensor.data = address.data;
        tensor.dtype = dtype;
        (tensor.shape, tensor.strides) = four_dims(name, layout.dims(), layout.stride())?;
        self.addresses.push(address);
        Ok(())
    }

    pub(crate) fn dropout_numbers(&mut self, seed: u64, offset: u64) {
        self.tensors.dropout_seed = seed;
        self.tensors.dropout_offset = offset;
    }

    pub(crate) fn run(
        self,
        device: &S::Device,
        pass: Pass,
        options: &sys::fulmen_options,
    ) -> Result<()> {
        S::run(device, self.stream, pass, &self.tensors, options)
    }
}

/// Shape and strides with leading dims of size 1, as the library counts them.
fn four_dims(name: &str, dims: &[usize], strides: &[usize]) -> Result<([i64; 4], [i64; 4])> {
    if dims.len() > 4 {
        bail!("{name} has shape {dims:?}; Fulmen takes four dims at most")
    }
    let mut shape = [1; 4];
    let mut out_strides = [0; 4];
    let missing = 4 - dims.len();
    for (d, (&dim, &stride)) in dims.iter().zip(strides).enumerate() {
        shape[missing + d] = as_i64(name, dim)?;
        out_strides[missing + d] = as_i64(name, stride)?;
    }
    Ok((shape, out_strides))
}

fn as_i64(name: &str, value: usize) -> Result<i64> {
    match i64::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => bail!("{name} has a dim or stride of {value}; Fulmen counts in 64 bits, signed"),
    }
}
