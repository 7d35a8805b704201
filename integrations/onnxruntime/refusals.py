"""Input that contradicts itself ends a run with an error that names it; what is not served is left
to the CPU provider with a reason."""

import sys

import numpy as np
from models import GQA_ATTRIBUTES, model_of, run, sessions


def multi_head(random):
    array = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    names = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key",
             "past_value", "past_sequence_length")  # fmt: skip
    usual = dict.fromkeys(names) | {n: array(2, 3, 32) for n in names[:3]}
    past = {"past_key": array(2, 4, 5, 8), "past_value": array(2, 4, 5, 8)}
    integers = lambda *shape: np.ones(shape, np.int32)  # noqa: E731
    return {"num_heads": 4}, usual, {
        "query": [{"query": array(2, 3, 30)}, {"query": array(2, 3, 4, 3, 8)}],
        "key": [{"value": None}, {"key": array(3, 3, 32)}, {"key": array(2, 3, 36)},
                {"key": array(2, 2, 3, 8), "value": array(2, 2, 3, 8)}],
        "value": [{"value": array(2, 4, 32)}, {"value": array(2, 4, 3, 8)}],
        "bias": [{"bias": array(95)}, {"bias": array(96, 1)}],
        "key_padding_mask": [{"key_padding_mask": m} for m in (
            integers(3), integers(2, 4), integers(2, 2, 3), integers(2, 1, 3, 3), integers(7))],
        "attention_bias": [{"attention_bias": b} for b in (
            array(2, 4, 3, 2), array(3, 4, 3, 3), array(2, 3, 3, 3), array(4, 3, 3))],
        "past_key": [past | {"past_key": array(2, 3, 5, 8)}, past | {"past_key": array(2, 4, 8)}],
        "past_value": [past | {"past_value": None}, past | {"past_value": array(2, 4, 5, 9)}],
        "past_sequence_length": [past | {"past_sequence_length": np.array([3], np.int32)},
                                 past | {"past_sequence_length": np.array([-1], np.int32)}],
    }  # fmt: skip


def group_query(random):
    array = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    names = ("query", "key", "value", "past_key", "past_value", "seqlens_k",
             "total_sequence_length", "cos_cache", "sin_cache", "position_ids", "attention_bias",
             "head_sink")  # fmt: skip
    usual = dict.fromkeys(names) | {
        "query": array(1, 4, 64),
        "key": array(1, 4, 32),
        "value": array(1, 4, 32),
        "seqlens_k": np.array([3], np.int32),
        "total_sequence_length": np.array([4], np.int32),
        "cos_cache": array(8, 16),
        "sin_cache": array(8, 16),
    }
    past = {"past_key": array(1, 1, 5, 32), "past_value": array(1, 1, 5, 32)}
    later = past | {"seqlens_k": np.array([6], np.int32),
                    "total_sequence_length": np.array([7], np.int32)}  # fmt: skip
    attributes = {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}
    return attributes, usual, {
        "query": [{"query": array(1, 4, 63)}],
        "key": [{"key": k} for k in (
            array(1, 2, 32), array(1, 4, 16), array(2, 4, 32), array(1, 1, 4, 32))],
        "value": [{"value": array(1, 2, 32)}, {"value": array(1, 4, 16)}, {"value": None}],
        "past_key": [past | {"past_key": array(1, 2, 5, 32)}],
        "past_value": [past | {"past_value": array(1, 1, 6, 32)}],
        "seqlens_k": [{"seqlens_k": np.array(n, np.int32)} for n in ([3, 3], [4], [-1])]
        + [later | {"seqlens_k": np.array([2], np.int32)}],
        "total_sequence_length": [{"total_sequence_length": n.astype(np.int32)} for n in (
            np.zeros(0), np.full(2, 4), np.zeros(1))],
        "cos_cache": [{"cos_cache": array(8, 20)}, {"cos_cache": array(3, 16),
                                                    "sin_cache": array(3, 16)}],
        "sin_cache": [{"sin_cache": array(8, 8)}],
        "position_ids": [later | {"position_ids": np.zeros((1, 3), np.int64)}],
        "position 9": [later | {"position_ids": np.array([[0, 1, 2, 9]])}],
        "attention_bias": [{"attention_bias": b} for b in (
            array(1, 2, 4, 1), array(1, 2, 4, 3), array(1, 2, 4, 9), array(1, 3, 4, 4))],
        "head_sink": [{"head_sink": array(3)}],
    }  # fmt: skip


def end_in_errors(op, attributes, usual, wrong):
    for words, changes in wrong.items():
        for change in changes:
            outputs = dict.fromkeys(("output", "present_key", "present_value"), "float32")
            model, given = model_of(op, usual | change, outputs, attributes, tuple(usual))
            (session,) = sessions(model, only_fulmen=True)
            shapes = {n: None if v is None else v.shape for n, v in change.items()}
            try:
                run(session, given)
            except Exception as error:
                if words in str(error) and "accepted" in str(error):
                    continue
                sys.exit(f"check.py: {op}: {shapes} is refused with {error}")
            sys.exit(f"check.py: {op}: {shapes} is not refused")
    count = sum(len(changes) for changes in wrong.values())
    print(f"{op}: {count} inputs that contradict themselves are refused by name")


def left(op, attributes, inputs, outputs):
    """The node is left to the CPU provider, but not without what `attributes` or `outputs` add."""
    model, _ = model_of(op, inputs, outputs, attributes)
    try:
        sessions(model, only_fulmen=True)
    except Exception as error:
        if "fallback to CPU EP has been explicitly disabled" in str(error):
            return
        raise
    sys.exit(f"check.py: {op} with {attributes} and {list(outputs)} is taken")


def check(random):
    end_in_errors("MultiHeadAttention", *multi_head(random))
    end_in_errors("GroupQueryAttention", *group_query(random))
    three = dict.fromkeys(("output", "present_key", "present_value"), "float32")
    _, inputs, _ = multi_head(random)
    masked = inputs | {"key_padding_mask": np.ones(2, np.int32)}
    left("MultiHeadAttention", {"num_heads": 4}, inputs, three | {"qk": "float32"})
    left("MultiHeadAttention", {"num_heads": 4, "mask_filter_value": -10.0}, masked, three)
    attributes, inputs, _ = group_query(random)
    if "qk_output" in GQA_ATTRIBUTES:
        more = attributes | {"qk_output": 1}
        left("GroupQueryAttention", more, inputs, three | {"output_qk": "float32"})
    print("what is not served is left to the CPU provider")
