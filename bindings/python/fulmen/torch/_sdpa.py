"""torch.nn.functional.scaled_dot_product_attention by Fulmen: as a function, in a with block, or
for the whole process."""

from __future__ import annotations

import itertools
import math
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_overloaded_args,
    handle_torch_function,
    has_torch_function,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fulmen import _core
from fulmen._arguments import rename
from fulmen._core import ArgumentError
from fulmen.torch._frontend import FRAMEWORK
from fulmen.torch._ops import last_dim_contiguous

_Tensor = torch.Tensor
_is_compiling = torch.compiler.is_dynamo_compiling
_straight = _core.torch_sdpa
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_torch_sdpa: Callable[..., _Tensor] = torch.nn.functional.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    attn_mask: _Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Tensor:
    """What torch.nn.functional.scaled_dot_product_attention computes, with its arguments.

    Args:
      query: [..., heads, seqlen_q, head_dim], float32, float16 or bfloat16; key, value:
        [..., heads, seqlen_k, head_dim]. Leading dims broadcast. enable_gqa: key and value may have
        fewer heads, of which heads is a multiple.
      attn_mask: broadcasts to [..., heads, seqlen_q, seqlen_k]; bool, True attends, or float, added
          to the scores (differentiable).
      is_causal: aligned top left; not together with attn_mask.
      dropout_p: applied always, by torch's generator. scale: None is 1 / sqrt(head_dim).

    Returns:
      [..., heads, seqlen_q, head_dim of value], in memory positions before heads. Errors are those
          of fulmen.attention.
    """
    if _is_compiling():
        return _checked(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    try:
        out = _straight(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    except (TypeError, ValueError):  # handled below: broadcast dims, other strides
        pass
    try:
        return _checked(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except (TypeError, ValueError, NotImplementedError) as error:
        rename(error, _NAMES)
        raise


# Names that differ from fulmen.attention's.
_NAMES = {"q": "query", "k": "key", "v": "value", "bias": "attn_mask", "keep_mask": "attn_mask"}
_NAMES |= {"dropout": "dropout_p", "softmax_scale": "scale"}


def _checked(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    attn_mask: _Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> _Tensor:
    """scaled_dot_product_attention of any shapes, by calls that fulmen.attention takes."""
    if is_causal and attn_mask is not None:
        raise ArgumentError("is_causal is True and attn_mask is given: one of the two is accepted")
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"dropout_p is {dropout_p}: 0 to 1 is accepted")
    if dropout_p == 1:
        return (
            scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa
            )
            * 0
        )
    causal = "top_left" if is_causal else False
    options = (scale, 0.0, causal, -1, -1, dropout_p, None, 0, False, None, None, 0, False)
    return _in_four_dims(query, key, value, attn_mask, options, enable_gqa)


def _attention(
    query: _Tensor, key: _Tensor, value: _Tensor, mask: _Tensor | None, options: tuple[Any, ...]
) -> _Tensor:
    bias = keep_mask = None
    if mask is not None:
        if mask.dtype == torch.bool:
            keep_mask = mask
        else:
            bias = mask
    return FRAMEWORK.forward(
        (query, key, value, None, bias, keep_mask, None, None), options, None, True, False
    )


# Kernels have one batch dim: a tensor that is the same along some leading dims, and not along
# others, is copied. Above so many bytes such a call becomes several calls.
_MOST_COPIED = 32 << 20


def _bytes_copied(tensor: _Tensor, leading: tuple[int, ...]) -> int:
    """The additional bytes of the tensor with its leading dims as one, which repeats elements."""
    if tensor.dim() < 3:
        return 0
    expanded = tensor.expand(*leading, *tensor.shape[-3:])
    dims = [(n, stride) for n, stride in zip(leading, expanded.stride(), strict=False) if n > 1]
    repeated = any(stride == 0 for _, stride in dims)
    if not repeated or all(
        outer == n * inner for (_, outer), (n, inner) in itertools.pairwise(dims)
    ):
        return 0
    return expanded.numel() * tensor.element_size()


def _slice(dim: int, start: int, step: int, *tensors: _Tensor | None) -> tuple[_Tensor | None, ...]:
    """The elements start to start + step of each tensor that has the dim and is not the same along
    it.
    """
    return tuple(
        t
        if t is None or t.dim() < -dim or t.shape[dim] == 1
        else t.narrow(dim, start, min(step, t.shape[dim] - start))
        for t in tensors
    )


def _in_four_dims(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    mask: _Tensor | None,
    options: tuple[Any, ...],
    enable_gqa: bool,
) -> _Tensor:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, _Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}: a torch tensor is needed")
        if tensor.dim() < 2:
            raise ArgumentError(f"{name} has {tensor.dim()} dims: 2 or more are accepted")
    # Checked here, as the core sees heads and positions exchanged.
    if key.shape[-1] != query.shape[-1]:
        raise ArgumentError(
            f"key has a head_dim of {key.shape[-1]}, query of {query.shape[-1]}: the same is "
            "accepted"
        )
    if value.shape[-2] != key.shape[-2]:
        raise ArgumentError(
            f"value has {value.shape[-2]} rows, key {key.shape[-2]}: the same is accepted"
        )
    tensors = [
        t.reshape((1,) * (4 - t.dim()) + t.shape) if t.dim() < 4 else t for t in (query, key, value)
    ]
    heads = [t.shape[-3] for t in tensors]
    most = max(heads)
    if enable_gqa:
        if (
            heads[1] != heads[2]
            and most == heads[0]
            and all(n > 0 and most % n == 0 for n in heads[1:])
        ):
            # Kernels have one number of heads for both: heads that share one repeat it. The
            # smallest that both divide is enough.
            common = math.lcm(*heads[1:])
            tensors[1:] = (t.repeat_interleave(common // t.shape[-3], -3) for t in tensors[1:])
        elif heads[0] > 0 and any(n == 0 or heads[0] % n != 0 for n in heads[1:]):
            raise ArgumentError(
                f"key has {heads[1]} heads, value {heads[2]}: divisors of query's {heads[0]} are "
                "accepted"
            )
    elif any(n not in (1, most) for n in heads):
        raise ArgumentError(
            f"key has {heads[1]} heads, value {heads[2]}, query {heads[0]}: the same is accepted, "
            "or a divisor with enable_gqa=True"
        )
    elif heads[0] != most or heads[1] != heads[2]:
        # As in torch all broadcast. One head of both keys and values is what kernels broadcast
        # themselves.
        tensors = [t.expand(*t.shape[:-3], most, *t.shape[-2:]) for t in tensors]
    leading = torch.broadcast_shapes(*(t.shape[:-3] for t in tensors))
    if mask is not None:
        full = (*leading, tensors[0].shape[-3], query.shape[-2], key.shape[-2])
        for at in range(-min(mask.dim(), len(full)), 0):
            if mask.shape[at] != 1 and mask.shape[at] != full[at]:
                raise ArgumentError(
                    f"attn_mask has shape {list(mask.shape)}: what broadcasts to {list(full)} is "
                    "accepted"
                )
    if len(leading) > 1 and not _is_compiling():
        copied = sum(_bytes_copied(t, leading) for t in (*tensors, mask) if t is not None)
        if copied > _MOST_COPIED:
            dim = next(at for at, size in enumerate(leading) if size > 1) - len(leading) - 3
            step = max(1, leading[dim + 3] * _MOST_COPIED // copied)
            parts = [
                _slice(dim, start, step, *tensors, mask)
                for start in range(0, leading[dim + 3], step)
            ]
            return torch.cat([_in_four_dims(*part, options, enable_gqa) for part in parts], dim)
    tensors = [
        last_dim_contiguous(t.expand(*leading, *t.shape[-3:]).flatten(0, -4)) for t in tensors
    ]
    if mask is not None:
        if mask.dim() > 4 or (len(leading) > 1 and mask.dim() == 4 and mask.shape[0] > 1):
            mask = mask.expand(*leading, *mask.shape[-3:]).flatten(0, -4)
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
        mask = last_dim_contiguous(mask.expand(*mask.shape[:-1], tensors[1].shape[2]))
    out = _attention(*tensors, mask, options)
    rows = (query.shape[-2], value.shape[-1])
    if query.dim() == 4 == len(leading) + 3:
        return out
    dims = max(query.dim(), key.dim(), value.dim())
    return out.reshape((*leading, tensors[0].shape[1], *rows)[len(leading) + 3 - dims :])


def why_not_served(**tensors: Any) -> str | None:
    """Why Fulmen does not compute attention of such query, key and value, by their names; None
    where it does."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, _Tensor):
            return f"{name} is no tensor"
        # DTensor, for instance: its class has rules for torch's operators alone.
        if is_traceable_wrapper_subclass(tensor):
            return f"{name} is a {type(tensor).__name__}"
        if tensor.is_nested or tensor.layout != torch.strided:
            return f"{name} is not strided"
        if tensor.dtype not in _DTYPES:
            return f"{name} has dtype {tensor.dtype}"
        if tensor.device.type not in ("cpu", "cuda"):
            return f"{name} is on {tensor.device}"
        most = _core.max_head_dim_v if name == "value" else _core.max_head_dim
        if tensor.dim() > 0 and not 1 <= tensor.size(-1) <= most:
            return f"{name} has a head_dim of {tensor.size(-1)}"
        if tensor.dim() > 2 and tensor.size(-3) == 0:
            return f"{name} has no heads"
    return None


def _why_not(query: _Tensor, key: _Tensor, value: _Tensor, mask: _Tensor | None) -> str | None:
    """Why torch has to compute a call itself; None where Fulmen can."""
    if not _is_compiling():
        if not _allows_every_backend():
            return "sdpa_kernel chooses among its backends"
        if _is_exported_to_onnx():
            return "ONNX has no operator of Fulmen's"
    reason = why_not_served(query=query, key=key, value=value)
    if reason is not None or mask is None:
        return reason
    if not isinstance(mask, _Tensor):
        return "attn_mask is no tensor"
    if is_traceable_wrapper_subclass(mask):
        return f"attn_mask is a {type(mask).__name__}"
    if mask.dtype != torch.bool and mask.dtype not in _DTYPES:
        return f"attn_mask has dtype {mask.dtype}"
    return None


def _is_exported_to_onnx() -> bool:
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()


def _allows_every_backend() -> bool:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled() and cuda.math_sdp_enabled() and cuda.mem_efficient_sdp_enabled()


def _routed(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    attn_mask: _Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Tensor:
    """scaled_dot_product_attention, by torch where Fulmen has no kernel."""
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    bias = sys.modules.get("torch.nn.attention.bias")  # a caller with such a mask has imported it
    if bias is not None and isinstance(attn_mask, bias.CausalBias):
        return _causal(*given)
    if not _is_compiling() and has_torch_function(given):
        if any(not _is_plain_override(one) for one in _get_overloaded_args(given)):
            return _by_torch(*given)  # which asks them, with its own function
        return handle_torch_function(_routed, given, *given)
    reason = _why_not(query, key, value, attn_mask)
    if reason is None:
        if _is_compiling():
            return scaled_dot_product_attention(*given)
        try:
            return scaled_dot_product_attention(*given)
        except (TypeError, NotImplementedError) as error:
            # Not ArgumentError: torch's kernels read outside of some such tensors.
            reason = str(error)
    _say_why(reason)
    return _by_torch(*given)


def _is_plain_override(argument: Any) -> bool:
    """Whether it is of a tensor subclass that calls the functions, and makes results its own, as
    torch.Tensor does."""
    return (
        getattr(type(argument).__torch_function__, "__func__", None)
        is _Tensor.__torch_function__.__func__
    )


def _say_why(reason: str) -> None:
    if not torch.compiler.is_compiling() and os.environ.get("FLASH_ATTENTION_DEBUG") == "1":
        print(
            f"fulmen: torch computes this scaled_dot_product_attention: {reason}", file=sys.stderr
        )


def _by_torch(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    attn_mask: _Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> _Tensor:
    options = {"enable_gqa": True} if enable_gqa else {}  # torch 2.4 has no such argument
    return _torch_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)


def _causal(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> _Tensor:
    """A mask of torch.nn.attention.bias: its class compares the function that it is asked for with
    torch's, and has no memory."""
    if is_causal:
        raise ArgumentError("CausalBias should not be used with causal=True")  # torch's words
    rest = (dropout_p, False, scale, enable_gqa)
    # torch, too, takes the sizes from the tensors where a mask is aligned top left.
    if mask.variant == type(mask.variant).UPPER_LEFT or mask.seq_len_q == mask.seq_len_kv:
        return _routed(query, key, value, None, dropout_p, True, scale, enable_gqa)
    reason = _why_not(query, key, value, None)
    fits = (mask.seq_len_q, mask.seq_len_kv) == (
        query.size(-2),
        key.size(-2),
    ) and 0 <= dropout_p < 1
    if reason is None and fits and (_is_compiling() or not has_torch_function((query, key, value))):
        options = (
            scale,
            0.0,
            "bottom_right",
            -1,
            -1,
            dropout_p,
            None,
            0,
            False,
            None,
            None,
            0,
            False,
        )
        return _in_four_dims(query, key, value, None, options, enable_gqa)
    kept = torch.ones(mask.seq_len_q, mask.seq_len_kv, dtype=torch.bool, device=query.device)
    return _routed(query, key, value, kept.tril(mask.seq_len_kv - mask.seq_len_q), *rest)


def _with_routed_sdpa(function: types.FunctionType) -> types.FunctionType:
    """A function of torch.nn.functional, in which scaled_dot_product_attention is the routed
    one."""
    there = {**torch.nn.functional.__dict__, "scaled_dot_product_attention": _routed}
    copy = types.FunctionType(
        function.__code__, there, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# A mode is off in the functions that it sees, and what torch.nn.MultiheadAttention calls is one of
# them.
_multi_head_attention = torch.nn.functional.multi_head_attention_forward
_routed_multi_head_attention = _with_routed_sdpa(_multi_head_attention)


class sdpa(TorchFunctionMode):
    """with fulmen.torch.sdpa(): torch.nn.functional.scaled_dot_product_attention is Fulmen's, in
    this thread.

    Calls for which Fulmen has no kernel (float64, head_dim over 576 or over
    512 of value, other devices), and those for
    which sdpa_kernel chooses among torch's backends, stay torch's own; FLASH_ATTENTION_DEBUG=1
    names each on stderr, with the reason.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _torch_sdpa:
            return _routed(*args, **(kwargs or {}))
        if func is _multi_head_attention:
            func = _routed_multi_head_attention
        return func(*args, **(kwargs or {}))


def enable_sdpa() -> None:
    """From now on torch.nn.functional.scaled_dot_product_attention is Fulmen's, in the whole
    process, under torch.compile, too.

    It replaces the name in torch.nn.functional: modules that have imported the function itself
    before keep torch's. Scripts of torch.jit, and exports to ONNX, have torch's operator: they know
    no other.
    """
    # Before the name is replaced: torch lists the functions that modes see once, by their names.
    # For a function that the list lacks torch.compile ignores modes, sdpa() among them.
    torch.overrides.get_overridable_functions()
    torch.jit._builtins._register_builtin(_routed, "aten::scaled_dot_product_attention")
    torch.nn.functional.scaled_dot_product_attention = _routed


def disable_sdpa() -> None:
    """Takes enable_sdpa() back."""
    torch.nn.functional.scaled_dot_product_attention = _torch_sdpa
