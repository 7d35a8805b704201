"""Torch tensors for fulmen.attention: straight to the kernels where nothing else looks on, else through torch's dispatcher."""

from __future__ import annotations

from typing import Any

import torch

from fulmen import _core
from fulmen._arguments import PLACE_OF_LENGTHS, Framework, _frameworks, with_lengths
from fulmen.torch import _ops, _transforms

_SEED, _DROPOUT = 6, 5  # in the tuple of fulmen._core

_functorch_interpreter = torch._C._functorch.peek_interpreter_stack
_is_compiling = torch.compiler.is_compiling
_observers = _core.torch_observers
_NOBODY, _AUTOGRAD, _OTHERS = range(3)  # what it answers

_core.set_torch_questions(
    (
        torch._C._len_torch_function_stack,
        torch._C._len_torch_dispatch_stack,
        _functorch_interpreter,
        getattr(torch._C, "_is_any_autocast_enabled", lambda: True),
        torch._C._get_tracing_state,
        lambda: torch.autograd.forward_ad._current_level >= 0 or None,
    ),
    torch.is_grad_enabled,
    (torch.Tensor, torch.nn.Parameter),
)


def _with_seed(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    """With one from torch's generator."""
    seed = torch.empty((), dtype=torch.int64, device="cpu").random_().item()
    return (*scalars[:_SEED], seed, *scalars[_SEED + 1 :])


class _RefuseDoubleBackward(torch.autograd.Function):
    """Makes gradients that were computed with create_graph=True say why they have none themselves."""

    @staticmethod
    def forward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return gradients

    backward = staticmethod(_ops.refuse_double_backward)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, bias, sinks, keep_mask, alibi_slopes, scalars, device, bhsd, *lengths):
        _ops.refuse_gradient_by_slopes(ctx.needs_input_grad[6])
        ctx.set_materialize_grads(False)
        tensors = with_lengths((q, k, v, None, bias, keep_mask, alibi_slopes, sinks), lengths)
        out, lse = _core.forward(tensors, scalars, device, bhsd, True)
        ctx.save_for_backward(q, k, v, bias, sinks, keep_mask, alibi_slopes, out, lse, *lengths)
        ctx.rest = scalars, device, bhsd
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
        nothing = (None,) * (len(ctx.needs_input_grad) - 5)
        if dout is None and dlse is None:
            return *(None,) * 5, *nothing
        q, k, v, bias, sinks, keep_mask, alibi_slopes, out, lse, *lengths = ctx.saved_tensors
        wanted = sum(1 << bit for bit in range(5) if ctx.needs_input_grad[bit])
        dout = torch.zeros_like(out) if dout is None else _ops.last_dim_contiguous(dout)
        tensors = with_lengths((q, k, v, out, bias, keep_mask, alibi_slopes, sinks, lse, dout, dlse), tuple(lengths))
        gradients = _ops.core_backward(tensors, *ctx.rest, wanted)
        if torch.is_grad_enabled():  # create_graph=True
            seen = [t for t in (q, k, v, bias, sinks, dout, dlse) if t is not None and t.requires_grad]
            if seen:
                gradients = _RefuseDoubleBackward.apply(*gradients, *seen)[:5]
        return *gradients, *nothing


def _dispatched(tensors: tuple[Any, ...], scalars: tuple[Any, ...], device: str | None, bhsd: bool, want_lse: bool) -> Any:
    q, k, v, given_out, bias, keep_mask, alibi_slopes, sinks = tensors[:8]
    scale, softcap, causal, left, right, dropout, seed, offset, deterministic, kernel, num_threads, verify = scalars[:12]
    rng = None
    if dropout != 0:
        if seed is None:
            rng = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device="cpu")
        else:
            # As the same 64 bits.
            rng = torch.tensor([(n + 2**63) % 2**64 - 2**63 for n in (seed, offset)], dtype=torch.int64, device="cpu")
    if isinstance(causal, bool):
        causal = "bottom_right" if causal else "none"
    lengths = (*tensors[PLACE_OF_LENGTHS:], *scalars[12:])
    if bhsd:
        _ops.refuse_packed_heads_first(lengths)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    need_lse = want_lse or torch.is_grad_enabled()
    options = (rng, scale, softcap, causal, left, right, dropout, deterministic, kernel, num_threads, verify, device)
    if not _is_compiling() and _functorch_interpreter() is not None:
        op = _transforms.Attention.apply
    else:
        op = torch.ops.fulmen.attention_varlen if lengths else torch.ops.fulmen.attention
    out, lse = op(q, k, v, bias, keep_mask, alibi_slopes, sinks, *options, *lengths, need_lse)
    if bhsd:
        out = out.transpose(1, 2)
    if given_out is not None:
        out = given_out.copy_(out)
    return (out, lse) if want_lse else out


def _forward(tensors: tuple[Any, ...], scalars: tuple[Any, ...], device: str | None, bhsd: bool, want_lse: bool) -> Any:
    """Tensors and scalars with those of LENGTHS and LONGEST, or both without."""
    if _is_compiling():
        return _dispatched(tensors, scalars, device, bhsd, want_lse)
    observers = _observers(tensors)
    if observers == _OTHERS:
        return _dispatched(tensors, scalars, device, bhsd, want_lse)
    if scalars[_DROPOUT] != 0 and scalars[_SEED] is None:
        scalars = _with_seed(scalars)
    if observers == _NOBODY:
        return _core.forward(tensors, scalars, device, bhsd, want_lse)
    q, k, v, given_out, bias, keep_mask, alibi_slopes, sinks = tensors[:8]
    if given_out is not None:
        raise ValueError("out is given and an input requires grad: autograd keeps a result of its own, pass out=None")
    lengths = tensors[PLACE_OF_LENGTHS:]
    result = _Attention.apply(q, k, v, bias, sinks, keep_mask, alibi_slopes, scalars, device, bhsd, *lengths)
    return result if want_lse else result[0]


def _append_kv(tensors: tuple[Any, ...], device: str | None, interleaved: bool, advance: bool, num_threads: int) -> tuple[Any, Any]:
    if not _is_compiling() and _observers(tensors) != _OTHERS:
        return _core.append_kv(tensors, device, interleaved, advance, num_threads)
    queries, lengths = torch.ops.fulmen.append_kv(*tensors, interleaved, advance, num_threads, device)
    return None if tensors[-1] is None else queries, lengths


FRAMEWORK = Framework(
    forward=_forward,
    backward=_ops.core_backward,
    to_host=lambda tensor: tensor.detach().cpu(),
    from_host=lambda array, like: torch.from_numpy(array).to(like.device),
    append_kv=_append_kv,
)
# Known before the first call: one that is compiled would be compiled again for the dict that it has changed.
for _type in (torch.Tensor, torch.nn.Parameter):
    _frameworks[_type] = FRAMEWORK
