//! Attention as an operation of candle's graph, forward and backward.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::backend::{BackendDevice, BackendStorage};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{bail, CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use crate::attention::Attention;
use crate::memory::Memory;
use crate::problem::{Gradients, Problem, Saved, Wanted};

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
/// The forward pass is the identity on attention's result. The backward pass runs before that of
/// [`Operation`], computes all gradients at once, and hands those of q, k and v over to it.
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
