"""The repository for Hugging Face's package `kernels`: made from the wheel, loaded from its folder,
by kernels in a process that has no other fulmen, and by transformers."""

import importlib.machinery
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
# Beside the packages of the environment: transformers behaves differently where it finds kernels.
KERNELS = Path(sys.prefix) / "kernels"


def wheels():
    # Not by importing fulmen: compute() runs where there is none.
    version = importlib.metadata.version("fulmen")
    return sorted((ROOT / "build/wheels/tested").glob(f"fulmen-{version}-*.whl"))


def compute(repository, other):
    """other: what a search for fulmen finds, "nothing" or a "namespace": a folder without code."""
    find = importlib.machinery.PathFinder.find_spec

    def find_no_fulmen(cls, name, path=None, target=None):
        if name != "fulmen":
            return find(name, path, target)
        if other == "nothing":
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = ["/a folder"]
        return spec

    importlib.machinery.PathFinder.find_spec = classmethod(find_no_fulmen)
    from kernels import get_local_kernel

    kernel = get_local_kernel(Path(repository), backend="cpu")
    assert sys.modules["fulmen"].__file__.startswith(repository)
    q, k, v = torch.randn(3, 2, 30, 4, 32)
    out = kernel.flash_attn_func(q, k, v, causal=True)
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
    torch.testing.assert_close(out.transpose(1, 2), expected)


def make(*arguments):
    program = [sys.executable, ROOT / "packaging/hub_kernel/make.py", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    if not wheels():
        pytest.skip("build/wheels/tested has no wheel: ./dev test python makes it")
    folder = tmp_path_factory.mktemp("hub") / "fulmen"
    made = make(*wheels(), "--output", folder)
    assert made.returncode == 0, made.stderr
    return folder


def test_only_what_it_made_is_replaced(tmp_path, repository):
    wheel = wheels()[0]
    kept = tmp_path / "home" / "letter"
    kept.parent.mkdir()
    kept.write_text("dear")
    refused = make(wheel, "--output", kept.parent)
    assert "has files that this did not make" in refused.stderr and kept.read_text() == "dear"
    assert "is a file" in make(wheel, "--output", kept).stderr and kept.exists()
    (stale := repository / "build" / "stale").touch()
    assert make(wheel, "--output", repository).returncode == 0
    assert not stale.exists() and (repository / "README.md").exists()


def test_wheels_are_of_one_version(tmp_path, repository):
    wheel = wheels()[0]
    version = importlib.metadata.version("fulmen")
    other = wheel.name.replace(version, "0.0.9")
    refused = make(wheel, tmp_path / other, "--output", tmp_path / "hub")
    assert f"versions 0.0.9, {version}" in refused.stderr
    twice = make(wheel, wheel, "--output", tmp_path / "hub")
    assert "a second wheel for" in twice.stderr and not (tmp_path / "hub").exists()


def test_layout(repository):
    variants = sorted(one.name for one in (repository / "build").iterdir())
    assert variants == ["torch-cpu", "torch-cuda", "torch-rocm"]
    for name in variants:
        metadata = json.loads((repository / "build" / name / "metadata.json").read_text())
        assert metadata["backend"] == {"type": name.removeprefix("torch-")}
        assert metadata["name"] == "fulmen" and metadata["id"].startswith("_fulmen_")
    assert "REPOSITORY" not in (repository / "README.md").read_text()


needs_kernels = pytest.mark.skipif(
    not KERNELS.exists(),
    reason=f"{KERNELS} does not exist: ./dev test python puts the package kernels there",
)


@needs_kernels
@pytest.mark.parametrize("other", ["nothing", "namespace"])
def test_a_process_without_fulmen_loads_it(repository, other):
    environment = os.environ | {"PYTHONPATH": str(KERNELS), "HF_HUB_OFFLINE": "1"}
    run = [sys.executable, __file__, repository, other]
    subprocess.run(run, env=environment, check=True, timeout=300)


@needs_kernels
def test_transformers_loads_it(repository, monkeypatch):
    monkeypatch.syspath_prepend(KERNELS)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kernels = importlib.import_module("kernels")
    transformers = pytest.importorskip("transformers", minversion="5")
    from transformers.integrations import hub_kernels

    # transformers asks for one version of kernels, and looks for it when it is imported.
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel_hub", kernels.get_kernel, raising=False)
    monkeypatch.setenv("LOCAL_KERNELS", f"fulmen/fulmen={repository}")
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(100, (2, 12))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask).logits
        model.set_attn_implementation("fulmen/fulmen")
        out = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(out * mask[..., None], expected * mask[..., None])


if __name__ == "__main__":
    compute(*sys.argv[1:])
