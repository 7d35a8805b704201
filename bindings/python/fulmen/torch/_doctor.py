"""`fulmen doctor --torch`: which of its kernels torch's scaled_dot_product_attention takes on this
machine for common calls, why not flash attention, and what to write."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fulmen._functions import plan


class Call(NamedTuple):
    name: str
    head_dim: int
    seqlen_q: int = 1024
    seqlen_k: int = 1024
    heads: int = 8
    kv_heads: int = 8
    dtype: torch.dtype = torch.bfloat16
    causal: bool = False
    mask: str = ""  # "bool" or "bias"


CALLS = (
    Call("causal, 64 dims", 64, causal=True),
    Call("causal, 128 dims", 128, causal=True),
    Call("causal, 256 dims", 256, causal=True),
    Call("all keys, 80 dims", 80),
    Call("grouped heads, causal, 128 dims", 128, kv_heads=2, causal=True),
    Call("bool mask, 128 dims", 128, mask="bool"),
    Call("bias, 64 dims", 64, mask="bias"),
    Call("decode of one token, 128 dims", 128, seqlen_q=1),
    Call("float32, causal, 64 dims", 64, dtype=torch.float32, causal=True),
)


_SHAPES = "1 x 8 heads x 1,024, bfloat16 where nothing else is said"


class Finding(NamedTuple):
    call: str
    taken: str  # torch's kernel: "flash", "math"; an error where torch refuses the call
    why: str  # why flash attention is not taken; empty where it is, or torch does not say
    ours: str  # the kernel that Fulmen would run, or why it serves no such call


@contextmanager
def _what_is_written() -> Iterator[list[str]]:
    """Fills a list with what C++ code writes to stderr, and with warnings."""
    told: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        os.dup2(file.fileno(), 2)
        try:
            yield told
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            told.extend(file.read().decode(errors="replace").splitlines())
            told.extend(str(one.message) for one in caught)


def reasons_against_flash(arguments: tuple[Any, ...]) -> list[str]:
    """torch's own words, without where in its sources they stand. arguments: q, k, v, mask,
    dropout, causal, grouped."""
    with _what_is_written() as told:
        torch.backends.cuda.can_use_flash_attention(
            torch.backends.cuda.SDPAParams(*arguments), debug=True
        )
    found = [
        re.sub(r"^\[W.*?\] *|^Warning: *|Warning: | *\(function [^)]*\)| *\(Triggered.*", "", s)
        for s in told
    ]
    return [reason for reason in found if reason.strip()]


def choice_of_torch(arguments: tuple[Any, ...]) -> str:
    q, k, v, mask, dropout, causal, grouped = arguments
    number = torch._fused_sdp_choice(q, k, v, mask, dropout, causal, scale=None, enable_gqa=grouped)
    name = torch.nn.attention.SDPBackend(number).name
    return name.removesuffix("_ATTENTION").lower()


def examine(
    device: str,
    choice: Callable[[tuple[Any, ...]], str] = choice_of_torch,
    reasons: Callable[[tuple[Any, ...]], list[str]] = reasons_against_flash,
) -> list[Finding]:
    findings = []
    for call in CALLS:
        q = torch.zeros(
            1, call.heads, call.seqlen_q, call.head_dim, dtype=call.dtype, device=device
        )
        k = v = torch.zeros(
            1, call.kv_heads, call.seqlen_k, call.head_dim, dtype=call.dtype, device=device
        )
        shape = 1, 1, call.seqlen_q, call.seqlen_k
        mask = None
        if call.mask:
            dtype = torch.bool if call.mask == "bool" else call.dtype
            mask = torch.ones(shape, dtype=dtype, device=device)
        arguments = (q, k, v, mask, 0.0, call.causal, call.heads != call.kv_heads)
        try:
            taken = choice(arguments)
        except RuntimeError as error:
            taken = str(error).partition("\n")[0]
        # On the CPU torch gives no reasons.
        why = [] if taken == "flash" or q.device.type == "cpu" else reasons(arguments)
        findings.append(Finding(call.name, taken, "; ".join(why), _ours(*arguments)))
    return findings


def _ours(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, grouped: bool) -> str:
    options = {} if mask is None else {"keep_mask" if mask.dtype == torch.bool else "bias": mask}
    try:
        # torch's causal mask begins at the first key.
        return plan(
            q, k, v, layout="bhsd", causal="top_left" if causal else False, **options
        ).kernel
    except (RuntimeError, ValueError, TypeError) as error:
        return f"none: {error}"


def advice(finding: Finding, device: str, rocm: bool) -> str:
    """What to write where torch takes its math path on a GPU, which computes the whole matrix of
    scores and says nothing about it."""
    if finding.taken != "math" or device == "cpu" or finding.ours.startswith("none"):
        return ""
    text = "fulmen.torch.enable_sdpa() after the imports: Fulmen computes such calls"
    if rocm and "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL" in finding.why:
        text += "; or TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 before Python starts: torch's flash"
    return text


def report(findings: list[Finding], device: str, rocm: bool) -> str:
    lines = []
    for finding in findings:
        mend = advice(finding, device, rocm)
        lines.append(
            f"{'warn' if mend else 'pass'}  {finding.call:32} torch: {finding.taken}; "
            f"fulmen: {finding.ours}"
        )
        if finding.why:
            lines.append(f"      {'':32} not flash: {finding.why}")
        if mend:
            lines.append(f"      {'':32} -> {mend}")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    if not hasattr(torch.backends.cuda.SDPAParams, "enable_gqa"):
        sys.exit(
            f"fulmen doctor --torch: torch 2.5 or newer is needed, this is {torch.__version__}"
        )
    parser = argparse.ArgumentParser("fulmen doctor --torch", description=__doc__)
    parser.add_argument("--torch", action="store_true", required=True, help="these findings")
    parser.add_argument("--device", help="torch's name of it; a GPU where torch has one, else cpu")
    device = parser.parse_args(arguments).device
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    rocm = torch.version.hip is not None
    name = "cpu" if torch.cuda.is_available() else "cpu: torch sees no GPU"
    if device != "cpu":
        try:
            properties = torch.cuda.get_device_properties(torch.device(device))
        except (AssertionError, RuntimeError, ValueError) as error:
            first_line = str(error).partition("\n")[0]
            sys.exit(f"--device {device}: torch's cuda, cuda:1 (ROCm, too), or cpu; {first_line}")
        name = f"{properties.name} {getattr(properties, 'gcnArchName', '')}".strip()
    print(f"torch {torch.__version__} on {name}; scaled_dot_product_attention of {_SHAPES}")
    print(report(examine(device), device, rocm))
