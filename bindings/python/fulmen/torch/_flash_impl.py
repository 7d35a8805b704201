"""Fulmen as one of torch's implementations of flash attention (torch 2.11 and later):

    import fulmen.torch
    torch.nn.attention.activate_flash_attention_impl("fulmen")

While it is active, what torch's scaled_dot_product_attention sends to its flash backend, and
torch.nn.attention.varlen's functions, run on Fulmen on CUDA and ROCm; varlen's on the CPU, too,
where torch has no kernel. torch's own code in front of these operators stays: which backend a call
takes, autograd, torch.compile.
"""

from __future__ import annotations

from typing import Any

import torch

from fulmen import _core
from fulmen.torch import _frontend
from fulmen.torch._ops import core_backward, last_dim_contiguous

_Tensor = torch.Tensor


class Active:
    """What torch keeps while the implementation is active."""

    def __init__(self) -> None:
        self._libraries = []
        for key in ("CUDA", "CPU"):
            library = torch.library.Library("aten", "IMPL", key)
            for name, function in _OPERATORS.items():
                if hasattr(torch.ops.aten, name):  # the newest are not in every torch
                    library.impl(name, function)
            self._libraries.append(library)

    def remove(self) -> None:
        """torch's own kernels are back."""
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()


def _tensors(**given: Any) -> tuple[Any, ...]:
    return tuple(given.get(name) for name in _core.tensor_names)


def _scalars(
    scale: float | None,
    is_causal: bool,
    window: tuple[int | None, int | None],
    dropout: float,
    rng: tuple[int, int] | None,
    longest: tuple[int | None, int | None],
) -> tuple[Any, ...]:
    """In fulmen._core's order. Flash attention's diagonal ends at the last query and key."""
    left, right = (-1 if one is None else one for one in window)
    seed, offset = rng or (None, 0)
    deterministic = kernel = tuning = None
    first = (scale, 0.0, is_causal, left, right, dropout, seed, offset, deterministic)
    return (*first, kernel, tuning, 0, False, *longest, False)


def _like(tensor: _Tensor, shape: tuple[int, ...]) -> _Tensor:
    """A new tensor whose dims lie in memory in the tensor's order, as torch's meta functions
    say."""
    if tuple(tensor.shape) == shape:
        return torch.empty_like(tensor)
    order = sorted(range(len(shape)), key=lambda d: tensor.stride(d) or float("inf"))
    strides, stride = [0] * len(shape), 1
    for d in order:
        strides[d], stride = stride, stride * shape[d]
    return tensor.new_empty_strided(shape, strides)


def _new_rng(like: _Tensor, dropout: float) -> tuple[tuple[int, int] | None, _Tensor, _Tensor]:
    """(seed and offset, and the two tensors that torch keeps for the backward pass). With dropout
    these stay on the host, so that nothing waits for a GPU."""
    device = like.device if dropout == 0 else "cpu"
    seed = _frontend._seed() if dropout else 0
    if torch.version.hip is not None:  # torch's shapes there
        first = torch.tensor(seed, dtype=torch.int64).to(device)
        return (seed, 0) if dropout else None, first, torch.zeros((), dtype=torch.int64).to(device)
    first = torch.zeros(2, dtype=torch.int64, device=device)
    if dropout:
        first[0] = seed
    second = torch.zeros((), dtype=torch.int64, device=device)
    return (seed, 0) if dropout else None, first.view(torch.uint64), second.view(torch.uint64)


def _rng_of(state: _Tensor, dropout: float) -> tuple[int, int] | None:
    if dropout == 0:
        return None
    return int(state.view(torch.int64).reshape(-1)[0]), 0


def _refuse(return_debug_mask: bool) -> None:
    if return_debug_mask:
        raise NotImplementedError(
            'return_debug_mask is True: the implementation "fulmen" has no such mask'
        )


def _lengths(
    key: _Tensor,
    value: _Tensor,
    cum_seq_k: _Tensor | None,
    max_k: int,
    seqused_k: _Tensor | None,
    block_table: _Tensor | None,
) -> tuple[_Tensor, _Tensor, dict[str, Any]]:
    """Keys, values and their lengths as fulmen._core takes them."""
    if block_table is not None:
        if seqused_k is None:
            raise ValueError("block_table is given and seqused_k is None: a length is needed")
        return key, value, {"block_table": block_table, "seqlens_k": seqused_k}
    if cum_seq_k is None:
        return key, value, {"seqlens_k": seqused_k}
    if seqused_k is None:
        return key, value, {"cu_seqlens_k": cum_seq_k}
    # Packed sequences of which the first rows count: pages of one row.
    rows = torch.arange(max_k, dtype=torch.int32, device=key.device)
    table = (cum_seq_k[:-1, None] + rows).clamp_(max=max(key.shape[0] - 1, 0))
    return key[:, None], value[:, None], {"block_table": table, "seqlens_k": seqused_k}


