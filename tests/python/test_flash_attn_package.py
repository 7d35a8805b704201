"""What flash_attn's users import beside its functions: padding, rotary embeddings, FlashAttention
3's functions."""

import inspect

import numpy as np
import pytest
from problems import assert_close, attention_float64

torch = pytest.importorskip("torch")

import fulmen.flash_attn_interface as flash_attn_3  # noqa: E402
from fulmen.flash_attn import bert_padding  # noqa: E402
from fulmen.flash_attn.layers import rotary  # noqa: E402


def normal(rng, *shape, dtype=torch.float32, grad=False):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype).requires_grad_(grad)


def test_padding(rng):
    x = normal(rng, 3, 7, 2, 5, grad=True)
    mask = torch.from_numpy(rng.random((3, 7)) < 0.6)
    mask[1], mask[2, 3] = False, True
    rows, indices, cu, longest, used = bert_padding.unpad_input(x, mask.long())
    assert torch.equal(rows, x[mask]) and cu.dtype == torch.int32
    assert (
        cu.tolist() == [0, *np.cumsum(mask.sum(1)).tolist()]
        and longest == mask.sum(1).max()
        and used.tolist() == mask.sum(1).tolist()
    )
    padded = bert_padding.pad_input(rows, indices.int(), 3, 7)
    assert torch.equal(padded, x * mask[:, :, None, None])
    weight = normal(rng, 3, 7, 2, 5)
    assert torch.equal(
        torch.autograd.grad((padded * weight).sum(), x)[0], weight * mask[:, :, None, None]
    )
    unused = ~mask & (torch.arange(7) < 4)
    rows, indices, cu, longest, used = bert_padding.unpad_input(x, mask, unused)
    assert (
        torch.equal(rows, x[mask | unused])
        and used.tolist() == mask.sum(1).tolist()
        and cu[-1] == (mask | unused).sum()
    )

    lengths = torch.tensor([[2, 3, 0, 0, 0, 0, 0], [0] * 7, [1, 4, 2, 0, 0, 0, 0]])
    rows, indices, cu, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert (
        torch.equal(rows, torch.cat([x[0, :5], x[2, :7]]))
        and cu.tolist() == [0, 2, 5, 6, 10, 12]
        and longest == 4
    )
    assert torch.equal(bert_padding.index_first_axis(x[0], torch.tensor([4, 0])), x[0][[4, 0]])


def rotated(x, cos, sin, positions, interleaved):
    """[rows, heads, dim] by complex numbers in float64."""
    half = cos.shape[1]
    x = np.asarray(x, np.float64)
    pairs = (
        (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2])
        if interleaved
        else (x[..., :half], x[..., half : 2 * half])
    )
    turn = (np.asarray(cos, np.float64) + 1j * np.asarray(sin, np.float64))[positions][:, None]
    z = (pairs[0] + 1j * pairs[1]) * turn
    out = x.copy()
    if interleaved:
        out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2] = z.real, z.imag
    else:
        out[..., :half], out[..., half : 2 * half] = z.real, z.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_rotary(interleaved, inplace, rng):
    angle = normal(rng, 20, 6)
    cos, sin = angle.cos(), angle.sin()
    x, weight = normal(rng, 2, 9, 3, 16, grad=True), normal(rng, 2, 9, 3, 16)
    for offsets in (4, torch.tensor([3, 11], dtype=torch.int32)):
        given = x.clone() if inplace else x
        out = rotary.apply_rotary_emb(given, cos, sin, interleaved, inplace, offsets)
        assert (out is given) == inplace
        (dx,) = torch.autograd.grad((out * weight).sum(), x)
        for n in range(2):
            at = np.arange(9) + (offsets if isinstance(offsets, int) else int(offsets[n]))
            assert_close(out[n].detach(), rotated(x[n].detach(), cos, sin, at, interleaved), "fp32")
            assert_close(dx[n], rotated(weight[n], cos, -sin, at, interleaved), "fp32")
    cu = torch.tensor([0, 4, 4, 9, 18], dtype=torch.int32)
    out = rotary.apply_rotary_emb(
        x.flatten(0, 1), cos, sin, interleaved, cu_seqlens=cu, max_seqlen=9
    )
    at = np.concatenate([np.arange(n) for n in (4, 0, 5, 9)])
    assert_close(out.detach(), rotated(x.detach().flatten(0, 1), cos, sin, at, interleaved), "fp32")
    with pytest.raises(ValueError, match=r"cos.shape is \[20, 6\]: 24 rows are needed"):
        rotary.apply_rotary_emb(x, cos, sin, seqlen_offsets=15)


