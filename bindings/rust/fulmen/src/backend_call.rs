//! What a backend of the user's is asked, and what it computes on.

use std::ffi::c_void;
use std::mem::size_of;

use fulmen_sys as sys;

use crate::attention::Causal;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::{Tensor, TensorMut};

/// A tensor without its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shape {
    /// The elements' type.
    pub dtype: DType,
    /// Four dims.
    pub shape: [usize; 4],
    /// Elements from one index to the next.
    pub strides: [usize; 4],
}

/// A call's options, with all defaults put in.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallOptions {
    /// The factor of `q . k`.
    pub softmax_scale: f32,
    /// 0 is off.
    pub softcap: f32,
    /// Which corner the diagonal is in. The windows say the same band.
    pub causal: Causal,
    /// The most keys on the left of a query's position; `None` is unlimited.
    pub window_left: Option<usize>,
    /// The most keys on the right of a query's position; `None` is unlimited.
    pub window_right: Option<usize>,
    /// The probability that an element of the softmax is dropped.
    pub dropout: f32,
    /// Whether the gradients' bits have to be the same in every run.
    pub deterministic: bool,
    /// The most threads; 0 is the backend's own choice.
    pub num_threads: usize,
}

impl CallOptions {
    fn new(raw: &sys::fulmen_options) -> Self {
        let window = |keys: i64| usize::try_from(keys).ok();
        Self {
            softmax_scale: raw.softmax_scale,
            softcap: raw.softcap,
            causal: match raw.causal as sys::fulmen_causal {
                sys::FULMEN_CAUSAL_BOTTOM_RIGHT => Causal::BottomRight,
                sys::FULMEN_CAUSAL_TOP_LEFT => Causal::TopLeft,
                _ => Causal::None,
            },
            window_left: window(raw.window_left),
            window_right: window(raw.window_right),
            dropout: raw.dropout,
            deterministic: raw.deterministic,
            num_threads: usize::try_from(raw.num_threads).unwrap_or(0),
        }
    }
}

fn present(raw: &sys::fulmen_tensor) -> bool {
    raw.shape != [0; 4] || raw.strides != [0; 4]
}

/// What a backend is asked whether it supports. A tensor that the call is without is `None`.
#[derive(Clone, Copy, Debug)]
pub struct Shapes<'a> {
    raw: &'a sys::fulmen_tensors,
    options: CallOptions,
}

macro_rules! shapes {
    ($($name:ident),*) => {
        const _: () = assert!(
            size_of::<sys::fulmen_tensors>()
                == size_of::<usize>()
                    + [$(stringify!($name)),*].len() * size_of::<sys::fulmen_tensor>()
                    + 2 * size_of::<u64>() // seed, offset
                    + size_of::<usize>() // and the list of functions' tensors
                    + size_of::<i64>(),
            "a tensor of fulmen_tensors is not listed"
        );

        impl<'a> Shapes<'a> {
            pub(crate) fn new(raw: &'a sys::fulmen_tensors, options: &sys::fulmen_options) -> Self {
                Self { raw, options: CallOptions::new(options) }
            }

            /// The options.
            pub fn options(&self) -> CallOptions {
                self.options
            }

            $(
                #[doc = concat!("The shape of ", stringify!($name), ".")]
                pub fn $name(&self) -> Option<Shape> {
                    let raw = &self.raw.$name;
                    let view = Tensor::of(*raw);
                    present(raw).then(|| Shape {
                        dtype: view.dtype(),
                        shape: view.shape(),
                        strides: view.strides(),
                    })
                }
            )*
        }
    };
}

shapes!(
    q,
    k,
    v,
    out,
    bias,
    keep_mask,
    alibi_slopes,
    sinks,
    lse,
    dout,
    dlse,
    dq,
    dk,
    dv,
    dbias,
    dsinks,
    cu_seqlens_q,
    cu_seqlens_k,
    seqlens_k,
    block_table,
    leftpad_k,
    k_scale,
    v_scale,
    q_scale,
    kv_num_blocks,
    kv_indices,
    full_kv_num_blocks,
    full_kv_indices
);

