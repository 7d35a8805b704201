//! What one call of attention computes, on the memory of a device: its passes, apart from candle's
//! graph.

use candle_core::backend::BackendDevice;
use candle_core::op::BackpropOp;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{bail, CpuStorage, DType, Layout, Result, Shape, Tensor};

use crate::attention::{Attention, Operand};
use crate::call::Call;
use crate::lengths::Lengths;
use crate::memory::{Memory, Pass};

/// What both passes of one call know.
pub(crate) struct Problem {
    pub(crate) attention: Attention,
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
    pub(crate) fn forward<S: Memory>(
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

    pub(crate) fn gradients(&self, saved: &Saved<'_>, wanted: Wanted) -> Result<Gradients> {
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
    // SAFETY: the library writes each element, or the call fails and they are never read.
    unsafe { device.alloc_uninit(&shape, dtype) }
}

fn tensor<S: Memory>(storage: S, dims: &[usize]) -> Tensor {
    Tensor::from_storage(storage.into_storage(), dims, BackpropOp::none(), false)
}

/// The tensors of the forward pass, and the gradient of its result.
pub(crate) struct Saved<'a> {
    pub(crate) q: &'a Tensor,
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) out: &'a Tensor,
    pub(crate) lse: &'a Tensor,
    pub(crate) dout: &'a Tensor,
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
pub(crate) struct Wanted {
    pub(crate) q: bool,
    pub(crate) k: bool,
    pub(crate) v: bool,
    pub(crate) mask: bool,
    pub(crate) sinks: bool,
}

impl Wanted {
    pub(crate) fn any(self) -> bool {
        self.q || self.k || self.v || self.mask || self.sinks
    }
}

pub(crate) struct Gradients {
    pub(crate) q: Option<Tensor>,
    pub(crate) k: Option<Tensor>,
    pub(crate) v: Option<Tensor>,
    pub(crate) mask: Option<Tensor>,
    pub(crate) sinks: Option<Tensor>,
}
