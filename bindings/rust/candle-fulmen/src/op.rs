//! Attention as an operation of candle's graph, forward and backward.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::op::BackpropOp;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{bail, CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor};

use crate::attention::{Attention, Operand};
use crate::call::Call;
use crate::lengths::Lengths;
use crate::memory::{Memory, Pass};

/// What both passes of one call know.
pub(crate) struct Problem {
    attention: Attention,
    lengths: Option<Lengths>,
}

impl Problem {
    pub(crate) fn new(attention: Attention, lengths: Option<Lengths>) -> Self {
        Self { attention, lengths }
    }

    fn operands(&self) -> Vec<Operand<'_>> {
        let mut operands = self.attention.operands();
        operands.extend(self.lengths.iter().flat_map(Lengths::operands));
        operands
    }

    fn options(&self) -> fulmen_sys::fulmen_options {
        let mut options = self.attention.options();
        if let Some(lengths) = &self.lengths {
            let limit = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            options.max_seqlen_q = limit(lengths.max_seqlen_q);
            options.max_seqlen_k = limit(lengths.max_seqlen_k);
        }
        options
    }

    /// Rows that belong to no sequence are not written by the library, so they must be zeros
    /// before.
    fn writes_all(&self) -> bool {
        self.lengths.is_none()
    }

    /// `[batch, heads, seqlen_q, 1]`, packed `[1, heads, total_q, 1]`.
    fn lse_dims(&self, q: &[usize]) -> [usize; 4] {
        match *q {
            [batch, seqlen, heads, _] => [batch, heads, seqlen, 1],
            [total, heads, _] => [1, heads, total, 1],
            _ => [0; 4],
        }
    }

    /// `out`, and with `keep_lse` the log-sum-exp that the backward pass reads.
    fn forward<S: Memory>(
        &self,
        [q, k, v]: [(&S, &Layout); 3],
        keep_lse: bool,
    ) -> Result<(S, Shape, Option<Tensor>)>
    where
        S::Device: BackendDevice<Storage = S>,
    {
        let device = q.0.device();
        let mut dims = q.1.dims().to_vec();
        if let (Some(last), Some(head_dim_v)) = (dims.last_mut(), v.1.dims().last()) {
            *last = *head_dim_v;
        }
        let mut out = self.output::<S>(device, &dims, q.0.dtype())?;
        let lse_dims = self.lse_dims(&dims);
        let mut lse = match keep_lse {
            true => Some(self.output::<S>(device, &lse_dims, DType::F32)?),
            false => None,
        };
        let stream = S::stream(device);
        let operands = self.operands();
        let options = self.options();
        let mut call = Call::<S>::new(&stream);
        call.read("q", q.0, q.1, |t| &mut t.q)?;
        call.read("k", k.0, k.1, |t| &mut t.k)?;
        call.read("v", v.0, v.1, |t| &mut t.v)?;
        self.add(&mut call, &operands)?;
        call.write("out", &mut out, &dims, |t| &mut t.out)?;
        if let Some(lse) = &mut lse {
            call.write("lse", lse, &lse_dims, |t| &mut t.lse)?;
        }
        call.run(device, Pass::Forward, &options)?;
        let lse = lse.map(|lse| tensor(lse, &lse_dims));
        Ok((out, Shape::from(dims), lse))
    }

    /// The gradients that `wanted` names, of tensors in the order of [`Gradients`].
    fn backward<S: Memory>(&self, saved: &Saved<'_>, wanted: Wanted) -> Result<Gradients>
    where
        S::Device: BackendDevice<Storage = S>,
    {
        let mut operands = self.operands();
        operands.extend(saved.operands());
        let Some(q) = operands.iter().find(|operand| operand.name == "q") else {
            bail!("q is missing")
        };
        let device = S::of(&q.storage, "q")?.device().clone();
        let outputs = |name, of: Option<&Tensor>, is_wanted: bool| match of {
            Some(of) if is_wanted => {
                // A bias is not written where there are no queries, and is then a sum of nothing.
                let zeros = name == "dmask" || !self.writes_all();
                let storage = allocate::<S>(&device, of.dims(), of.dtype(), zeros)?;
                Ok(Some((storage, of.dims().to_vec())))
            }
            _ => Result::Ok(None),
        };
        let bias = self.attention.mask.as_ref();
        let mut dq = outputs("dq", Some(saved.q), wanted.q)?;
        let mut dk = outputs("dk", Some(saved.k), wanted.k)?;
        let mut dv = outputs("dv", Some(saved.v), wanted.v)?;
        let mut dmask = outputs("dmask", bias, wanted.mask)?;
        let mut dsinks = outputs("dsinks", self.attention.sinks.as_ref(), wanted.sinks)?;
        let stream = S::stream(&device);
        let options = self.options();
        let mut call = Call::<S>::new(&stream);
        self.add(&mut call, &operands)?;
        if let Some((storage, dims)) = &mut dq {
            call.write("dq", storage, dims, |t| &mut t.dq)?;
        }
        if let Some((storage, dims)) = &mut dk {
            call.write("dk", storage, dims, |t| &mut t.dk)?;
        }
        if let Some((storage, dims)) = &mut dv {
            call.write("dv", storage, dims, |t| &mut t.dv)?;
        }
        if let Some((storage, dims)) = &mut dmask {
            call.write("dmask", storage, dims, |t| &mut t.dbias)?;
        }
        if let Some((storage, dims)) = &mut dsinks {
            call.write("dsinks", storage, dims, |t| &mut t.dsinks)?;
        }
        call.run(&device, Pass::Backward, &options)?;
        let done = |output: Option<(S, Vec<usize>)>| output.map(|(s, dims)| tensor(s, &dims));
        Ok(Gradients {
            q: done(dq),
            k: done(dk),
            v: done(dv),
            mask: done(dmask),
            sinks: done(dsinks),
        })
    }

    fn gradients(&self, saved: &Saved<'_>, wanted: Wanted) -> Result<Gradients> {
        if saved.q.device().is_cpu() {
            return self.backward::<CpuStorage>(saved, wanted);
        }
        #[cfg(feature = "cuda")]
        if saved.q.device().is_cuda() {
            return self.backward::<CudaStorage>(saved, wanted);
        }
        bail!(
            "no attention on {:?}; candle-fulmen has the CPU, and CUDA with its feature `cuda`",
            saved.q.device().location()
        )
    }

    fn add<'a, S: Memory + 'a>(
        &self,
        call: &mut Call<'a, S>,
        operands: &'a [Operand<'_>],
    ) -> Result<()> {
        for operand in operands {
            let storage = S::of(&operand.storage, operand.name)?;
            call.read(operand.name, storage, operand.layout, operand.place)?;
        }
        let (seed, offset) = self.attention.dropout_numbers();
        call.dropout_numbers(seed, offset);
        Ok(())
    }

    fn output<S: Memory>(&self, device: &S::Device, dims: &[usize], dtype: DType) -> Result<S>
    where
        S::Device: BackendDevice<Storage = S>,
    {
        allocate(device, dims, dtype, !self.writes_all())
    }
}

