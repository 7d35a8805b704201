//! What a call computes, and on which device.

use std::ffi::{c_char, CStr, CString};
use std::mem::{size_of, zeroed};
use std::ptr;
use std::sync::Arc;

use fulmen_sys as sys;

use crate::call::sealed::Sealed;
use crate::call::{Backward, Call, Forward};
use crate::error::{check, Error, Result};
use crate::memory::Stream;
use crate::plan::Plan;
use crate::pool::{ParallelFor, Pool};

/// In which numbers the products are: `docs/contract.md`, "Products in 8 bits".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Those of the tensors.
    #[default]
    Exact,
    /// The first in int8.
    Int8,
    /// Both in `fp8_e4m3`.
    Fp8,
}

/// Which keys a causal mask leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Causal {
    /// All.
    #[default]
    None,
    /// The last query is on the diagonal with the last key.
    BottomRight,
    /// The first query is on the diagonal with the first key.
    TopLeft,
}

/// Options of attention, and its calls without a plan. `docs/contract.md` of Fulmen has the
/// formulas.
///
/// ```
/// use fulmen::{Attention, Causal, Forward, Tensor, TensorMut};
///
/// let attention = Attention::builder().causal(Causal::BottomRight).softcap(30.).build()?;
/// let (q, k) = (vec![0.5f32; 64], vec![0.25f32; 64]);
/// let mut out = vec![0f32; 64];
/// let view = |data| Tensor::bshd(data, [1, 4, 1, 16]);
/// let out_view = TensorMut::bshd(&mut out, [1, 4, 1, 16])?;
/// attention.forward(&mut Forward::new(view(&q)?, view(&k)?, view(&k)?, out_view))?;
/// assert!((out[0] - 0.25).abs() < 1e-6);
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Clone)]
pub struct Attention {
    options: sys::fulmen_options,
    /// What the options given to the library point to.
    kernel: Option<CString>,
    tuning: Option<CString>,
    score_mod: Option<CString>,
    mask_mod: Option<CString>,
    pool: Option<Arc<Pool>>,
    device: Option<CString>,
}

// SAFETY: the pointers of `options` are null; `Attention::options` sets those of a copy.
unsafe impl Send for Attention {}
unsafe impl Sync for Attention {}

impl std::fmt::Debug for Attention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attention")
            .field("options", &self.options)
            .field("kernel", &self.kernel)
            .field("tuning", &self.tuning)
            .field("score_mod", &self.score_mod)
            .field("mask_mod", &self.mask_mod)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Default for Attention {
    /// Every query attends every key, the scale is `1 / sqrt(head_dim)`, on the default device.
    fn default() -> Self {
        // SAFETY: zero is a value of each field, and the init function sets what is not 0.
        let options = unsafe {
            let mut options: sys::fulmen_options = zeroed();
            sys::fulmen_options_init_sized(&mut options, size_of::<sys::fulmen_options>());
            options
        };
        Self {
            options,
            kernel: None,
            tuning: None,
            score_mod: None,
            mask_mod: None,
            pool: None,
            device: None,
        }
    }
}

impl Attention {
    /// Sets options one by one; the rest is as [`Attention::default`] has it.
    pub fn builder() -> AttentionBuilder {
        AttentionBuilder::default()
    }

    /// The library's options. They point into `self`.
    pub(crate) fn options(&self) -> sys::fulmen_options {
        let mut options = self.options;
        options.kernel = self.kernel.as_ref().map_or(ptr::null(), |k| k.as_ptr());
        options.tuning = self.tuning.as_ref().map_or(ptr::null(), |t| t.as_ptr());
        options.score_mod = self.score_mod.as_ref().map_or(ptr::null(), |t| t.as_ptr());
        options.mask_mod = self.mask_mod.as_ref().map_or(ptr::null(), |t| t.as_ptr());
        if let Some(pool) = &self.pool {
            (options.parallel_for, options.parallel_for_context) = pool.callback();
        }
        options
    }

