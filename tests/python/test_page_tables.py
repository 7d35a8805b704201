"""When flash_attn's functions check tables in a GPU's memory, without a GPU: on torch's fake
tensors."""

import pytest

torch = pytest.importorskip("torch")

from fulmen import flash_attn_interface as flash_attn_3  # noqa: E402
from fulmen.flash_attn import flash_attn_interface as flash_attn_2  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402


@pytest.fixture
def tables(monkeypatch):
    """A page table and lengths on a GPU."""
    monkeypatch.setattr(flash_attn_2, "_right", None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with FakeTensorMode():
        yield (
            torch.zeros(2, 3, dtype=torch.int32, device="cuda"),
            torch.zeros(2, dtype=torch.int32, device="cuda"),
        )


def is_checked(*tables, sizes=(8, 16, 0)):
    state = flash_attn_2.unchecked(*tables, sizes=sizes)
    if state is not None:
        flash_attn_2.were_right(state)
    return state is not None


def test_tables_are_checked_once(tables):
    assert is_checked(*tables) and not is_checked(*tables)
    assert not is_checked(*tables, sizes=(8, 16, 0)) and is_checked(*tables, sizes=(7, 16, 0))
    assert is_checked(*tables)
    for table in tables:
        table.add_(1)
        assert is_checked(*tables) and not is_checked(*tables)
    assert is_checked(tables[0], tables[1].clone()) and is_checked(*tables)
    assert is_checked(tables[0], 3) and not is_checked(tables[0], 3) and is_checked(tables[0], 4)
    assert is_checked(tables[0], [3, 4]) and is_checked(tables[0], [3, 4]), (
        "a list may have changed"
    )


def test_tables_that_are_not_checked(tables, monkeypatch):
    assert not is_checked(None, None, 3, None), "without a table on a GPU"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not is_checked(*tables), "nothing can wait for a stream that is captured"


def test_tables_of_inference_mode_are_checked_always(tables):
    with torch.inference_mode():
        table = torch.zeros(2, 3, dtype=torch.int32, device="cuda")
    assert is_checked(table) and is_checked(table)


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(
    "function", [flash_attn_2.flash_attn_with_kvcache, flash_attn_3.flash_attn_with_kvcache]
)
def test_every_call_of_a_cache_asks(function, new, monkeypatch):
    """append_kv and attention are told to check, and what was checked is kept."""
    asked, kept = [], []
    for name in ("attention", "append_kv"):
        inner = getattr(flash_attn_2, name)
        monkeypatch.setattr(
            flash_attn_2,
            name,
            lambda *a, inner=inner, name=name, **o: (
                asked.append((name, o["validate"])) or inner(*a, **o)
            ),
        )
    monkeypatch.setattr(flash_attn_2, "unchecked", lambda *tables, sizes: tables)
    monkeypatch.setattr(flash_attn_2, "were_right", kept.append)
    q, k, pages = torch.zeros(2, 1, 4, 16), torch.zeros(2, 1, 2, 16), torch.zeros(6, 8, 2, 16)
    table, used = (
        torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        torch.tensor([3, 9], dtype=torch.int32),
    )
    called = "block_table" if function is flash_attn_2.flash_attn_with_kvcache else "page_table"
    function(
        q, pages, pages.clone(), *((k, k) if new else ()), cache_seqlens=used, **{called: table}
    )
    assert asked == [("append_kv", True)] * new + [("attention", True)]
    assert len(kept) == 1 and kept[0][0] is table and kept[0][2] is used


def test_every_packed_call_asks(monkeypatch):
    asked = []
    inner = flash_attn_2.attention
    monkeypatch.setattr(
        flash_attn_2, "attention", lambda *a, **o: asked.append(o.get("validate")) or inner(*a, **o)
    )
    monkeypatch.setattr(flash_attn_2, "unchecked", lambda *tables, sizes: tables)
    q, pages, cu = (
        torch.zeros(3, 4, 16),
        torch.zeros(6, 8, 2, 16),
        torch.tensor([0, 1, 3], dtype=torch.int32),
    )
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    flash_attn_2.flash_attn_varlen_func(q, pages, pages, cu, cu * 4, 2, 12, block_table=table)
    monkeypatch.setattr(flash_attn_3, "attention", flash_attn_2.attention)
    flash_attn_3.flash_attn_with_kvcache(
        q, pages, pages, cu_seqlens_q=cu, cache_seqlens=[4, 8], page_table=table
    )
    assert asked == [True, True]
