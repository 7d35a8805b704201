//! Appending to a KV cache.

use std::ffi::CString;
use std::marker::PhantomData;
use std::mem::{size_of, zeroed};
use std::ptr;
use std::sync::Arc;

use fulmen_sys as sys;

use crate::device::uses_host_memory;
use crate::error::{check, Error, Result};
use crate::memory::{device_name, Stream};
use crate::pool::{ParallelFor, Pool};
use crate::tensor::{Tensor, TensorMut};

/// Puts new keys and values behind those of a padded or paged cache, and rotates new keys and
/// queries on the way.
///
/// ```
/// use fulmen::{AppendKv, Tensor, TensorMut};
///
/// // Two sequences of at most 8 rows, of which 3 and 5 are used; one row is added to each.
/// let (mut k, mut v) = (vec![0f32; 2 * 8 * 16], vec![0f32; 2 * 8 * 16]);
/// let (new_k, new_v) = (vec![1f32; 2 * 16], vec![2f32; 2 * 16]);
/// let mut lengths = [0i32; 2];
/// AppendKv::new(
///     TensorMut::bshd(&mut k, [2, 8, 1, 16])?,
///     TensorMut::bshd(&mut v, [2, 8, 1, 16])?,
///     Tensor::one_dim(&[3i32, 5])?,
/// )
/// .rows(Tensor::bshd(&new_k, [2, 1, 1, 16])?, Tensor::bshd(&new_v, [2, 1, 1, 16])?)
/// .seqlens_k_out(TensorMut::one_dim(&mut lengths)?)
/// .run()?;
/// assert_eq!(lengths, [4, 6]);
/// assert_eq!((k[3 * 16], v[(8 + 5) * 16]), (1., 2.));
/// # Ok::<(), fulmen::Error>(())
/// ```
///
/// With a rotary embedding, of queries too:
///
/// ```
/// # use fulmen::{AppendKv, Tensor, TensorMut};
/// # let (mut k, mut v, new) = (vec![0f32; 8 * 16], vec![0f32; 8 * 16], vec![1f32; 16]);
/// # let cache = [1, 8, 1, 16];
/// let (cos, sin) = (vec![0f32; 8 * 8], vec![1f32; 8 * 8]); // a quarter turn
/// let mut q = vec![1f32; 16];
/// let new = Tensor::bshd(&new, [1, 1, 1, 16])?;
/// AppendKv::new(TensorMut::bshd(&mut k, cache)?, TensorMut::bshd(&mut v, cache)?, Tensor::one_dim(&[2i32])?)
///     .rows(new, new)
///     .rotary(Tensor::two_dims(&cos, 8, 8)?, Tensor::two_dims(&sin, 8, 8)?)
///     .rotary_interleaved(false)
///     .rotate_in_place(TensorMut::bshd(&mut q, [1, 1, 1, 16])?)
///     .device("cpu")?
///     .run()?;
/// assert_eq!((q[0], q[8]), (-1., 1.));
/// # Ok::<(), fulmen::Error>(())
/// ```
#[must_use]
pub struct AppendKv<'a> {
    raw: sys::fulmen_kv_cache,
    device: Option<CString>,
    pool: Option<Arc<Pool>>,
    memory: PhantomData<&'a mut [u8]>,
}

