//! Views of memory: shapes and strides over slices, and over memory of devices.

use std::ffi::c_void;
use std::marker::PhantomData;

use fulmen_sys as sys;
use half::{bf16, f16};

use crate::dtype::{DType, Element, F8E4M3Fnuz, F8E5M2Fnuz, BLOCK_NUMBERS, F8E4M3, F8E5M2};
use crate::error::{Error, Result};
use crate::layout::Layout;

/// A view that is read. Four logical dims, `[batch, seqlen, head, dim]` of q, k and v; strides, in
/// elements, say how they lie, and the last one is 1.
///
/// Its bounds are checked against the slice. It borrows the slice, so the elements are not written
/// meanwhile.
///
/// ```
/// use fulmen::Tensor;
///
/// // One head of packed q, k and v: [batch, seqlen, 3, dim].
/// let qkv = vec![0f32; 2 * 5 * 3 * 16];
/// let k = Tensor::strided(&qkv[16..], [2, 5, 1, 16], [5 * 3 * 16, 3 * 16, 16, 1])?;
/// assert_eq!(k.shape(), [2, 5, 1, 16]);
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) raw: sys::fulmen_tensor,
    memory: PhantomData<&'a [u8]>,
}

/// A view that is written; see [`Tensor`]. It borrows the slice for itself alone.
///
/// ```
/// use fulmen::TensorMut;
///
/// let mut data = vec![0f32; 2 * 5 * 4 * 16];
/// let out = TensorMut::bshd(&mut data, [2, 5, 4, 16])?;
/// assert_eq!(out.shape(), [2, 5, 4, 16]);
/// # Ok::<(), fulmen::Error>(())
/// ```
///
/// Memory that is read cannot be written by the same call:
///
/// ```compile_fail
/// # use fulmen::{Forward, Tensor, TensorMut};
/// let mut data = vec![0f32; 16];
/// let q = Tensor::bshd(&data, [1, 1, 1, 16]).unwrap();
/// let out = TensorMut::bshd(&mut data, [1, 1, 1, 16]).unwrap();
/// let call = Forward::new(q, q, q, out);
/// ```
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) raw: sys::fulmen_tensor,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a view is as a reference to a slice of plain numbers.
unsafe impl Send for Tensor<'_> {}
unsafe impl Sync for Tensor<'_> {}
// SAFETY: a view is as a mutable reference to a slice of plain numbers.
unsafe impl Send for TensorMut<'_> {}
unsafe impl Sync for TensorMut<'_> {}

fn raw(data: *mut c_void, dtype: DType, layout: Layout) -> sys::fulmen_tensor {
    sys::fulmen_tensor {
        data,
        dtype: dtype.number(),
        shape: layout.shape,
        strides: layout.strides,
        reserved: [0; 2],
    }
}

pub(crate) fn layout(tensor: &sys::fulmen_tensor) -> Layout {
    Layout {
        shape: tensor.shape,
        strides: tensor.strides,
    }
}

fn unsigned(numbers: [i64; 4]) -> [usize; 4] {
    numbers.map(|n| usize::try_from(n).unwrap_or(0))
}

fn block_layout(bytes: usize, format: DType, shape: [usize; 4]) -> Result<Layout> {
    let Some(block) = format.block_bytes() else {
        return Err(Error::InvalidArgument(format!(
            "the format is {format:?}: Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 are accepted"
        )));
    };
    if shape[3] % BLOCK_NUMBERS != 0 {
        return Err(Error::InvalidArgument(format!(
            "the shape is {shape:?}: a last dim of whole blocks of {BLOCK_NUMBERS} is accepted"
        )));
    }
    let [a, b, c, dim] = shape;
    let numbers = Layout::row_major(shape)?;
    let bytes_of_row = (dim / BLOCK_NUMBERS).saturating_mul(block);
    let mut layout = Layout::row_major([a, b, c, bytes_of_row])?;
    layout.fits(bytes)?;
    layout.shape = numbers.shape;
    Ok(layout)
}

