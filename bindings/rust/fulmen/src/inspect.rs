//! What a call is, which kernels could run it, and whether a result is right.

use std::ffi::{c_char, c_void};
use std::mem::{size_of, zeroed};
use std::ptr;

use fulmen_sys as sys;

use crate::attention::{text, Attention};
use crate::call::sealed::Sealed;
use crate::call::{Backward, Call, Forward};
use crate::device::Visits;
use crate::error::{check, Error, Result};

/// A kernel of the device's backend, with what it says of a call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// Its name.
    pub kernel: String,
    /// Why it does not run the call; `None`: it can.
    pub reason: Option<String>,
    /// The highest of those that can runs; 0 or less runs only where it is forced.
    pub rank: f64,
}

/// What a call is: equal problems have equal hashes and texts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Description {
    /// A hash of shapes, strides, dtypes and the options that say what is computed; not of the
    /// device, a kernel's name, tuning or threads.
    pub hash: u64,
    /// Useful floating-point operations: attended keys only, a multiply-add is 2.
    pub flops: f64,
    /// Inputs read once, outputs written once.
    pub bytes: f64,
    /// `bf16 b=64 sq=64 sk=64 h=24/24 d=32 scale=0.1768`
    pub text: String,
}

/// How far a result is from the double-precision reference.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The largest error of `out`, or of the gradient nearest to its bound.
    pub worst_error: f64,
    /// That of standard attention in the same precision.
    pub baseline_error: f64,
    /// What the rule of `docs/contract.md` allows.
    pub bound: f64,
    /// The largest error of the log-sum-exp.
    pub lse_error: f64,
    /// `out`, or the gradient that the figures are of.
    pub tensor: String,
    /// How many elements were compared: of `out`, or of every gradient; not of the log-sum-exp.
    pub elements: i64,
    /// The mean error of these.
    pub mean_error: f64,
}

/// How far one gradient is from the double-precision reference.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GradientError {
    /// `dq`, `dk`, `dv`, `dbias` or `dsinks`.
    pub tensor: String,
    /// The largest error.
    pub worst_error: f64,
    /// That of standard attention in the same precision.
    pub baseline_error: f64,
    /// What the rule of `docs/contract.md` allows; `worst_error` over it is wrong.
    pub bound: f64,
}

/// Exact gradients, row-major, of those that the call asks for.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Gradients {
    /// Has q's shape.
    pub dq: Option<Vec<f64>>,
    /// Has k's shape.
    pub dk: Option<Vec<f64>>,
    /// Has v's shape.
    pub dv: Option<Vec<f64>>,
    /// Has the shape of the call's dbias: the sum over its dims of size 1.
    pub dbias: Option<Vec<f64>>,
    /// `[heads]`.
    pub dsinks: Option<Vec<f64>>,
}

impl Attention {
    /// Every kernel of the device's backend, and why it does not run the call.
    ///
    /// ```
    /// # use fulmen::{Attention, Forward, Tensor, TensorMut};
    /// # let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    /// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    /// # let call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 4, 1, 16])?);
    /// for candidate in Attention::default().candidates(&call)? {
    ///     println!("{} {:?}", candidate.kernel, candidate.reason);
    /// }
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn candidates<C: Call>(&self, call: &C) -> Result<Vec<Candidate>> {
        unsafe extern "C" fn visit(
            context: *mut c_void,
            kernel: *const c_char,
            supported: bool,
            reason: *const c_char,
            rank: f64,
        ) {
            Visits::push(context, || Candidate {
                kernel: text(kernel),
                reason: (!supported).then(|| text(reason)),
                rank,
            });
        }
        let all = match C::BACKWARD {
            true => sys::fulmen_visit_candidates_backward,
            false => sys::fulmen_visit_candidates,
        };
        let (options, device) = (self.options(), self.device());
        // SAFETY: the structs are initialised; the context is of `visit`'s type.
        Visits::collect(|context| unsafe {
            all(call.raw(), &options, device, Some(visit), context)
        })
    }

    /// What the call is.
    ///
    /// ```
    /// # use fulmen::{Attention, Forward, Tensor, TensorMut};
    /// # let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    /// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    /// # let call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 4, 1, 16])?);
    /// let description = Attention::default().describe(&call)?;
    /// assert!(description.text.starts_with("fp32 b=1 sq=4 sk=4 h=1/1 d=16"));
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn describe<C: Call>(&self, call: &C) -> Result<Description> {
        let describe = match C::BACKWARD {
            true => sys::fulmen_describe_backward,
            false => sys::fulmen_describe,
        };
        // SAFETY: zero is a value of each field; the library fills a struct of this size.
        unsafe {
            let mut raw: sys::fulmen_problem_info = zeroed();
            raw.struct_size = size_of::<sys::fulmen_problem_info>();
            check(describe(call.raw(), &self.options(), &mut raw))?;
            Ok(Description {
                hash: raw.hash,
                flops: raw.flops,
                bytes: raw.bytes,
                text: text(raw.text),
            })
        }
    }

