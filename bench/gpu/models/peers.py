"""Who computes a call: Fulmen as a user calls it, and the peers that can be imported.

A contestant is a function of the call's tensors by name that gives `out` as the call's q lies. It
raises Refused where it has no way to say the call; a library's own refusal is its exception."""

import importlib
import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from calls import Call, Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Function = Callable[[dict[str, Tensor]], Tensor]
# Kernels that FlashAttention 4 compiles are kept on disk: compiling.py fills it.
os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")


class Refused(Exception):
    pass


def leading(call: Call) -> dict[str, Tensor]:
    """The tensors that a contestant reads; leaves where gradients are wanted."""
    given = {name: getattr(call, name) for name in ("q", "k", "v", "bias", "sinks")}
    return {
        name: tensor.detach().requires_grad_(name in call.gradients)
        for name, tensor in given.items()
        if tensor is not None
    }


def _first(result):
    return result[0] if isinstance(result, tuple) else result


def fulmen_options(call: Call, contiguous: bool = False) -> dict:
    """The call by fulmen.attention's arguments, but for q, k, v, bias, keep_mask and sinks."""
    options = dict(causal=call.causal, softcap=call.softcap, softmax_scale=call.scale)
    if call.window is not None:
        options |= dict(window_left=call.window, window_right=0)
    if call.cu_seqlens is not None:
        options |= dict(cu_seqlens_q=call.cu_seqlens, max_seqlen_q=call.longest[0])
        if call.k.dim() == 3:
            options |= dict(cu_seqlens_k=call.cu_seqlens, max_seqlen_k=call.longest[1])
    if call.pages is not None and not contiguous:
        options |= dict(block_table=call.pages.table)
    if call.seqlens_k is not None:
        options |= dict(seqlens_k=call.seqlens_k)
    return options


def kv_of(call: Call, x: dict[str, Tensor], contiguous: bool = False) -> tuple[Tensor, Tensor]:
    if call.pages is not None and not contiguous:
        return call.pages.k, call.pages.v
    return x["k"], x["v"]


def fulmen(call: Call, deterministic: bool | None = None, contiguous: bool = False) -> Function:
    import fulmen as package
    import fulmen.torch as of_torch

    if call.interface == "sdpa":
        mask = call.keep_mask
        if call.bias is not None and mask is not None:  # as PyTorch's function has one argument
            return lambda x: package.attention(
                x["q"], x["k"], x["v"], bias=x["bias"], keep_mask=mask, softmax_scale=call.scale
            )
        sdpa = of_torch.scaled_dot_product_attention
        return lambda x: _by_sdpa(sdpa, call, x, x.get("bias", mask))
    if call.interface == "triangle":
        return lambda x: _by_triangle(of_torch.triangle_attention, call, x)
    options = fulmen_options(call, contiguous)
    if deterministic is not None:
        options["deterministic"] = deterministic

    def run(x):
        more = {"sinks": x["sinks"]} if "sinks" in x else {}
        return package.attention(x["q"], *kv_of(call, x, contiguous), **options, **more)

    return run


def fulmen_by(call: Call, kernel: str) -> Function:
    """fulmen.attention with a kernel of that name forced, whatever the call's interface is."""
    import fulmen as package
    import fulmen.torch

    options = fulmen_options(call) | dict(keep_mask=call.keep_mask, kernel=kernel)

    def run(x):
        more = {name: x[name] for name in ("bias", "sinks") if name in x}
        return package.attention(x["q"], *kv_of(call, x), **options, **more)

    return run


def fulmen_kernel(call: Call, backward: bool) -> str:
    """The kernel that fulmen.plan names for the call."""
    import fulmen as package

    options = fulmen_options(call) | dict(bias=call.bias, keep_mask=call.keep_mask)
    options |= dict(sinks=call.sinks, dropout=call.dropout)
    if call.dropout:
        options["dropout_seed"] = 0
    if backward:
        options |= dict(backward=True, gradients=call.gradients)
    k, v = kv_of(call, {"k": call.k, "v": call.v})
    return package.plan(call.q, k, v, **options).kernel


def _by_sdpa(function, call: Call, x: dict[str, Tensor], mask: Tensor | None) -> Tensor:
    q, k, v = (x[name].transpose(1, 2) for name in "qkv")
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    out = function(
        q, k, v, mask, call.dropout, call.causal and mask is None, scale=call.scale, **grouped
    )
    return out.transpose(1, 2)


def _by_triangle(function, call: Call, x: dict[str, Tensor]) -> Tensor:
    """cuEquivariance's shapes: [1, rows, heads, length, head_dim]."""
    q, k, v = (x[name].transpose(1, 2)[None] for name in "qkv")
    mask = None if call.keep_mask is None else call.keep_mask[None]
    return _first(function(q, k, v, x["bias"][None], mask=mask, scale=call.scale))[0].transpose(
        1, 2
    )


