"""BlockMask and create_block_mask of fulmen.flex: the fields of torch's, which is the reference."""

import fulmen
import numpy as np
import pytest
import torch
from flex_problems import BATCH, GYM, HEADS
from fulmen import flex
from fulmen.flex import _block_mask, _blocks
from problems import SEED
from torch.nn.attention import flex_attention as torch_flex

MASKS = [name for name, case in GYM.items() if case().mask_mod is not None]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def assert_equal_fields(ours, theirs):
    for name in _block_mask._TENSORS:
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == torch.int32 and torch.equal(a, b), name
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE and ours.seq_lengths == theirs.seq_lengths
    assert ours.shape == theirs.shape and ours.numel() == theirs.numel()
    assert ours.sparsity() == pytest.approx(theirs.sparsity(), abs=1e-4)
    assert torch.equal(ours.to_dense(), theirs.to_dense())


def both(case, size, **options):
    arguments = (case.mask_mod, BATCH, HEADS, case.queries, case.keys, "cpu", size)
    return tuple(library.create_block_mask(*arguments, **options) for library in (flex, torch_flex))


@pytest.mark.parametrize("name", MASKS)
def test_lists_are_torchs(name):
    case = GYM[name]()
    for size in (16, (8, 32)):
        assert_equal_fields(*both(case, size))
    assert_equal_fields(*both(case, 16, separate_full_blocks=False))


def _pairs(monkeypatch):
    """The sizes of what is evaluated pair by pair."""
    pairs = []
    evaluate = _blocks.Evaluator.__call__

    def counted(self, root, given):
        value = evaluate(self, root, given)
        pairs.append(value.numel())
        return value

    monkeypatch.setattr(_blocks.Evaluator, "__call__", counted)
    return pairs


@pytest.mark.parametrize("most", [1, 16 * 16, 5000])
def test_parts_of_bounded_memory(monkeypatch, most):
    case = GYM["VSA"]()  # differs by batch and head
    pairs = _pairs(monkeypatch)
    monkeypatch.setattr(_blocks, "MOST_PAIRS", most)
    ours = flex.create_block_mask(case.mask_mod, BATCH, HEADS, case.queries, case.keys, "cpu", 16)
    assert 0 < max(pairs) <= max(most, 16 * 16) and len(pairs) > 1
    monkeypatch.undo()
    assert_equal_fields(ours, both(case, 16)[1])


LONG = 4096


def _bands():
    offsets = torch.tensor([0, 700, 704, 2000, 2001, 3000, LONG])
    documents = torch.repeat_interleave(torch.arange(6), offsets.diff())
    flags = torch.zeros(2, LONG, dtype=torch.bool)
    flags[0, 5] = flags[1, 9] = True
    return {
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q - k).abs() <= 300,
        "documents": lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k),
        "packed": lambda b, h, q, k: (k >= offsets[documents[q]]) & (q >= k),
        "tokens of batches": lambda b, h, q, k: flags[b, k] | (q // 64 == k // 64),
    }


@pytest.mark.parametrize("name", _bands())
def test_bands_are_found_by_intervals(monkeypatch, name):
    mod = _bands()[name]
    pairs = _pairs(monkeypatch)
    ours = flex.create_block_mask(mod, 2, None, LONG, LONG, "cpu", 128)
    assert sum(pairs) <= 2 * 7 * 128 * LONG  # of 2 * LONG^2: those near a band's edges
    monkeypatch.undo()
    q, k = torch.arange(LONG)[:, None], torch.arange(LONG)[None]
    for batch in range(2):
        dense = mod(torch.tensor(batch), 0, q, k).reshape(32, 128, 32, 128).sum((1, 3))
        right = (dense > 0).int()
        assert torch.equal(ours[batch].to_dense()[0, 0], right)
        assert torch.equal(
            ours.full_kv_num_blocks[batch, 0], (dense == 128 * 128).sum(1).to(torch.int32)
        )


def test_intervals_hold_every_value():
    """Random functions of integers: what a block's pairs give is within its interval."""
    from fulmen.flex import _trace
    from test_flex_trace import BUCKETS, FLAGS, TABLE, _Random

    names = {"torch": torch, "TABLE": TABLE, "BUCKETS": BUCKETS, "FLAGS": FLAGS}
    known = 0
    for at in range(60):
        source = _Random(SEED + at).expression("BOOL", 3)
        mod = eval(f"lambda b, h, q, k: (lambda s: (q < -1) | {source})(q * 0.5)", names)
        traced = _trace.read(None, mod, torch.zeros(()))
        tensors, root = list(traced.tensors.values()), traced.graphs["mask_mod"]
        sizes, blocks = (2, 3, 40, 56), (8, 16)
        found = _blocks._by_intervals(root, tensors, sizes, blocks)
        places = torch.meshgrid(*(torch.arange(n, dtype=torch.int32) for n in sizes), indexing="ij")
        given = dict(zip("bhqk", places, strict=True))
        mask = _blocks.Evaluator(torch, tensors, "cpu")(root, given).expand(sizes).int()
        grid = torch.nn.functional.pad(mask, (0, 8)).reshape(2, 3, 5, 8, 4, 16)
        real = torch.nn.functional.pad(torch.ones_like(mask), (0, 8)).reshape(2, 3, 5, 8, 4, 16)
        counts, most = grid.sum((3, 5)).numpy(), real.sum((3, 5)).numpy()
        assert (counts[found == 0] == 0).all(), source
        assert (counts[found == 2] == most[found == 2]).all(), source
        known += (found != 1).sum()
    assert known > 100


