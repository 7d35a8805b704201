#!/usr/bin/env python3
"""Runs nodes by Fulmen's execution provider beside ONNX Runtime's CPU provider, or beside what the
onnx package publishes.

check.py LIBRARY [--seed N] [--rounds N] [--time]

Attention of opset 23 and 24 by the onnx package's own cases, then random nodes of all three
operators. Each model has one node, and it is checked which provider has it. Needs onnxruntime (1.24
or newer), onnx and NumPy."""

import argparse
import concurrent.futures
import pathlib
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

NAME = "FulmenExecutionProvider"
BOUNDS = {"float32": 2e-5, "float16": 6e-3}
GQA_ATTRIBUTES = next(
    schema.attributes
    for schema in get_all_operator_schema()
    if (schema.domain, schema.name) == ("com.microsoft", "GroupQueryAttention")
)


def sessions(model, only_fulmen=False, threads=2):
    """A session with Fulmen and one without; fails where Fulmen does not have the node."""
    made = []
    for fulmen in (True,) if only_fulmen else (True, False):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if fulmen:
            devices = [d for d in ort.get_ep_devices() if d.ep_name == NAME]
            options.add_provider_for_devices(devices[:1], {})
            # Any node that it leaves to the CPU provider is an error.
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        made.append(ort.InferenceSession(model.SerializeToString(), options))
    return made


def worst(ours, right):
    difference = np.abs(ours.astype(np.float64) - right.astype(np.float64))
    return float(np.max(difference / max(1.0, np.max(np.abs(right.astype(np.float64)))), initial=0))


def compare(name, ours, right, dtype):
    for index, (a, b) in enumerate(zip(ours, right, strict=True)):
        if a.shape != b.shape:
            sys.exit(f"{name}: output {index} is {a.shape}, not {b.shape}")
        error = worst(a, b)
        if not error <= BOUNDS[dtype]:
            sys.exit(f"{name}: output {index} errs by {error:.2e}")


def published():
    from onnx.backend.test.case import node

    before = len(node._NodeTestCases)
    import onnx.backend.test.case.node.attention  # noqa: F401

    ran, left = 0, {}
    for case in node._NodeTestCases[before:]:
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].op_type != "Attention":
            continue
        model = case.model
        if model.opset_import[0].version > 24:
            left.setdefault("a newer opset", []).append(case.name)
            continue
        model.ir_version = min(model.ir_version, 11)
        try:
            (session,) = sessions(model, only_fulmen=True)
        except Exception as error:
            left.setdefault(str(error).split("\n")[0][:160], []).append(case.name)
            continue
        for inputs, outputs in case.data_sets:
            names = [i.name for i in graph.input]
            ours = session.run(None, dict(zip(names, inputs, strict=False)))
            compare(case.name, ours, outputs, str(np.asarray(inputs[0]).dtype))
        ran += 1
    print(f"Attention: {ran} of the onnx package's cases agree")
    for why, names in left.items():
        print(f"  {len(names)} left to other providers: {why}: {', '.join(names[:3])} ...")
    if ran < 20:
        sys.exit("check.py: too few cases were served")


