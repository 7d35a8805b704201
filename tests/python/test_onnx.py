"""The operator Attention of ONNX (opset 23 and later), by the cases that the onnx package publishes
for it."""

import fulmen
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", minversion="1.19")


def cases():
    from onnx.backend.test.case import node

    # Importing the module adds its cases to the list; asking for one operator's by the public way
    # makes those of all others, too.
    before = len(node._NodeTestCases)
    import onnx.backend.test.case.node.attention  # noqa: F401

    found = [
        case
        for case in node._NodeTestCases[before:]
        if case.model.graph.node[0].op_type == "Attention"
    ]
    return {case.name: case for case in found if len(case.model.graph.node) == 1}


CASES = cases()
# Parts of the result's error that come from the arithmetic of ONNX's own reference, which stores
# scores in the dtype.
BOUNDS = {"float32": 2e-6, "float16": 4e-3, "bfloat16": 4e-2}


def run(node, inputs):
    """The operator over fulmen.attention: translates the arguments that differ."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    given = iter(inputs)
    q, k, v, mask, past_k, past_v, lengths = (
        next(given) if name else None for name in [*node.input, *[""] * (7 - len(node.input))]
    )
    packed_heads = q.ndim == 3
    if packed_heads:
        heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        q, k, v = (
            t.reshape(*t.shape[:2], n, -1).swapaxes(1, 2)
            for t, n in ((q, heads), (k, kv_heads), (v, kv_heads))
        )
    offset = 0
    if past_k is not None:
        offset = past_k.shape[2]
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    options = {
        "softmax_scale": attributes.get("scale"),
        "softcap": attributes.get("softcap", 0.0),
        "layout": "bhsd",
    }
    keep = bias = None
    if mask is not None:
        if mask.shape[-1] < seqlen_k:
            fill = False if mask.dtype == bool else -np.inf
            mask = np.pad(
                mask,
                [(0, 0)] * (mask.ndim - 1) + [(0, seqlen_k - mask.shape[-1])],
                constant_values=fill,
            )
        keep, bias = (mask, None) if mask.dtype == bool else (None, mask)
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    causal = bool(attributes.get("is_causal"))
    if lengths is not None:
        options.update(
            seqlens_k=lengths.astype(np.int32), causal=causal, window_left=left, window_right=right
        )
    elif offset == seqlen_k - seqlen_q or not (causal or left >= 0 or right >= 0):
        options.update(causal=causal, window_left=left, window_right=right)
    elif offset == 0 and causal:
        options.update(causal="top_left", window_left=left)
    else:
        # A diagonal that belongs neither to the first query nor to the last one.
        distance = np.arange(seqlen_k) - np.arange(seqlen_q)[:, None] - offset
        right = 0 if causal else right
        band = (distance >= -left if left >= 0 else True) & (
            distance <= right if right >= 0 else True
        )
        keep = band if keep is None else keep & band
    out = fulmen.attention(q, k, v, keep_mask=keep, bias=bias, **options)
    return out.swapaxes(1, 2).reshape(*out.swapaxes(1, 2).shape[:2], -1) if packed_heads else out


def test_there_are_cases():
    assert len(CASES) > 60


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]
    ((inputs, outputs),) = case.data_sets
    expected = outputs[0]
    with np.errstate(invalid="ignore"):
        out = run(case.model.graph.node[0], inputs)
    assert out.shape == expected.shape and out.dtype == expected.dtype
    expected, out = expected.astype(np.float64), out.astype(np.float64)
    np.testing.assert_allclose(
        out, expected, rtol=0, atol=BOUNDS[inputs[0].dtype.name] * max(1, np.abs(expected).max())
    )
