"""fulmen.flash_attn: signatures, values, gradients and extra results of flash_attn 2.8."""

import inspect

import numpy as np
import problems
import pytest
from problems import assert_close, attention_float64

torch = pytest.importorskip("torch")

from fulmen import flash_attn, flash_attn_interface  # noqa: E402

_COMMON = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, "
    "return_attn_probs=False"
)
_LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {_COMMON}",
    "flash_attn_qkvpacked_func": f"qkv, {_COMMON}",
    "flash_attn_kvpacked_func": f"q, kv, {_COMMON}",
    "flash_attn_varlen_func": f"q, k, v, {_LENGTHS}, {_COMMON}, block_table=None",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {_COMMON}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {_LENGTHS}, {_COMMON}",
}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "softmax_scale": 0.4},
    "window": {"window_size": (4, 2), "softcap": 3.0},
    "causal_window": {"window_size": (6, 5), "causal": True, "deterministic": True},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.125, 1.0]},
}


def given(name):
    options = dict(OPTIONS[name])
    if "alibi_slopes" in options:
        options["alibi_slopes"] = torch.tensor(options["alibi_slopes"])
    return options


def expected_options(name):
    options = dict(OPTIONS[name])
    left, right = options.pop("window_size", (-1, -1))
    options.pop("deterministic", None)
    return {**options, "window_left": left, "window_right": right}


def normal(rng, *shape, dtype=torch.float32, grad=True):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype).requires_grad_(grad)


def exact(
    q,
    k,
    v,
    causal=False,
    window_left=-1,
    window_right=-1,
    softmax_scale=None,
    softcap=0.0,
    alibi_slopes=None,
):
    """One sequence, [seqlen, heads, dim], in differentiable float64."""
    q, k, v = (t.double().transpose(0, 1) for t in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * (softmax_scale or q.shape[2] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = (
        torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    )
    if alibi_slopes is not None:
        scores = (
            scores - torch.tensor(alibi_slopes, dtype=torch.float64)[:, None, None] * distance.abs()
        )
    right = 0 if causal else window_right
    attended = torch.ones_like(distance, dtype=torch.bool)
    if right >= 0:
        attended &= distance <= right
    if window_left >= 0:
        attended &= distance >= -window_left
    softmax = torch.where(attended, scores, -torch.inf).softmax(-1).nan_to_num()
    return (softmax @ v).transpose(0, 1), softmax


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]
    assert name in flash_attn.__all__


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIONS)
def test_dense(name, dtype, rng):
    q = normal(rng, 2, 19, 4, 16, dtype=dtype)
    kv = normal(rng, 2, 23, 2, 2, 16, dtype=dtype)
    out, lse, probabilities = flash_attn.flash_attn_kvpacked_func(
        q, kv, **given(name), return_attn_probs=True
    )
    as_numpy = {
        k: np.asarray(v) if k == "alibi_slopes" else v for k, v in expected_options(name).items()
    }
    expected, expected_lse = attention_float64(
        *(t.detach().double().numpy() for t in (q, *kv.unbind(2))), **as_numpy
    )
    kind = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    assert_close(out.detach().double(), expected, kind)
    assert_close(lse.detach(), expected_lse, "fp32", "lse")
    assert out.dtype == dtype and probabilities.numel() == 0
    alone = flash_attn.flash_attn_func(q, *kv.unbind(2), **given(name))
    assert torch.equal(alone, out)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name, rng):
    qkv = normal(rng, 2, 19, 3, 4, 16)
    weight = normal(rng, 2, 19, 4, 16, grad=False)
    out = flash_attn.flash_attn_qkvpacked_func(qkv, **given(name))
    (gradient,) = torch.autograd.grad((out * weight).sum(), qkv)
    double = qkv.detach().double().requires_grad_()
    expected = torch.stack([exact(*one.unbind(1), **expected_options(name))[0] for one in double])
    assert_close(out.detach(), expected.detach(), "fp32")
    assert_close(
        gradient, torch.autograd.grad((expected * weight).sum(), double)[0], "fp32", "gradient"
    )