@pytest.mark.parametrize("scale_base", [None, 512])
def test_rotary_packed_and_module(scale_base, rng):
    module = rotary.RotaryEmbedding(8, interleaved=False, scale_base=scale_base)
    qkv, leaf = normal(rng, 2, 5, 3, 4, 8), normal(rng, 2, 5, 6, 8, grad=True)
    before = qkv.clone()
    assert module(qkv, seqlen_offset=2) is qkv
    angle = np.arange(7)[:, None] * 10000.0 ** (-np.arange(0, 8, 2) / 8)
    zeta = (
        ((np.arange(0, 8, 2) + 3.2) / 11.2) ** ((np.arange(7)[:, None] - 3) / 512)
        if scale_base
        else np.ones_like(angle)
    )
    for n in range(2):
        for slot, scale in ((0, zeta), (1, 1 / zeta)):
            expected = rotated(
                before[n, :, slot],
                np.cos(angle) * scale,
                np.sin(angle) * scale,
                np.arange(2, 7),
                False,
            )
            assert_close(qkv[n, :, slot], expected, "fp32")
    assert torch.equal(qkv[:, :, 2], before[:, :, 2])
    q, kv = module(before[:, :, 0].clone(), before[:, :, 1:].clone(), seqlen_offset=2)
    assert torch.equal(q, qkv[:, :, 0]) and torch.equal(kv, qkv[:, :, 1:])
    # 4 query heads and one of k and v each, and its gradient.
    cos, sin = torch.from_numpy(np.cos(angle)).float(), torch.from_numpy(np.sin(angle)).float()
    out = rotary.apply_rotary_emb_qkv_(leaf.clone(), cos, sin, num_heads_q=4)
    weight = normal(rng, 2, 5, 6, 8)
    (gradient,) = torch.autograd.grad((out * weight).sum(), leaf)
    for values, given, s in ((out.detach(), leaf.detach(), sin), (gradient, weight, -sin)):
        assert_close(
            values[0, :, :5], rotated(given[0, :, :5], cos, s, np.arange(5), False), "fp32"
        )
        assert torch.equal(values[0, :, 5], given[0, :, 5])


