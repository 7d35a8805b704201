"""Is what the Python package computes on a GPU right: every way in, each way a framework may run
it. For gpu.py.

Judged as docs/contract.md says: E <= 2 P + 1e-5, and 3 P + 1e-5 max(1, max |ref|) for gradients,
where E is the error, P that of standard attention in the same precision, both against float64.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import fulmen
import fulmen.torch
import torch
from fulmen import flash_attn

Tensor = torch.Tensor
Function = Callable[..., Any]  # the inputs' dtypes


def standard(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool | str = False,
    window_left: int = -1,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    kept: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Three steps in the inputs' own precision, [batch, seqlen, heads, dim]: out and lse."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * q.shape[3] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    distance = (
        torch.arange(k.shape[2], device=q.device)
        - torch.arange(q.shape[2], device=q.device)[:, None]
    )
    distance = distance - (0 if causal == "top_left" else k.shape[2] - q.shape[2])
    attended = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        attended &= distance <= 0
    if window_left >= 0:
        attended &= distance >= -window_left
    scores = scores.masked_fill(~attended, -math.inf)
    lse = scores.double().logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double()[:, None])
        scores = torch.cat(
            [scores, sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)], -1
        )
    weights = scores.softmax(-1)[..., : k.shape[2]].nan_to_num()
    if kept is not None:
        weights = weights * kept / (1 - dropout)
    return (weights @ v).transpose(1, 2), lse


def tuple_of(outs: Any) -> tuple[Tensor, ...]:
    return outs if isinstance(outs, tuple) else (outs,)


def run(
    function: Function, inputs: Sequence[Tensor], douts: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The results, and with douts the gradients by the floating-point inputs."""
    leaves = [t.detach().requires_grad_(bool(douts) and t.is_floating_point()) for t in inputs]
    outs = tuple_of(function(*leaves))
    if not douts:
        return tuple(t.detach() for t in outs)
    wanted = [t for t in leaves if t.requires_grad]
    return *(t.detach() for t in outs), *torch.autograd.grad(outs[: len(douts)], wanted, douts)