LENGTHS_Q, LENGTHS_K = [7, 0, 12, 1], [9, 4, 12, 20]


def lengths():
    cu = [torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (LENGTHS_Q, LENGTHS_K)]
    return cu[0], cu[1], max(LENGTHS_Q), max(LENGTHS_K)


@pytest.mark.parametrize("name", OPTIONS)
def test_varlen(name, rng):
    q, kv = normal(rng, sum(LENGTHS_Q), 4, 16), normal(rng, sum(LENGTHS_K), 2, 2, 16)
    weight = normal(rng, sum(LENGTHS_Q), 4, 16, grad=False)
    settings = given(name)
    out, lse, probabilities = flash_attn.flash_attn_varlen_kvpacked_func(
        q, kv, *lengths(), **settings, return_attn_probs=True
    )
    assert lse.shape == (4, sum(LENGTHS_Q)) and probabilities.numel() == 0
    gradients = torch.autograd.grad((out * weight).sum(), (q, kv))
    doubles = [t.detach().double().requires_grad_() for t in (q, kv)]
    parts = zip(doubles[0].split(LENGTHS_Q), doubles[1].split(LENGTHS_K), strict=True)
    expected = torch.cat([exact(a, *b.unbind(1), **expected_options(name))[0] for a, b in parts])
    assert_close(out.detach(), expected.detach(), "fp32")
    for ours, theirs in zip(
        gradients, torch.autograd.grad((expected * weight).sum(), doubles), strict=True
    ):
        assert_close(ours, theirs, "fp32", "gradient")

    cu_q, _, longest, _ = lengths()
    qkv = torch.stack([q, q * 0.5, q + 1], 1)
    both = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu_q, longest, **settings)
    assert torch.equal(
        both,
        flash_attn.flash_attn_varlen_func(*qkv.unbind(1), cu_q, cu_q, longest, longest, **settings),
    )