FP8 = "q_descale=None, k_descale=None, v_descale=None"
TAIL = "window_size=(-1, -1), attention_chunk=0, softcap=0.0"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, softmax_scale=None, causal=False, qv=None, {FP8}, {TAIL}, "
    "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, "
    "return_attn_probs=False",
    "flash_attn_qkvpacked_func": f"qkv, softmax_scale=None, causal=False, {FP8}, {TAIL}, "
    "deterministic=False, num_heads_q=None, sm_margin=0, "
    "return_attn_probs=False",
    "flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, "
    "max_seqlen_k=None, seqused_q=None, seqused_k=None, "
    f"softmax_scale=None, causal=False, qv=None, {FP8}, {TAIL}, "
    "num_splits=1, pack_gqa=None, deterministic=False, "
    "sm_margin=0, return_attn_probs=False",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, "
    "rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, "
    "cache_leftpad=None, page_table=None, cu_seqlens_q=None, "
    "cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, "
    f"{FP8}, softmax_scale=None, causal=False, {TAIL}, "
    "rotary_interleaved=True, scheduler_metadata=None, num_splits=0, "
    "pack_gqa=None, sm_margin=0, return_softmax_lse=False",
    "flash_attn_combine": "out_partial, lse_partial, out=None, out_dtype=None",
    "get_scheduler_metadata": "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, "
    "headdim, cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, "
    "cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None, "
    "page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, "
    "-1), attention_chunk=0, has_softcap=False, num_splits=0, "
    "pack_gqa=None, sm_margin=0",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_of_flash_attention_3(name):
    parameters = inspect.signature(getattr(flash_attn_3, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]


def float64(q, k, v, **options):
    return attention_float64(*(t.detach().double().numpy() for t in (q, k, v)), **options)


def close_with_gradients(out, inputs, expected_of, rng):
    """expected_of: out of float64 leaves."""
    weight = normal(rng, *out.shape)
    leaves = [t.detach().double().requires_grad_() for t in inputs]
    expected = expected_of(*leaves)
    assert_close(out.detach(), expected.detach(), "fp32")
    ours = torch.autograd.grad((out * weight).sum(), inputs)
    for one, other in zip(
        ours, torch.autograd.grad((expected * weight).sum(), leaves), strict=True
    ):
        assert_close(one, other, "fp32", "gradient")


def double_attention(q, k, v, causal=False, left=-1, softcap=0.0, chunk=0):
    """[seqlen, heads, dim] of one sequence. chunk: FlashAttention 3's attention_chunk."""
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * q.shape[2] ** -0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    distance = (
        torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    )
    attended = (distance <= 0 if causal else distance < 10**6) & (
        distance >= -left if left >= 0 else distance > -(10**6)
    )
    if chunk:
        key, position = (
            torch.arange(k.shape[1]),
            torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1],
        )
        attended &= (key // chunk) == torch.div(position, chunk, rounding_mode="floor")
    return (torch.where(attended, scores, -torch.inf).softmax(-1).nan_to_num() @ v).transpose(0, 1)


@pytest.mark.parametrize("rows_q, rows_k", [(12, 12), (5, 14), (14, 5), (1, 9), (6, 0)])
@pytest.mark.parametrize("chunk", [1, 4, 5, 100, 2**40])
def test_flash_attention_3_chunks(rows_q, rows_k, chunk, rng, capfd, monkeypatch):
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    q, k, v = (
        normal(rng, 2, n, h, 8, grad=True) for n, h in ((rows_q, 4), (rows_k, 2), (rows_k, 2))
    )
    for causal, left in ((False, -1), (True, -1), (True, 2)):
        options = {
            "causal": causal,
            "window_size": (left, 0 if causal else -1),
            "attention_chunk": chunk,
        }
        out, lse = flash_attn_3.flash_attn_func(q, k, v, return_attn_probs=True, **options)
        assert lse.shape == (2, 4, rows_q) and torch.equal(
            lse == -torch.inf, (out == 0).all(3).transpose(1, 2)
        )
        close_with_gradients(
            out,
            (q, k, v),
            lambda *t, causal=causal, left=left: torch.stack(
                [double_attention(*one, causal, left, chunk=chunk) for one in zip(*t, strict=True)]
            ),
            rng,
        )
    assert "attention_chunk is served as packed sequences, " in capfd.readouterr().err


def test_flash_attention_3_chunks_of_packed_sequences(rng):
    lengths_q, lengths_k = [7, 3, 0, 12], [9, 4, 5, 2]
    q, k, v = (
        normal(rng, sum(n), h, 16, grad=True)
        for n, h in ((lengths_q, 4), (lengths_k, 2), (lengths_k, 2))
    )
    cu_q, cu_k = (
        torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (lengths_q, lengths_k)
    )
    for causal in (False, True):
        out = flash_attn_3.flash_attn_varlen_func(
            q, k, v, cu_q, cu_k, 12, 9, causal=causal, attention_chunk=3
        )

        def expected(*tensors, causal=causal):
            sequences = zip(
                *(
                    t.split(n)
                    for t, n in zip(tensors, (lengths_q, lengths_k, lengths_k), strict=True)
                ),
                strict=True,
            )
            return torch.cat([double_attention(*one, causal, chunk=3) for one in sequences])

        close_with_gradients(out, (q, k, v), expected, rng)
    with pytest.raises(ValueError, match=r"cu_seqlens_q\[6\] is 7: sequence 5 would have 6 rows"):
        flash_attn_3.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 12, 6, attention_chunk=3)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("rows_q", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_3_chunks_of_a_cache(paged, rows_q, causal, rng):
    """Lengths that end in a chunk, at its end, and before the first query, behind rows that are not
    used."""
    used, unused, chunk = [6, 11, 1 + rows_q, 16], [1, 3, 2, 0], 4
    page_size, pages = (4, 4) if paged else (16, 1)
    k_cache, v_cache = (normal(rng, 4 * pages, page_size, 2, 16) for _ in "kv")
    table = torch.randperm(4 * pages).view(4, pages).to(torch.int32)
    if not paged:
        table = torch.arange(4)[:, None]
    q = normal(rng, 4, rows_q, 4, 16)
    arguments = {
        "cache_seqlens": torch.tensor(used, dtype=torch.int32),
        "cache_leftpad": torch.tensor(unused, dtype=torch.int32),
        "page_table": table if paged else None,
        "attention_chunk": chunk,
    }
    out = flash_attn_3.flash_attn_with_kvcache(
        q, k_cache, v_cache, causal=causal, window_size=(3, 3), **arguments
    )
    wide = flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, causal=causal, **arguments)
    for n in range(4):
        keys, values = (
            t[table[n].long()].flatten(0, 1)[unused[n] : used[n]].double()
            for t in (k_cache, v_cache)
        )
        expected = double_attention(q[n].double(), keys, values, causal, chunk=chunk)
        assert_close(wide[n], expected, "fp32")
        # A chunk of 4 keys has none more than 3 away.
        assert_close(out[n], expected, "fp32")
    rows = torch.tensor([0, 1, 1 + rows_q, 2 + rows_q, 3 + rows_q], dtype=torch.int32)
    packed = q.flatten(0, 1)[: 3 + rows_q]
    out = flash_attn_3.flash_attn_with_kvcache(
        packed, k_cache, v_cache, causal=causal, cu_seqlens_q=rows, max_seqlen_q=rows_q, **arguments
    )
    for n in range(4):
        keys, values = (
            t[table[n].long()].flatten(0, 1)[unused[n] : used[n]].double()
            for t in (k_cache, v_cache)
        )
        expected = double_attention(
            packed[rows[n] : rows[n + 1]].double(), keys, values, causal, chunk=chunk
        )
        assert_close(out[rows[n] : rows[n + 1]], expected, "fp32")