def _flash_attention_forward(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    cum_seq_q: _Tensor | None,
    cum_seq_k: _Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: _Tensor | None = None,
    alibi_slopes: _Tensor | None = None,
    block_table: _Tensor | None = None,
    num_splits: int | None = None,
    out: _Tensor | None = None,
) -> tuple[_Tensor, ...]:
    _refuse(return_debug_mask)
    if out is None:
        out = _like(query, (*query.shape[:-1], value.shape[-1]))
    key, value, lengths = _lengths(key, value, cum_seq_k, max_k, seqused_k, block_table)
    longest = None if cum_seq_q is None else max_q, max_k if "cu_seqlens_k" in lengths else None
    query, key, value = map(last_dim_contiguous, (query, key, value))
    rng, *states = _new_rng(query, dropout_p)
    window = window_size_left, window_size_right
    _, lse = _core.forward(
        _tensors(
            q=query,
            k=key,
            v=value,
            out=out,
            alibi_slopes=alibi_slopes,
            cu_seqlens_q=cum_seq_q,
            **lengths,
        ),
        _scalars(scale, is_causal, window, dropout_p, rng, longest),
        None,
        False,
        True,
    )
    return out, lse, *states, query.new_empty(0)


def _flash_attention_forward_no_dropout_inplace(out: _Tensor, *args: Any, **named: Any) -> _Tensor:
    return _flash_attention_forward(*args, **named, out=out)[1]


def _backward(
    tensors: tuple[_Tensor, ...],
    bounds: tuple[_Tensor | None, _Tensor | None],
    longest: tuple[int | None, int | None],
    dropout: float,
    is_causal: bool,
    state: _Tensor,
    scale: float | None,
    window: tuple[int | None, int | None] = (None, None),
    bhsd: bool = False,
) -> tuple[_Tensor, ...]:
    """tensors: dout, q, k, v, out and lse."""
    dout, q, k, v, out, lse = tensors
    gradients = [torch.empty_like(one) for one in (q, k, v)]
    dout, q, k, v, out = map(last_dim_contiguous, (dout, q, k, v, out))
    dq, dk, dv = gradients
    core_backward(
        _tensors(
            q=q,
            k=k,
            v=v,
            out=out,
            lse=lse,
            dout=dout,
            dq=dq,
            dk=dk,
            dv=dv,
            cu_seqlens_q=bounds[0],
            cu_seqlens_k=bounds[1],
        ),
        _scalars(scale, is_causal, window, dropout, _rng_of(state, dropout), longest),
        None,
        bhsd,
        0b111,
    )
    return dq, dk, dv


def _flash_attention_backward(
    grad_out: _Tensor,
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    out: _Tensor,
    logsumexp: _Tensor,
    cum_seq_q: _Tensor | None,
    cum_seq_k: _Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: _Tensor,
    unused: _Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[_Tensor, ...]:
    packed = cum_seq_q is not None
    return _backward(
        (grad_out, query, key, value, out, logsumexp),
        (cum_seq_q, cum_seq_k) if packed else (None, None),
        (max_q, max_k) if packed else (None, None),
        dropout_p,
        is_causal,
        rng_state,
        scale,
        (window_size_left, window_size_right),
    )


def _scaled_dot_product_flash_attention(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    _refuse(return_debug_mask)
    out = _like(query, (*query.shape[:-1], value.shape[-1]))
    longest = query.shape[2], key.shape[2]
    query, key, value = map(last_dim_contiguous, (query, key, value))
    rng, *states = _new_rng(query, dropout_p)
    _, lse = _core.forward(
        _tensors(q=query, k=key, v=value, out=out),
        _scalars(scale, is_causal, (None, None), dropout_p, rng, (None, None)),
        None,
        True,
        True,
    )
    return out, lse, None, None, *longest, *states, query.new_empty(0)


def _scaled_dot_product_flash_attention_backward(
    grad_out: _Tensor,
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    out: _Tensor,
    logsumexp: _Tensor,
    cum_seq_q: _Tensor | None,
    cum_seq_k: _Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: _Tensor,
    philox_offset: _Tensor,
    *,
    scale: float | None = None,
) -> tuple[_Tensor, ...]:
    return _backward(
        (grad_out, query, key, value, out, logsumexp),
        (None, None),
        (None, None),
        dropout_p,
        is_causal,
        philox_seed,
        scale,
        bhsd=True,
    )


_OPERATORS = {
    function.__name__: function
    for function in (
        _flash_attention_forward,
        _flash_attention_forward_no_dropout_inplace,
        _flash_attention_backward,
        _scaled_dot_product_flash_attention,
        _scaled_dot_product_flash_attention_backward,
    )
}