macro_rules! views {
    ($view:ident, $data:ty, $bytes:ty, $pointer:ident, $example:literal) => {
        impl<'a> $view<'a> {
            /// A tensor of the library's, whose memory outlives the view.
            pub(crate) fn of(raw: sys::fulmen_tensor) -> Self {
                Self {
                    raw,
                    memory: PhantomData,
                }
            }

            fn over<T: Element>(data: $data, layout: Layout) -> Result<Self> {
                layout.fits(data.len())?;
                Ok(Self {
                    raw: raw(data.$pointer() as *mut c_void, T::DTYPE, layout),
                    memory: PhantomData,
                })
            }

            /// Any strides, in elements. The view begins at the slice's first element.
            #[doc = $example]
            pub fn strided<T: Element>(
                data: $data,
                shape: [usize; 4],
                strides: [usize; 4],
            ) -> Result<Self> {
                Self::over(data, Layout::new(shape, strides)?)
            }

            /// Row-major. Dims of size 1 broadcast where the library broadcasts.
            #[doc = $example]
            pub fn row_major<T: Element>(data: $data, shape: [usize; 4]) -> Result<Self> {
                Self::over(data, Layout::row_major(shape)?)
            }

            /// `[batch, seqlen, heads, dim]`, row-major, which is also `[batch, seqlen, heads *
            /// dim]`.
            #[doc = $example]
            pub fn bshd<T: Element>(data: $data, shape: [usize; 4]) -> Result<Self> {
                Self::row_major(data, shape)
            }

            /// The shape `[batch, seqlen, heads, dim]` in the memory order `[batch, heads, seqlen,
            /// dim]`.
            #[doc = $example]
            pub fn bhsd<T: Element>(data: $data, shape: [usize; 4]) -> Result<Self> {
                Self::over(data, Layout::heads_first(shape)?)
            }

            /// A row-major bias or mask `[batch, heads, seqlen_q, seqlen_k]`, of which each dim but
            /// the last may be 1; or a log-sum-exp, whose last dim is 1.
            #[doc = $example]
            pub fn bhqk<T: Element>(data: $data, shape: [usize; 4]) -> Result<Self> {
                Self::row_major(data, shape)
            }

            /// Row-major blocks of 32 numbers in a block format ([`DType::Q8_0`] to
            /// [`DType::Q5_1`]): keys or values as GGML has them. `shape` counts numbers, of
            /// which the last dim has whole blocks; strides are in bytes.
            #[doc = $example]
            pub fn blocks(data: $bytes, format: DType, shape: [usize; 4]) -> Result<Self> {
                let layout = block_layout(data.len(), format, shape)?;
                Ok(Self::of(raw(
                    data.$pointer() as *mut c_void,
                    format,
                    layout,
                )))
            }

            /// One dim: sinks, ALiBi slopes, lengths.
            #[doc = $example]
            pub fn one_dim<T: Element>(data: $data) -> Result<Self> {
                let n = data.len();
                Self::row_major(data, [1, 1, 1, n])
            }

            /// Two dims, row-major: a block table, the angles of a rotary embedding.
            #[doc = $example]
            pub fn two_dims<T: Element>(data: $data, rows: usize, columns: usize) -> Result<Self> {
                Self::row_major(data, [1, 1, rows, columns])
            }

            /// The four dims.
            #[doc = $example]
            pub fn shape(&self) -> [usize; 4] {
                unsigned(self.raw.shape)
            }

            /// Elements from one index to the next, of each dim.
            #[doc = $example]
            pub fn strides(&self) -> [usize; 4] {
                unsigned(self.raw.strides)
            }

            /// The elements' type.
            #[doc = $example]
            pub fn dtype(&self) -> DType {
                DType::from_number(self.raw.dtype).unwrap_or(DType::F32)
            }

            /// The address of the first element.
            #[doc = $example]
            pub fn as_ptr(&self) -> *mut c_void {
                self.raw.data
            }
        }
    };
}

