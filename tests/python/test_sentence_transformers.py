"""sentence-transformers' encode() by Fulmen beside eager attention, over a tiny random BERT."""

import problems
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
reason = "pip install sentence-transformers"
sentence_transformers = pytest.importorskip("sentence_transformers", reason=reason)

import fulmen.transformers as ours  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat"]
WORDS += ["and", "slept"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT and its tokenizer, as sentence-transformers loads them."""
    torch.manual_seed(problems.SEED)
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.5,
    )
    transformers.BertModel(config).eval().save_pretrained(folder)
    return folder


def encoder(folder, implementation):
    return sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"attn_implementation": implementation}
    )


def test_the_same_embeddings(folder, monkeypatch):
    ours.register()
    sentences = ["the cat sat", "a cat slept on a mat and the cat sat on the mat", "mat"]
    right = encoder(folder, "eager").encode(sentences, convert_to_tensor=True)
    calls = []
    model = encoder(folder, "fulmen")
    registered = transformers.AttentionInterface._global_mapping["fulmen"]
    monkeypatch.setitem(
        transformers.AttentionInterface._global_mapping,
        "fulmen",
        lambda *given, **options: calls.append(1) or registered(*given, **options),
    )
    found = model.encode(sentences, convert_to_tensor=True)
    assert len(calls) == 2  # layers
    assert (found - right).abs().max() <= 2e-5 * right.abs().max(), f"{problems.SEED=}"
    # Other sentences of a batch, padded to its longest, change nothing.
    alone = model.encode(sentences[2:], convert_to_tensor=True)
    assert (found[2:] - alone).abs().max() <= 2e-5 * right.abs().max()
