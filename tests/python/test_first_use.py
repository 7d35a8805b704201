"""The first use with torch imports nothing beside: some of torch's own modules take seconds."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import numpy, torch
q, mask = torch.randn(2, 4, 3, 8), torch.rand(2, 1, 4, 4) < 0.5
q.clone().requires_grad_().sum().backward()  # imports a few of torch's modules
before = set(sys.modules)
import fulmen
def imported():
    ours = ("fulmen",)
    return sorted(name for name in set(sys.modules) - before if name.split(".")[0] not in ours)
fulmen.attention(q, q, q)
first = [name for name in sys.modules if name.startswith("fulmen")]
fulmen.attention(q, q, q, keep_mask=mask.expand(2, 3, 4, 4), causal=True, return_lse=True)
leaf = q.clone().requires_grad_()
fulmen.attention(leaf, q, q).sum().backward()
fulmen.append_kv(q.clone(), q.clone(), [1, 2], q[:, :1], q[:, :1])
fulmen.torch.scaled_dot_product_attention(q, q, q)
with fulmen.torch.sdpa():
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
fulmen.torch.enable_sdpa()
torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
fulmen.torch.FlashAttention()(q, q, q)
import fulmen.flash_attn, fulmen.xformers
fulmen.flash_attn.flash_attn_func(q, q, q)
print(json.dumps({"beside": imported(), "first": first}))
"""


def test_imported_modules():
    found = json.loads(
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        ).stdout
    )
    assert found["beside"] == [], (
        f"{len(found['beside'])} modules are imported beside fulmen: {found['beside'][:20]}"
    )
    assert len(found["first"]) <= 14, f"the first call imports {found['first']}"
