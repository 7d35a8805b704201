"""The problems that are compared, and their inputs."""

from dataclasses import dataclass

import torch
from turns import DTYPES


@dataclass(frozen=True)
class Case:
    suite: str
    dtype: str
    batch: int
    heads: int
    seqlen: int
    head_dim: int
    causal: bool = False
    bias: bool = False  # one per head, the same for the whole batch
    # Bool: "triangle" says what causal says, "padding" leaves out the last eighth of the keys.
    mask: str = ""

    @property
    def name(self) -> str:
        shape = f"{self.batch}x{self.heads} S{self.seqlen} D{self.head_dim}"
        return (
            f"{self.suite} "
            f"{shape}{' causal' * self.causal}{' bias' * self.bias}{' ' * bool(self.mask)}"
            f"{self.mask} {self.dtype}"
        )

    @property
    def flops(self) -> float:
        keys = (self.seqlen + 1) / 2 if self.causal else self.seqlen
        return 4.0 * self.batch * self.heads * self.seqlen * keys * self.head_dim


def cases(suites: list[str], dtypes: list[str]) -> list[Case]:
    found = []
    for dtype in dtypes:
        if "prefill" in suites:
            for head_dim in (64, 128):
                found += [
                    Case("prefill", dtype, 1, 8, seqlen, head_dim) for seqlen in (1024, 2048, 4096)
                ]
                found.append(Case("prefill", dtype, 1, 8, 2048, head_dim, causal=True))
                found += [
                    Case("prefill", dtype, 1, 8, 2048, head_dim, mask=mask)
                    for mask in ("triangle", "padding")
                ]
        if "boards" in suites:
            for heads, head_dim in ((24, 32), (12, 64), (8, 96), (6, 128)):
                found += [
                    Case("boards", dtype, 64, heads, 64, head_dim, bias=bias)
                    for bias in (False, True)
                ]
            found.append(Case("boards", dtype, 64, 24, 64, 32, mask="triangle"))
    return found


@dataclass
class Inputs:
    """[batch, heads, seqlen, head_dim], contiguous: the layout that the peers take without a
    copy."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None  # [1, heads, seqlen, seqlen]
    keep: torch.Tensor | None  # bool, True attends: [1, 1, seqlen, seqlen], or [1, 1, 1, seqlen]


def make_inputs(case: Case, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DTYPES[case.dtype])

    shape = (case.batch, case.heads, case.seqlen, case.head_dim)
    bias = normal(1, case.heads, case.seqlen, case.seqlen) if case.bias else None
    keep = None
    if case.mask == "triangle":
        keep = torch.ones(1, 1, case.seqlen, case.seqlen, dtype=torch.bool).tril()
    elif case.mask == "padding":
        keep = (torch.arange(case.seqlen) < case.seqlen - case.seqlen // 8).reshape(1, 1, 1, -1)
    return Inputs(normal(*shape), normal(*shape), normal(*shape), bias, keep)


def exact(case: Case, inputs: Inputs, rows: int = 64) -> torch.Tensor:
    """The last query rows in double precision."""
    first = max(0, case.seqlen - rows)
    q, k, v = inputs.q[:, :, first:].double(), inputs.k.double(), inputs.v.double()
    scores = q @ k.transpose(-1, -2) / case.head_dim**0.5
    if inputs.bias is not None:
        scores = scores + inputs.bias[:, :, first:].double()
    if inputs.keep is not None:
        rows_kept = inputs.keep[:, :, first:] if inputs.keep.shape[2] > 1 else inputs.keep
        scores = scores.masked_fill(~rows_kept, float("-inf"))
    if case.causal:
        keep = torch.ones(case.seqlen, case.seqlen, dtype=torch.bool).tril()[first:]
        scores = scores.masked_fill(~keep, float("-inf"))
    return scores.softmax(-1) @ v
