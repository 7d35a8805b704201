"""Attention by PyTorch's math in fp32, fp64 for fp32 calls, on a sample: first and last batch, last
KV head with its query heads. Errors are shares of the largest number."""

import math
from collections.abc import Iterator

import torch
from calls import Call, Tensor


def _of(tensor: Tensor | None, batch: slice, heads: slice) -> Tensor | None:
    """The part of a mask or bias [batch or 1, heads or 1, queries or 1, keys]."""
    if tensor is None:
        return None
    tensor = tensor if tensor.shape[0] == 1 else tensor[batch]
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]


def attention(call: Call, q, k, v, bias, keep_mask, sinks, kept) -> Tensor:
    """out [batch, queries, heads, head_dim] of parts of the call's tensors, in their precision."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
    scores = scale * (q @ k.transpose(-1, -2))
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if bias is not None:
        scores = scores + bias
    queries, keys = scores.shape[-2:]
    at = torch.arange(keys, device=q.device)
    own = torch.arange(keys - queries, keys, device=q.device)[:, None]
    keep = torch.ones(1, 1, dtype=torch.bool, device=q.device)
    if call.causal:
        keep = keep & (at <= own)
    if call.window is not None:
        keep = keep & (at >= own - call.window)
    if keep_mask is not None:
        keep = keep & keep_mask
    scores = scores.masked_fill(~keep, -math.inf)
    if sinks is not None:
        column = sinks[:, None, None].expand(scores.shape[0], -1, queries, 1)
        scores = torch.cat([scores, column], -1)
    # A row that keeps nothing is 0.
    some = keep.any(-1, keepdim=True)
    weights = torch.where(some, scores.masked_fill(~some, 0).softmax(-1), 0)[..., :keys]
    if kept is not None:
        weights = weights * kept / (1 - call.dropout)
    return (weights @ v).transpose(1, 2)


class Sample:
    """A part of the call whose result depends on no other part, by slices of its tensors."""

    def __init__(self, call: Call, batch: int, head: int) -> None:
        group = call.q.shape[-2] // call.k.shape[-2]
        self.call, self.batch = call, slice(batch, batch + 1)
        self.heads, self.kv_head = slice(head * group, (head + 1) * group), slice(head, head + 1)
        self.rows = None
        if call.cu_seqlens is not None:
            self.rows = slice(*call.cu_seqlens[batch : batch + 2].tolist())

    def rows_of(self, tensor: Tensor, heads: slice) -> Tensor:
        """[1, rows, heads, head_dim] of a tensor like q, k, v or out."""
        if tensor.dim() == 3:
            return tensor[self.rows, heads][None]
        return tensor[self.batch, :, heads]

    def inputs(self, precision: torch.dtype) -> dict[str, Tensor | None]:
        call = self.call
        k, v = (self.rows_of(x, self.kv_head) for x in (call.k, call.v))
        group = self.heads.stop - self.heads.start
        bias, mask = (_of(x, self.batch, self.heads) for x in (call.bias, call.keep_mask))
        sinks = None if call.sinks is None else call.sinks[self.heads]
        parts = {"q": self.rows_of(call.q, self.heads), "k": k, "v": v, "bias": bias}
        parts = {n: None if x is None else x.to(precision) for n, x in parts.items()}
        parts["sinks"] = None if sinks is None else sinks.to(precision)
        parts["keep_mask"] = mask
        parts["kept"] = None if call.kept is None else call.kept[:, self.heads].to(call.q.device)
        self.group = group
        return parts

    def forward(self, parts: dict[str, Tensor | None]) -> Tensor:
        k, v = (parts[n].expand(-1, -1, self.group, -1) for n in "kv")
        names = ("bias", "keep_mask", "sinks", "kept")
        return attention(self.call, parts["q"], k, v, *(parts[name] for name in names))


def samples(call: Call) -> Iterator[Sample]:
    parts = call.k.shape[0] if call.cu_seqlens is None else call.cu_seqlens.numel() - 1
    for batch in [0] if call.dropout else sorted({0, parts - 1}):
        yield Sample(call, batch, call.k.shape[-2] - 1)


def precision_of(call: Call) -> torch.dtype:
    return torch.float64 if call.dtype == torch.float32 else torch.float32


def share(got: Tensor, wanted: Tensor, attended: bool = False) -> float:
    """The worst error. `attended`: of those rows alone that attend a key."""
    got = got.to(wanted.dtype)
    if attended:
        got = torch.where((wanted != 0).any(-1, keepdim=True), got, 0)
    worst = ((got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)).item()
    return worst if math.isfinite(worst) else math.inf


def forward_error(call: Call, out: Tensor, attended: bool = False) -> float:
    """Peers differ in what a row is that attends no key: they are compared with `attended`."""
    with torch.no_grad():
        return max(
            share(
                sample.rows_of(out, sample.heads),
                sample.forward(sample.inputs(precision_of(call))),
                attended,
            )
            for sample in samples(call)
        )


def gradient_error(
    call: Call, dout: Tensor, gradients: dict[str, Tensor], attended: bool = False
) -> float:
    """The worst error of the gradients, by their names in call.gradients."""
    worst = 0.0
    for sample in samples(call):
        parts = sample.inputs(precision_of(call))
        own = [n for n in gradients if n != "bias" or call.bias.shape[0] > 1]
        leaves = {n: parts[n].detach().requires_grad_() for n in own}
        out = sample.forward({**parts, **leaves})
        weight = sample.rows_of(dout, sample.heads).to(out.dtype)
        wanted = torch.autograd.grad(out, list(leaves.values()), weight)
        for name, want in zip(leaves, wanted, strict=True):
            got = gradients[name]
            if name == "sinks":
                got = got[sample.heads]
            elif name == "bias":
                got = _of(got, sample.batch, sample.heads)
            else:
                got = sample.rows_of(got, sample.heads if name == "q" else sample.kv_head)
            worst = max(worst, share(got, want, attended and name == "q"))
    if "bias" in gradients and call.bias.shape[0] == 1:
        worst = max(worst, _shared_bias_error(call, dout, gradients["bias"]))
    return worst


def _shared_bias_error(call: Call, dout: Tensor, got: Tensor) -> float:
    """That of a bias's gradient that is summed over the batch, of the last head."""
    precision, total = precision_of(call), None
    for first in range(0, call.q.shape[0], 64):
        sample = Sample(call, first, call.k.shape[-2] - 1)
        sample.batch = slice(first, first + 64)
        parts = sample.inputs(precision)
        parts["bias"] = parts["bias"].detach().requires_grad_()
        weight = sample.rows_of(dout, sample.heads).to(precision)
        (part,) = torch.autograd.grad(sample.forward(parts), parts["bias"], weight)
        total = part if total is None else total + part
    return share(got[:, sample.heads], total)