views!(
    Tensor,
    &'a [T],
    &'a [u8],
    as_ptr,
    "
```
use fulmen::{DType, Tensor};

let data = [0f32; 24];
assert_eq!(Tensor::strided(&data, [1, 2, 3, 4], [0, 4, 8, 1])?.strides(), [0, 4, 8, 1]);
assert_eq!(Tensor::row_major(&data, [2, 3, 1, 4])?.strides(), [12, 4, 0, 1]);
assert_eq!(Tensor::bshd(&data, [1, 2, 3, 4])?.strides(), [0, 12, 4, 1]);
assert_eq!(Tensor::bhsd(&data, [1, 2, 3, 4])?.strides(), [0, 4, 8, 1]);
assert_eq!(Tensor::bhqk(&data, [1, 2, 3, 4])?.shape(), [1, 2, 3, 4]);
assert_eq!(Tensor::one_dim(&data)?.shape(), [1, 1, 1, 24]);
assert_eq!(Tensor::blocks(&[0; 36], DType::Q4_0, [1, 2, 1, 32])?.strides(), [0, 18, 0, 1]);
let table = Tensor::two_dims(&[0i32; 6], 2, 3)?;
assert_eq!((table.dtype(), table.shape()), (DType::I32, [1, 1, 2, 3]));
assert_eq!(Tensor::one_dim(&data)?.as_ptr(), data.as_ptr().cast_mut().cast());
# Ok::<(), fulmen::Error>(())
```"
);
views!(
    TensorMut,
    &'a mut [T],
    &'a mut [u8],
    as_mut_ptr,
    "
```
use fulmen::{DType, TensorMut};

let mut data = [0f32; 24];
assert_eq!(TensorMut::strided(&mut data, [1, 2, 3, 4], [0, 4, 8, 1])?.strides(), [0, 4, 8, 1]);
assert_eq!(TensorMut::row_major(&mut data, [2, 3, 1, 4])?.strides(), [12, 4, 0, 1]);
assert_eq!(TensorMut::bshd(&mut data, [1, 2, 3, 4])?.strides(), [0, 12, 4, 1]);
assert_eq!(TensorMut::bhsd(&mut data, [1, 2, 3, 4])?.strides(), [0, 4, 8, 1]);
assert_eq!(TensorMut::bhqk(&mut data, [1, 2, 3, 4])?.shape(), [1, 2, 3, 4]);
assert_eq!(TensorMut::one_dim(&mut data)?.dtype(), DType::F32);
assert!(TensorMut::blocks(&mut [0; 36], DType::Q4_0, [1, 2, 1, 33]).is_err());
assert_eq!(TensorMut::two_dims(&mut data, 4, 6)?.shape(), [1, 1, 4, 6]);
assert!(!TensorMut::one_dim(&mut data)?.as_ptr().is_null());
# Ok::<(), fulmen::Error>(())
```"
);

