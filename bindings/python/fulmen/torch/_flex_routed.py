"""torch.nn.attention.flex_attention.flex_attention by Fulmen, for the whole process."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.attention import flex_attention as _module

from fulmen._core import ArgumentError
from fulmen.flex import flex_attention
from fulmen.flex._attention import read_options
from fulmen.flex._refusal import TraceError
from fulmen.torch._sdpa import why_not_served

_torch_flex = _module.flex_attention
_is_compiling = torch.compiler.is_dynamo_compiling
# Reasons that were said.
_said: set[str] = set()


def _why_not(query: Any, key: Any, value: Any, kernel_options: Any) -> str | None:
    """Why torch has to compute a call itself; None where Fulmen can, if it can read the
    functions."""
    reason = why_not_served(query=query, key=key, value=value)
    if reason is not None:
        return reason
    if not query.dtype == key.dtype == value.dtype:
        return f"key and value have dtypes {key.dtype} and {value.dtype}, query {query.dtype}"
    try:
        read_options(kernel_options)
    except ArgumentError as error:
        return str(error)
    return None


def _say(reason: str) -> None:
    if not _is_compiling() and reason not in _said:
        _said.add(reason)
        warnings.warn(f"torch computes this flex_attention, not Fulmen: {reason}", stacklevel=3)


def _routed(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    **later: Any,
) -> Any:
    """flex_attention, by torch where Fulmen does not compute it."""
    given = (
        query,
        key,
        value,
        score_mod,
        block_mask,
        scale,
        enable_gqa,
        return_lse,
        kernel_options,
    )
    reason = _why_not(query, key, value, kernel_options)
    if reason is None:
        if _is_compiling():
            return flex_attention(*given, **later)
        try:
            return flex_attention(*given, **later)
        except (TraceError, NotImplementedError) as error:
            reason = str(error)
    _say(reason)
    return _torch_flex(*given, **later)


def enable_flex() -> None:
    """From now on torch.nn.attention.flex_attention.flex_attention is Fulmen's, in the whole
    process, under torch.compile, too.

    It replaces the name in its module: modules that have imported the function itself before keep
    torch's. Calls that Fulmen does not compute (float64, mixed dtypes, other devices, a kernel of
    torch's that is asked for by name, functions that can't be read) stay torch's; a warning says
    why, once for each reason. While torch.compile reads a call, a function that can't be read is an
    error.
    """
    _module.flex_attention = _routed


def disable_flex() -> None:
    """Takes enable_flex() back."""
    _module.flex_attention = _torch_flex
