"""Functions of flex_attention that differ in something other than their code: their traces are not
taken for each other's. What changes values in place, and NumPy's arrays that are computed with
alone."""

import functools
import random
import sys
import types

import fulmen
import numpy as np
import pytest
import torch
from fulmen import flex
from problems import SEED

SETTINGS = types.ModuleType("settings_of_a_test")


@pytest.fixture(autouse=True)
def _seed(monkeypatch):
    random.seed(SEED)
    monkeypatch.setitem(sys.modules, SETTINGS.__name__, SETTINGS)


def _closure(number):
    return lambda score, b, h, q, k: score * number


def _attribute(number):
    _by_attribute.factor = number
    return _by_attribute


def _by_attribute(score, b, h, q, k):
    return score * _by_attribute.factor


TABLE = {}
FACTOR = TABLE.get


def _bound(number):
    TABLE["factor"] = number
    return lambda score, b, h, q, k: score * FACTOR("factor")


def _imported(number):
    SETTINGS.factor = number

    def score_mod(score, b, h, q, k):
        import settings_of_a_test

        return score * settings_of_a_test.factor

    return score_mod


ARRAY = np.zeros(3)


def _largest_of_an_array(number):
    ARRAY[:] = (number, number - 1, -number)
    return lambda score, b, h, q, k: score * ARRAY.max()


def _place_in_an_array(number):
    array = np.zeros(101)
    array[int(number * 10)] = 1
    return lambda score, b, h, q, k: score * (array.argmax() / 10)


def _constants_of_an_array(number):
    array = np.array([1.0, number], np.float32)
    return lambda score, b, h, q, k: score * torch.tensor(array)[1]


MAKERS = {
    "a NumPy float": lambda n: _closure(np.float32(n)),
    "a NumPy double": lambda n: _closure(np.float64(n)),
    "an attribute of the function": _attribute,
    "a wrapped function's attribute": lambda n: functools.wraps(_attribute(n))(_closure(n)),
    "a method of a dict": _bound,
    "a module that it imports": _imported,
    "an array's largest": _largest_of_an_array,
    "an array's largest's place": _place_in_an_array,
    "an array as constants": _constants_of_an_array,
}


@pytest.mark.parametrize("name", MAKERS)
def test_numbers_that_differ_are_read_anew(name):
    q = torch.from_numpy(np.random.default_rng(SEED).standard_normal((1, 2, 5, 8), np.float32))
    for _ in range(3):
        number = random.randint(10, 90) / 10
        right = torch.softmax(q.double() @ q.double().mT * 8**-0.5 * number, -1) @ q.double()
        found = fulmen.flex_attention(q, q, q, MAKERS[name](number))
        assert (found - right).abs().max() < 3e-5, (number, f"{SEED=}")


def test_random_numbers_are_drawn_in_every_call():
    draw = random.random

    def score_mod(score, b, h, q, k):
        return score * draw()

    assert flex.text(score_mod) != flex.text(score_mod)


def _two_names(score, b, h, q, k):
    other = score
    other += 1.0
    other *= 2.0
    return score - b


def _of_an_index(score, b, h, q, k):
    row = q
    row -= 3
    return score * q


@pytest.mark.parametrize("function", [_two_names, _of_an_index])
def test_in_place_operators_change_every_name_as_torchs_do(function):
    given = [torch.randn(()).double(), *(torch.tensor(n) for n in (1, 2, 5, 7))]
    right = function(*(one.clone() for one in given)).item()
    text = flex.text(function, like=torch.zeros(()))
    names = dict(zip(("score", "b", "h", "q", "k"), (one.item() for one in given), strict=True))
    assert abs(eval(text, {"float": float, **names}) - right) < 1e-6, text
    # NumPy's scalars are values: the other name keeps the old one.
    right = function(*(one.numpy()[()] for one in given))
    assert abs(eval(flex.text(function), {"float": float, **names}) - right) < 1e-6


def test_in_place_functions_are_refused():
    def score_mod(score, b, h, q, k):
        score.add_(1.0)
        return score

    with pytest.raises(flex.TraceError, match=r"add_, which changes a value in place; .*: add$"):
        flex.text(score_mod, like=torch.zeros(()))


def test_products_of_indices_may_wrap():
    """As 32 bits do: a hash of an index may be negative."""
    factor = 73856093
    rows = torch.arange(64, dtype=torch.int32)
    right = (rows * factor < 0).numpy()
    assert right.any() and not right.all()
    mask = flex.create_block_mask(
        lambda b, h, q, k: torch.clamp(q * factor, min=0) == 0, None, None, 64, 1, "cpu", (1, 1)
    )
    listed = mask.to_dense()[0, 0, :, 0].bool().numpy()
    assert np.array_equal(listed, right | (np.arange(64) == 0))
    mask = flex.create_block_mask(
        lambda b, h, q, k: q * factor < 0, None, None, 64, 1, "cpu", (1, 1)
    )
    assert np.array_equal(mask.to_dense()[0, 0, :, 0].bool().numpy(), right)


def test_shapes_that_numbers_give():
    def score_mod(score, b, h, q, k):
        assert score.new_zeros(2, 3).shape == score.new_ones((2, 3)).shape == (2, 3)
        assert score.new_full((4,), 2.0).shape == score.new_zeros(4).shape == (4,)
        return score

    assert flex.text(score_mod) == "score"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda score, b, h, q, k: torch.sum(score, 5), r"dims \[5\] of a value of 0 dims"),
        (lambda score, b, h, q, k: torch.zeros(2, 3, 4)[q, None].T + score, r"\.T of a value of 3"),
    ],
)
def test_dims_that_are_not_there(function, words):
    with pytest.raises(flex.TraceError, match=words):
        flex.text(function, like=torch.zeros(()))


def test_numpy_computes_with_arrays_alone():
    rng = np.random.default_rng(SEED)
    q, table = rng.standard_normal((1, 2, 9, 8), np.float32), rng.standard_normal((2, 9))

    def score_mod(score, b, h, q_idx, kv_idx):
        scaled = np.concatenate([table * 2, table], 1) - table.mean()
        scaled *= 0.5
        return score + scaled[h, kv_idx]

    x = q.astype(np.float64)
    scores = x @ x.swapaxes(2, 3) * 8**-0.5 + ((table * 2 - table.mean()) * 0.5)[:, None]
    p = np.exp(scores - scores.max(-1, keepdims=True))
    right = p / p.sum(-1, keepdims=True) @ x
    np.testing.assert_allclose(fulmen.flex_attention(q, q, q, score_mod), right, atol=1e-5)
