"""The ops under torch.func: vmap, where a mapped dim becomes more sequences of one call, and
grad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fulmen.torch import _ops

_Q, _K, _V, _BIAS, _KEEP_MASK, _ALIBI_SLOPES, _SINKS, _RNG = range(8)
_SUMMED = 0b11000  # of wanted: the gradients that may be sums over sequences, dbias and dsinks


def _mapped(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """The tensor with the mapped dim first."""
    return (
        tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    )


def _scores(tensor: torch.Tensor, dim: int | None, size: int, batch: int) -> torch.Tensor:
    """A bias or mask as [mapped * batch, …]; one that every sequence shares stays as it is."""
    rank = tensor.dim() - (dim is not None)
    if dim is None and (rank < 4 or tensor.shape[0] == 1):
        return tensor
    tensor = _mapped(tensor, dim, size)
    tensor = tensor.reshape(size, *(1,) * (4 - rank), *tensor.shape[1:])
    return tensor.expand(-1, batch, -1, -1, -1).flatten(0, 1)


def _slopes(tensor: torch.Tensor, dim: int | None, size: int, batch: int) -> torch.Tensor:
    rank = tensor.dim() - (dim is not None)
    if dim is None and rank == 1:
        return tensor
    tensor = _mapped(tensor, dim, size)
    return (tensor if rank == 2 else tensor.unsqueeze(1).expand(-1, batch, -1)).flatten(0, 1)


def _fold(size: int, dims: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[list[Any], int]:
    """The shared arguments of one call for all, and the number of sequences of each."""
    folded = list(args)
    batch = args[_Q].shape[0] if dims[_Q] is None else args[_Q].movedim(dims[_Q], 0).shape[1]
    for at in (_Q, _K, _V):
        folded[at] = _mapped(args[at], dims[at], size).flatten(0, 1)
    for at in (_BIAS, _KEEP_MASK):
        if args[at] is not None:
            folded[at] = _scores(args[at], dims[at], size, batch)
    if args[_ALIBI_SLOPES] is not None:
        folded[_ALIBI_SLOPES] = _slopes(args[_ALIBI_SLOPES], dims[_ALIBI_SLOPES], size, batch)
    return folded, batch


def _one_by_one(
    op: Callable[..., tuple[torch.Tensor, ...]],
    size: int,
    dims: tuple[Any, ...],
    args: tuple[Any, ...],
) -> Any:
    """Several calls, for what one call can't tell apart.

    These are separate sinks, a sum over a part of the sequences, and packed sequences. Also for
    dropout, whose mask depends on the place of a sequence in its call: a mapped function gives what
    a loop of it gives.
    """
    results = [
        op(*(a if d is None else a.select(d, n) for a, d in zip(args, dims, strict=True)))
        for n in range(size)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


def _map_forward(
    op: Callable[..., Any], size: int, dims: tuple[Any, ...], args: tuple[Any, ...]
) -> Any:
    varlen = len(args) > _ops.SHARED + 1
    if varlen or dims[_SINKS] is not None or args[_RNG] is not None:
        return _one_by_one(op, size, dims, args)
    folded, batch = _fold(size, dims, args)
    out, lse = op(*folded)
    if not args[-1]:  # need_lse
        return (out.unflatten(0, (size, batch)), lse), (0, None)
    return (out.unflatten(0, (size, batch)), lse.unflatten(0, (size, batch))), (0, 0)


def _map_backward(
    op: Callable[..., Any], size: int, dims: tuple[Any, ...], args: tuple[Any, ...]
) -> Any:
    wanted = args[-1]
    varlen = len(args) > _ops.SHARED + 5
    if varlen or dims[_SINKS] is not None or args[_RNG] is not None or wanted & _SUMMED:
        return _one_by_one(op, size, dims, args)
    folded, batch = _fold(size, dims, args)
    out, lse, dout, dlse = range(_ops.SHARED, _ops.SHARED + 4)
    for at in (out, lse, dout, dlse):
        if args[at] is not None:
            folded[at] = _mapped(args[at], dims[at], size).flatten(0, 1)
    for at in (out, lse):  # inputs, too, need a place of their own for each element
        folded[at] = folded[at].contiguous()
    gradients = op(*folded)
    results = tuple(
        g.unflatten(0, (size, batch)) if bit < 3 and wanted >> bit & 1 else g
        for bit, g in enumerate(gradients)
    )
    return results, tuple(0 if bit < 3 and wanted >> bit & 1 else None for bit in range(5))


class Attention(torch.autograd.Function):
    """The ops for torch.func.grad and its kin, to which an op's registered autograd is closed."""

    @staticmethod
    def forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        varlen = len(args) > _ops.SHARED + 1
        return (
            torch.ops.fulmen.attention_varlen(*args)
            if varlen
            else torch.ops.fulmen.attention(*args)
        )

    setup_context = staticmethod(_ops.save_for_backward)

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
        return _ops.gradients(AttentionBackward.apply, ctx, dout, dlse)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
        return _map_forward(Attention.apply, info.batch_size, dims, args)


class AttentionBackward(torch.autograd.Function):
    @staticmethod
    def forward(*args: Any) -> tuple[torch.Tensor, ...]:
        varlen = len(args) > _ops.SHARED + 5
        return (
            torch.ops.fulmen.attention_varlen_backward(*args)
            if varlen
            else torch.ops.fulmen.attention_backward(*args)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        pass

    backward = staticmethod(_ops.refuse_double_backward)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
        return _map_backward(AttentionBackward.apply, info.batch_size, dims, args)


def _register(name: str, rule: Callable[..., Any]) -> None:
    op = getattr(torch.ops.fulmen, name)
    torch.library.register_vmap(
        f"fulmen::{name}",
        lambda info, dims, *args: rule(op, info.batch_size, dims, args),
        lib=_ops.library,
    )


if hasattr(torch.library, "register_vmap"):  # torch 2.5
    for _name in ("attention", "attention_varlen"):
        _register(_name, _map_forward)
        _register(f"{_name}_backward", _map_backward)