    /// Compares the call's outputs, which are computed before, with the double-precision reference.
    /// An error is [`Error::VerificationFailed`]. All memory is the host's.
    ///
    /// ```
    /// # use fulmen::{Attention, Forward, Tensor, TensorMut};
    /// # let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    /// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    /// # let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 4, 1, 16])?);
    /// let attention = Attention::default();
    /// assert!(attention.verify(&call).is_err());
    /// attention.forward(&mut call)?;
    /// let report = attention.verify(&call)?;
    /// assert!(report.worst_error <= report.bound);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn verify<C: Call>(&self, call: &C) -> Result<VerifyReport> {
        let verify = match C::BACKWARD {
            true => sys::fulmen_verify_backward,
            false => sys::fulmen_verify,
        };
        // SAFETY: as in `describe`; the views of a call are valid.
        unsafe {
            let mut raw: sys::fulmen_verify_report = zeroed();
            raw.struct_size = size_of::<sys::fulmen_verify_report>();
            check(verify(call.raw(), &self.options(), &mut raw))?;
            Ok(VerifyReport {
                worst_error: raw.worst_error,
                baseline_error: raw.baseline_error,
                bound: raw.bound,
                lse_error: raw.lse_error,
                tensor: text(raw.tensor),
                elements: raw.elements,
                mean_error: raw.mean_error,
            })
        }
    }

    /// Exact attention in double, row-major, of out's shape. Out and lse of the call are not
    /// touched. All memory is the host's.
    ///
    /// ```
    /// # use fulmen::{Attention, Forward, Tensor, TensorMut};
    /// # let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    /// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    /// # let call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 4, 1, 16])?);
    /// let exact = Attention::default().reference(&call)?;
    /// assert!((exact[0] - 0.5).abs() < 1e-12);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn reference(&self, call: &Forward<'_>) -> Result<Vec<f64>> {
        let mut out = zeros::<f64>(call.raw().out.shape)?;
        let lse = ptr::null_mut();
        // SAFETY: `out` has the elements of the call's out, whose shape the library checks.
        check(unsafe {
            sys::fulmen_reference(call.raw(), &self.options(), out.as_mut_ptr(), lse)
        })?;
        Ok(out)
    }

    /// Exact gradients in double of those that the call asks for. The forward pass is computed again:
    /// the call's out and lse are not read, its gradients not written. All memory is the host's.
    ///
    /// ```
    /// # use fulmen::{Attention, Backward, Tensor, TensorMut};
    /// # let (q, lse, mut dv) = (vec![0.5f32; 64], vec![0f32; 4], vec![0f32; 64]);
    /// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    /// # let lse = Tensor::bhqk(&lse, [1, 1, 4, 1])?;
    /// # let dv = TensorMut::bshd(&mut dv, [1, 4, 1, 16])?;
    /// let call = Backward::new(view, view, view, view, lse, view).dv(dv); // all numbers are 0.5
    /// let exact = Attention::default().reference_gradients(&call)?;
    /// assert!((exact.dv.unwrap()[0] - 0.5).abs() < 1e-12);
    /// assert_eq!(exact.dq, None);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn reference_gradients(&self, call: &Backward<'_>) -> Result<Gradients> {
        let raw = call.raw();
        let wanted = |gradient: &sys::fulmen_tensor, shape| {
            let absent = gradient.data.is_null() && gradient.shape == [0; 4];
            (!absent).then(|| zeros::<f64>(shape)).transpose()
        };
        let mut exact = Gradients {
            dq: wanted(&raw.dq, raw.q.shape)?,
            dk: wanted(&raw.dk, raw.k.shape)?,
            dv: wanted(&raw.dv, raw.v.shape)?,
            dbias: wanted(&raw.dbias, raw.dbias.shape)?,
            dsinks: wanted(&raw.dsinks, [1, 1, 1, raw.q.shape[2]])?,
        };
        let at = |memory: &mut Option<Vec<f64>>| {
            memory.as_mut().map_or(ptr::null_mut(), |m| m.as_mut_ptr())
        };
        // SAFETY: each has the elements of its gradient, whose shape the library checks.
        check(unsafe {
            sys::fulmen_reference_backward(
                raw,
                &self.options(),
                at(&mut exact.dq),
                at(&mut exact.dk),
                at(&mut exact.dv),
                at(&mut exact.dbias),
                at(&mut exact.dsinks),
            )
        })?;
        Ok(exact)
    }

    /// The figures of each of the call's gradients, which are computed before, those outside of
    /// their bounds among them; [`Attention::verify`] has the worst. All memory is the host's.
    ///
    /// ```
    /// # use fulmen::{Attention, Backward, Tensor, TensorMut};
    /// # let (q, lse, mut dq) = (vec![0.5f32; 64], vec![0f32; 4], vec![7f32; 64]);
    /// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    /// # let lse = Tensor::bhqk(&lse, [1, 1, 4, 1])?;
    /// # let dq = TensorMut::bshd(&mut dq, [1, 4, 1, 16])?;
    /// let call = Backward::new(view, view, view, view, lse, view).dq(dq); // and not run
    /// let errors = Attention::default().gradient_errors(&call)?;
    /// assert_eq!(errors[0].tensor, "dq");
    /// assert!(errors[0].worst_error > errors[0].bound);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn gradient_errors(&self, call: &Backward<'_>) -> Result<Vec<GradientError>> {
        unsafe extern "C" fn visit(
            context: *mut c_void,
            tensor: *const c_char,
            worst_error: f64,
            baseline_error: f64,
            bound: f64,
        ) {
            Visits::push(context, || GradientError {
                tensor: text(tensor),
                worst_error,
                baseline_error,
                bound,
            });
        }
        let options = self.options();
        Visits::collect(|context| {
            // SAFETY: the views of a call are valid; the context is of `visit`'s type.
            let status = unsafe {
                sys::fulmen_visit_gradient_errors(call.raw(), &options, Some(visit), context)
            };
            // The figures say it.
            match status as sys::fulmen_status {
                sys::FULMEN_VERIFICATION_FAILED => sys::FULMEN_OK as i32,
                _ => status,
            }
        })
    }

    /// Whether the numbers in the call's lengths and block table, in the host's memory, are what the
    /// contract allows: sums that grow, pages that exist. Plans on the CPU ask it in every run; with
    /// [`crate::AttentionBuilder::validate`] those on a GPU do.
    ///
    /// ```
    /// # use fulmen::{Attention, Forward, Tensor, TensorMut};
    /// # let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    /// # let view = Tensor::bshd(&q, [1, 4, 1, 16])?;
    /// # let call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 4, 1, 16])?);
    /// let used = [5i32]; // of 4 rows
    /// let error = Attention::default()
    ///     .check_sequences(&call.seqlens_k(Tensor::one_dim(&used)?))
    ///     .unwrap_err();
    /// assert!(error.message().contains("seqlens_k[0] is 5"));
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn check_sequences<C: Call>(&self, call: &C) -> Result<()> {
        let check_values = match C::BACKWARD {
            true => sys::fulmen_check_sequences_backward,
            false => sys::fulmen_check_sequences,
        };
        // SAFETY: the views of a call are valid on the CPU, where this runs: see `Tensor::from_raw`.
        check(unsafe { check_values(call.raw(), &self.options()) })
    }

    /// Which elements of the softmax dropout keeps (1) and drops (0): `[batch, heads, seqlen_q,
    /// seqlen_k]`, row-major, from the probability and [`Forward::dropout_numbers`].
    ///
    /// ```
    /// use fulmen::{Attention, Forward, Tensor, TensorMut};
    ///
    /// let (q, mut out) = (vec![0.5f32; 1024], vec![0f32; 1024]);
    /// let view = Tensor::bshd(&q, [1, 64, 1, 16])?;
    /// let call = Forward::new(view, view, view, TensorMut::bshd(&mut out, [1, 64, 1, 16])?);
    /// let attention = Attention::builder().dropout(0.25).build()?;
    /// let kept = attention.dropout_mask(&call.dropout_numbers(7, 0))?;
    /// let share = kept.iter().map(|&x| f32::from(x)).sum::<f32>() / 4096.;
    /// assert!((share - 0.75).abs() < 0.05);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn dropout_mask(&self, call: &Forward<'_>) -> Result<Vec<u8>> {
        let raw = call.raw();
        let (q, k) = (raw.q.shape, raw.k.shape);
        let longest = |asked: i64, rows| if asked >= 0 { asked } else { rows };
        let (mut batch, mut rows_k) = (q[0], k[1]);
        if !raw.cu_seqlens_q.data.is_null() {
            batch = raw.cu_seqlens_q.shape[3] - 1;
        }
        if !raw.block_table.data.is_null() {
            rows_k = k[1].saturating_mul(raw.block_table.shape[3]);
        }
        let options = self.options();
        let seqlen_q = longest(options.max_seqlen_q, q[1]);
        let seqlen_k = longest(options.max_seqlen_k, rows_k);
        let mut keep = zeros::<u8>([batch.max(0), q[2], seqlen_q, seqlen_k])?;
        // SAFETY: `keep` has the elements of the problem's mask.
        check(unsafe { sys::fulmen_dropout_mask(raw, &options, keep.as_mut_ptr()) })?;
        Ok(keep)
    }
}

fn zeros<T: Clone + Default>(shape: [i64; 4]) -> Result<Vec<T>> {
    let product = |n: usize, &dim: &i64| n.checked_mul(usize::try_from(dim).ok()?);
    let mut memory = Vec::new();
    match shape.iter().try_fold(1, product) {
        Some(n) if memory.try_reserve_exact(n).is_ok() => {
            memory.resize(n, T::default());
            Ok(memory)
        }
        _ => Err(Error::OutOfMemory(format!(
            "there is no memory for a result of shape {shape:?}"
        ))),
    }
}
