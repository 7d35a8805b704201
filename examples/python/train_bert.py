"""Trains a small BERT to fill in masked words of sentences that it makes, with Fulmen and with
eager attention, from one start.

    pip install '.[torch]' transformers matplotlib
    python examples/python/train_bert.py --steps 300 --plot loss.png

The two loss curves are printed, compared and plotted. Without dropout they differ by rounding
alone; --dropout draws a mask of each one's own, as the two have different generators.
"""

import argparse
import csv
import importlib.util
import pathlib
import random
import time

import torch
import transformers
from fulmen.transformers import register

# A grammar with agreement over a distance: which verb and object fit is told by words far in front.
ANIMALS = {
    "cat": "mouse",
    "dog": "bone",
    "horse": "hay",
    "bird": "seed",
    "fox": "hen",
    "bear": "honey",
}
PLACES = ["garden", "forest", "house", "river", "field", "street"]
TIMES = {"yesterday": "ate", "today": "eats", "tomorrow": "will_eat"}
FILLERS = [
    "which",
    "was",
    "near",
    "the",
    "and",
    "behind",
    "quietly",
    "often",
    "a",
    "small",
    "old",
    "in",
]
SPECIAL = ["[PAD]", "[MASK]", "[END]"]
WORDS = [*SPECIAL, *ANIMALS, *ANIMALS.values(), *PLACES, *TIMES, *TIMES.values(), *FILLERS]
NUMBER = {word: at for at, word in enumerate(WORDS)}


def sentence(choice: random.Random) -> list[str]:
    when, who, where, other = (
        choice.choice(list(TIMES)),
        choice.choice(list(ANIMALS)),
        choice.choice(PLACES),
        choice.choice(PLACES),
    )
    aside = [
        "which",
        "was",
        choice.choice(["near", "behind", "in"]),
        "the",
        choice.choice(["small", "old"]),
        where,
    ]
    aside = aside * choice.randint(0, 2)
    return [
        when,
        "the",
        who,
        *aside,
        choice.choice(["quietly", "often"]),
        TIMES[when],
        "a",
        ANIMALS[who],
        "in",
        "the",
        other,
        "[END]",
    ]


def batch(
    choice: random.Random, sequences: int, length: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(words with some masked, attention mask, the masked ones' labels), [sequences, length];
    padded to different lengths."""
    words = torch.zeros(sequences, length, dtype=torch.long)
    for row in words:
        text: list[str] = []
        wanted = choice.randint(length // 2, length)
        while len(text) < wanted:
            text += sentence(choice)
        row[:wanted] = torch.tensor([NUMBER[word] for word in text[:wanted]])
    keep = words != NUMBER["[PAD]"]
    masked = keep & (
        torch.tensor([choice.random() for _ in range(words.numel())]).view_as(words) < 0.15
    )
    return (
        words.masked_fill(masked, NUMBER["[MASK]"]),
        keep.long(),
        words.masked_fill(~masked, -100),
    )


def train(implementation: str, arguments: argparse.Namespace) -> tuple[list[float], float]:
    """The loss of each step, and seconds."""
    torch.manual_seed(arguments.seed)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        num_hidden_layers=arguments.layers,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=arguments.length,
        pad_token_id=0,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=arguments.dropout,
    )
    config._attn_implementation = implementation
    model = transformers.BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
    choice = random.Random(arguments.seed)
    losses, start = [], time.perf_counter()
    for step in range(arguments.steps):
        words, keep, labels = batch(choice, arguments.batch, arguments.length)
        loss = model(words, attention_mask=keep, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        losses.append(loss.item())
        if step % 50 == 0 or step == arguments.steps - 1:
            print(f"{implementation:>7} step {step:4}  loss {losses[-1]:.4f}", flush=True)
    return losses, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=pathlib.Path, help="a picture of the curves")
    parser.add_argument("--csv", type=pathlib.Path, help="the curves as numbers")
    arguments = parser.parse_args()
    # Printed before minutes of work.
    for path in (arguments.plot, arguments.csv):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"{path}: there is no folder {path.parent}")
    if arguments.plot is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: 1 or more is accepted")
    register()
    curves = {name: train(name, arguments) for name in ("fulmen", "eager")}
    ours, eager = (curves[name][0] for name in ("fulmen", "eager"))
    for name, (losses, seconds) in curves.items():
        last = losses[-20:]
        mean = sum(last) / len(last)
        print(
            f"{name:>7}: mean loss of the last {len(last)} steps {mean:.4f}, "
            f"{1e3 * seconds / len(losses):.1f} ms a step"
        )
    difference = max(abs(a - b) for a, b in zip(ours, eager, strict=True))
    print(f"largest difference of the losses: {difference:.2e}")
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows(
                [("step", "fulmen", "eager"), *zip(range(len(ours)), ours, eager, strict=True)]
            )
    if arguments.plot:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        for name, (losses, _) in curves.items():
            pyplot.plot(losses, label=name, linestyle="-" if name == "fulmen" else "--")
        pyplot.xlabel("step")
        pyplot.ylabel("masked-word loss")
        pyplot.legend()
        pyplot.savefig(arguments.plot, dpi=120)


if __name__ == "__main__":
    main()