def torch_backend(call: Call, backend: SDPBackend) -> Function:
    """PyTorch's function, one backend allowed."""
    if call.pages or call.cu_seqlens is not None or call.softcap or call.sinks is not None:
        raise Refused("PyTorch's function has no such argument")
    if call.window is not None or (call.causal and call.q.shape[1] != call.k.shape[1]):
        raise Refused("PyTorch's function needs a mask in memory to say this")

    def run(x):
        mask = call.mask_of_torch
        if "bias" in x and x["bias"].requires_grad and torch.is_grad_enabled():
            mask = x["bias"].to(call.dtype)
            if call.keep_mask is not None:
                mask = mask + call.hidden_keys
        with sdpa_kernel(backend):
            return _by_sdpa(F.scaled_dot_product_attention, call, x, mask)

    return run


def torch_default(call: Call) -> Function:
    """PyTorch's function as a user calls it."""
    return lambda x: _by_sdpa(
        F.scaled_dot_product_attention, call, x, x.get("bias", call.keep_mask)
    )


def flash2(call: Call) -> Function:
    """PyTorch's FlashAttention 2 where its function has no argument: packed, windows."""
    if call.pages or call.seqlens_k is not None or call.softcap or call.sinks is not None:
        raise Refused("PyTorch's FlashAttention 2 has no such argument")
    if call.keep_mask is not None or call.bias is not None:
        raise Refused("PyTorch's FlashAttention 2 has no masks in memory")
    if call.cu_seqlens is None and call.window is None:
        return torch_backend(call, SDPBackend.FLASH_ATTENTION)
    options = {"scale": call.scale}
    if call.window is not None:
        options |= dict(window_size_left=call.window, window_size_right=0)
    packed = call.cu_seqlens
    return lambda x: torch.ops.aten._flash_attention_forward(
        x["q"], x["k"], x["v"], packed, packed, *call.longest, 0.0, call.causal, False, **options
    )[0]


def flash4(call: Call, deterministic: bool = False) -> Function:
    if call.keep_mask is not None or call.bias is not None or call.dropout:
        raise Refused("FlashAttention 4 has no masks in memory, bias or dropout")
    cute = importlib.import_module("flash_attn.cute")
    options = dict(causal=call.causal, softcap=call.softcap, softmax_scale=call.scale)
    options |= dict(deterministic=deterministic)
    if call.window is not None:
        options["window_size"] = (call.window, 0)
    varlen = call.cu_seqlens is not None or call.seqlens_k is not None
    if call.cu_seqlens is not None:
        options |= dict(cu_seqlens_q=call.cu_seqlens, max_seqlen_q=call.longest[0])
        if call.k.dim() == 3:
            options |= dict(cu_seqlens_k=call.cu_seqlens, max_seqlen_k=call.longest[1])
    if call.seqlens_k is not None:
        options |= dict(seqused_k=call.seqlens_k)
    if call.pages is not None:
        options |= dict(page_table=call.pages.table)
    if call.seqlens_k is not None or call.longest[0] <= 16:
        options |= dict(num_splits=0)  # its own choice, as a cache's user sets it
    function = cute.flash_attn_varlen_func if varlen else cute.flash_attn_func

    def run(x):
        more = {"learnable_sink": x["sinks"]} if "sinks" in x else {}
        return _first(function(x["q"], *kv_of(call, x), **options, **more))

    return run


def cuequivariance(call: Call) -> Function:
    if call.bias is None or call.interface != "triangle":
        raise Refused("cuEquivariance has triangle attention alone")
    function = importlib.import_module("cuequivariance_ops_torch").triangle_attention
    return lambda x: _by_triangle(function, call, x)


PEERS: dict[str, Callable[[Call], Function]] = {
    "cudnn": lambda call: torch_backend(call, SDPBackend.CUDNN_ATTENTION),
    "flash2": flash2,
    "efficient": lambda call: torch_backend(call, SDPBackend.EFFICIENT_ATTENTION),
    "math": lambda call: torch_backend(call, SDPBackend.MATH),
    "flash4": flash4,
    "flash4 deterministic": lambda call: flash4(call, True),
    "cuequivariance": cuequivariance,
}


def contestants(call: Call, peers: list[str], backward: bool, kernels: tuple[str, ...] = ()):
    """Name -> function, and name -> why it takes no part. A peer that has no argument for the call
    is not listed with the refusals: only libraries that refuse or are absent are."""
    made, refused = {}, {}
    ways = {"fulmen": fulmen}
    if backward and call.interface == "attention":
        ways["fulmen deterministic"] = lambda call: fulmen(call, True)
    if not backward and call.pages is not None:
        ways["fulmen contiguous"] = lambda call: fulmen(call, contiguous=True)
    if not backward:
        ways |= {f"fulmen {k}": lambda call, k=k: fulmen_by(call, k) for k in kernels}
    ways |= {n: way for n, way in PEERS.items() if n in peers and (backward or " " not in n)}
    for name, way in ways.items():
        try:
            made[name] = way(call)
        except Refused:
            continue
        except ImportError as error:
            refused[name] = f"absent: {error}"
    return made, refused
