//! Sequences of different lengths, packed one behind the other, and keys and values in pages.

use candle_core::{bail, DType, Result, Tensor};

use crate::attention::Operand;

/// Where each sequence of a batch lies.
///
/// q is packed, `[total_q, heads, head_dim]`, and so are k and v, `[total_k, kv_heads, head_dim]`,
/// unless there is a block table.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fulmen::{Attention, Lengths};
///
/// let q = Tensor::zeros((3, 1, 8), DType::F32, &Device::Cpu)?;
/// let pages = Tensor::ones((4, 2, 1, 8), DType::F32, &Device::Cpu)?;
/// let seqlens_q = Tensor::new(&[0u32, 1, 3], &Device::Cpu)?; // one query, then two
/// let seqlens_k = Tensor::new(&[0u32, 3, 5], &Device::Cpu)?; // three keys, then two
/// let table = Tensor::new(&[[2u32, 0], [3, 0]], &Device::Cpu)?; // pages 2 and 0, then 3 alone
/// let lengths = Lengths::new(&seqlens_q, &seqlens_k, 2, 3).block_table(&table);
/// let out = Attention::new().causal().run_varlen(&q, &pages, &pages, &lengths)?;
/// assert_eq!(out.dims(), [3, 1, 8]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lengths {
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    pub(crate) max_seqlen_q: usize,
    pub(crate) max_seqlen_k: usize,
    block_table: Option<Tensor>,
}

impl Lengths {
    /// `cu_seqlens_q` and `cu_seqlens_k` are `[batch + 1]` cumulative lengths of U32 or I32:
    /// sequence `n` is rows `cu[n]` to `cu[n + 1] - 1`. No sequence is longer than `max_seqlen_q`
    /// and `max_seqlen_k`.
    pub fn new(
        cu_seqlens_q: &Tensor,
        cu_seqlens_k: &Tensor,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
    ) -> Self {
        Self {
            cu_seqlens_q: cu_seqlens_q.clone(),
            cu_seqlens_k: cu_seqlens_k.clone(),
            max_seqlen_q,
            max_seqlen_k,
            block_table: None,
        }
    }

    /// k and v are pages, `[num_pages, page_size, kv_heads, head_dim]`: row `r` of sequence `n` is
    /// row `r % page_size` of page `table[n, r / page_size]`. `table` is `[batch, max_pages]` of
    /// U32 or I32. Only the differences of `cu_seqlens_k` count then. There is no backward pass
    /// over pages.
    pub fn block_table(mut self, table: &Tensor) -> Self {
        self.block_table = Some(table.clone());
        self
    }

    pub(crate) fn check_ranks(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<()> {
        let (kv_rank, kv_shape) = match self.block_table {
            Some(_) => (4, "[num_pages, page_size, kv_heads, head_dim]"),
            None => (3, "[total_k, kv_heads, head_dim]"),
        };
        let q_shape = "[total_q, heads, head_dim]";
        for (name, tensor, rank, shape) in [
            ("q", q, 3, q_shape),
            ("k", k, kv_rank, kv_shape),
            ("v", v, kv_rank, kv_shape),
            ("seqlens_q", &self.cu_seqlens_q, 1, "[batch + 1]"),
            ("seqlens_k", &self.cu_seqlens_k, 1, "[batch + 1]"),
        ] {
            if tensor.rank() != rank {
                bail!(
                    "{name} has shape {:?}; flash_attn_varlen takes {shape}",
                    tensor.dims()
                )
            }
        }
        Ok(())
    }

    pub(crate) fn operands(&self) -> Vec<Operand<'_>> {
        let mut operands = vec![
            Operand::new("seqlens_q", &self.cu_seqlens_q, |t| &mut t.cu_seqlens_q),
            Operand::new("seqlens_k", &self.cu_seqlens_k, |t| &mut t.cu_seqlens_k),
        ];
        if let Some(table) = &self.block_table {
            operands.push(Operand::new("block_table", table, |t| &mut t.block_table));
        }
        operands
    }

    /// A U8 mask `[batch, 1, max_seqlen_q, max_seqlen_k]` that is the window, opened where query
    /// and key are both in one of `ranges`, `[batch, max_ranges, 2]` of first and last-but-one
    /// position, I32.
    ///
    /// It is computed on the host, which waits for a GPU.
    pub(crate) fn windows_with_ranges(
        &self,
        ranges: &Tensor,
        window_left: Option<usize>,
        window_right: Option<usize>,
    ) -> Result<Tensor> {
        if ranges.dtype() != DType::I32 {
            bail!(
                "mm_prefix_ranges has dtype {:?}; flash_attn_varlen_paged_windowed takes I32",
                ranges.dtype()
            )
        }
        let batch = self.cu_seqlens_q.dim(0)?.saturating_sub(1);
        if ranges.rank() != 3 || ranges.dim(0)? != batch || ranges.dim(2)? != 2 {
            bail!(
                "mm_prefix_ranges has shape {:?}; for this batch it is [{batch}, max_ranges, 2]",
                ranges.dims()
            )
        }
        let cumulative = |t: &Tensor| t.to_dtype(DType::I64)?.to_vec1::<i64>();
        let (cu_q, cu_k) = (
            cumulative(&self.cu_seqlens_q)?,
            cumulative(&self.cu_seqlens_k)?,
        );
        if cu_k.len() != cu_q.len() {
            bail!(
                "seqlens_k has {} elements, but seqlens_q has {}",
                cu_k.len(),
                cu_q.len()
            )
        }
        let ranges = ranges.to_vec3::<i32>()?;
        let limit = |keys: Option<usize>| {
            keys.and_then(|n| i64::try_from(n).ok())
                .unwrap_or(i64::from(u32::MAX))
        };
        let (left, right) = (limit(window_left), limit(window_right));
        let mut keep = vec![0u8; batch * self.max_seqlen_q * self.max_seqlen_k];
        let mut rows = keep.chunks_exact_mut(self.max_seqlen_k.max(1));
        for n in 0..batch {
            let diagonal = (cu_k[n + 1] - cu_k[n]) - (cu_q[n + 1] - cu_q[n]);
            let inside = |position: i64| {
                let open = |r: &&Vec<i32>| (i64::from(r[0])..i64::from(r[1])).contains(&position);
                ranges[n].iter().filter(open).collect::<Vec<_>>()
            };
            for i in 0..self.max_seqlen_q as i64 {
                let Some(row) = rows.next() else { break };
                let position = i + diagonal;
                let open = inside(position);
                for (j, keep) in row.iter_mut().enumerate() {
                    let j = j as i64;
                    let seen = position - left <= j && j <= position + right;
                    let opened = open
                        .iter()
                        .any(|r| (i64::from(r[0])..i64::from(r[1])).contains(&j));
                    *keep = u8::from(seen || opened);
                }
            }
        }
        let shape = (batch, 1, self.max_seqlen_q, self.max_seqlen_k);
        Tensor::from_vec(keep, shape, self.cu_seqlens_q.device())
    }
}