    pub(crate) fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.clone()
    }

    pub(crate) fn device(&self) -> *const c_char {
        self.device.as_ref().map_or(ptr::null(), |d| d.as_ptr())
    }

    /// Computes into the call's outputs, and waits for them.
    pub fn forward(&self, call: &mut Forward<'_>) -> Result<()> {
        // SAFETY: the views of a call are valid, and it borrows what is written.
        check(unsafe { sys::fulmen_attention(call.raw(), &self.options(), self.device()) })
    }

    /// Computes the call's gradients, and waits for them.
    pub fn backward(&self, call: &mut Backward<'_>) -> Result<()> {
        // SAFETY: as in `forward`.
        check(unsafe { sys::fulmen_attention_backward(call.raw(), &self.options(), self.device()) })
    }

    /// Sets rows of packed results that belong to no sequence to 0: before the first of
    /// `cu_seqlens` and from the last one on, of out and lse or of dq, dk and dv.
    ///
    /// The passes leave such rows as they are. Before the call, or after it where the result takes
    /// q's place. A GPU does it in the stream, else in its default one, and nothing waits.
    ///
    /// ```
    /// use fulmen::{Attention, Forward, Tensor, TensorMut};
    ///
    /// let (q, mut out) = (vec![0.5f32; 3 * 16], vec![7f32; 3 * 16]);
    /// let (one, bounds) = ([1, 3, 1, 16], [1i32, 2]); // of three rows the second
    /// let view = Tensor::bshd(&q, one)?;
    /// let bounds = Tensor::one_dim(&bounds)?;
    /// let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, one)?)
    ///     .cu_seqlens_q(bounds)
    ///     .cu_seqlens_k(bounds);
    /// let attention = Attention::builder().max_seqlen_q(1).max_seqlen_k(1).build()?;
    /// attention.forward(&mut call)?;
    /// attention.zero_unused_rows(None, &mut call)?;
    /// assert_eq!([out[0], out[16], out[32]], [0., 0.5, 0.]);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn zero_unused_rows<C: Call>(&self, stream: Option<&Stream>, call: &mut C) -> Result<()> {
        let zero = match C::BACKWARD {
            true => sys::fulmen_zero_unused_rows_backward,
            false => sys::fulmen_zero_unused_rows,
        };
        let stream = stream.map_or(ptr::null_mut(), Stream::raw);
        // SAFETY: as in `forward_in`.
        check(unsafe { zero(call.raw(), &self.options(), self.device(), stream) })
    }

    /// [`Attention::forward`] in a stream of a GPU, without waiting for it.
    ///
    /// ```no_run
    /// # use fulmen::{Attention, Forward, Stream};
    /// # fn on_a_gpu(stream: &Stream, call: &mut Forward) -> fulmen::Result<()> {
    /// Attention::builder().device("hip:0").build()?.forward_in(stream, call)
    /// # }
    /// ```
    pub fn forward_in(&self, stream: &Stream, call: &mut Forward<'_>) -> Result<()> {
        let (tensors, options) = (call.raw(), self.options());
        // SAFETY: as in `forward`; that memory outlives the work, the stream's maker promised.
        check(unsafe {
            sys::fulmen_attention_in_stream(tensors, &options, self.device(), stream.raw())
        })
    }

    /// [`Attention::backward`] in a stream of a GPU, without waiting for it.
    ///
    /// ```no_run
    /// # use fulmen::{Attention, Backward, Stream};
    /// # fn on_a_gpu(stream: &Stream, call: &mut Backward) -> fulmen::Result<()> {
    /// Attention::builder().device("cuda:0").build()?.backward_in(stream, call)
    /// # }
    /// ```
    pub fn backward_in(&self, stream: &Stream, call: &mut Backward<'_>) -> Result<()> {
        let (tensors, options) = (call.raw(), self.options());
        // SAFETY: as in `forward_in`.
        check(unsafe {
            sys::fulmen_attention_backward_in_stream(tensors, &options, self.device(), stream.raw())
        })
    }

    /// Decides once which kernel runs calls of this one's shapes; see [`Plan`].
    pub fn plan(&self, call: &impl Call) -> Result<Plan> {
        Plan::new(self, call)
    }
}