fn allocate<S: Memory>(device: &S::Device, dims: &[usize], dtype: DType, zeros: bool) -> Result<S>
where
    S::Device: BackendDevice<Storage = S>,
{
    let shape = Shape::from(dims);
    if zeros {
        return device.zeros_impl(&shape, dtype);
    }
    // SAFETY: the library writes each element, or the call fails and nobody reads them.
    unsafe { device.alloc_uninit(&shape, dtype) }
}

fn tensor<S: Memory>(storage: S, dims: &[usize]) -> Tensor {
    Tensor::from_storage(storage.into_storage(), dims, BackpropOp::none(), false)
}

/// The tensors of the forward pass, and the gradient of its result.
struct Saved<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    out: &'a Tensor,
    lse: &'a Tensor,
    dout: &'a Tensor,
}

impl Saved<'_> {
    fn operands(&self) -> [Operand<'_>; 6] {
        [
            Operand::new("q", self.q, |t| &mut t.q),
            Operand::new("k", self.k, |t| &mut t.k),
            Operand::new("v", self.v, |t| &mut t.v),
            Operand::new("out", self.out, |t| &mut t.out),
            Operand::new("lse", self.lse, |t| &mut t.lse),
            Operand::new("dout", self.dout, |t| &mut t.dout),
        ]
    }
}

#[derive(Clone, Copy)]
struct Wanted {
    q: bool,
    k: bool,
    v: bool,
    mask: bool,
    sinks: bool,
}

impl Wanted {
    fn any(self) -> bool {
        self.q || self.k || self.v || self.mask || self.sinks
    }
}

struct Gradients {
    q: Option<Tensor>,
    k: Option<Tensor>,
    v: Option<Tensor>,
    mask: Option<Tensor>,
    sinks: Option<Tensor>,
}

/// What the two operations of one call share.
struct Shared {
    problem: Problem,
    /// Set by the forward pass where a gradient may be asked for.
    lse: Mutex<Option<Tensor>>,
    /// The gradients of q, k and v, from [`ExtraGradients`] to [`Operation`] of the same backward
    /// pass.
    handed_over: Mutex<Vec<(ThreadId, Gradients)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn gradients(&self, saved: [&Tensor; 5], wanted: Wanted) -> Result<Gradients> {
        let [q, k, v, out, dout] = saved;
        if !wanted.any() {
            bail!("no gradient is wanted")
        }
        let Some(lse) = lock(&self.lse).clone() else {
            bail!("the forward pass has kept no log-sum-exp")
        };
        // The gradient of a sum has stride 0 in all dims, the last included.
        let dout = match dout.stride().last() {
            Some(1) => dout.clone(),
            _ => dout.contiguous()?,
        };
        let saved = Saved {
            q,
            k,
            v,
            out,
            lse: &lse,
            dout: &dout,
        };
        self.problem.gradients(&saved, wanted)
    }
}

/// Attention by q, k and v.
struct Operation {
    shared: Arc<Shared>,
    keep_lse: bool,
}

