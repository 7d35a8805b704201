"""Calls with the same functions and the same mask find their problem again, and every change of
what they refer to is seen. The right value: the function by torch's own operations, over all
pairs."""

import contextlib
import functools
import gc
import types
import weakref

import fulmen
import pytest
import torch
from fulmen import flex
from fulmen.torch import _flex
from problems import SEED

torch.manual_seed(SEED)
Q = torch.randn(1, 2, 40, 8)
FACTOR = 0.5
TABLE = torch.randn(64)


def right(score_mod, block_mask=None):
    b, h, q, k = (
        torch.arange(n).view(s)
        for n, s in ((1, (-1, 1, 1, 1)), (2, (-1, 1, 1)), (40, (-1, 1)), (40, (-1,)))
    )
    scores = Q.double() @ Q.double().mT * 8**-0.5
    if score_mod is not None:
        scores = score_mod(scores, b, h, q, k)
    if block_mask is not None:
        kept = block_mask.mask_mod(b, h, q, k)
        scores = scores.masked_fill(~kept, -torch.inf)
    return torch.softmax(scores, -1).nan_to_num(0) @ Q.double()


@pytest.fixture
def reads(monkeypatch):
    """Problems that were read, not found."""
    seen = []

    def counted(*args):
        seen.append(args)
        return problem(*args)

    problem = _flex.problem
    monkeypatch.setattr(_flex, "problem", counted)
    return seen


def check(reads, count, score_mod, block_mask=None):
    out = fulmen.flex_attention(Q, Q, Q, score_mod, block_mask)
    assert (out - right(score_mod, block_mask)).abs().max() < 3e-5, f"{SEED=}"
    assert len(reads) == count


def _closure():
    factor = 2.0

    def scale(number):
        return factor * number

    def score_mod(score, b, h, q, k):
        return scale(score) + q

    def change():
        nonlocal factor
        factor = 3.0

    return score_mod, change


def _global():
    def score_mod(score, b, h, q, k):
        return score * FACTOR

    def change():
        globals()["FACTOR"] += 1

    return score_mod, change


def _shadowed():
    def score_mod(score, b, h, q, k):
        return score * abs(h - 3)

    own = types.FunctionType(score_mod.__code__, {"__builtins__": __builtins__, "__name__": "own"})

    def change():
        own.__globals__["abs"] = lambda number: number * 2

    return own, change


def _default():
    def score_mod(score, b, h, q, k, factor=2):
        return score * factor

    def change():
        score_mod.__defaults__ = (5,)

    return score_mod, change


def _keyword():
    def score_mod(score, b, h, q, k, *, factor=2):
        return score * factor

    def change():
        score_mod.__kwdefaults__["factor"] = 5

    return score_mod, change


def _code():
    def score_mod(score, b, h, q, k):
        return score * 2

    def change():
        score_mod.__code__ = (lambda score, b, h, q, k: score * 3).__code__

    return score_mod, change


def _partial():
    def added(score, b, h, q, k, number):
        return score + number * q

    score_mod = functools.partial(added, number=2)

    def change():
        score_mod.keywords["number"] = 5

    return score_mod, change


def _tensor():
    table = torch.randn(64)

    def score_mod(score, b, h, q, k):
        return score + table[q - k + 20]

    def change():
        nonlocal table
        table = torch.randn(65)

    return score_mod, change


def _memory():
    table = torch.randn(64)

    def score_mod(score, b, h, q, k):
        return score + table[k]

    def change():
        table.data = torch.randn(41).half()

    return score_mod, change


CHANGES = (
    _closure,
    _global,
    _shadowed,
    _default,
    _keyword,
    _code,
    _partial,
    _tensor,
    _memory,
)


@pytest.mark.parametrize("made", CHANGES, ids=lambda one: one.__name__)
def test_changes_of_functions_are_seen(reads, made):
    score_mod, change = made()
    for _ in range(3):
        check(reads, 1, score_mod)
    change()
    for _ in range(2):
        check(reads, 2, score_mod)


@pytest.mark.parametrize(
    "made", (_closure, _global, _partial, _tensor), ids=lambda one: one.__name__
)
def test_changes_of_a_masks_function_are_seen(reads, made):
    """The masks of functions that give scores: which are above .5."""
    score_mod, change = made()

    def mask_mod(b, h, q, k):
        return score_mod(0.7 + k % 3, b, h, q, k) > 0.5

    mask = flex.create_block_mask(mask_mod, 1, 2, 40, 40, device="cpu", BLOCK_SIZE=16)
    # With lists of all blocks, so that the function alone decides.
    mask.kv_num_blocks, mask.kv_indices = (
        torch.full((1, 2, 3), 3, dtype=torch.int32),
        torch.arange(3, dtype=torch.int32).expand(1, 2, 3, 3).contiguous(),
    )
    mask.full_kv_num_blocks = mask.full_kv_indices = None
    for _ in range(2):
        check(reads, 1, None, mask)
    change()
    check(reads, 2, None, mask)


def causal(b, h, q, k):
    return q >= k