def test_paged(rng):
    q, k, v = (
        normal(rng, n, h, 16, grad=False)
        for n, h in ((sum(LENGTHS_Q), 4), (sum(LENGTHS_K), 2), (sum(LENGTHS_K), 2))
    )
    expected = flash_attn.flash_attn_varlen_func(q, k, v, *lengths(), causal=True)
    pages, table = (
        [torch.full((12, 8, 2, 16), torch.nan) for _ in range(2)],
        torch.zeros(4, 3, dtype=torch.int32),
    )
    order = iter(torch.randperm(12).tolist())
    for n, parts in enumerate(zip(k.split(LENGTHS_K), v.split(LENGTHS_K), strict=True)):
        for at in range(-(-LENGTHS_K[n] // 8)):
            table[n, at] = page = next(order)
            for to, part in zip(pages, parts, strict=True):
                rows = part[at * 8 : at * 8 + 8]
                to[page, : len(rows)] = rows
    out = flash_attn.flash_attn_varlen_func(q, *pages, *lengths(), causal=True, block_table=table)
    assert_close(out, expected.double(), "fp32")


@pytest.mark.parametrize("varlen", [False, True])
def test_dropout(varlen, rng):
    settings = {"dropout_p": 0.25, "causal": True, "return_attn_probs": True}
    if varlen:
        q, kv = normal(rng, sum(LENGTHS_Q), 4, 16), normal(rng, sum(LENGTHS_K), 2, 2, 16)
        torch.manual_seed(problems.SEED)
        out, _, signed = flash_attn.flash_attn_varlen_kvpacked_func(q, kv, *lengths(), **settings)
        assert signed.shape == (4, 4, max(LENGTHS_Q), max(LENGTHS_K))
        sequences = [
            (*t, n) for *t, n in zip(q.split(LENGTHS_Q), kv.split(LENGTHS_K), range(4), strict=True)
        ]
        outs = out.split(LENGTHS_Q)
    else:
        q, kv = normal(rng, 2, 19, 4, 16), normal(rng, 2, 300, 2, 2, 16)
        torch.manual_seed(problems.SEED)
        out, _, signed = flash_attn.flash_attn_kvpacked_func(q, kv, **settings)
        sequences, outs = [(q[n], kv[n], n) for n in range(2)], out
    dropped = total = 0
    for a, b, n in sequences:
        part = signed[n, :, : len(a), : len(b)]
        _, softmax = exact(a, *b.unbind(1), causal=True)
        assert_close(part.detach().abs(), softmax.detach(), "fp32", "S_dmask")
        values = b[:, 1].repeat_interleave(2, 1).transpose(0, 1).double()
        expected = (part.double().clamp(min=0) / 0.75 @ values).transpose(0, 1)
        assert_close(outs[n].detach(), expected.detach(), "fp32")
        dropped, total = dropped + (part < 0).sum().item(), total + (part != 0).sum().item()
    assert 0.15 < dropped / total < 0.35  # dropout_p is a multiple of 1 / 65536
    # torch's generator draws, also where no softmax is wanted; the gradient is that of the same
    # elements.
    call = (
        flash_attn.flash_attn_varlen_kvpacked_func
        if varlen
        else flash_attn.flash_attn_kvpacked_func
    )
    outs = []
    for seed in (problems.SEED, problems.SEED, problems.SEED + 1):
        torch.manual_seed(seed)
        outs.append(call(q, kv, *(lengths() if varlen else ()), dropout_p=0.25, causal=True))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    (dq,) = torch.autograd.grad(outs[0].sum(), q)
    assert dq.isfinite().all() and dq.abs().max() > 0


def test_refusals(rng):
    q, kv = normal(rng, sum(LENGTHS_Q), 4, 16), normal(rng, sum(LENGTHS_K), 2, 2, 16)
    with pytest.raises(
        ValueError,
        match=r"kv has shape \[45, 2, 2, 16\]: \[batch, seqlen_k, 2, kv_heads, head_dim\] is "
        r"accepted",
    ):
        flash_attn.flash_attn_kvpacked_func(q, kv)
    with pytest.raises(
        ValueError, match=r"qkv has shape .*: \[total, 3, heads, head_dim\] is accepted"
    ):
        flash_attn.flash_attn_varlen_qkvpacked_func(kv, *lengths()[::2])
    with pytest.raises(
        NotImplementedError, match=r"dropout_p is 0.5 beside a block_table: 0 is accepted"
    ):
        flash_attn.flash_attn_varlen_func(q, q, q, *lengths(), 0.5, block_table=lengths()[0])
    for window in (3, None, (1, 2, 3)):
        with pytest.raises(
            ValueError,
            match=r"window_size is .*: \(left, right\) is accepted, below 0 is unlimited",
        ):
            flash_attn.flash_attn_func(q[None], q[None], q[None], window_size=window)
    with pytest.raises(ValueError, match=r"^dropout_p is 1\.5"):
        flash_attn.flash_attn_func(q[None], q[None], q[None], dropout_p=1.5)
    with pytest.raises(TypeError, match=r"^window_size\[0\] is 'a'"):
        flash_attn.flash_attn_func(q[None], q[None], q[None], window_size=("a", 1))
    cache = kv.detach()[None, :, 0].clone(), kv.detach()[None, :, 1].clone()
    step = q.detach()[None, :1], *cache, kv.detach()[None, :1, 0], kv.detach()[None, :1, 1]
    with pytest.raises(
        ValueError, match=r"^cache_seqlens\[0\] is 99: with 1 new rows 0 to 44 are accepted"
    ):
        flash_attn.flash_attn_with_kvcache(*step, cache_seqlens=np.int64(99))
    with pytest.raises(TypeError, match=r"^cache_seqlens has dtype float32: int32 is accepted"):
        flash_attn.flash_attn_with_kvcache(*step, cache_seqlens=torch.tensor([3.0]))
    with pytest.raises(ValueError, match=r"^k\.shape is \[1, 1, 1, 16\]"):
        flash_attn.flash_attn_with_kvcache(
            *step[:3], step[3][:, :, :1], step[4][:, :, :1], cache_seqlens=3
        )
    with pytest.raises(
        TypeError, match="cu_seqlens_q has dtype float32: int32 is accepted, and other"
    ):
        flash_attn.flash_attn_varlen_kvpacked_func(q, kv, lengths()[0].float(), *lengths()[1:])
    with pytest.raises(ValueError, match=r"^max_seqlen_q is None: beside cu_seqlens_q"):
        flash_attn.flash_attn_varlen_kvpacked_func(q, kv, *lengths()[:2], None, 20)
    qkv = q[:, None, :].expand(-1, 3, -1, -1)
    with pytest.raises(ValueError, match=r"^max_seqlen is None: beside cu_seqlens the length"):
        flash_attn.flash_attn_varlen_qkvpacked_func(qkv, lengths()[0], None)
    with pytest.raises(ValueError, match=r"^kv\[:, :, 0\]\.shape is \[1, 45, 2, 8\]"):
        flash_attn.flash_attn_kvpacked_func(q[None], kv[None, ..., :8])
    with pytest.raises(TypeError, match=r"^qkv\[:, :, 0\] has dtype float64"):
        flash_attn.flash_attn_qkvpacked_func(qkv[None].double())


OTHER_NAMES = {
    "scale": "here it is called softmax_scale$",
    "is_causal": "here it is called causal$",
    "dropout": "here it is called dropout_p$",
    "window_left": "here it is called window_size$",
    "attn_mask": r"of this library's functions fulmen.attention takes such, as bias \(added to the "
    r"scores\) or keep_mask",
    "sinks": "of this library's functions fulmen.attention takes such, as sinks$",
    "colour": "q, k, v, .* are accepted$",
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_of_other_libraries(name, rng):
    q = normal(rng, 1, 3, 2, 8)
    for function in (flash_attn.flash_attn_func, flash_attn_interface.flash_attn_func):
        if name == "dropout" and function is flash_attn_interface.flash_attn_func:
            continue  # FlashAttention 3 has none
        with pytest.raises(
            TypeError,
            match=rf"flash_attn_func\(\) got an unexpected keyword argument '{name}': "
            rf"{OTHER_NAMES[name]}",
        ):
            function(q, q, q, **{name: 1})
    for module in (flash_attn, flash_attn_interface):
        called = "block_table" if module is flash_attn else "page_table"
        with pytest.raises(
            TypeError,
            match=f"flash_attn_with_kvcache.. got an unexpected .* here it is called {called}$",
        ):
            module.flash_attn_with_kvcache(q, q, q, block_tables=None)


def test_autocast(rng):
    q, kv = normal(rng, sum(LENGTHS_Q), 4, 16), normal(rng, sum(LENGTHS_K), 2, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = flash_attn.flash_attn_varlen_kvpacked_func(q, kv, *lengths(), causal=True)
    (dq,) = torch.autograd.grad(out.float().sum(), q)
    assert out.dtype == torch.bfloat16 and dq.dtype == torch.float32
    rounded = q.bfloat16(), kv.bfloat16(), *lengths()
    assert torch.equal(out, flash_attn.flash_attn_varlen_kvpacked_func(*rounded, causal=True))


@pytest.mark.parametrize("name", SIGNATURES)
def test_strided_last_dim(name, rng, capfd, monkeypatch):
    """As in flash_attn, tensors that are not contiguous are copied; gradients have the original's
    layout.
    """
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    function = getattr(flash_attn, name)
    varlen, packed = "varlen" in name, 3 if "qkvpacked" in name else 2 if "kvpacked" in name else 0
    lead = (20,) if varlen else (2, 20)
    shapes = (
        [(*lead, 3, 2, 16)]
        if packed == 3
        else [(*lead, 2, 16), (*lead, 2, 2, 16)]
        if packed
        else [(*lead, 2, 16)] * 3
    )
    wide = [normal(rng, *shape[:-1], 32) for shape in shapes]
    strided = [t[..., ::2] for t in wide]
    cu = [0, 7, 20]
    where = () if not varlen else (cu, 13) if packed == 3 else (cu, cu, 13, 13)
    out = function(*strided, *where, causal=True)
    assert "is copied before: its last dim has a stride of 2" in capfd.readouterr().err
    weight = torch.ones_like(out)
    gradients = torch.autograd.grad((out * weight).sum(), wide)
    contiguous = [t.detach().contiguous().requires_grad_() for t in strided]
    expected = function(*contiguous, *where, causal=True)
    assert torch.equal(out, expected) and "copied before" not in capfd.readouterr().err
    for ours, theirs in zip(
        gradients, torch.autograd.grad((expected * weight).sum(), contiguous), strict=True
    ):
        assert torch.equal(ours[..., ::2], theirs) and not ours[..., 1::2].any()
    compiled = torch.compile(
        lambda *t: function(*t, *where, causal=True), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(*strided), expected)


def test_options_of_numpy_and_torch(rng):
    q, k, v = (normal(rng, 2, 19, 4, 16) for _ in range(3))
    slopes = [0.5, 0.25, 0.125, 1.0]
    expected = flash_attn.flash_attn_func(
        q, k, v, 0.0, 0.5, True, (3, 0), 2.0, torch.tensor(slopes), True
    )
    kinds = (
        (np.float32, np.int64, np.True_),
        (torch.tensor, torch.tensor, torch.tensor(True)),
        (float, int, 1),
    )
    for number, integer, yes in kinds:
        options = (
            number(0.0),
            number(0.5),
            yes,
            (integer(3), integer(0)),
            number(2.0),
            slopes,
            yes,
            np.False_,
        )
        assert torch.equal(flash_attn.flash_attn_func(q, k, v, *options), expected)
        with torch.overrides.BaseTorchFunctionMode():  # through the dispatcher
            assert torch.equal(flash_attn.flash_attn_func(q, k, v, *options), expected)
        cu, most = torch.tensor([0, 7, 19]), integer(12)
        outs = [
            flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], cu, cu, n, n, *options)
            for n in (most, 12)
        ]
        assert torch.equal(*outs)


def test_messages_name_what_is_none(rng):
    qkv = normal(rng, 2, 19, 3, 4, 16)
    q = qkv[:, :, 0]
    for call, message in (
        (
            lambda: flash_attn.flash_attn_qkvpacked_func(None),
            r"^qkv is None: a torch tensor is needed",
        ),
        (
            lambda: flash_attn.flash_attn_kvpacked_func(q, [1]),
            r"^kv is of type list: a torch tensor is needed",
        ),
        (
            lambda: flash_attn.flash_attn_with_kvcache(None, q, q),
            r"^q is None: a torch tensor is needed",
        ),
        (
            lambda: flash_attn.flash_attn_with_kvcache(q, q, None),
            r"^v_cache is None: a torch tensor is needed",
        ),
        (
            lambda: flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], None, [0, 19], 19, 19),
            r"^cu_seqlens_q is None: \[batch \+ 1\]",
        ),
        (
            lambda: flash_attn.flash_attn_varlen_qkvpacked_func(qkv[0], None, 19),
            r"^cu_seqlens is None: \[batch \+ 1\]",
        ),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    for index in ([0], [[0], [1]]):
        with pytest.raises(
            ValueError, match=r"^cache_batch_idx has shape \[.*\]: \[batch\] = \[2\] is accepted"
        ):
            flash_attn.flash_attn_with_kvcache(q, q, q, cache_batch_idx=index)
