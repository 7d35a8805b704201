"""PyTorch's FlashAttention 2 on the cases of a table of `benches/attention.rs`: microseconds, and
how many times Fulmen's."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))

import timing
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

CASE = re.compile(r"(\d+)x(\d+)x(\d+) (\d+)/(\d+)x(\d+)( causal)? (F16|BF16) +\S+ +\S+ +(\S+)")
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}


def main():
    found = 0
    for case in filter(None, map(CASE.match, pathlib.Path(sys.argv[1]).read_text().split("\n"))):
        batch, seqlen_q, seqlen_k, heads, kv_heads, dim = map(int, case.groups()[:6])
        causal = case.group(7) is not None
        options = {"dtype": DTYPES[case.group(8)], "device": "cuda"}
        q = torch.randn(batch, seqlen_q, heads, dim, **options).transpose(1, 2)
        k, v = (
            torch.randn(batch, seqlen_k, kv_heads, dim, **options).transpose(1, 2) for _ in range(2)
        )

        def flash(q=q, k=k, v=v, causal=causal):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )

        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad():
            microseconds = timing.seconds(flash) * 1e6
        print(
            f"{case.group(0).split('  ')[0]:36} {microseconds:9.1f} "
            f"{microseconds / float(case.group(9)):7.2f}"
        )
        found += 1
    if not found:
        sys.exit(f"{sys.argv[1]} has no case of F16 or BF16")


if __name__ == "__main__":
    main()
