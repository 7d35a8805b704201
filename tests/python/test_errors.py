"""fulmen.ArgumentError: one class for arguments that are wrong, for callers of NumPy's kind and of
torch's and flash_attn's."""

import pickle

import fulmen
import fulmen.flash_attn
import fulmen.torch
import numpy as np
import pytest
import torch

ROWS = torch.zeros(1, 3, 2, 8)
PAGES = torch.zeros(4, 16, 2, 8)


def paged(lengths, table, new=None):
    lengths, table = (
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor(table, dtype=torch.int32),
    )
    return fulmen.flash_attn.flash_attn_with_kvcache(
        ROWS, PAGES, PAGES, new, new, cache_seqlens=lengths, block_table=table
    )


CALLS = {
    "the library": (
        lambda: fulmen.attention(ROWS, ROWS, ROWS, window_left=-2),
        "window_left is -2",
    ),
    "an option of the module": (
        lambda: fulmen.attention(ROWS, ROWS, ROWS, causal="left"),
        'causal is "left"',
    ),
    "an array of the module": (lambda: fulmen.attention(ROWS[None], ROWS, ROWS), "q has 5 dims"),
    "a slower function of the module": (
        lambda: fulmen.plan(ROWS.numpy(), ROWS.numpy()[None], ROWS.numpy()),
        "k has 5 dims",
    ),
    "Python": (
        lambda: fulmen.dropout_mask(ROWS, ROWS, dropout=0.5, dropout_seed=1, layout="sbhd"),
        "layout is 'sbhd'",
    ),
    "Python for torch": (
        lambda: fulmen.torch.scaled_dot_product_attention(ROWS, ROWS[..., :4], ROWS),
        "key has a head_dim of 4",
    ),
    "an operator": (
        lambda: fulmen.attention(*(t.to("meta")[0] for t in (ROWS, ROWS, ROWS))),
        "q has 3 dims",
    ),
    "a cache": (
        lambda: fulmen.append_kv(PAGES[..., :0], PAGES, torch.zeros(4, dtype=torch.int32)),
        "head_dim",
    ),
    "a paged overrun": (lambda: paged([99], [[0, 1]]), r"cache_seqlens\[0\] is 99.*block_table"),
    "an overrun while appending": (
        lambda: paged([31], [[0, 1]], ROWS[:, :2]),
        r"cache_seqlens\[0\] is 31.*block_table",
    ),
    "a page that is none": (lambda: paged([20], [[0, 7]]), r"block_table\[0, 1\] is 7"),
}


@pytest.mark.parametrize("name", CALLS)
def test_is_a_value_error_and_a_runtime_error(name):
    call, message = CALLS[name]
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match=message) as caught:
            call()
        assert caught.type is fulmen.ArgumentError


def test_can_be_sent_to_another_process():
    with pytest.raises(fulmen.ArgumentError) as caught:
        fulmen.attention(*[np.zeros((1, 1, 1, 1), np.float32)] * 3, window_left=-2)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is fulmen.ArgumentError and copy.args == caught.value.args