def test_changes_of_a_mask_are_seen(reads):
    mask = flex.create_block_mask(
        lambda b, h, q, k: q - k < 9, 1, 1, 40, 40, device="cpu", BLOCK_SIZE=16
    )
    for _ in range(3):
        check(reads, 1, None, mask)
    mask.mask_mod = lambda b, h, q, k: q - k < 5
    check(reads, 2, None, mask)
    check(reads, 2, None, mask)
    counts = mask.kv_num_blocks.clone(), mask.full_kv_num_blocks.clone()
    mask.kv_num_blocks.zero_()
    mask.full_kv_num_blocks.zero_()
    out = fulmen.flex_attention(Q, Q, Q, None, mask)
    assert len(reads) == 3 and not out.any()
    mask.kv_num_blocks, mask.full_kv_num_blocks = counts
    check(reads, 4, None, mask)
    check(reads, 4, None, mask)


def test_values_of_tensors_are_read_in_every_call(reads):
    def score_mod(score, b, h, q, k):
        return score + TABLE[k]

    for _ in range(3):
        TABLE.normal_()
        check(reads, 1, score_mod)


def test_another_tensor_of_the_same_kind_is_read(reads):
    table = torch.randn(64)

    def score_mod(score, b, h, q, k):
        return score + table[q - k + 20]

    for _ in range(3):
        table = torch.randn(64)
        check(reads, 1, score_mod)


def test_tensors_may_be_swapped(reads):
    """torch.utils.swap_tensors refuses a tensor with weak references."""
    table = torch.randn(64)

    def score_mod(score, b, h, q, k):
        return score + table[k]

    check(reads, 1, score_mod)
    torch.utils.swap_tensors(table, torch.randn(64))
    check(reads, 1, score_mod)


def test_what_a_function_changes_itself_is_seen(reads):
    number = 0

    def score_mod(score, b, h, q, k):
        nonlocal number
        number += 1
        return score * number

    for count in (1, 2):
        fulmen.flex_attention(Q, Q, Q, score_mod)
        assert len(reads) == count


def test_lists_that_are_converted_are_read_anew(reads):
    """Edits through NumPy do not count as versions; of int32 lists the kernels read the memory."""
    mask = flex.create_block_mask(
        lambda b, h, q, k: q // 16 >= k // 16, 1, 1, 40, 40, device="cpu", BLOCK_SIZE=16
    )
    for dtype in (torch.int64, torch.int32):
        for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
            setattr(mask, name, getattr(mask, name).to(dtype).contiguous())
        mask.mask_mod = lambda b, h, q, k: (q // 16 >= k // 16) & (k % 2 == 0)
        fulmen.flex_attention(Q, Q, Q, None, mask)
        counts = mask.full_kv_num_blocks.numpy(), mask.kv_num_blocks.numpy()
        kept = [one.copy() for one in counts]
        for one in counts:
            one[:] = 0
        assert not fulmen.flex_attention(Q, Q, Q, None, mask).any()
        for one, before in zip(counts, kept, strict=True):
            one[:] = before


@pytest.mark.parametrize("observed", ("forward", "backward"))
def test_checkpoints_where_one_pass_is_observed(observed):
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    table = torch.randn(64, requires_grad=True)
    mask = flex.create_block_mask(lambda b, h, q, k: (q + k) % 3 != 0, 1, 1, 40, 40, device="cpu")

    def computed(q):
        return fulmen.flex_attention(q, q, q, lambda s, b, h, i, k: s + table[k], mask)

    q = Q.clone().requires_grad_()
    wanted = torch.autograd.grad(computed(q).sum(), (q, table))

    def watched(name):
        return FlopCounterMode(display=False) if name == observed else contextlib.nullcontext()

    with watched("forward"):
        out = checkpoint(computed, q, use_reentrant=False)
    with watched("backward"):
        found = torch.autograd.grad(out.sum(), (q, table))
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-5


def test_gradients_of_a_found_problem(reads):
    table = torch.randn(64, requires_grad=True)

    def score_mod(score, b, h, q, k):
        return score + table[k]

    for _ in range(2):
        wanted = torch.autograd.grad(right(score_mod).sum(), table)[0]
        found = torch.autograd.grad(fulmen.flex_attention(Q, Q, Q, score_mod).sum(), table)[0]
        assert (found - wanted).abs().max() < 3e-5, f"{SEED=}"
    assert len(reads) == 1


def test_functions_that_hold_what_may_change_are_read_anew(reads):
    factors = [2.0]

    def score_mod(score, b, h, q, k):
        return score * factors[0]

    check(reads, 1, score_mod)
    factors[0] = 3.0
    check(reads, 2, score_mod)


def _used(reads):
    table = torch.randn(64)

    def score_mod(score, b, h, q, k):
        return score + table[k]

    mask = flex.create_block_mask(causal, 1, 1, 40, 40, device="cpu", BLOCK_SIZE=16)
    check(reads, 1, score_mod, mask)
    check(reads, 1, score_mod, mask)
    return [weakref.ref(one) for one in (table, score_mod, mask, mask.kv_indices)]


def test_nothing_is_kept_alive(reads):
    refs = _used(reads)
    reads.clear()
    gc.collect()
    assert [one() for one in refs] == [None] * 4
