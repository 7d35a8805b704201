//! The mask of a window that ranges of positions open, made on the host.

use std::ffi::CStr;
use std::mem::size_of;

use fulmen_sys as sys;

use super::varlen::Lengths;
use super::Window;
use crate::error::check;
use crate::layout::Layout;
use crate::memory::device_name;
use crate::tensor::layout;
use crate::{DType, DeviceBuffer, Error, Result, Tensor};

/// Numbers of a view, copied to the host.
struct Numbers {
    layout: Layout,
    values: Vec<i32>,
}

impl Numbers {
    fn new(device: &CStr, name: &str, tensor: Tensor<'_>, shape: [usize; 4]) -> Result<Self> {
        if tensor.dtype() != DType::I32 || tensor.shape() != shape {
            return Err(Error::InvalidArgument(format!(
                "{name} is {:?} of shape {:?}; beside mm_prefix_ranges it is I32 of shape {shape:?}",
                tensor.dtype(),
                tensor.shape()
            )));
        }
        let layout = layout(&tensor.raw);
        let last = layout.offset(shape.map(|n| n.saturating_sub(1)));
        let mut values = vec![0; last.map_or(0, |last| last + 1)];
        let bytes = values.len() * size_of::<i32>();
        // SAFETY: the view is readable on the device up to its last element, and so many there are.
        check(unsafe {
            let (to, from) = (values.as_mut_ptr().cast(), tensor.as_ptr());
            sys::fulmen_device_copy(device.as_ptr(), to, from, bytes)
        })?;
        Ok(Self { layout, values })
    }

    fn at(&self, index: [usize; 4]) -> i64 {
        let value = self.layout.offset(index).and_then(|at| self.values.get(at));
        value.map_or(0, |value| i64::from(*value))
    }
}

/// Ranges of positions, and the lengths of the sequences that they are in.
pub(super) struct Ranges<'a> {
    device: &'a str,
    cu_q: Numbers,
    cu_k: Numbers,
    ranges: Numbers,
    count: usize,
    /// Sequences, the most queries and the most keys of one.
    shape: [usize; 3],
}

impl<'a> Ranges<'a> {
    /// Reads the lengths and the ranges, `[1, batch, count, 2]`, from the device.
    pub(super) fn new(device: &'a str, lengths: Lengths<'_>, ranges: Tensor<'_>) -> Result<Self> {
        let name = device_name(device)?;
        let batch = lengths.seqlens_q.shape()[3].saturating_sub(1);
        let (cu, count) = ([1, 1, 1, batch + 1], ranges.shape()[2]);
        let read = |name_of, tensor, shape| Numbers::new(&name, name_of, tensor, shape);
        Ok(Self {
            device,
            cu_q: read("seqlens_q", lengths.seqlens_q, cu)?,
            cu_k: read("seqlens_k", lengths.seqlens_k, cu)?,
            ranges: read("mm_prefix_ranges", ranges, [1, batch, count, 2])?,
            count,
            shape: [batch, lengths.max_seqlen_q, lengths.max_seqlen_k],
        })
    }

    /// The window, open too where a query and a key are both in one range.
    pub(super) fn mask(&self, window: Window) -> Result<Mask> {
        let [batch, rows, keys] = self.shape;
        let bytes = batch.checked_mul(rows).and_then(|n| n.checked_mul(keys));
        let mut keep = Vec::new();
        match bytes {
            Some(bytes) if keep.try_reserve_exact(bytes).is_ok() => keep.resize(bytes, 0u8),
            _ => {
                return Err(Error::OutOfMemory(format!(
                    "no memory for the mask of mm_prefix_ranges, of shape {:?}",
                    self.shape
                )))
            }
        }
        let limit = |keys: Option<usize>| keys.map_or(i64::MAX / 4, |n| n as i64);
        let [left, right] = window.map(limit);
        for (at, row) in keep.chunks_exact_mut(keys.max(1)).enumerate() {
            let (n, i) = (at / rows, at % rows);
            let length = |cu: &Numbers| cu.at([0, 0, 0, n + 1]) - cu.at([0, 0, 0, n]);
            let position = i as i64 + length(&self.cu_k) - length(&self.cu_q);
            open(row, position - left, position + right + 1);
            for r in 0..self.count {
                let [first, last] = [0, 1].map(|end| self.ranges.at([0, n, r, end]));
                if (first..last).contains(&position) {
                    open(row, first, last);
                }
            }
        }
        let mut memory = DeviceBuffer::uninitialised(device_name(self.device)?, keep.len())?;
        memory.copy_from(&keep)?;
        let shape = [batch, 1, rows, keys];
        Ok(Mask { memory, shape })
    }
}

/// Sets the keys from `first` to before `last`, as far as the row has them.
fn open(row: &mut [u8], first: i64, last: i64) {
    let inside = |key: i64| usize::try_from(key.max(0)).map_or(row.len(), |at| at.min(row.len()));
    let (first, last) = (inside(first), inside(last));
    if first < last {
        row[first..last].fill(1);
    }
}

/// A mask in the memory of its device. Freeing it waits for work that reads it.
pub(super) struct Mask {
    memory: DeviceBuffer,
    shape: [usize; 4],
}

impl Mask {
    pub(super) fn view(&self) -> Result<Tensor<'_>> {
        let [_, _, rows, keys] = self.shape;
        let strides = [rows * keys, 0, keys, 1];
        // SAFETY: the memory is of this shape, written, and nobody writes it again.
        unsafe { Tensor::from_raw(self.memory.as_ptr(), DType::Bool, self.shape, strides) }
    }
}
