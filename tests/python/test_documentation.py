"""The Python examples of README.md and of docs/guide run as they stand; stubs and docstrings name
what there is."""

import ast
import importlib.metadata
import inspect
import re
from pathlib import Path

import fulmen.flash_attn
import fulmen.torch
import pytest
from fulmen import _core

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    pytest.param(block, id=f"{name}-{at}")
    for name in ("README.md", *(f"docs/guide/{n}.md" for n in ("python", "pytorch", "jax", "flex")))
    for at, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    )
    if "(..." not in block  # a line of another project's program
]


@pytest.mark.parametrize("block", BLOCKS)
def test_examples(block):
    for name in set(re.findall(r"^\s*(?:import|from) (\w+)", block, re.MULTILINE)):
        pytest.importorskip(name)
    try:
        exec(compile(block, "example", "exec"), {"__name__": "example"})
    finally:
        fulmen.torch.disable_sdpa()
        fulmen.torch.disable_flex()


def test_stubs_name_what_the_module_has():
    stub = Path(fulmen.__file__).with_name("_core.pyi").read_text()
    body = ast.parse(stub).body
    named = {one.name for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    named |= {
        one.target.id
        for one in body
        if isinstance(one, ast.AnnAssign) and not one.target.id.startswith("_")
    }
    assert named == {name for name in dir(_core) if not name.startswith("_")}
    assert Path(fulmen.__file__).with_name("py.typed").exists()


def test_metadata_of_the_package():
    try:
        package = importlib.metadata.metadata("fulmen")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed, only on the path")
    assert package["License"] == "MIT", "its text is a file beside"
    assert {"Programming Language :: Python :: 3", "Typing :: Typed"} <= set(
        package.get_all("Classifier")
    )


FUNCTIONS = [
    fulmen.attention,
    fulmen.attention_backward,
    fulmen.append_kv,
    fulmen.torch.scaled_dot_product_attention,
]
FUNCTIONS += [fulmen.torch.triangle_attention, fulmen.torch.DS4Sci_EvoformerAttention]
FUNCTIONS += [fulmen.torch.ring_attention, fulmen.torch.FlashAttention]
FUNCTIONS += [fulmen.flex_attention, fulmen.flex.create_block_mask]
FUNCTIONS += [fulmen.flash_attn.flash_attn_func, fulmen.flash_attn.flash_attn_with_kvcache]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_docstrings_name_every_argument(function):
    text = function.__doc__
    if "the others: see flash_attn_func" in text:
        text += fulmen.flash_attn.flash_attn_func.__doc__
    assert [
        name
        for name in inspect.signature(function).parameters
        if not re.search(rf"\b{name}\b", text)
    ] == []