def test_flash_attention_3(rng):
    q, k, v = (normal(rng, 2, n, h, 16, grad=True) for n, h in ((9, 4), (13, 2), (13, 2)))
    out, lse = flash_attn_3.flash_attn_func(
        q, k, v, causal=True, window_size=(5, 0), softcap=4.0, return_attn_probs=True, num_splits=3
    )
    expected_lse = float64(q, k, v, causal=True, window_left=5, softcap=4.0)[1]
    assert_close(lse.detach(), expected_lse, "fp32", "lse")
    close_with_gradients(
        out,
        (q, k, v),
        lambda *t: torch.stack(
            [double_attention(*one, True, 5, 4.0) for one in zip(*t, strict=True)]
        ),
        rng,
    )
    qkv = torch.cat([q, k[:, :9], v[:, :9]], 2)
    packed = flash_attn_3.flash_attn_qkvpacked_func(qkv, causal=True, num_heads_q=4)
    assert_close(packed.detach(), float64(q, k[:, :9], v[:, :9], causal=True)[0], "fp32")
    three = torch.stack([q, q + 1, q * 2], 2)
    assert_close(
        flash_attn_3.flash_attn_qkvpacked_func(three).detach(), float64(q, q + 1, q * 2)[0], "fp32"
    )


def test_flash_attention_3_used_lengths(rng):
    lengths_q, lengths_k, used_q, used_k = [7, 3, 12], [9, 4, 12], [5, 0, 12], [9, 2, 7]
    q, k, v = (normal(rng, n, h, 16, grad=True) for n, h in ((22, 4), (25, 2), (25, 2)))
    cu_q, cu_k = (
        torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (lengths_q, lengths_k)
    )
    used = [torch.tensor(n, dtype=torch.int32) for n in (used_q, used_k)]
    out, lse = flash_attn_3.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 12, 12, *used, causal=True, return_attn_probs=True
    )
    assert (
        lse.shape == (4, 22) and (lse[:, 5:10] == -torch.inf).all() and lse[:, :5].isfinite().all()
    )

    def expected(a, b, c):
        parts = zip(
            *(t.split(n) for t, n in ((a, lengths_q), (b, lengths_k), (c, lengths_k))),
            used_q,
            used_k,
            strict=True,
        )
        return torch.cat(
            [
                torch.cat([double_attention(x[:n], y[:m], z[:m], True), x[n:].detach() * 0])
                for x, y, z, n, m in parts
            ]
        )

    close_with_gradients(out, (q, k, v), expected, rng)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_flash_attention_3_cache(paged, causal, packed, rng):
    """Queries and new keys of different lengths, rotated from positions of their own."""
    used, new = [5, 0, 11], ([3, 1, 2] if packed else [2, 2, 2])
    angle = normal(rng, 40, 4)
    cos, sin = angle.cos(), angle.sin()
    page_size, pages = (4, 4) if paged else (16, 1)
    k_cache, v_cache = (
        (normal(rng, 14, page_size, 2, 16) for _ in "kv")
        if paged
        else (normal(rng, 3, 16, 2, 16) for _ in "kv")
    )
    table = (
        torch.randperm(14)[: 3 * pages].view(3, pages).to(torch.int32)
        if paged
        else torch.arange(3)[:, None]
    )
    before = [t[table.long()].flatten(1, 2).double().numpy() for t in (k_cache, v_cache)]
    q, k, v = (normal(rng, sum(new), h, 16) for h in (4, 2, 2))
    start = torch.tensor([7, 2, 20], dtype=torch.int32)
    cu = torch.tensor([0, *np.cumsum(new)], dtype=torch.int32)
    given = (q, k, v) if packed else tuple(t.unflatten(0, (3, 2)) for t in (q, k, v))
    result = flash_attn_3.flash_attn_with_kvcache(
        given[0],
        k_cache,
        v_cache,
        *given[1:],
        rotary_cos=cos,
        rotary_sin=sin,
        cache_seqlens=torch.tensor(used, dtype=torch.int32),
        page_table=table if paged else None,
        cu_seqlens_q=cu if packed else None,
        cu_seqlens_k_new=cu if packed else None,
        max_seqlen_q=max(new) if packed else None,
        rotary_seqlens=start,
        rotary_interleaved=False,
        causal=causal,
        return_softmax_lse=True,
        scheduler_metadata=flash_attn_3.get_scheduler_metadata(
            3, 3, 16, 4, 2, 16, torch.tensor(used)
        ),
    )
    assert len(result) == 4 and result[2].numel() == 0
    out, lse = (
        result[0].reshape(-1, 4, 16),
        result[1] if packed else result[1].transpose(0, 1).flatten(1),
    )
    for n in range(3):
        rows = slice(sum(new[:n]), sum(new[: n + 1]))
        at = int(start[n]) + np.arange(new[n])
        turned_q = rotated(q[rows], cos, sin, at if causal else at * 0 + int(start[n]), False)
        keys = np.concatenate([before[0][n, : used[n]], rotated(k[rows], cos, sin, at, False)])
        values = np.concatenate([before[1][n, : used[n]], v[rows].double().numpy()])
        expected, expected_lse = attention_float64(
            turned_q[None], keys[None], values[None], causal=causal
        )
        assert_close(out[rows], expected[0], "fp32")
        assert_close(lse[:, rows], expected_lse[0], "fp32", "lse")
        held = k_cache[table[n].long()].flatten(0, 1)
        assert_close(held[: len(keys)], keys, "fp32", "k_cache")
        assert np.array_equal(held[len(keys) :].double().numpy(), before[0][n, len(keys) :])


