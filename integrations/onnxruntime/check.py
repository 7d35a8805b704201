#!/usr/bin/env python3
"""Runs nodes by Fulmen's execution provider beside double precision, beside ONNX Runtime's CPU
provider where it has them, and beside what the onnx package publishes.

check.py LIBRARY [--seed N] [--rounds N] [--time]

Attention of opset 23 to 25 by the onnx package's own cases, then random nodes of all three
operators, and bad input. Each model has one node, and it is checked which provider has it. Needs
onnxruntime (1.24 or newer), onnx and NumPy."""

import argparse
import concurrent.futures
import pathlib
import sys
import time

import group_query
import multi_head
import numpy as np
import onnx
import onnxruntime as ort
import plain_attention
import refusals
from models import BOUNDS, compare, model_of, run, sessions


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
        if model.opset_import[0].version > 25:
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
            ours = run(session, dict(zip(names, inputs, strict=False)))
            for a, b in zip(ours, outputs, strict=True):
                compare(case.name, a, b, BOUNDS[str(np.asarray(inputs[0]).dtype)])
        ran += 1
    print(f"Attention: {ran} of the onnx package's cases agree")
    for why, names in left.items():
        print(f"  {len(names)} left to other providers: {why}: {', '.join(names[:3])} ...")
    if ran < 20:
        sys.exit("check.py: too few cases were served")


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
            {name: array(1, 1024, 1024) for name in ("query", "key", "value")},
            float32,
            {"num_heads": 16},
        ),
        "MultiHeadAttention, BERT's: bias, 8 texts of 100 to 384 tokens, 12 heads of 64": model_of(
            "MultiHeadAttention",
            {name: array(8, 384, 768) for name in ("query", "key", "value")}
            | {
                "bias": array(3 * 768),
                "key_padding_mask": (
                    np.arange(384) < np.linspace(100, 384, 8).astype(int)[:, None]
                ).astype(np.int32),
            },
            float32,
            {"num_heads": 12},
        ),
        "GroupQueryAttention, a token after 8191, 32 / 8 heads of 128": model_of(
            "GroupQueryAttention",
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
            for call, seconds in zip(runs, times, strict=True):
                start = time.process_time()
                call()
                seconds.append(time.process_time() - start)
        ours, own = (float(np.median(seconds[2:])) for seconds in times)
        print(
            f"{name}: {own * 1e3:.1f} ms of processor, with Fulmen {ours * 1e3:.1f}: "
            f"{own / ours:.2f}"
        )


def at_once(threads=4):
    """One session from several threads: each result is that of the session alone."""
    model, given, *_ = multi_head.node(np.random.default_rng(2))
    (session,) = sessions(model, only_fulmen=True)
    right = run(session, given)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for results in pool.map(lambda _: run(session, given), range(200)):
            if not all(np.array_equal(a, b) for a, b in zip(results, right, strict=True)):
                sys.exit("check.py: a run beside others differs")
    print(f"200 runs from {threads} threads are the same")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=np.random.SeedSequence().entropy % 2**32)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--time", action="store_true", help="time two nodes and do nothing else")
    options = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, onnx {onnx.__version__}, seed {options.seed}")
    ort.register_execution_provider_library("Fulmen", str(pathlib.Path(options.library).resolve()))
    if options.time:
        return timed()
    published()
    at_once()
    random = np.random.default_rng(options.seed)
    refusals.check(random)
    plain_attention.check(random, options.rounds)
    multi_head.check(random, options.rounds)
    group_query.check(random, options.rounds)


if __name__ == "__main__":
    main()