def test_slices_and_crops_are_torchs():
    ours, theirs = both(GYM["VSA"](), 16)
    for index in (0, (1, 2), (slice(None), slice(None), slice(1, 3)), (0, 1, -1), (slice(0, 1),)):
        a, b = ours[index], theirs[index]
        assert_equal_fields(a, b)
        with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
            a.mask_mod(0, 0, 0, 0)
    with pytest.raises(IndexError):
        ours[0, 0, 0, 0]
    ours, theirs = both(GYM["sliding window"](), 16)
    assert_equal_fields(ours._adjust(40, 33), theirs._adjust(40, 33))


def test_masks_of_lists_are_torchs():
    counts = torch.tensor([[[2, 1, 0]]], dtype=torch.int32)
    indices = torch.tensor([[[[2, 0, 1], [1, 0, 2], [0, 1, 2]]]], dtype=torch.int32)
    for options in ({}, {"seq_lengths": (40, 47)}, {"compute_q_blocks": False}):
        made = [
            library.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, **options)
            for library in (flex, torch_flex)
        ]
        for name in _block_mask._TENSORS:
            a, b = (getattr(one, name) for one in made)
            assert (a is None and b is None) or torch.equal(a, b), name
    ours = made[0].as_tuple()
    theirs = [one for at, one in enumerate(made[1].as_tuple()) if at not in (10, 11, 12, 13)]
    assert ours[:2] == tuple(theirs[:2]) and ours[-3:-1] == tuple(theirs[-3:-1])
    with pytest.raises(RuntimeError, match="given together"):
        flex.BlockMask((16, 16), counts, indices, counts, None)


def test_arrays_of_numpy_without_a_device(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "torch")
    case = GYM["dilated window"]()
    ours = flex.create_block_mask(case.mask_mod, None, None, 64, 64, BLOCK_SIZE=16)
    monkeypatch.undo()
    theirs = torch_flex.create_block_mask(case.mask_mod, None, None, 64, 64, "cpu", 16)
    for name in _block_mask._TENSORS:
        one = getattr(ours, name)
        assert type(one) is np.ndarray and np.array_equal(one, getattr(theirs, name).numpy())
    assert_equal_fields(ours.to("cpu"), theirs)


def test_a_picture():
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, "cpu", 16)
    assert mask.to_string().splitlines() == ["██" * n + "  " * (4 - n) for n in range(1, 5)]
    assert mask.to_string(2).splitlines() == ["░░  ", "██░░"]
    assert "sparsity=37.50%" in str(mask) and "BLOCK_SIZE=(16, 16)" in repr(mask)


ERRORS = {
    "BLOCK_SIZE": (lambda m: flex.create_block_mask(m, None, None, 8, 8, "cpu", 0), "BLOCK_SIZE"),
    "B": (lambda m: flex.create_block_mask(m, 0, None, 8, 8, "cpu"), "B is 0"),
    "length": (lambda m: flex.create_block_mask(m, None, None, -1, 8, "cpu"), "Q_LEN is -1"),
    "a branch": (
        lambda m: flex.create_block_mask(lambda b, h, q, k: not q > k, None, None, 8, 8, "cpu"),
        "mask_mod can't be traced at .*test_flex_block_mask.py",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(fulmen.ArgumentError, match=message):
        call(GYM["causal"]().mask_mod)


@pytest.mark.parametrize("sizes", [(2, 4, 256, 256), (2, 1, 200, 400), (1, 4, 70, 256)])
@pytest.mark.parametrize("block", [16, 64])
def test_masks_of_several_heads_run(sizes, block):
    """Lists of several batches and heads are of any strides where they are made."""
    batch, heads, queries, keys = sizes

    def mask(b, h, q, k):
        return (q >= k) & (k % 3 != h % 3)

    made = flex.create_block_mask(mask, batch, heads, queries, keys, "cpu", block)
    q = torch.randn(batch, heads, queries, 16)
    k, v = torch.randn(2, batch, heads, keys, 16)
    found = fulmen.flex_attention(q, k, v, block_mask=made)
    at = [torch.arange(n) for n in sizes]
    b, h, i, j = torch.meshgrid(*at, indexing="ij")
    scores = (q.double() @ k.double().mT / 4).masked_fill(~mask(b, h, i, j), -torch.inf)
    right = scores.softmax(-1).nan_to_num() @ v.double()
    assert (found - right).abs().max() < 2e-5
