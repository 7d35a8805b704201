"""Block masks whose mask_mod is a band: their lists are left out where they say nothing more, and
count where they do. The reference is dense, in float64, and heeds the lists."""

import random

import fulmen
import fulmen.torch
import pytest
import torch
from flex_problems import close
from fulmen import flex
from fulmen.flex import _band, _band_lists, _list_state, _trace
from problems import SEED
from torch.nn.attention import flex_attention as torch_flex

BATCH, HEADS, DIM = 2, 3, 16
LEFT_OUT = "block_mask: its lists of blocks say nothing more than the band of mask_mod: left out"


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(SEED)
    _band_lists._kept.clear()


@pytest.fixture
def reads(monkeypatch):
    """The lists that were read."""
    found, agree = [], _band_lists._agree

    def counted(band, lists, *sizes):
        found.append(lists)
        return agree(band, lists, *sizes)

    monkeypatch.setattr(_band_lists, "_agree", counted)
    return found


def inputs(queries, keys):
    return [torch.randn(BATCH, HEADS, n, DIM, requires_grad=True) for n in (queries, keys, keys)]


def pairs(mask, queries, keys):
    """bool [batches, heads, queries, keys]: what a block mask attends, by lists and mask_mod."""
    size = mask.BLOCK_SIZE
    at = (..., (torch.arange(queries) // size[0])[:, None], torch.arange(keys) // size[1])

    def listed(counts, indices):
        dense = torch.zeros(*counts.shape, -(-keys // size[1]), dtype=torch.bool)
        for place in torch.cartesian_prod(*map(torch.arange, counts.shape)).tolist():
            place = tuple(place)
            dense[place][indices[place][: counts[place]].long()] = True
        return dense[at]

    q, k = torch.arange(queries)[:, None], torch.arange(keys)
    zero = torch.zeros((), dtype=torch.int64)
    kept = listed(mask.kv_num_blocks, mask.kv_indices) & mask.mask_mod(zero, zero, q, k)
    if mask.full_kv_num_blocks is not None:
        kept = kept | listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    return kept


def assert_right(mask, queries, keys, left_out, kept=None):
    """Output, gradients and what explain says. kept: the pairs, those of the mask unless given."""
    q, k, v = inputs(queries, keys)
    kept = pairs(mask, queries, keys) if kept is None else kept
    scores = (q.double() @ k.double().mT * DIM**-0.5).masked_fill(~kept, -torch.inf)
    right = scores.softmax(-1).nan_to_num() @ v.double()
    out, aux = fulmen.flex_attention(
        q, k, v, block_mask=mask, return_aux=flex.AuxRequest(max_scores=True)
    )
    close(out, right, "out")
    close(aux.max_scores, scores.amax(-1), "max_scores")
    loss = torch.randn(right.shape).double()
    names = ("dq", "dk", "dv")
    found, exact = (torch.autograd.grad((one * loss).sum(), (q, k, v)) for one in (out, right))
    for name, a, b in zip(names, found, exact, strict=True):
        close(a, b, name, 2e-4)
    for backward in (False, True):
        said = flex.explain(q, k, v, None, mask, backward=backward)
        assert (LEFT_OUT in said) == left_out, said
        assert ("nothing else is left of it" in said) or not left_out, said


BANDS = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 40),
    "both sides": lambda b, h, q, k: (k - q <= 21) & (q - k <= 50),
    "around": lambda b, h, q, k: (q - k).abs() <= 33,
    "later": lambda b, h, q, k: q + 37 >= k,
    "negated": lambda b, h, q, k: ~((k > q) | (k + 90 < q)),
    "by factors": lambda b, h, q, k: 2 * q - k - q >= -7,
    "diagonal": lambda b, h, q, k: q == k,
}
SIZES = [(128, 128), (150, 150), (97, 203), (130, 61), (1, 65)]


def _whole(name, queries, keys):
    """Whether the built-in options say it."""
    q, k = torch.arange(queries)[:, None], torch.arange(keys)
    kept = BANDS[name](0, 0, q, k)
    distances = (k - q)[kept]
    starts = [distances.min() <= one <= distances.max() for one in (0, keys - queries)]
    return any(map(bool, starts))


@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("block", [32, (64, 32), (48, 20)])
def test_lists_of_bands_are_left_out(name, block):
    for queries, keys in SIZES:
        for library in (flex, torch_flex):
            mask = library.create_block_mask(
                BANDS[name], None, None, queries, keys, device="cpu", BLOCK_SIZE=block
            )
            assert_right(mask, queries, keys, _whole(name, queries, keys))


def test_lists_of_parts_alone_and_of_batches():
    for batch, heads in ((None, HEADS), (BATCH, None), (BATCH, HEADS)):
        arguments = (BANDS["window"], batch, heads, 100, 120, "cpu", 16)
        assert_right(flex.create_block_mask(*arguments), 100, 120, True)
        arguments = (BANDS["window"], batch, heads, 100, 120, "cpu", 16, False, False)
        assert_right(flex.create_block_mask(*arguments), 100, 120, True)
    mask = flex.create_block_mask(BANDS["causal"], BATCH, HEADS, 100, 100, "cpu", 16)
    for index in ((slice(0, 1), slice(0, 1)), (slice(None), slice(2, 3))):
        part = mask[index]
        part.mask_mod = BANDS["causal"]
        assert_right(part, 100, 100, True)


def test_slices_of_rows_mean_their_lists():
    """The lists are those of later queries, and mask_mod is of the slice's own."""
    part = flex.create_block_mask(BANDS["causal"], None, None, 128, 128, "cpu", 32)[:, :, 2:]
    part.mask_mod = lambda b, h, q, k: q + 64 >= k
    assert_right(part, 64, 128, True)
    part.mask_mod = BANDS["causal"]
    assert_right(part, 64, 128, False)  # lists call more blocks full


def test_lists_of_few_dims():
    mask = flex.create_block_mask(BANDS["causal"], None, None, 96, 96, "cpu", 32)
    kept = pairs(mask, 96, 96)
    for name in _list_state.LISTS:
        setattr(mask, name, getattr(mask, name)[0, 0])
    assert_right(mask, 96, 96, True, kept)


def _edited(mask, what):
    """A mask of a band, whose lists say something else."""
    if what == "a block is absent":
        mask.kv_num_blocks[..., -1] -= 1
    elif what == "a full block is absent":
        mask.full_kv_num_blocks[..., -2] -= 1
    elif what == "a part is called full":
        row = mask.full_kv_num_blocks.shape[2] - 2
        mask.full_kv_indices[..., row, mask.full_kv_num_blocks[0, 0, row]] = row
        mask.full_kv_num_blocks[..., row] += 1
    elif what == "the last head's block is absent":
        mask.kv_num_blocks[-1, -1, 1] = 0
    elif what == "the first row is empty":
        mask.kv_num_blocks[..., 0] = 0


EDITS = (
    "a block is absent",
    "a full block is absent",
    "a part is called full",
    "the last head's block is absent",
    "the first row is empty",
)


def _cloned(name, length):
    """A mask with lists of its own, each head's in its own memory."""
    mask = flex.create_block_mask(BANDS[name], BATCH, HEADS, length, length, "cpu", 16)
    lists = {one: getattr(mask, one).clone() for one in _list_state.LISTS}
    return flex.BlockMask.from_kv_blocks(
        *lists.values(), BLOCK_SIZE=16, mask_mod=mask.mask_mod, seq_lengths=(length, length)
    )


@pytest.mark.parametrize("what", EDITS)
@pytest.mark.parametrize("length", [80, 75])
def test_lists_that_differ_count(what, length):
    mask = _cloned("causal", length)
    _edited(mask, what)
    assert_right(mask, length, length, False)


@pytest.mark.parametrize("what", EDITS)
def test_edits_after_a_call_are_seen(what, reads):
    mask = _cloned("causal", 80)
    before = [getattr(mask, one).clone() for one in _list_state.LISTS]
    assert_right(mask, 80, 80, True)
    assert len(reads) == 1
    _edited(mask, what)
    assert_right(mask, 80, 80, False)
    assert len(reads) == 2
    for name, one in zip(_list_state.LISTS, before, strict=True):
        getattr(mask, name).copy_(one)
    assert_right(mask, 80, 80, True)


def test_edits_through_views_and_new_memory_are_seen():
    mask = _cloned("causal", 80)
    assert_right(mask, 80, 80, True)
    mask.kv_num_blocks[0, 0].sub_(1)
    assert_right(mask, 80, 80, False)
    mask = _cloned("causal", 80)
    assert_right(mask, 80, 80, True)
    mask.kv_num_blocks.data = mask.kv_num_blocks - 1
    assert_right(mask, 80, 80, False)


def test_more_blocks_than_needed_say_nothing():
    """A block in the lists of parts whose pairs mask_mod masks."""
    mask = _cloned("causal", 80)
    mask.kv_num_blocks.fill_(5)
    mask.kv_indices.copy_(torch.arange(5))
    assert_right(mask, 80, 80, True)


def test_short_last_blocks_may_be_called_full():
    """Of 11 keys and of 16: the second row of blocks attends all keys that there are."""
    counts = torch.tensor([[[5, 0, 0, 0, 0]]], dtype=torch.int32)
    full_counts = torch.tensor([[[0, 5, 5, 5, 5]]], dtype=torch.int32)
    indices = torch.arange(5, dtype=torch.int32).expand(1, 1, 5, 5).contiguous()
    mask = flex.BlockMask.from_kv_blocks(
        counts,
        indices,
        full_counts,
        indices.clone(),
        BLOCK_SIZE=16,
        mask_mod=lambda b, h, q, k: q + 60 >= k,
        seq_lengths=(75, 75),
    )
    assert_right(mask, 75, 75, True)


def test_a_second_call_reads_nothing(reads):
    arguments = (None, None, 96, 96, "cpu", 32)
    q, k, v = inputs(96, 96)
    masks = [flex.create_block_mask(BANDS[one], *arguments) for one in ("causal", "window")]
    for _ in range(3):
        for mask in masks:
            fulmen.flex_attention(q, k, v, block_mask=mask).sum().backward()
    assert len(reads) == 2
    # The same lists beside another band, and another mask with the same lists.
    masks[0].mask_mod = BANDS["window"]
    fulmen.flex_attention(q, k, v, block_mask=masks[0])
    assert len(reads) == 3
    fulmen.flex_attention(q, k, v, block_mask=flex.BlockMask((96, 96), **{
        one: getattr(masks[1], one) for one in _list_state.LISTS
    }, BLOCK_SIZE=(32, 32), mask_mod=lambda b, h, q, k: (q >= k) & (q - k < 40)))  # fmt: skip
    assert len(reads) == 3


def test_answers_go_with_their_lists(reads):
    q, k, v = inputs(64, 64)
    for at in range(3):
        mask = _cloned("causal", 64)
        fulmen.flex_attention(q, k, v, block_mask=mask)
        assert len(reads) == at + 1 and len(_band_lists._kept) == 1
        reads[at] = None
        del mask
        assert not _band_lists._kept


def test_answers_are_bounded(monkeypatch, reads):
    monkeypatch.setattr(_band_lists, "_MOST_KEPT", 2)
    q, k, v = inputs(64, 64)
    masks = [_cloned("causal", 64) for _ in range(5)]
    for mask in masks:
        fulmen.flex_attention(q, k, v, block_mask=mask)
        assert len(_band_lists._kept) <= 2
    assert len(reads) == 5


def test_parts_of_bounded_memory(monkeypatch):
    monkeypatch.setattr(_band_lists, "_MOST_BLOCKS", 7)
    for what in (None, *EDITS):
        mask = _cloned("causal", 75)
        _edited(mask, what)
        assert_right(mask, 75, 75, what is None)


FAR = torch.tensor(9)
OTHERS = {
    "of a head": lambda b, h, q, k: (q >= k) & (h >= 0 * q - 1),
    "of a tensor": lambda b, h, q, k: q + FAR >= k,
    "dilated": lambda b, h, q, k: (q >= k) & ((q - k) % 2 == 0),
    "or": lambda b, h, q, k: (q >= k) | (k < 5),
    "of floats": lambda b, h, q, k: q * 1.0 >= k,
    "two queries": lambda b, h, q, k: 2 * q >= k,
    "outside": lambda b, h, q, k: (q - k).abs() >= 12,
    "before": lambda b, h, q, k: q - 7 > k,
    "nothing": lambda b, h, q, k: (q > k) & (q < k),
    "everything": flex.noop_mask,
    "wraps": lambda b, h, q, k: q * 100000000 - k >= q * 99999999,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_keep_their_lists(name, reads):
    mask = flex.create_block_mask(OTHERS[name], None, None, 90, 90, "cpu", 32)
    at = (torch.zeros(()), torch.zeros(()), torch.arange(90)[:, None], torch.arange(90))
    made = mask.mask_mod(*at)
    wrapped = name == "wraps"
    kept = torch.ones(90, 90, dtype=torch.bool) & made if not wrapped else None
    if not wrapped:
        assert_right(mask, 90, 90, False, kept.expand(BATCH, HEADS, 90, 90))
    else:
        assert LEFT_OUT not in flex.explain(*inputs(90, 90), None, mask)
    assert not reads


def test_short_lists_of_every_call_are_not_read(reads):
    """Lists of the best blocks of each row, beside a causal mask."""
    best = torch.rand(BATCH, HEADS, 8, 8).topk(3).indices.to(torch.int32)
    counts = torch.full((BATCH, HEADS, 8), 3, dtype=torch.int32)
    mask = flex.BlockMask.from_kv_blocks(
        counts, best, BLOCK_SIZE=16, mask_mod=BANDS["causal"], seq_lengths=(128, 128)
    )
    assert_right(mask, 128, 128, False)
    assert not reads


def test_tensors_without_a_version_keep_their_lists(reads):
    with torch.inference_mode():
        mask = flex.create_block_mask(BANDS["causal"], None, None, 96, 96, "cpu", 32)
    q = torch.randn(1, 1, 96, DIM)
    assert LEFT_OUT not in flex.explain(q, q, q, None, mask)
    with torch.no_grad():
        found = fulmen.flex_attention(q, q, q, block_mask=mask)
    right = torch.nn.functional.scaled_dot_product_attention(*[q.double()] * 3, is_causal=True)
    close(found, right, "out")
    assert not reads and not _band_lists._kept


def test_calls_in_inference_mode_are_answered(reads):
    mask = flex.create_block_mask(BANDS["causal"], None, None, 96, 96, "cpu", 32)
    with torch.inference_mode():
        q = torch.randn(1, 1, 96, DIM)
        for _ in range(2):
            assert LEFT_OUT in flex.explain(q, q, q, None, mask)
    assert len(reads) == 1


def test_graphs_of_cuda_keep_their_lists(monkeypatch, reads):
    """They are replayed with what the lists hold then, seen before or not."""
    seen, other = (_cloned("causal", 80) for _ in range(2))
    assert_right(seen, 80, 80, True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for mask in (seen, other):
        assert_right(mask, 80, 80, False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert_right(seen, 80, 80, True)
    assert len(reads) == 1


def test_tracers_keep_their_lists(reads):
    from torch.fx.experimental.proxy_tensor import make_fx

    mask = _cloned("causal", 80)
    q = torch.randn(BATCH, HEADS, 80, DIM)
    right = fulmen.flex_attention(q, q, q, block_mask=_cloned("causal", 80))
    assert len(reads) == 1
    graph = make_fx(lambda q: fulmen.flex_attention(q, q, q, block_mask=mask))(q)
    compiled = torch.compile(fulmen.flex_attention, backend="eager", fullgraph=True)
    for found in (graph(q), compiled(q, q, q, block_mask=mask)):
        close(found, right, "out")
    assert len(reads) == 1


def test_bands_of_random_functions():
    """What is called a band is one, and kernels take it whole."""
    draw = random.Random(SEED)

    def integer(depth):
        kind = draw.randrange(6) if depth else draw.randrange(3)
        if kind < 2:
            return "qk"[kind]
        if kind == 2:
            return str(draw.randint(-20, 20))
        a, b = integer(depth - 1), integer(depth - 1)
        return f"(-{a})" if kind == 5 else f"({a} {draw.choice('+-*')} {b})"

    def condition(depth):
        kind = draw.randrange(7) if depth else 0
        if kind == 4:
            return f"(~{condition(depth - 1)})"
        if kind > 4:
            return f"({condition(depth - 1)} {'&|'[kind - 5]} {condition(depth - 1)})"
        a, b = draw.choice(("q", "k", "(q - k)", "(k - q)")), integer(0)
        if draw.random() < 0.5:
            a, b = f"({a} {draw.choice('+-*')} {integer(1)})", integer(1)
        if draw.random() < 0.2:
            a = f"abs({a})"
        return f"({a} {draw.choice(('<', '<=', '>', '>=', '==', '!='))} {b})"

    found = 0
    q, k = torch.arange(48)[:, None], torch.arange(40)
    for _ in range(1000):
        source = condition(2)
        mod = eval(f"lambda b, h, q, k: {source} & (q - k > -1000)")
        traced = _trace.read(None, mod, torch.zeros(()))
        band = _band.band_of(traced.graphs["mask_mod"], 48, 40)
        if band is None:
            continue
        found += 1
        kept = mod(0, 0, q, k).expand(48, 40)
        inside = (k - q >= band.least) & (k - q <= band.most)
        assert torch.equal(kept, inside), (source, band, f"{SEED=}")
        mask = flex.create_block_mask(mod, None, None, 48, 40, "cpu", 16)
        said = flex.explain(*inputs(48, 40), None, mask)
        assert "nothing else is left of it" in said, (source, said)
    assert found > 50