def test_flash_attention_3_plain_cache_and_combine(rng):
    q, k, v = (normal(rng, 2, n, h, 16) for n, h in ((3, 4), (13, 2), (13, 2)))
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=9, return_softmax_lse=True
    )
    expected, expected_lse = float64(q, k[:, :9], v[:, :9])
    assert_close(out, expected, "fp32")
    assert_close(lse, expected_lse, "fp32", "lse")
    parts = [
        flash_attn_3.flash_attn_func(q, k[:, s], v[:, s], return_attn_probs=True)
        for s in (slice(0, 4), slice(4, 4), slice(4, 13))
    ]
    outs, lses = (
        torch.stack([p[0] for p in parts]),
        torch.stack([p[1].transpose(1, 2) for p in parts]),
    )
    outs[1] = torch.nan
    merged, merged_lse = flash_attn_3.flash_attn_combine(outs, lses)
    expected, expected_lse = float64(q, k, v)
    assert_close(merged, expected, "fp32")
    assert_close(merged_lse.transpose(1, 2), expected_lse, "fp32", "lse")


def test_flash_attention_3_refusals(rng):
    q = normal(rng, 1, 3, 2, 16)
    one = torch.ones(1)
    bounds = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(
        NotImplementedError, match="qv is given: Fulmen has no such attention, None is accepted"
    ):
        flash_attn_3.flash_attn_varlen_func(q[0], q[0], q[0], bounds, bounds, qv=one)
    with pytest.raises(NotImplementedError, match="qv is given"):
        flash_attn_3.flash_attn_func(q, q, q, qv=one)
    with pytest.raises(
        ValueError, match="attention_chunk is -1: 0, which is off, or a number of keys is accepted"
    ):
        flash_attn_3.flash_attn_with_kvcache(q, q, q, attention_chunk=-1)
    cu = torch.tensor([0, 3], dtype=torch.int32)
    cache = q.clone()
    arguments = {"cache_seqlens": 2, "cu_seqlens_q": cu, "cu_seqlens_k_new": cu, "max_seqlen_q": 3}
    with pytest.raises(ValueError, match="cache_seqlens leads to row 4 of the cache"):
        flash_attn_3.flash_attn_with_kvcache(q[0], cache, cache.clone(), q[0], q[0], **arguments)
    assert torch.equal(cache, q)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("new", [0, 2])
