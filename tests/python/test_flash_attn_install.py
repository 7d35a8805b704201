"""fulmen.flash_attn.install(): the name flash_attn, and transformers' own "flash_attention_2" and
"flash_attention_3" on it."""

import copy
import functools
import importlib
import importlib.metadata
import importlib.util
import sys

import pytest

torch = pytest.importorskip("torch")

import fulmen.flash_attn  # noqa: E402
import fulmen.flash_attn_interface  # noqa: E402


@pytest.fixture
def installed():
    fulmen.flash_attn.install()
    fulmen.flash_attn_interface.install()
    yield
    fulmen.flash_attn.uninstall()
    fulmen.flash_attn_interface.uninstall()


def test_names(installed):
    import flash_attn
    import flash_attn_interface
    from flash_attn.bert_padding import pad_input
    from flash_attn.flash_attn_interface import flash_attn_func
    from flash_attn.layers.rotary import apply_rotary_emb

    assert (
        flash_attn.__version__
        == importlib.metadata.version("flash_attn")
        == importlib.metadata.version("flash-attn")
        == "2.8.3"
    )
    assert (
        importlib.util.find_spec("flash_attn") is not None
        and importlib.util.find_spec("flash_attn.layers.rotary") is not None
    )
    assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash-attn"]
    assert (
        importlib.metadata.version("flash_attn_3") == "3.0.0"
        and flash_attn_interface.flash_attn_combine
    )
    assert flash_attn_func is fulmen.flash_attn.flash_attn_func
    assert pad_input is importlib.import_module("fulmen.flash_attn.bert_padding").pad_input
    assert (
        apply_rotary_emb
        is importlib.import_module("fulmen.flash_attn.layers.rotary").apply_rotary_emb
    )
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_attn.losses")
    meta_path = list(sys.meta_path)
    fulmen.flash_attn.install()
    assert sys.meta_path == meta_path


def test_uninstall():
    before = list(sys.meta_path)
    fulmen.flash_attn.install()
    fulmen.flash_attn.uninstall()
    fulmen.flash_attn.uninstall()
    assert sys.meta_path == before and not [
        name for name in sys.modules if name.split(".")[0] == "flash_attn"
    ]
    assert importlib.util.find_spec("flash_attn") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn")


def test_a_real_one_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("__version__ = 'real'\n")
    monkeypatch.syspath_prepend(tmp_path)
    real = importlib.import_module("flash_attn")
    try:
        with pytest.raises(
            RuntimeError, match=r"flash_attn is installed, .*: install\(force=True\) is accepted"
        ):
            fulmen.flash_attn.install()
        assert sys.modules["flash_attn"] is real
        fulmen.flash_attn.install(force=True)
        assert importlib.import_module("flash_attn") is fulmen.flash_attn
        fulmen.flash_attn.uninstall()
        assert importlib.import_module("flash_attn") is real
    finally:
        fulmen.flash_attn.uninstall()
        sys.modules.pop("flash_attn", None)


SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
DECODER = {"num_key_value_heads": 2, "head_dim": 12, "bos_token_id": 1, "eos_token_id": None}
MODELS = {
    "Llama": ("LlamaForCausalLM", DECODER),
    "Qwen3": ("Qwen3ForCausalLM", DECODER),
    "Mistral": ("MistralForCausalLM", {**DECODER, "sliding_window": 7}),
    "Gemma2": (
        "Gemma2ForCausalLM",
        {
            **DECODER,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 7,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 3.0,
        },
    ),
    "Bert": ("BertForMaskedLM", {}),
}


def pair(family, implementation, rng):
    transformers = pytest.importorskip("transformers", minversion="5")
    model_class, options = MODELS[family]
    config = getattr(transformers, family + "Config")(**SIZES, **options)
    torch.manual_seed(int(rng.integers(1 << 31)))
    models = []
    for name in ("eager", implementation):
        one = copy.deepcopy(config)
        one._attn_implementation = name
        models.append(getattr(transformers, model_class)(one).eval())
        assert models[-1].config._attn_implementation == name
    with torch.no_grad():
        for parameter in models[0].parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.5))
    models[1].load_state_dict(models[0].state_dict())
    return models


@pytest.fixture
def calls(installed, monkeypatch):
    """Names of the functions that transformers calls, under its own names."""
    seen = []

    def counted(module, name):
        function = getattr(module, name)

        @functools.wraps(function)
        def call(*args, **kwargs):
            seen.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for module in (fulmen.flash_attn, fulmen.flash_attn_interface):
        for name in ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"):
            counted(module, name)
    return seen


def tokens(rng, length=19):
    return torch.from_numpy(rng.integers(2, 97, (2, length)))


def close(one, other, bound=3e-5):
    scale = max(1.0, other.abs().max().item())
    assert (one - other).abs().max().item() <= bound * scale


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("implementation", ["flash_attention_2", "flash_attention_3"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_logits_and_gradients(family, implementation, padding, calls, rng):
    eager, model = pair(family, implementation, rng)
    ids, mask = tokens(rng), torch.ones(2, 19, dtype=torch.long)
    if padding != "none":
        mask[1, slice(0, 5) if padding == "left" else slice(14, 19)] = 0
    weight = torch.from_numpy(rng.standard_normal((2, 19, 97))).float() * mask[:, :, None]
    logits = []
    for one in (eager, model):
        out = one(ids, attention_mask=mask).logits
        (out * weight).sum().backward()
        logits.append(out.detach()[mask.bool()])
    close(logits[1], logits[0])
    for (name, parameter), expected in zip(
        model.named_parameters(), eager.parameters(), strict=True
    ):
        assert (parameter.grad is None) == (expected.grad is None), name
        if parameter.grad is not None:
            close(parameter.grad, expected.grad, 2e-4)
    assert calls == ["flash_attn_func" if padding == "none" else "flash_attn_varlen_func"] * 2


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2"])
def test_packed_positions(family, calls, rng):
    eager, model = pair(family, "flash_attention_2", rng)
    ids = tokens(rng)[:1]
    positions = torch.cat([torch.arange(8), torch.arange(11)])[None]
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits
        parts = torch.cat([eager(ids[:, s]).logits for s in (slice(0, 8), slice(8, 19))], 1)
    close(packed, parts)
    assert calls == ["flash_attn_varlen_func"] * 2


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(family, cache, calls, rng):
    eager, model = pair(family, "flash_attention_2", rng)
    ids = tokens(rng, 11)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    settings = {
        "max_new_tokens": 8,
        "do_sample": False,
        "cache_implementation": cache,
        "disable_compile": True,
    }
    settings |= {"output_logits": True, "return_dict_in_generate": True, "attention_mask": mask}
    ours, theirs = (one.generate(ids, **settings) for one in (model, eager))
    assert torch.equal(ours.sequences, theirs.sequences) and len(calls) == 16
    close(torch.stack(ours.logits), torch.stack(theirs.logits), 1e-4)


def test_transformers_forgets():
    pytest.importorskip("transformers", minversion="5")
    from transformers.utils import import_utils

    before = import_utils.is_flash_attn_2_available
    fulmen.flash_attn.install()
    assert import_utils.is_flash_attn_2_available()
    fulmen.flash_attn.uninstall()
    assert import_utils.is_flash_attn_2_available is before and not before()