impl Operation {
    fn forward<S: Memory>(&self, inputs: [(&S, &Layout); 3]) -> Result<(S, Shape)>
    where
        S::Device: BackendDevice<Storage = S>,
    {
        let (out, shape, lse) = self.shared.problem.forward(inputs, self.keep_lse)?;
        *lock(&self.shared.lse) = lse;
        Ok((out, shape))
    }
}

impl CustomOp3 for Operation {
    fn name(&self) -> &'static str {
        "fulmen-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward([(q, q_l), (k, k_l), (v, v_l)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward([(q, q_l), (k, k_l), (v, v_l)])
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        out: &Tensor,
        dout: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let this_thread = thread::current().id();
        let handed_over = {
            let mut all = lock(&self.shared.handed_over);
            let at = all.iter().position(|(thread, _)| *thread == this_thread);
            at.map(|at| all.swap_remove(at).1)
        };
        let gradients = match handed_over {
            Some(gradients) => gradients,
            None => {
                let wanted = Wanted {
                    q: q.track_op(),
                    k: k.track_op(),
                    v: v.track_op(),
                    mask: false,
                    sinks: false,
                };
                self.shared.gradients([q, k, v, out, dout], wanted)?
            }
        };
        Ok((gradients.q, gradients.k, gradients.v))
    }
}

/// Adds the gradients by mask and sinks, for which an operation of candle's has no place beside q,
/// k and v.
///
/// Forward it is the identity on attention's result. Backward it comes before [`Operation`],
/// computes all gradients at once, and hands those of q, k and v over to it.
struct ExtraGradients {
    shared: Arc<Shared>,
    inputs: [Tensor; 3],
    mask: bool,
    sinks: bool,
}

impl CustomOp3 for ExtraGradients {
    fn name(&self) -> &'static str {
        "fulmen-attention-extra-gradients"
    }

    fn cpu_fwd(
        &self,
        out: &CpuStorage,
        out_l: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((out.try_clone(out_l)?, out_l.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        out: &CudaStorage,
        out_l: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Ok((out.try_clone(out_l)?, out_l.shape().clone()))
    }

    fn bwd(
        &self,
        out: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        dout: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [q, k, v] = &self.inputs;
        let wanted = Wanted {
            q: q.track_op(),
            k: k.track_op(),
            v: v.track_op(),
            mask: self.mask,
            sinks: self.sinks,
        };
        let mut all = self.shared.gradients([q, k, v, out, dout], wanted)?;
        let (mask, sinks) = (all.mask.take(), all.sinks.take());
        if !out.track_op() {
            return Ok((None, mask, sinks));
        }
        lock(&self.shared.handed_over).push((thread::current().id(), all));
        Ok((Some(dout.clone()), mask, sinks))
    }
}

/// Runs attention, and puts it into candle's graph where an input is in it.
pub(crate) fn apply(problem: Problem, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    // candle's own words for this name no argument.
    for (name, tensor) in [("k", k), ("v", v)] {
        let [here, there] = [tensor, q].map(|t| t.device().location());
        if here != there {
            bail!("{name} is on {here:?}, but q is on {there:?}")
        }
    }
    let tracked = |tensor: &Option<Tensor>| tensor.clone().filter(Tensor::track_op);
    let mask = match problem.attention.has_bias() {
        true => tracked(&problem.attention.mask),
        false => None,
    };
    let sinks = tracked(&problem.attention.sinks);
    let extra = mask.is_some() || sinks.is_some();
    let shared = Arc::new(Shared {
        problem,
        lse: Mutex::new(None),
        handed_over: Mutex::new(Vec::new()),
    });
    let operation = Operation {
        shared: Arc::clone(&shared),
        keep_lse: extra || q.track_op() || k.track_op() || v.track_op(),
    };
    let out = q.apply_op3(k, v, operation)?;
    if !extra {
        return Ok(out);
    }
    let extra = ExtraGradients {
        shared,
        inputs: [q.clone(), k.clone(), v.clone()],
        mask: mask.is_some(),
        sinks: sinks.is_some(),
    };
    // An operation has three arguments: where there is no mask or no sinks, `out` stands in.
    let mask = mask.as_ref().unwrap_or(&out);
    let sinks = sinks.as_ref().unwrap_or(&out);
    out.apply_op3(mask, sinks, extra)
}

/// The forward pass of an operation that keeps nothing.
pub(crate) fn forward_alone<S: Memory>(
    attention: Attention,
    inputs: [(&S, &Layout); 3],
) -> Result<(S, Shape)>
where
    S::Device: BackendDevice<Storage = S>,
{
    let (out, shape, _) = Problem::new(attention, None).forward(inputs, false)?;
    Ok((out, shape))
}

/// The gradients by q, k and v of an operation that kept nothing: its log-sum-exp is computed
/// again.
pub(crate) fn gradients_alone(
    attention: Attention,
    [q, k, v, out, dout]: [&Tensor; 5],
) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
    let operation = Operation {
        shared: Arc::new(Shared {
            problem: Problem::new(attention, None),
            lse: Mutex::new(None),
            handed_over: Mutex::new(Vec::new()),
        }),
        keep_lse: true,
    };
    q.apply_op3_no_bwd(k, v, &operation)?;
    operation.bwd(q, k, v, out, dout)
}
