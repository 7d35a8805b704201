//! Shapes and strides, checked against the memory that they are a view of.

use crate::error::{Error, Result};

/// Four dims and the elements from one index to the next of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: [i64; 4],
    pub(crate) strides: [i64; 4],
}

impl Layout {
    /// Row-major. A dim of size 1 has stride 0, which broadcasts.
    pub(crate) fn row_major(shape: [usize; 4]) -> Result<Self> {
        let mut strides = [0; 4];
        let mut stride = 1usize;
        for d in (0..4).rev() {
            strides[d] = if shape[d] == 1 && d < 3 { 0 } else { stride };
            stride = match stride.checked_mul(shape[d].max(1)) {
                Some(stride) => stride,
                None => return Err(too_large(shape)),
            };
        }
        Self::new(shape, strides)
    }

    /// The layout of [batch, seqlen, head, dim] in the memory order [batch, head, seqlen, dim].
    pub(crate) fn heads_first([batch, seqlen, heads, dim]: [usize; 4]) -> Result<Self> {
        let memory = Self::row_major([batch, heads, seqlen, dim])?;
        let swapped = |[a, b, c, d]: [i64; 4]| [a, c, b, d];
        Ok(Self {
            shape: swapped(memory.shape),
            strides: swapped(memory.strides),
        })
    }

    pub(crate) fn new(shape: [usize; 4], mut strides: [usize; 4]) -> Result<Self> {
        // The stride of the last dim is 1 where it does not matter, so that no view has a shape and
        // strides of zeros only: to the library that is a tensor of the plan's own shape.
        if shape[3] <= 1 {
            strides[3] = 1;
        }
        let mut layout = Self {
            shape: [0; 4],
            strides: [0; 4],
        };
        for d in 0..4 {
            layout.shape[d] = i64::try_from(shape[d]).map_err(|_| too_large(shape))?;
            layout.strides[d] = i64::try_from(strides[d]).map_err(|_| too_large(strides))?;
        }
        Ok(layout)
    }

    /// Elements from the first to behind the last; `None` is more than memory has.
    fn extent(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut last = 0i64;
        for (dim, stride) in self.shape.iter().zip(self.strides) {
            last = last.checked_add((dim - 1).checked_mul(stride)?)?;
        }
        usize::try_from(last.checked_add(1)?).ok()
    }

    pub(crate) fn fits(&self, elements: usize) -> Result<()> {
        let (shape, strides) = (self.shape, self.strides);
        match self.extent() {
            Some(extent) if extent <= elements => Ok(()),
            Some(extent) => Err(Error::InvalidArgument(format!(
                "the slice has {elements} elements; a view of shape {shape:?} with strides \
                 {strides:?} takes {extent}"
            ))),
            None => Err(Error::InvalidArgument(format!(
                "a view of shape {shape:?} with strides {strides:?} is larger than memory"
            ))),
        }
    }

    /// The place of an element; `None` is outside.
    pub(crate) fn offset(&self, index: [usize; 4]) -> Option<usize> {
        let mut offset = 0;
        for (at, (dim, stride)) in index.into_iter().zip(self.shape.iter().zip(self.strides)) {
            if at as u64 >= *dim as u64 {
                return None;
            }
            offset += at * stride as usize;
        }
        Some(offset)
    }
}

fn too_large(numbers: [usize; 4]) -> Error {
    Error::InvalidArgument(format!(
        "{numbers:?} is a shape or strides of more than 63 bits"
    ))
}
