"""FlexAttention over packed documents with a learned bias of distances, trained on the CPU.

    pip install '.[torch]'
    python examples/python/flex_documents.py --steps 50

A layer of attention learns to copy the token that stands a fixed distance before, which it can by
the bias alone. Prints the loss and the distance that the bias prefers.
"""

import argparse

import torch
from fulmen import flex_attention
from fulmen.flex import create_block_mask, text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--distance", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    length, heads, dim = given.length, 2, 16
    documents = torch.arange(length) // 48  # of 48 tokens each
    bias = torch.zeros(heads, length, requires_grad=True)

    def nearer(score, b, h, q_idx, kv_idx):
        return 0.1 * score + bias[h, q_idx - kv_idx]

    def same_document(b, h, q_idx, kv_idx):
        return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)

    mask = create_block_mask(same_document, None, None, length, length, "cpu", 32)
    print(text(nearer, like=bias), text(mask_mod=same_document, like=bias), mask, sep="\n\n")
    optimizer = torch.optim.Adam([bias], 0.3)
    copies = torch.arange(length) % 48 >= given.distance
    for step in range(given.steps):
        x = torch.randn(1, heads, length, dim)
        out = flex_attention(x, x, x, nearer, mask)
        wanted = x.roll(given.distance, 2)
        loss = (out - wanted)[:, :, copies].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == given.steps - 1:
            print(f"step {step}: loss {loss.item():.4f}, distances {bias.argmax(1).tolist()}")


if __name__ == "__main__":
    main()