impl std::fmt::Debug for AppendKv<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppendKv")
            .field("call", &self.raw)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl<'a> AppendKv<'a> {
    /// Caches `[batch, rows, kv_heads, head_dim]`, or pages, and `[batch]` of `i32`: the rows that
    /// are used before.
    pub fn new(k_cache: TensorMut<'a>, v_cache: TensorMut<'a>, seqlens_k: Tensor<'a>) -> Self {
        // SAFETY: zero is a value of each field, and the init function sets what is not 0.
        let mut raw: sys::fulmen_kv_cache = unsafe { zeroed() };
        unsafe { sys::fulmen_kv_cache_init_sized(&mut raw, size_of::<sys::fulmen_kv_cache>()) };
        raw.k_cache = k_cache.raw;
        raw.v_cache = v_cache.raw;
        raw.seqlens_k = seqlens_k.raw;
        Self {
            raw,
            device: None,
            pool: None,
            memory: PhantomData,
        }
    }

    /// A latent cache, `[batch, rows, kv_heads, head_dim]` or pages, where the values are the first
    /// `head_dim_v` numbers of the keys, 512 of 576 with DeepSeek: rows are written once. Their
    /// scale, of a quantized cache, is that of [`AppendKv::k_scale`]; keys are not rotated here.
    ///
    /// ```
    /// use fulmen::{AppendKv, Attention, Forward, Tensor, TensorMut};
    ///
    /// let (mut cache, new, used) = (vec![0f32; 8 * 24], vec![2f32; 24], [1i32]);
    /// AppendKv::latent(TensorMut::bshd(&mut cache, [1, 8, 1, 24])?, 16, Tensor::one_dim(&[0i32])?)?
    ///     .latent_rows(Tensor::bshd(&new, [1, 1, 1, 24])?)
    ///     .run()?;
    /// let (q, mut out) = (vec![1f32; 4 * 24], vec![0f32; 4 * 16]);
    /// let values = Tensor::strided(&cache, [1, 8, 1, 16], [8 * 24, 24, 24, 1])?;
    /// let mut call = Forward::new(
    ///     Tensor::bshd(&q, [1, 1, 4, 24])?,
    ///     Tensor::bshd(&cache, [1, 8, 1, 24])?,
    ///     values,
    ///     TensorMut::bshd(&mut out, [1, 1, 4, 16])?,
    /// )
    /// .seqlens_k(Tensor::one_dim(&used)?);
    /// Attention::default().forward(&mut call)?;
    /// assert_eq!(out, [2f32; 4 * 16]);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `head_dim_v` is 0 or more than the cache's head_dim.
    pub fn latent(cache: TensorMut<'a>, head_dim_v: usize, seqlens_k: Tensor<'a>) -> Result<Self> {
        let head_dim = cache.shape()[3];
        if head_dim_v == 0 || head_dim_v > head_dim {
            return Err(Error::InvalidArgument(format!(
                "head_dim_v is {head_dim_v}: 1 to the cache's head_dim, {head_dim}, is accepted"
            )));
        }
        let mut values = cache.raw;
        values.shape[3] = head_dim_v as i64;
        Ok(Self::new(cache, TensorMut::of(values), seqlens_k))
    }

    /// The new rows of a latent cache, `[batch, seqlen_new, kv_heads, head_dim]`.
    pub fn latent_rows(self, rows: Tensor<'a>) -> Self {
        let mut values = rows.raw;
        values.shape[3] = values.shape[3].min(self.raw.v_cache.shape[3]);
        self.rows(rows, Tensor::of(values))
    }

    /// `[batch, max_pages]` of `i32`: the caches are `[num_pages, page_size, kv_heads, head_dim]`.
    pub fn block_table(mut self, table: Tensor<'a>) -> Self {
        self.raw.block_table = table.raw;
        self
    }

    /// The new rows, `[batch, seqlen_new, kv_heads, head_dim]`.
    pub fn rows(mut self, k: Tensor<'a>, v: Tensor<'a>) -> Self {
        self.raw.k_new = k.raw;
        self.raw.v_new = v.raw;
        self
    }

    /// Factors of k's and v's numbers in a cache of `i8` or fp8, `f32` or `f16` of the cache's
    /// dims, each of which may be 1: one of each token, `[batch, rows, kv_heads, 1]`, is computed
    /// and written, another is read. A quantized cache takes rows of `f32`, `f16` and `bf16`.
    ///
    /// ```
    /// # use fulmen::{AppendKv, Tensor, TensorMut};
    /// # let new = vec![2f32; 16];
    /// let (mut k, mut v) = (vec![0i8; 4 * 16], vec![0i8; 4 * 16]);
    /// let (mut k_scale, mut v_scale) = (vec![0f32; 4], vec![0f32; 4]);
    /// let (cache, row, scales) = ([1, 4, 1, 16], [1, 1, 1, 16], [1, 4, 1, 1]);
    /// AppendKv::new(TensorMut::bshd(&mut k, cache)?, TensorMut::bshd(&mut v, cache)?, Tensor::one_dim(&[1i32])?)
    ///     .rows(Tensor::bshd(&new, row)?, Tensor::bshd(&new, row)?)
    ///     .k_scale(TensorMut::bshd(&mut k_scale, scales)?)
    ///     .v_scale(TensorMut::bshd(&mut v_scale, scales)?)
    ///     .run()?;
    /// assert_eq!((k[16], k_scale), (127, vec![0., 2. / 127., 0., 0.]));
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn k_scale(mut self, scale: TensorMut<'a>) -> Self {
        self.raw.k_scale = scale.raw;
        self
    }

    /// The same of v.
    ///
    /// ```
    /// # use fulmen::{AppendKv, TensorMut};
    /// # fn f<'a>(call: AppendKv<'a>, scales: &'a mut [f32]) -> fulmen::Result<AppendKv<'a>> {
    /// Ok(call.v_scale(TensorMut::bshd(scales, [1, 1, 1, 1])?)) // of the whole cache
    /// # }
    /// ```
    pub fn v_scale(mut self, scale: TensorMut<'a>) -> Self {
        self.raw.v_scale = scale.raw;
        self
    }

    /// The angles of a rotary embedding, `[positions, rotary_dim / 2]`.
    pub fn rotary(mut self, cos: Tensor<'a>, sin: Tensor<'a>) -> Self {
        self.raw.rotary_cos = cos.raw;
        self.raw.rotary_sin = sin.raw;
        self
    }

    /// Queries to rotate, `[batch, seqlen_q, heads, head_dim]`, into `out`.
    ///
    /// ```
    /// # use fulmen::{AppendKv, Tensor, TensorMut};
    /// # let (mut k, mut v, new) = (vec![0f32; 8 * 16], vec![0f32; 8 * 16], vec![1f32; 16]);
    /// # let (cos, sin, shape) = (vec![0f32; 8 * 8], vec![1f32; 8 * 8], [1, 1, 1, 16]);
    /// # let new = Tensor::bshd(&new, shape)?;
    /// # let cache = [1, 8, 1, 16];
    /// # let call = AppendKv::new(TensorMut::bshd(&mut k, cache)?, TensorMut::bshd(&mut v, cache)?, Tensor::one_dim(&[2i32])?)
    /// #     .rows(new, new).rotary(Tensor::two_dims(&cos, 8, 8)?, Tensor::two_dims(&sin, 8, 8)?);
    /// let (q, mut rotated) = (vec![1f32; 16], vec![0f32; 16]);
    /// call.rotate(Tensor::bshd(&q, shape)?, TensorMut::bshd(&mut rotated, shape)?).run()?;
    /// assert_eq!((rotated[0], rotated[1]), (-1., 1.));
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn rotate(mut self, q: Tensor<'a>, out: TensorMut<'a>) -> Self {
        self.raw.q = q.raw;
        self.raw.q_out = out.raw;
        self
    }

    /// Queries that are rotated where they are.
    pub fn rotate_in_place(self, q: TensorMut<'a>) -> Self {
        self.rotate(Tensor::of(q.raw), q)
    }

    /// `[batch]` of `i32`: the rows that are used afterwards.
    pub fn seqlens_k_out(mut self, lengths: TensorMut<'a>) -> Self {
        self.raw.seqlens_k_out = lengths.raw;
        self
    }

    /// Whether neighbours are a pair, the default; else the halves of rotary_dim.
    pub fn rotary_interleaved(mut self, interleaved: bool) -> Self {
        self.raw.rotary_interleaved = interleaved;
        self
    }

    /// Whether query `i` is at position `seqlens_k + i`, the default; else all are at `seqlens_k`.
    pub fn queries_advance(mut self, advance: bool) -> Self {
        self.raw.queries_advance = advance;
        self
    }

    /// The most threads on the CPU; 0, the default, is `OMP_NUM_THREADS`,
    /// else all processors.
    pub fn num_threads(mut self, threads: usize) -> Self {
        self.raw.num_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        self
    }

    /// A pool instead of the library's threads.
    pub fn parallel_for(mut self, pool: impl ParallelFor) -> Self {
        self.pool = Some(Pool::new(pool));
        self
    }

    /// Checks lengths and page tables in a GPU's own memory.
    pub fn validate(mut self, validate: bool) -> Self {
        self.raw.validate = validate;
        self
    }

    /// Where it runs; the default device without it.
    pub fn device(mut self, name: &str) -> Result<Self> {
        self.device = Some(device_name(name)?);
        Ok(self)
    }

    /// The checks of a run that look at shapes, strides, dtypes and options, and at no memory: true of
    /// one call, they are true of each that differs in its numbers alone.
    ///
    /// ```
    /// # use fulmen::{AppendKv, Tensor, TensorMut};
    /// # let (mut k, mut v, new) = (vec![0f32; 8 * 16], vec![0f32; 8 * 16], vec![1f32; 32]);
    /// # let cache = [1, 8, 1, 16];
    /// let two_heads = Tensor::bshd(&new, [1, 1, 2, 16])?;
    /// let call = AppendKv::new(TensorMut::bshd(&mut k, cache)?, TensorMut::bshd(&mut v, cache)?, Tensor::one_dim(&[2i32])?)
    ///     .rows(two_heads, two_heads); // of a cache that has one
    /// assert!(call.check().unwrap_err().message().contains("k_new"));
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn check(&self) -> Result<()> {
        // SAFETY: the struct is initialised; no memory of the tensors is read.
        check(unsafe { sys::fulmen_append_kv_check(&self.call()) })
    }

    /// Writes the new rows, and waits for them. Nothing is written on an error.
    pub fn run(self) -> Result<()> {
        let device = match &self.device {
            Some(device) => device.to_string_lossy().into_owned(),
            None => crate::default_device(),
        };
        self.launch(ptr::null_mut())?;
        if uses_host_memory(&device)? {
            return Ok(());
        }
        let device = device_name(&device)?;
        // SAFETY: the default stream.
        check(unsafe { sys::fulmen_device_synchronize(device.as_ptr(), ptr::null_mut()) })
    }

    /// [`AppendKv::run`] in a stream of a GPU, without waiting for it.
    ///
    /// ```no_run
    /// # use fulmen::{AppendKv, Stream};
    /// # fn f(stream: &Stream, append: AppendKv) -> fulmen::Result<()> {
    /// append.device("hip:0")?.run_in(stream)
    /// # }
    /// ```
    pub fn run_in(self, stream: &Stream) -> Result<()> {
        self.launch(stream.raw())
    }

    /// The call with what latent values have of their keys.
    fn call(&self) -> sys::fulmen_kv_cache {
        let mut raw = self.raw;
        if raw.v_cache.data == raw.k_cache.data && raw.v_scale.data.is_null() {
            raw.v_scale = raw.k_scale;
        }
        raw
    }

    fn launch(&self, stream: *mut std::ffi::c_void) -> Result<()> {
        let mut raw = self.call();
        if let Some(pool) = &self.pool {
            (raw.parallel_for, raw.parallel_for_context) = pool.callback();
        }
        let device = self.device.as_ref().map_or(ptr::null(), |d| d.as_ptr());
        // SAFETY: the views are valid, and the call borrows what is written.
        check(unsafe { sys::fulmen_append_kv(&raw, device, stream) })
    }
}
