"""Random nodes Attention of ONNX beside double precision."""

import ml_dtypes  # noqa: F401  (NumPy's dtype "bfloat16")
import numpy as np
from models import BOUNDS, compare, model_of, newest_attention, run, sessions

from reference import attention, from_bnsh


def mask_of(random, dtype, batch, heads, queries, keys):
    """attn_mask of two to four dims, bool or added; also with too few columns."""
    shape = [random.choice([1, batch]), random.choice([1, heads]), queries, keys]
    shape = [int(n) for n in shape[random.integers(0, 3) :]]
    if random.random() < 0.2:
        shape[-1] = int(random.integers(2, keys + 1)) if keys > 2 else keys
    keep = random.random(shape) < 0.7
    keep[random.random(shape[:-1]) < 0.1] = False  # rows without a key
    if random.random() < 0.5:
        return keep
    return np.where(keep, random.standard_normal(shape), -np.inf).astype(dtype)


def node(random):
    """(model, inputs, right outputs, what it is)."""
    flip = lambda p: bool(random.random() < p)  # noqa: E731
    dtype = np.dtype(str(random.choice(["float32", "float32", "float16", "bfloat16"])))
    b, kv_heads = int(random.integers(1, 4)), int(random.integers(1, 4))
    heads = int(kv_heads * random.integers(1, 4))
    d, dv = int(random.choice([8, 16, 40, 64])), int(random.choice([16, 24, 64]))
    rows, new = int(random.choice([1, random.integers(1, 30)])), int(random.integers(1, 60))
    past = int(random.integers(1, 12)) if flip(0.35) else 0
    keys = past + new
    array = lambda *shape: random.standard_normal(shape).astype(dtype)  # noqa: E731
    q, k, v = array(b, rows, heads, d), array(b, new, kv_heads, d), array(b, new, kv_heads, dv)
    past_k, past_v = (array(b, kv_heads, past, n) if past else None for n in (d, dv))
    mask = mask_of(random, dtype, b, heads, rows, keys) if flip(0.5) else None
    causal = flip(0.4)
    lengths = None
    if not past and flip(0.3):
        least = rows if causal else 0  # queries are a sequence's last ones
        if least <= keys:
            lengths = random.integers(least, keys + 1, b)
    left, right = (int(random.integers(0, 20)) if flip(0.3) else -1 for _ in range(2))
    opset = int(random.integers(23 if lengths is None else 24, newest_attention() + 1))
    if opset < 25:
        left = right = -1
    four = flip(0.5)

    def flat(rows):
        return np.ascontiguousarray(from_bnsh(rows)) if four else rows.reshape(*rows.shape[:2], -1)

    inputs = {
        "Q": flat(q), "K": flat(k), "V": flat(v), "attn_mask": mask, "past_key": past_k,
        "past_value": past_v, "nonpad_kv_seqlen": lengths,
    }  # fmt: skip
    attributes = {"is_causal": int(causal), "softcap": 3.0 if flip(0.3) else 0.0}
    if not four:
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    if flip(0.3):
        attributes["scale"] = 0.3
    if opset >= 25:
        attributes |= {"left_window_size": left, "right_window_size": right}
    outputs = {"Y": str(dtype)}
    if past or (lengths is None and flip(0.3)):
        outputs |= {"present_key": str(dtype), "present_value": str(dtype)}
    hidden = [name for name in inputs if flip(0.2)]
    model, arrays = model_of("Attention", inputs, outputs, attributes, hidden, "", opset)

    if past:
        k, v = np.concatenate([from_bnsh(past_k), k], 1), np.concatenate([from_bnsh(past_v), v], 1)
    at = np.arange(rows)[:, None] + past  # positions
    at = np.broadcast_to(at, (b, 1, rows, 1)) if lengths is None else (
        np.arange(rows)[:, None] + (lengths - rows)[:, None, None, None])  # fmt: skip
    j = np.arange(keys)
    keep = np.ones((b, 1, rows, keys), bool)
    if lengths is not None:
        keep = keep & (j < lengths[:, None, None, None])
    right = 0 if causal else right
    if right >= 0:
        keep = keep & (j <= at + right)
    if left >= 0:
        keep = keep & (j >= at - left)
    added = None
    if mask is not None:
        width = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        if mask.dtype == bool:
            keep = keep & np.pad(mask, width)
        else:
            added = np.pad(mask.astype(np.float64), width, constant_values=-np.inf)
    out = attention(q, k, v, keep, attributes.get("scale"), attributes["softcap"], added)
    right_outputs = [out.reshape(b, rows, -1) if not four else from_bnsh(out)]
    right_outputs += [from_bnsh(k), from_bnsh(v)]
    what = f"{dtype}, opset {opset}, past {past}, {rows} queries, {new} keys, lengths {lengths}, "
    what += f"mask {None if mask is None else (mask.dtype, mask.shape)}, {attributes}"
    return model, arrays, right_outputs[: len(outputs)], what


def check(random, rounds):
    for index in range(rounds):
        model, given, right, what = node(random)
        (session,) = sessions(model, only_fulmen=True)
        for output, (a, b) in enumerate(zip(run(session, given), right, strict=True)):
            compare(f"Attention {index} ({what}): output {output}", a, b, BOUNDS[str(a.dtype)])
    print(f"Attention: {rounds} random nodes agree")