/// An input of a backend, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(Tensor<'a>);

impl<'a> Input<'a> {
    /// The four dims.
    pub fn shape(&self) -> [usize; 4] {
        self.0.shape()
    }

    /// An element as a number; `None` is outside the shape.
    pub fn get(&self, index: [usize; 4]) -> Option<f32> {
        self.0.read(index)
    }

    /// The view: its address, dtype and strides, for kernels of another language, or for calls of
    /// this crate.
    pub fn tensor(&self) -> Tensor<'a> {
        self.0
    }
}

/// An output of a backend, in host memory.
#[derive(Debug)]
pub struct Output<'a>(TensorMut<'a>);

impl<'a> Output<'a> {
    /// The four dims.
    pub fn shape(&self) -> [usize; 4] {
        self.0.shape()
    }

    /// Rounds a number into an element. An error is an index outside the shape.
    pub fn set(&mut self, index: [usize; 4], value: f32) -> Result<()> {
        self.0.write(index, value)
    }

    /// The view: its address, dtype and strides, for kernels of another language, or for calls of
    /// this crate.
    pub fn tensor(self) -> TensorMut<'a> {
        self.0
    }
}

/// The forward call that a backend computes. The library has checked its tensors.
#[derive(Debug)]
pub struct BackendCall<'a> {
    raw: &'a sys::fulmen_tensors,
    options: CallOptions,
    stream: *mut c_void,
}

/// The backward call that a backend computes. A gradient that is not asked for is `None`.
#[derive(Debug)]
pub struct BackendGradients<'a> {
    raw: &'a sys::fulmen_tensors,
    options: CallOptions,
    stream: *mut c_void,
}

macro_rules! accessors {
    ($call:ident, [$($needed:ident),*], [$($optional:ident),*], [$($output:ident),*]) => {
        impl<'a> $call<'a> {
            pub(crate) fn new(
                raw: &'a sys::fulmen_tensors,
                options: &sys::fulmen_options,
                stream: *mut c_void,
            ) -> Self {
                Self { raw, options: CallOptions::new(options), stream }
            }

            /// The options.
            pub fn options(&self) -> CallOptions {
                self.options
            }

            /// The stream that the caller gave.
            pub fn stream(&self) -> *mut c_void {
                self.stream
            }

            /// The caller's seed and offset of dropout.
            pub fn dropout_numbers(&self) -> (u64, u64) {
                (self.raw.dropout_seed, self.raw.dropout_offset)
            }

            $(
                #[doc = concat!("The input ", stringify!($needed), ".")]
                pub fn $needed(&self) -> Input<'a> {
                    Input(Tensor::of(self.raw.$needed))
                }
            )*
            $(
                #[doc = concat!("The input ", stringify!($optional), ", if the call has it.")]
                pub fn $optional(&self) -> Option<Input<'a>> {
                    let raw = &self.raw.$optional;
                    present(raw).then(|| Input(Tensor::of(*raw)))
                }
            )*
            $(
                #[doc = concat!("The output ", stringify!($output), ", if the call has it.")]
                pub fn $output(&mut self) -> Option<Output<'_>> {
                    let raw = &self.raw.$output;
                    present(raw).then(|| Output(TensorMut::of(*raw)))
                }
            )*
        }
    };
}

accessors!(
    BackendCall,
    [q, k, v],
    [
        bias,
        keep_mask,
        alibi_slopes,
        sinks,
        cu_seqlens_q,
        cu_seqlens_k,
        seqlens_k,
        block_table,
        leftpad_k,
        k_scale,
        v_scale,
        q_scale
    ],
    [lse]
);
accessors!(
    BackendGradients,
    [q, k, v, out, lse, dout],
    [
        bias,
        keep_mask,
        alibi_slopes,
        sinks,
        dlse,
        cu_seqlens_q,
        cu_seqlens_k,
        k_scale,
        v_scale,
        q_scale
    ],
    [dq, dk, dv, dbias, dsinks]
);

impl BackendCall<'_> {
    /// The output.
    pub fn out(&mut self) -> Output<'_> {
        Output(TensorMut::of(self.raw.out))
    }
}