def test_flash_attention_3_rows_of_a_page_table(packed, new, rng):
    """cache_batch_idx says which row of page_table each sequence has."""
    used, rows = [9, 4, 14], torch.tensor([4, 0, 3], dtype=torch.int32)
    k_cache, v_cache = (normal(rng, 30, 4, 2, 16) for _ in "kv")
    table = torch.randperm(30)[:20].view(5, 4).to(torch.int32)
    before = [t[table[rows].long()].flatten(1, 2).clone() for t in (k_cache, v_cache)]
    q, k, v = (normal(rng, 3, 2, heads, 16) for heads in (4, 2, 2))
    cu = torch.tensor([0, 2, 4, 6], dtype=torch.int32) if packed else None
    out = flash_attn_3.flash_attn_with_kvcache(
        q.flatten(0, 1) if packed else q,
        k_cache,
        v_cache,
        *((t.flatten(0, 1) if packed else t for t in (k, v)) if new else (None, None)),
        cache_seqlens=torch.tensor(used, dtype=torch.int32),
        cache_batch_idx=rows,
        page_table=table,
        cu_seqlens_q=cu,
        cu_seqlens_k_new=cu if new else None,
        causal=True,
    ).view(3, 2, 4, 16)
    for n in range(3):
        keys, values = (
            torch.cat([t[n, : used[n]], added[n, :new]])
            for t, added in zip(before, (k, v), strict=True)
        )
        assert_close(
            out[n], double_attention(q[n].double(), keys.double(), values.double(), True), "fp32"
        )
        held = k_cache[table[rows[n]].long()].flatten(0, 1)
        assert torch.equal(held[: len(keys)], keys) and torch.equal(
            held[len(keys) :], before[0][n, len(keys) :]
        )
    with pytest.raises(
        RuntimeError,
        match=r"^cache_batch_idx\[1\] is 5: 0 to 4 are accepted, page_table has 5 rows",
    ):
        flash_attn_3.flash_attn_with_kvcache(
            q, k_cache, v_cache, cache_batch_idx=[0, 5, 1], page_table=table
        )