impl<'a> Tensor<'a> {
    /// A view of any memory, a GPU's above all.
    ///
    /// # Safety
    ///
    /// While the view, its copies and calls made of it live, `data` is the address of memory of the
    /// device on which each such call runs (ordinary memory for `cpu`), the view lies inside it,
    /// its elements are initialised, and no code writes them. In a stream ([`crate::Stream`]) that
    /// is until the stream has completed the call. On the CPU, whatever the device of the
    /// [`crate::Attention`], run its `verify`, `gradient_errors`, `reference`,
    /// `reference_gradients` and `check_sequences`.
    ///
    /// ```
    /// use fulmen::{DType, Tensor};
    ///
    /// let data = [1f32; 16];
    /// // SAFETY: `data` has 16 elements, lives as long as the view, and runs on the CPU.
    /// let q = unsafe { Tensor::from_raw(data.as_ptr().cast(), DType::F32, [1, 1, 1, 16], [16, 16, 16, 1]) }?;
    /// assert_eq!(q.shape(), [1, 1, 1, 16]);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub unsafe fn from_raw(
        data: *const c_void,
        dtype: DType,
        shape: [usize; 4],
        strides: [usize; 4],
    ) -> Result<Self> {
        Ok(Self {
            raw: raw(data.cast_mut(), dtype, Layout::new(shape, strides)?),
            memory: PhantomData,
        })
    }

    /// An element of host memory as a number; `None` is outside the shape, or in a block.
    pub(crate) fn read(&self, index: [usize; 4]) -> Option<f32> {
        let at = layout(&self.raw).offset(index)?;
        // SAFETY: the offset lies in the view, whose memory is readable.
        unsafe {
            Some(match self.dtype() {
                DType::F32 => self.raw.data.cast::<f32>().add(at).read_unaligned(),
                DType::F16 => f32::from(self.raw.data.cast::<f16>().add(at).read_unaligned()),
                DType::Bf16 => f32::from(self.raw.data.cast::<bf16>().add(at).read_unaligned()),
                DType::Bool => f32::from(self.raw.data.cast::<u8>().add(at).read()),
                DType::I32 => self.raw.data.cast::<i32>().add(at).read_unaligned() as f32,
                DType::I8 => self.raw.data.cast::<i8>().add(at).read() as f32,
                DType::F8E4M3 => F8E4M3(self.raw.data.cast::<u8>().add(at).read()).into(),
                DType::F8E5M2 => F8E5M2(self.raw.data.cast::<u8>().add(at).read()).into(),
                DType::F8E4M3Fnuz => F8E4M3Fnuz(self.raw.data.cast::<u8>().add(at).read()).into(),
                DType::F8E5M2Fnuz => F8E5M2Fnuz(self.raw.data.cast::<u8>().add(at).read()).into(),
                DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => return None,
            })
        }
    }
}

impl<'a> TensorMut<'a> {
    /// A view of any memory, a GPU's above all.
    ///
    /// # Safety
    ///
    /// As for [`Tensor::from_raw`], but no other code reads or writes the elements, which need not
    /// be initialised.
    ///
    /// ```
    /// use fulmen::{DType, TensorMut};
    ///
    /// let mut data = [1f32; 16];
    /// // SAFETY: `data` has 16 elements, and nobody uses it while the view lives.
    /// let out = unsafe { TensorMut::from_raw(data.as_mut_ptr().cast(), DType::F32, [1, 1, 1, 16], [16, 16, 16, 1]) }?;
    /// assert_eq!(out.shape(), [1, 1, 1, 16]);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub unsafe fn from_raw(
        data: *mut c_void,
        dtype: DType,
        shape: [usize; 4],
        strides: [usize; 4],
    ) -> Result<Self> {
        Ok(Self {
            raw: raw(data, dtype, Layout::new(shape, strides)?),
            memory: PhantomData,
        })
    }

    /// The same view for a shorter time, so that it can be used again.
    ///
    /// ```
    /// # use fulmen::TensorMut;
    /// let mut data = [0f32; 16];
    /// let mut out = TensorMut::bshd(&mut data, [1, 1, 1, 16])?;
    /// for _ in 0..2 {
    ///     let again = out.reborrow();
    ///     assert_eq!(again.shape(), [1, 1, 1, 16]);
    /// }
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut {
            raw: self.raw,
            memory: PhantomData,
        }
    }

    /// Rounds a number into an element of host memory; an error is an index outside the shape, or a
    /// dtype that is no float.
    pub(crate) fn write(&mut self, index: [usize; 4], value: f32) -> Result<()> {
        let Some(at) = layout(&self.raw).offset(index) else {
            return Err(Error::InvalidArgument(format!(
                "the index is {index:?}; the shape is {:?}",
                self.shape()
            )));
        };
        // SAFETY: the offset lies in the view, whose memory is writable.
        unsafe {
            match self.dtype() {
                DType::F32 => self.raw.data.cast::<f32>().add(at).write_unaligned(value),
                DType::F16 => {
                    let value = f16::from_f32(value);
                    self.raw.data.cast::<f16>().add(at).write_unaligned(value);
                }
                DType::Bf16 => {
                    let value = bf16::from_f32(value);
                    self.raw.data.cast::<bf16>().add(at).write_unaligned(value);
                }
                other => {
                    return Err(Error::InvalidArgument(format!(
                        "the dtype is {other:?}; floats are written"
                    )))
                }
            }
        }
        Ok(())
    }
}