def on_side_stream(
    function: Function, inputs: Sequence[Tensor], douts: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The inputs are written only when the stream reaches their kernels."""
    late = [torch.full_like(t, math.nan) if t.is_floating_point() else t for t in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(40_000_000)
        for to, source in zip(late, inputs, strict=True):
            to.copy_(source)
        results = run(function, late, douts)
    torch.cuda.current_stream().wait_stream(stream)
    return results


def on_another_gpu(
    function: Function, inputs: Sequence[Tensor], douts: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """While the first one is torch's current device."""
    assert torch.cuda.current_device() == 0
    results = run(function, [t.to("cuda:1") for t in inputs], [t.to("cuda:1") for t in douts])
    assert all(t.device == torch.device("cuda:1") for t in results), [t.device for t in results]
    return tuple(t.to("cuda:0") for t in results)


def in_graph(
    function: Function, inputs: Sequence[Tensor], douts: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Captured over other numbers (of integers the same), replayed over these."""
    places = [torch.randn_like(t) if t.is_floating_point() else t.clone() for t in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(function, places, douts)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run(function, places, douts)
    for _ in range(2):
        for to, source in zip(places, inputs, strict=True):
            to.copy_(source)
        for result in results:
            result.fill_(math.nan)
        graph.replay()
    torch.cuda.synchronize()
    return tuple(t.clone() for t in results)


def compiled(backend: str) -> Function:
    def way(
        function: Function, inputs: Sequence[Tensor], douts: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        torch._dynamo.reset()
        return run(
            torch.compile(function, fullgraph=True, dynamic=True, backend=backend), inputs, douts
        )

    return way


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=torch.float32, device="cuda").to(dtype)


def worst(
    ours: Tensor, exact: Tensor, same: Tensor, gradient: bool, extra: float
) -> tuple[float, float]:
    """(error, its bound)."""
    assert ours.shape == exact.shape, f"shape {list(ours.shape)}, expected {list(exact.shape)}"
    exact = exact.double()
    if ours.numel() == 0:
        return 0.0, 0.0
    empty = exact == -math.inf  # the lse of a row without keys
    assert torch.equal(ours.double() == -math.inf, empty)
    error, baseline = (
        torch.where(empty, 0, (t.double() - exact)).abs().max().item() for t in (ours, same)
    )
    if gradient:
        largest = torch.where(empty, 0, exact).abs().max().item()
        return error, 3 * baseline + 1e-5 * max(1.0, largest) + extra
    return error, 2 * baseline + 1e-5 + extra


class Checks:
    def __init__(self, dtype: torch.dtype, report: Callable[..., None], only: str = "") -> None:
        self.dtype, self.report, self.only, self.failed = dtype, report, only, 0

    def check(
        self,
        name: str,
        function: Function,
        reference: Function,
        inputs: Sequence[Tensor],
        *,
        ways: dict[str, Function],
        douts: Sequence[Tensor] = (),
        extra: float = 0.0,
    ) -> None:
        """reference: of the same inputs in any precision."""
        if self.only not in name:
            return
        doubles = [t.double() if t.is_floating_point() else t for t in inputs]
        exact = run(reference, doubles, [t.double() for t in douts])
        same = run(
            reference,
            inputs,
            [
                t.to(like.dtype)
                for t, like in zip(douts, tuple_of(reference(*inputs)), strict=False)
            ],
        )
        for way, runner in ways.items():
            row: dict[str, Any] = {
                "suite": "checks",
                "dtype": str(self.dtype)[6:],
                "case": name,
                "way": way,
            }
            try:
                ours = runner(function, inputs, douts)
                assert len(ours) == len(exact), f"{len(ours)} results, {len(exact)} expected"
                outs = len(ours) - (sum(t.is_floating_point() for t in inputs) if douts else 0)
                found = [
                    worst(*three, at >= outs, extra)
                    for at, three in enumerate(zip(ours, exact, same, strict=True))
                ]
                at = max(range(len(found)), key=lambda n: found[n][0] / max(found[n][1], 1e-30))
                ok = all(error <= bound for error, bound in found)  # NaN is not
                row.update(ok=ok, worst_result=at, error=found[at][0], bound=found[at][1])
            except Exception as error:
                row.update(ok=False, exception=f"{type(error).__name__}: {str(error)[:400]}")
            self.failed += not row["ok"]
            self.report(**row)

    def all(self) -> int:
        """How many failed."""
        self.dense()
        self.scaled_dot_product_attention()
        self.lengths()
        self.cache()
        self.module()
        return self.failed

    def dense(self) -> None:
        dtype = self.dtype
        qkv = [normal(2, s, h, 64, dtype=dtype) for s, h in ((113, 8), (203, 2), (203, 2))]
        dout, dlse = normal(2, 113, 8, 64, dtype=dtype), normal(2, 8, 113, dtype=torch.float32)
        everything = {
            "eager": run,
            "side stream": on_side_stream,
            "graph": in_graph,
            "compiled": compiled("inductor" if dtype == torch.bfloat16 else "aot_eager"),
        }
        if torch.cuda.device_count() > 1:
            everything["another GPU"] = on_another_gpu
        self.check(
            "attention, causal, 8/2 heads",
            lambda q, k, v: fulmen.attention(q, k, v, causal=True),
            lambda q, k, v: standard(q, k, v, causal=True)[0],
            qkv,
            ways=everything,
            douts=[dout],
        )
        settings = {"softcap": 4.0, "window_left": 90}
        extras = [normal(1, 8, 113, 203, dtype=dtype), normal(8, dtype=torch.float32)]
        self.check(
            "attention, bias, sinks, softcap, window, lse",
            lambda q, k, v, b, s: fulmen.attention(
                q, k, v, bias=b, sinks=s, return_lse=True, **settings
            ),
            lambda q, k, v, b, s: standard(q, k, v, bias=b, sinks=s, **settings),
            [*qkv, *extras],
            ways={"eager": run, "graph": in_graph},
            douts=[dout, dlse],
            extra=3e-4,
        )
        random = {"dropout": 0.25, "dropout_seed": 12345, "dropout_offset": 7}
        kept = fulmen.dropout_mask(*qkv[:2], **random)
        self.check(
            "attention, dropout",
            lambda q, k, v: fulmen.attention(q, k, v, **random),
            lambda q, k, v: standard(q, k, v, kept=kept, dropout=0.25)[0],
            qkv,
            ways={"eager": run},
            douts=[dout],
        )
        boards = [normal(64, 64, 3, 24, 32, dtype=dtype)]
        self.check(
            "attention, boards, slices of packed qkv",
            lambda x: fulmen.attention(*x.unbind(2)),
            lambda x: standard(*x.unbind(2))[0],
            boards,
            ways={"eager": run, "graph": in_graph},
            douts=[normal(64, 64, 24, 32, dtype=dtype)],
        )
        self.check(
            "flash_attn_func, window, softmax_lse",
            lambda q, k, v: flash_attn.flash_attn_func(
                q, k, v, window_size=(40, 0), deterministic=True, return_attn_probs=True
            )[:2],
            lambda q, k, v: standard(q, k, v, causal=True, window_left=40),
            qkv,
            ways={"eager": run},
            douts=[dout],
        )

    def scaled_dot_product_attention(self) -> None:
        dtype = self.dtype
        ours, theirs = (
            fulmen.torch.scaled_dot_product_attention,
            torch.nn.functional.scaled_dot_product_attention,
        )

        def by_torch(
            q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
        ) -> Tensor:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return standard(q, k, v, causal="top_left" if causal else False, bias=mask)[
                0
            ].transpose(1, 2)

        def routed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with fulmen.torch.sdpa():
                return theirs(q, k, v, is_causal=True, enable_gqa=True)

        heads_first = [normal(2, h, s, 128, dtype=dtype) for s, h in ((96, 8), (160, 4), (160, 4))]
        dout = normal(2, 8, 96, 128, dtype=dtype)
        self.check(
            "scaled_dot_product_attention, is_causal",
            lambda q, k, v: ours(q, k, v, is_causal=True, enable_gqa=True),
            lambda q, k, v: by_torch(q, k, v, causal=True),
            heads_first,
            ways={"eager": run, "compiled": compiled("aot_eager")},
            douts=[dout],
        )
        self.check(
            "torch's own, by fulmen.torch.sdpa()",
            routed,
            lambda q, k, v: by_torch(q, k, v, causal=True),
            heads_first,
            ways={"side stream": on_side_stream},
            douts=[dout],
        )
        self.check(
            "scaled_dot_product_attention, attn_mask",
            lambda q, k, v, m: ours(q, k, v, m, enable_gqa=True),
            by_torch,
            [*heads_first, normal(2, 1, 96, 160, dtype=dtype)],
            ways={"eager": run, "graph": in_graph},
            douts=[dout],
        )

    def lengths(self) -> None:
        dtype = self.dtype
        of_q, of_k = [70, 0, 1, 128], [90, 33, 64, 128]
        cu_q, cu_k = (
            torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32, device="cuda")
            for n in (of_q, of_k)
        )
        q, k, v = (normal(sum(n), h, 64, dtype=dtype) for n, h in ((of_q, 8), (of_k, 2), (of_k, 2)))

        def each(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
            parts = zip(*(t.split(n) for t, n in ((q, of_q), (k, of_k), (v, of_k))), strict=True)
            return torch.cat(
                [standard(*(t[None] for t in part), causal=True)[0][0] for part in parts]
            )

        def varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
            return flash_attn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 128, 128, causal=True)

        self.check(
            "flash_attn_varlen_func, causal",
            varlen,
            each,
            [q, k, v, cu_q, cu_k],
            ways={
                "eager": run,
                "side stream": on_side_stream,
                "graph": in_graph,
                "compiled": compiled("inductor" if dtype == torch.bfloat16 else "aot_eager"),
            },
            douts=[normal(sum(of_q), 8, 64, dtype=dtype)],
        )
        table = torch.randperm(40, device="cuda", dtype=torch.int32)[:32].reshape(4, 8)
        pages = [
            torch.full((40, 16, 2, 64), math.nan, dtype=dtype, device="cuda") for _ in range(2)
        ]
        for to, rows in zip(pages, (k, v), strict=True):
            for n, part in enumerate(rows.split(of_k)):
                for row in range(of_k[n]):
                    to[table[n, row // 16], row % 16] = part[row]
        self.check(
            "flash_attn_varlen_func, block_table",
            lambda q, *_: flash_attn.flash_attn_varlen_func(
                q, *pages, cu_q, cu_k, 128, 128, causal=True, block_table=table
            ),
            each,
            [q, k, v],
            ways={"eager": run, "graph": in_graph},
        )

    def cache(self) -> None:
        """Steps of generation: keys are appended and rotated in pages, one graph replayed for all
        of them."""
        dtype, batch, dim, page = self.dtype, 3, 128, 16
        used = [37, 0, 150]
        table = torch.randperm(48, device="cuda", dtype=torch.int32)[:36].reshape(3, 12)
        angles = torch.rand(192, dim // 2, device="cuda") * 6
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        steps = [[normal(batch, 1, h, dim, dtype=dtype) for h in (8, 2, 2)] for _ in range(3)]
        old = [[normal(n, 2, dim, dtype=dtype) for n in used] for _ in range(2)]

        def turned(x: Tensor, position: int) -> Tensor:
            c, s = (t[position].float() for t in (cos, sin))
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * c - b * s, b * c + a * s], -1).to(dtype)

        def pages_of(rows: list[Tensor]) -> Tensor:
            result = torch.full((48, page, 2, dim), math.nan, dtype=dtype, device="cuda")
            for n, part in enumerate(rows):
                for row in range(len(part)):
                    result[table[n, row // page], row % page] = part[row]
            return result

        def reference(q: Tensor, *_: Tensor) -> Tensor:
            outs = []
            for at, (_, new_k, new_v) in enumerate(steps):
                for n in range(batch):
                    old[0][n] = torch.cat(
                        [old[0][n][: used[n] + at], turned(new_k[n], used[n] + at)]
                    )
                    old[1][n] = torch.cat([old[1][n][: used[n] + at], new_v[n]])
                    query = turned(steps[at][0][n], used[n] + at)
                    outs.append(
                        standard(*(t[None].to(q.dtype) for t in (query, old[0][n], old[1][n])))[0][
                            0
                        ]
                    )
            return torch.cat(outs)

        def generated(graphed: bool = False, backend: str | None = None) -> Function:
            def way(
                _function: Function, _inputs: Sequence[Tensor], _douts: Sequence[Tensor]
            ) -> tuple[Tensor, ...]:
                k_cache, v_cache = (
                    pages_of([t[: used[n]] for n, t in enumerate(rows)]) for rows in old
                )
                lengths = torch.tensor(used, dtype=torch.int32, device="cuda")
                now = [t.clone() for t in steps[0]]

                def one_step() -> Tensor:
                    out = flash_attn.flash_attn_with_kvcache(
                        now[0],
                        k_cache,
                        v_cache,
                        *now[1:],
                        rotary_cos=cos,
                        rotary_sin=sin,
                        cache_seqlens=lengths,
                        block_table=table,
                        causal=True,
                        rotary_interleaved=False,
                    )
                    lengths.add_(1)
                    return out

                torch._dynamo.reset()
                step = (
                    one_step
                    if backend is None
                    else torch.compile(one_step, fullgraph=True, backend=backend)
                )
                if graphed:
                    step()  # compiles; what it appends is appended again
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        out = step()
                    lengths.copy_(torch.tensor(used))
                outs = []
                for new in steps:
                    for to, source in zip(now, new, strict=True):
                        to.copy_(source)
                    if graphed:
                        out.fill_(math.nan)
                        graph.replay()
                    else:
                        out = step()
                    outs.append(out[:, 0].clone())
                return (torch.cat(outs),)

            return way

        name = "flash_attn_with_kvcache, append, rotary, pages"
        ways = {
            "eager": generated(),
            "graph": generated(graphed=True),
            "compiled": generated(backend="aot_eager"),
        }
        self.check(name, reference, reference, [steps[0][0]], ways=ways)

    def module(self) -> None:
        layer = fulmen.torch.FlashAttention()
        q, k, v = (normal(2, 80, 4, 64, dtype=torch.float32) for _ in range(3))

        def under_autocast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with torch.autocast("cuda", self.dtype, enabled=self.dtype != torch.float32):
                return layer(q, k, v, causal=True)

        def rounded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.dtype == torch.float32:
                q, k, v = (t.to(self.dtype) for t in (q, k, v))
            return standard(q, k, v, causal=True)[0]

        dout = normal(2, 80, 4, 64, dtype=self.dtype)
        self.check(
            "FlashAttention under autocast",
            under_autocast,
            rounded,
            [q, k, v],
            ways={"eager": run},
            douts=[dout],
        )