def test_flash_attention_3_without_longest(rng):
    lengths_q, lengths_k = [7, 3, 0, 12], [9, 4, 5, 2]
    q, k, v = (
        normal(rng, sum(n), h, 16, grad=True)
        for n, h in ((lengths_q, 4), (lengths_k, 2), (lengths_k, 2))
    )
    cu = tuple(torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (lengths_q, lengths_k))
    for options in (
        {"causal": True},
        {"attention_chunk": 3},
        {"seqused_k": torch.tensor([9, 1, 0, 2])},
    ):
        expected = flash_attn_3.flash_attn_varlen_func(q, k, v, *cu, 12, 9, **options)
        assert torch.equal(flash_attn_3.flash_attn_varlen_func(q, k, v, *cu, **options), expected)
    cache = [normal(rng, 4, 16, 2, 16) for _ in "kv"]
    for chunk in (0, 4):
        options = {
            "cache_seqlens": torch.tensor([5, 9, 1, 16]),
            "cu_seqlens_q": cu[0],
            "attention_chunk": chunk,
            "causal": True,
        }
        expected = flash_attn_3.flash_attn_with_kvcache(
            q.detach(), *cache, max_seqlen_q=12, **options
        )
        assert torch.equal(
            flash_attn_3.flash_attn_with_kvcache(q.detach(), *cache, **options), expected
        )


CACHE_MESSAGES = {
    "page": ({"page_table": [[0], [7]]}, r"^page_table\[1, 0\] is 7: 0 to 1 are accepted"),
    "used": (
        {"cache_seqlens": [1, 99], "page_table": [[0], [1]]},
        r"^cache_seqlens\[1\] is 99: .* a row of page_table has 1 pages",
    ),
    "leftpad": ({"cache_leftpad": [1, 99]}, r"^cache_leftpad\[1\] is 99: 0 to "),
    "k_cache": ({"k_cache": torch.zeros(2, 5, 2, 16)}, r"^(k|v)_cache\.shape is "),
    "window": ({"window_size": 3}, r"^window_size is 3: "),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CACHE_MESSAGES)
def test_flash_attention_3_names_its_own_arguments(name, packed):
    changes, message = CACHE_MESSAGES[name]
    q, k = torch.zeros(2, 4, 16) if packed else torch.zeros(2, 1, 4, 16), torch.zeros(2, 8, 2, 16)
    packing = {"cu_seqlens_q": torch.tensor([0, 1, 2])} if packed else {}
    with pytest.raises(RuntimeError, match=message):
        flash_attn_3.flash_attn_with_kvcache(
            **{"q": q, "k_cache": k, "v_cache": k, **packing, **changes}
        )
