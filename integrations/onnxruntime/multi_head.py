"""Random nodes MultiHeadAttention beside double precision and, where it serves them, beside ONNX
Runtime's CPU provider."""

import ml_dtypes  # noqa: F401  (NumPy's dtype "bfloat16")
import numpy as np
from models import BOUNDS, compare, model_of, run, sessions

from reference import attention, from_bnsh, heads_of, multi_head_keep, padded_keys

LAYOUTS = ("rows", "rows", "rows", "bnsh", "packed", "packed key and value")
PADDINGS = ("none", "lengths", "lengths and starts", "keys", "right", "queries and keys")


def padding_of(random, kind, batch, queries, keys):
    if kind == "none":
        return None
    lengths = random.integers(0, keys + 3, batch).astype(np.int32)
    if kind == "lengths":
        return lengths
    if kind == "lengths and starts":
        starts = np.arange(2 * batch + 2) * 3  # of packed rows: only the lengths count
        return np.concatenate([lengths, starts]).astype(np.int32)
    if kind == "right":
        return (np.arange(keys) < lengths[:, None]).astype(np.int32)
    shape = (batch, keys) if kind == "keys" else (batch, queries, keys)
    mask = random.choice([0, 1], shape, p=[0.5, 0.5]).astype(np.int32)
    mask[mask > 0] = random.choice([1, 1, 1, 7])
    mask[mask == 0] = random.choice([0, 0, -1])
    mask[random.random(shape[:-1]) < 0.2] = 0  # rows without a key
    return mask


def node(random):
    """(model, inputs, right outputs, whether the CPU provider serves it, what it is)."""
    layout, kind = str(random.choice(LAYOUTS)), str(random.choice(PADDINGS))
    dtype = np.dtype(str(random.choice(["float32", "float32", "float16", "bfloat16"])))
    b, heads, d = (int(n) for n in (random.integers(1, 4), random.integers(1, 5),
                                    random.choice([8, 16, 40, 64])))  # fmt: skip
    dv = int(random.choice([24, 32])) if layout == "rows" and random.random() < 0.3 else d
    rows = int(random.choice([1, random.integers(1, 34)]))
    keys = rows if layout == "packed" else int(random.integers(1, 70))
    past = int(random.integers(1, 12)) if layout == "rows" and random.random() < 0.4 else 0
    array = lambda *shape: random.standard_normal(shape).astype(dtype)  # noqa: E731
    # Past and present in one length, of which `past` rows are used.
    room = past + keys + int(random.integers(0, 9)) if past and random.random() < 0.25 else 0
    if past and dv != d:
        dv = d
    q, k, v = array(b, rows, heads, d), array(b, keys, heads, d), array(b, keys, heads, dv)
    flat = lambda x: x.reshape(*x.shape[:2], -1)  # noqa: E731
    swap = lambda x: np.ascontiguousarray(from_bnsh(x))  # noqa: E731
    given = {
        "rows": (flat(q), flat(k), flat(v)),
        "bnsh": (flat(q), swap(k), swap(v)),
        "packed": (np.stack([q, k, v], 3) if layout == "packed" else None, None, None),
        "packed key and value": (flat(q), np.stack([k, v], 3) if dv == d else None, None),
    }[layout]
    bias = None
    if layout != "packed key and value" and random.random() < 0.5:
        bias = array(heads * (2 * d + dv))
    total = past + keys
    padding = padding_of(random, kind, b, rows, total)
    causal = bool(random.random() < 0.4)
    added = None
    if random.random() < 0.4:
        added = array(random.choice([1, b]), random.choice([1, heads]), rows, total)
    past_k, past_v = (array(b, heads, room or past, n) if past else None for n in (d, dv))
    inputs = {
        "query": given[0], "key": given[1], "value": given[2], "bias": bias,
        "key_padding_mask": padding, "attention_bias": added, "past_key": past_k,
        "past_value": past_v, "past_sequence_length": np.array([past], np.int32) if room else None,
    }  # fmt: skip
    attributes = {"num_heads": heads, "unidirectional": int(causal)}
    scale = 0.3 if random.random() < 0.3 else None
    if scale:
        attributes["scale"] = scale
    outputs = {"output": str(dtype)}
    if past or random.random() < 0.3:
        outputs |= {"present_key": str(dtype), "present_value": str(dtype)}
    hidden = [f"{name}" for name in inputs if random.random() < 0.2]
    model, arrays = model_of("MultiHeadAttention", inputs, outputs, attributes, hidden)

    if bias is not None:
        parts = np.split(bias, [heads * d, 2 * heads * d])

        # Sums are rounded to the tensors' type.
        def add(rows, part):
            sums = rows.astype(np.float64) + heads_of(part[None, None], heads)
            return sums.astype(dtype)

        q = add(q, parts[0])
        if layout != "bnsh":
            k, v = add(k, parts[1]), add(v, parts[2])
    if past:
        k, v = (np.concatenate([from_bnsh(p)[:, :past], x], 1) for p, x in
                ((past_k, k), (past_v, v)))  # fmt: skip
    kept = None if padding is None else padded_keys(padding, b, rows, total)
    keep = multi_head_keep(rows, total, past, causal and rows > 1, kept)
    out = attention(q, k, v, keep, scale, bias=added)
    right = [out.reshape(b, rows, -1), from_bnsh(k), from_bnsh(v)][: len(outputs)]
    cpu = dtype == np.float32 and not layout.startswith("packed") and not room
    what = f"{layout}, {dtype}, padding {kind}, past {past} of {room}, {rows} queries, {keys} keys"
    what += f", {[n for n, v in inputs.items() if v is not None]}, {attributes}"
    return model, arrays, right, cpu, what


def check(random, rounds):
    beside = 0
    for index in range(rounds):
        model, given, right, cpu, what = node(random)
        name = f"MultiHeadAttention {index} ({what})"
        made = sessions(model, only_fulmen=not cpu)
        ours = run(made[0], given)
        bound = BOUNDS[str(ours[0].dtype)]
        total = right[1].shape[2] if len(right) > 1 else 0
        for output, (a, b) in enumerate(zip(ours, right, strict=True)):
            if output:
                a = a[:, :, :total]  # rows behind are nobody's
            compare(f"{name}: output {output}", a, b, bound)
        if cpu:
            beside += 1
            # -10000 beside a score leaves it 10 bits behind the point.
            loose = 2e-3 if "key_padding_mask" in given else bound
            for a, b in zip(ours, run(made[1], given), strict=True):
                compare(f"{name}, beside the CPU provider", a, b, loose)
    print(f"MultiHeadAttention: {rounds} random nodes agree, {beside} with the CPU provider, too")