def model_of(op, domain, inputs, outputs, attributes):
    """inputs: name -> array, None or "" where the node leaves one out."""
    kinds = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16,
             "int32": TensorProto.INT32, "bool": TensorProto.BOOL}  # fmt: skip
    given = {name: value for name, value in inputs.items() if value is not None}
    names = [name if name in given else "" for name in inputs]
    while names[-1] == "":
        names.pop()
    node = helper.make_node(op, names, list(outputs), domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, kinds[str(v.dtype)], v.shape) for n, v in given.items()],
        [helper.make_tensor_value_info(n, kinds[str(t)], None) for n, t in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def random_mha(random):
    dtype = np.float32
    b, heads, d = random.integers(1, 4), random.integers(1, 5), int(random.choice([16, 32, 64]))
    rows, past = random.integers(1, 20), int(random.integers(0, 12))
    causal = bool(random.random() < 0.5)
    keys = rows if past else random.integers(1, 40)
    array = lambda *shape: random.standard_normal(shape).astype(dtype)  # noqa: E731
    total = past + keys
    inputs = {
        "query": array(b, rows, heads * d),
        "key": array(b, keys, heads * d),
        "value": array(b, keys, heads * d),
        "bias": None,
        "key_padding_mask": None,
        "attention_bias": array(random.choice([1, b]), random.choice([1, heads]), rows, total)
        if random.random() < 0.5
        else None,
        "past_key": array(b, heads, past, d) if past else None,
        "past_value": array(b, heads, past, d) if past else None,
    }
    outputs = {"output": "float32"}
    if past:
        outputs |= {"present_key": "float32", "present_value": "float32"}
    attributes = {"num_heads": int(heads), "unidirectional": int(causal)}
    return model_of("MultiHeadAttention", "com.microsoft", inputs, outputs, attributes), "float32"


def random_gqa(random):
    name = str(random.choice(["float32", "float16"]))
    dtype = np.dtype(name)
    b, kv_heads, d = random.integers(1, 4), int(random.integers(1, 4)), int(random.choice([32, 64]))
    heads = int(kv_heads * random.integers(1, 4))
    first = bool(random.random() < 0.4)
    rows = int(random.integers(2, 24)) if first else 1
    room = int(random.integers(rows + 1, 40))
    # A first prompt is padded at its end, and has one sequence of all rows.
    ends = random.integers(0, rows, b) if first else random.integers(1, room, b)
    if first:
        ends[random.integers(b)] = rows - 1
    total = int(ends.max()) + 1
    array = lambda *shape: random.standard_normal(shape).astype(dtype)  # noqa: E731
    packed, rotary = bool(random.random() < 0.3), bool(random.random() < 0.6)
    angle = random.standard_normal((64, d // 2))
    inputs = {
        "query": array(b, rows, (heads + 2 * kv_heads if packed else heads) * d),
        "key": None if packed else array(b, rows, kv_heads * d),
        "value": None if packed else array(b, rows, kv_heads * d),
        "past_key": array(b, kv_heads, 0 if first else room, d),
        "past_value": array(b, kv_heads, 0 if first else room, d),
        "seqlens_k": ends.astype(np.int32),
        "total_sequence_length": np.array(total, np.int32),
        "cos_cache": np.cos(angle).astype(dtype) if rotary else None,
        "sin_cache": np.sin(angle).astype(dtype) if rotary else None,
        "position_ids": None,
        "attention_bias": array(random.choice([1, b]), random.choice([1, heads]), rows, total)
        if random.random() < 0.3
        else None,
    }
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": int(rotary)}
    if rotary:
        attributes["rotary_interleaved"] = int(random.random() < 0.5)
    # Of ONNX Runtime 1.30 and newer.
    if "causal" in GQA_ATTRIBUTES and random.random() < 0.3:
        attributes["causal"] = 0
    elif random.random() < 0.3:
        attributes["local_window_size"] = int(random.integers(1, 20))
    if random.random() < 0.3:
        attributes["softcap"] = 5.0
    outputs = dict.fromkeys(("output", "present_key", "present_value"), name)
    made = model_of("GroupQueryAttention", "com.microsoft", inputs, outputs, attributes)
    return made, name, ends


def refused(random):
    """GroupQueryAttention of sizes that contradict each other ends in an error."""
    array = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    usual = {
        "query": array(1, 4, 64),
        "key": array(1, 4, 32),
        "value": array(1, 4, 32),
        "past_key": None,
        "past_value": None,
        "seqlens_k": np.array([3], np.int32),
        "total_sequence_length": np.array([4], np.int32),
        "cos_cache": None,
        "sin_cache": None,
        "position_ids": None,
        "attention_bias": None,
    }
    wrong = {
        "the key": [array(1, 2, 32), array(1, 4, 16), array(2, 4, 32), array(1, 1, 4, 32)],
        "the value": [array(1, 2, 32), array(1, 4, 16)],
        "attention_bias": [array(1, 2, 4, 1), array(1, 2, 4, 3), array(1, 2, 4, 9)],
        "total_sequence_length": [np.zeros(0, np.int32), np.full(2, 4, np.int32)],
    }
    for words, arrays in wrong.items():
        for one in arrays:
            model, given = model_of(
                "GroupQueryAttention",
                "com.microsoft",
                usual | {words.removeprefix("the "): one},
                dict.fromkeys(("output", "present_key", "present_value"), "float32"),
                {"num_heads": 2, "kv_num_heads": 1},
            )
            for value in model.graph.input:  # known when it runs
                for index, dim in enumerate(value.type.tensor_type.shape.dim):
                    dim.dim_param = f"{value.name}_{index}"
            (session,) = sessions(model, only_fulmen=True)
            try:
                session.run(None, given)
            except Exception as error:
                if words in str(error):
                    continue
                sys.exit(f"check.py: {words} {one.shape} is refused with {error}")
            sys.exit(f"check.py: {words} {one.shape} is not refused")
    print("GroupQueryAttention: sizes that contradict each other are refused")


def left(random):
    """An attribute that is on and that Fulmen does not know is no node of Fulmen's."""
    if "sliding_window_cache" not in GQA_ATTRIBUTES:  # older than 1.30
        return
    array = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    inputs = {name: array(1, 1, 32) for name in ("query", "key", "value")}
    inputs |= {name: array(1, 1, 8, 32) for name in ("past_key", "past_value")}
    inputs["seqlens_k"] = np.array([3], np.int32)
    inputs["total_sequence_length"] = np.array([4], np.int32)
    attributes = {"num_heads": 1, "kv_num_heads": 1, "local_window_size": 4}
    for on in (0, 1):
        outputs = dict.fromkeys(("output", "present_key", "present_value"), "float32")
        attributes["sliding_window_cache"] = on
        model, _ = model_of("GroupQueryAttention", "com.microsoft", inputs, outputs, attributes)
        try:
            sessions(model, only_fulmen=True)
        except Exception as error:
            if on and "fallback to CPU EP has been explicitly disabled" in str(error):
                continue
            raise
        if on:
            sys.exit("check.py: sliding_window_cache is taken")
    print("GroupQueryAttention: sliding_window_cache is left to the CPU provider")


def bound(session, given):
    """A run without copies: past and present are one memory, as generation has them."""
    binding = session.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        past = values.get(output.name.replace("present", "past"))
        if past is None:
            binding.bind_output(output.name)
        else:
            binding.bind_ortvalue_output(output.name, past)
    return lambda: session.run_with_iobinding(binding)


def timed():
    """Medians of runs in turn, one thread: the CPU provider's and Fulmen's."""
    random = np.random.default_rng(1)
    array = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    float32 = {"output": "float32"}
    caches = {"present_key": "float32", "present_value": "float32"}
    length = 8191
    nodes = {
        "MultiHeadAttention, 1024 queries and keys, 16 heads of 64": model_of(
            "MultiHeadAttention",
            "com.microsoft",
            {name: array(1, 1024, 1024) for name in ("query", "key", "value")},
            float32,
            {"num_heads": 16},
        ),
        "GroupQueryAttention, a token after 8191, 32 / 8 heads of 128": model_of(
            "GroupQueryAttention",
            "com.microsoft",
            {
                "query": array(1, 1, 4096),
                "key": array(1, 1, 1024),
                "value": array(1, 1, 1024),
                "past_key": array(1, 8, length + 1, 128),
                "past_value": array(1, 8, length + 1, 128),
                "seqlens_k": np.array([length], np.int32),
                "total_sequence_length": np.array(length + 1, np.int32),
            },
            float32 | caches,
            {"num_heads": 32, "kv_num_heads": 8},
        ),
    }
    for name, (model, given) in nodes.items():
        times = ([], [])
        runs = [bound(session, given) for session in sessions(model, threads=1)]
        for _ in range(12):
            for run, seconds in zip(runs, times, strict=True):
                start = time.process_time()
                run()
                seconds.append(time.process_time() - start)
        ours, own = (float(np.median(seconds[2:])) for seconds in times)
        print(
            f"{name}: {own * 1e3:.1f} ms of processor, with Fulmen {ours * 1e3:.1f}: "
            f"{own / ours:.2f}"
        )


def at_once(threads=4):
    """One session from several threads: each result is that of the session alone."""
    (model, given), _ = random_mha(np.random.default_rng(2))
    (session,) = sessions(model, only_fulmen=True)
    right = session.run(None, given)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for results in pool.map(lambda _: session.run(None, given), range(200)):
            if not all(np.array_equal(a, b) for a, b in zip(results, right, strict=True)):
                sys.exit("check.py: a run beside others differs")
    print(f"200 runs from {threads} threads are the same")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=np.random.SeedSequence().entropy % 2**32)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--time", action="store_true", help="time two nodes and do nothing else")
    options = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, onnx {onnx.__version__}, seed {options.seed}")
    ort.register_execution_provider_library("Fulmen", str(pathlib.Path(options.library).resolve()))
    if options.time:
        return timed()
    published()
    at_once()
    random = np.random.default_rng(options.seed)
    refused(random)
    left(random)
    for round in range(options.rounds):
        (model, given), dtype = random_mha(random)
        with_fulmen, without = (s.run(None, given) for s in sessions(model))
        compare(f"MultiHeadAttention {round}", with_fulmen, without, dtype)
    print(f"MultiHeadAttention: {options.rounds} random nodes agree with the CPU provider")
    for round in range(options.rounds):
        (model, given), dtype, ends = random_gqa(random)
        with_fulmen, without = (s.run(None, given) for s in sessions(model))
        for results in (with_fulmen, without):  # rows that no sequence uses
            for b, end in enumerate(ends):
                if results[0].shape[1] > 1:
                    results[0][b, end + 1 :] = 0
                for cache in results[1:]:
                    cache[b, :, end + 1 :] = 0
        compare(f"GroupQueryAttention {round} {model.graph.node[0]}", with_fulmen, without, dtype)
    print(f"GroupQueryAttention: {options.rounds} random nodes agree with the CPU provider")


if __name__ == "__main__":
    main()