/// See [`Attention::builder`].
///
/// ```
/// use fulmen::{Attention, Causal};
///
/// let attention = Attention::builder()
///     .softmax_scale(0.125)
///     .softcap(30.)
///     .causal(Causal::BottomRight)
///     .window(Some(128), Some(0))
///     .dropout(0.1)
///     .deterministic(true)
///     .max_seqlen_q(512)
///     .max_seqlen_k(512)
///     .kernel("cpu.reference.double")
///     .device("cpu")
///     .num_threads(2)
///     .verify(false)
///     .validate(false)
///     .vary_batch(true)
///     .vary_seqlen_k(false)
///     .build()?;
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct AttentionBuilder {
    attention: Attention,
    bad: Option<String>,
}

impl AttentionBuilder {
    /// The factor of `q . k`; `1 / sqrt(head_dim)` without it.
    pub fn softmax_scale(mut self, scale: f32) -> Self {
        // NaN means "the default" to the library, but a caller who passes one has made a mistake.
        if scale.is_nan() {
            self.bad = Some("softmax_scale is NaN; a finite number is accepted".into());
        }
        self.attention.options.softmax_scale = scale;
        self
    }

    /// Scores become `softcap * tanh(score / softcap)`. 0, the default, is off.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.attention.options.softcap = softcap;
        self
    }

    /// Masks the keys behind a query.
    pub fn causal(mut self, causal: Causal) -> Self {
        self.attention.options.causal = (match causal {
            Causal::None => sys::FULMEN_CAUSAL_NONE,
            Causal::BottomRight => sys::FULMEN_CAUSAL_BOTTOM_RIGHT,
            Causal::TopLeft => sys::FULMEN_CAUSAL_TOP_LEFT,
        }) as i32;
        self
    }

    /// The most keys that a query attends on the left and on the right of its own position; `None`
    /// is unlimited.
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        self.attention.options.window_left = window(left);
        self.attention.options.window_right = window(right);
        self
    }

    /// The probability, below 1, that an element of the softmax is dropped.
    pub fn dropout(mut self, probability: f32) -> Self {
        self.attention.options.dropout = probability;
        self
    }

    /// Whether gradients have the same bits in every run, the default. `false` also takes kernels
    /// that add by atomics.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.attention.options.deterministic = deterministic;
        self
    }

    /// Products in 8 bits, in the forward pass alone; [`Precision::Exact`] is the default.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.attention.options.precision = (match precision {
            Precision::Exact => sys::FULMEN_PRECISION_EXACT,
            Precision::Int8 => sys::FULMEN_PRECISION_INT8,
            Precision::Fp8 => sys::FULMEN_PRECISION_FP8,
        }) as i32;
        self
    }

    /// The longest sequence of queries; needed where q is packed.
    pub fn max_seqlen_q(mut self, rows: usize) -> Self {
        self.attention.options.max_seqlen_q = window(Some(rows));
        self
    }

    /// The longest sequence of keys; needed where k and v are packed.
    pub fn max_seqlen_k(mut self, rows: usize) -> Self {
        self.attention.options.max_seqlen_k = window(Some(rows));
        self
    }

    /// Forces a kernel by its name; see [`crate::kernels`].
    pub fn kernel(mut self, name: &str) -> Self {
        self.attention.kernel = self.string("kernel", name);
        self
    }

    /// The kernel's parameters by name; [`Plan::explain`] names those of a plan's kernel. Without it
    /// they are as the kernel chooses, or as tuned results and the environment say.
    ///
    /// ```
    /// let attention = fulmen::Attention::builder()
    ///     .kernel("cpu.prefill.scalar")
    ///     .tuning("block_n=64")
    ///     .build()?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn tuning(mut self, parameters: &str) -> Self {
        self.attention.tuning = self.string("tuning", parameters);
        self
    }

    /// Where calls run: a name of [`crate::devices`]; [`crate::default_device`] without it.
    pub fn device(mut self, name: &str) -> Self {
        self.attention.device = self.string("device", name);
        self
    }

    fn string(&mut self, argument: &str, value: &str) -> Option<CString> {
        let string = CString::new(value).ok();
        if string.is_none() {
            self.bad = Some(format!("{argument} is {value:?}; a name has no NUL"));
        }
        string
    }

    /// The most threads on the CPU; 0, the default, is `OMP_NUM_THREADS`,
    /// else all processors.
    pub fn num_threads(mut self, threads: usize) -> Self {
        self.attention.options.num_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        self
    }

    /// A pool instead of the library's threads.
    pub fn parallel_for(mut self, pool: impl ParallelFor) -> Self {
        self.attention.pool = Some(Pool::new(pool));
        self
    }

    /// Runs the reference beside every call, and fails where the result is wrong.
    pub fn verify(mut self, verify: bool) -> Self {
        self.attention.options.verify = verify;
        self
    }

    /// Checks lengths and page tables in a GPU's own memory, and waits for that. Those in host
    /// memory are always checked.
    pub fn validate(mut self, validate: bool) -> Self {
        self.attention.options.validate = validate;
        self
    }

    /// Calls do not look at addresses, which saves some 30 ns. The default is `false`: addresses that
    /// are missing, unaligned or overlap are refused.
    ///
    /// # Safety
    ///
    /// Tensors of raw pointers ([`crate::Tensor::from_raw`]) and workspaces must be as the plan
    /// demands in every run: aligned for their dtype, as long as their shapes and strides say, and
    /// outputs must overlap nothing else.
    ///
    /// ```
    /// // SAFETY: views of slices are as a plan demands.
    /// let attention = unsafe { fulmen::Attention::builder().trust_pointers(true) }.build()?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub unsafe fn trust_pointers(mut self, trust: bool) -> Self {
        self.attention.options.trust_pointers = trust;
        self
    }

    /// Whether a GPU's kernel computes a small problem at its first use, which is compared with the
    /// reference, the default. `false` saves that time: milliseconds on NVIDIA, a second on AMD.
    ///
    /// ```
    /// let attention = fulmen::Attention::builder().check_first_use(false).build()?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn check_first_use(mut self, check: bool) -> Self {
        self.attention.options.check_first_use = check;
        self
    }

    /// A function of scores in the language of `docs/guide/score_functions.md`, of `score`, `b`, `h`,
    /// `q` and `k`. (Functions that read tensors: through fulmen-sys.)
    ///
    /// ```
    /// let attention = fulmen::Attention::builder().score_mod("score - 0.1 * abs(q - k)").build()?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn score_mod(mut self, text: &str) -> Self {
        self.attention.score_mod = self.string("score_mod", text);
        self
    }

    /// Which pairs of query and key are attended, in the same language.
    ///
    /// ```
    /// let attention = fulmen::Attention::builder().mask_mod("q >= k").build()?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn mask_mod(mut self, text: &str) -> Self {
        self.attention.mask_mod = self.string("mask_mod", text);
        self
    }

    /// Queries and keys of a block of a block mask: multiples of 16 up to 256, 128 by default.
    ///
    /// ```
    /// let attention = fulmen::Attention::builder().mask_block(64, 64).build()?;
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn mask_block(mut self, queries: i64, keys: i64) -> Self {
        self.attention.options.mask_block_q = queries;
        self.attention.options.mask_block_k = keys;
        self
    }

    /// The plan takes any batch up to its own.
    pub fn vary_batch(mut self, vary: bool) -> Self {
        self.attention.options.vary_batch = vary;
        self
    }

    /// The plan takes any number of keys up to its own.
    pub fn vary_seqlen_k(mut self, vary: bool) -> Self {
        self.attention.options.vary_seqlen_k = vary;
        self
    }

    /// The options. Numbers are checked by the call or plan that uses them.
    ///
    /// ```
    /// let error = fulmen::Attention::builder().kernel("a\0b").build().unwrap_err();
    /// assert_eq!(error.message(), r#"kernel is "a\0b"; a name has no NUL"#);
    /// ```
    pub fn build(self) -> Result<Attention> {
        match self.bad {
            Some(message) => Err(Error::InvalidArgument(message)),
            None => Ok(self.attention),
        }
    }
}

pub(crate) fn window(keys: Option<usize>) -> i64 {
    keys.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX))
}

/// A string of the library's.
///
/// # Safety
///
/// Null, or NUL-terminated and alive during the call.
pub(crate) unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    CStr::from_ptr(string).to_string_lossy().into_owned()
}
