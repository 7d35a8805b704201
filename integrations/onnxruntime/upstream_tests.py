#!/usr/bin/env python3
"""Runs ONNX Runtime's own Python tests of the three attention nodes with Fulmen's provider before
the CPU provider in every session.

upstream_tests.py LIBRARY [--revision R] [--tests FOLDER] [--cuda-cases] [-v] [-- for pytest]

With --cuda-cases the tests that ask for a CUDA device run, too, in the host's memory and by
Fulmen's kernels for CPUs: cuda_cases.py says how, and which are left out.

The tests are fetched to build/onnxruntime-tests, outside of what is committed; FOLDER is
onnxruntime/test/python/transformers of a checkout that is there already. Ends with an error where
a test fails, or where Fulmen had no node. Needs onnxruntime, onnx, torch, einops, parameterized and
pytest; no GPU."""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import cuda_cases
import onnxruntime
import pytest

NAME = "FulmenExecutionProvider"
NODES = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
ROOT = pathlib.Path(__file__).resolve().parents[2]
# The revision of microsoft/onnxruntime that README.md's numbers are of.
REVISION = "89b01b406ca7e94078913eea3189e11bef5654c5"
FOLDER = "onnxruntime/test/python/transformers"
FILES = (
    "test_onnx_attention",
    "test_mha.py",
    "test_gqa_cpu.py",
    "test_gqa_cpu_quantized.py",
    "test_gqa.py",
)
WHOSE = ("all attention nodes Fulmen's", "some of them Fulmen's", "none of them Fulmen's")
REASON = re.compile(r"Fulmen: (.* goes to another provider: [^\x1b\n]*)")


def fetch(revision):
    folder = ROOT / "build" / "onnxruntime-tests"
    git = lambda *words: subprocess.run(["git", "-C", str(folder), *words], check=True)  # noqa: E731
    folder.mkdir(parents=True, exist_ok=True)
    git("init", "-q")
    git("config", "remote.origin.url", "https://github.com/microsoft/onnxruntime")
    git("sparse-checkout", "set", FOLDER)
    git("fetch", "-q", "--depth", "1", "--filter=blob:none", "origin", revision)
    git("checkout", "-q", "FETCH_HEAD")
    return folder / FOLDER


class Seen:
    """What the sessions of one test, or of all, did."""

    def __init__(self):
        self.sessions = 0
        self.nodes = collections.Counter()  # (operator, provider)
        self.reasons = collections.Counter()

    def of(self, fulmen):
        return sum(n for (_, ep), n in self.nodes.items() if (ep == NAME) == fulmen)

    def add(self, other):
        self.sessions += other.sessions
        self.nodes += other.nodes
        self.reasons += other.reasons


test = Seen()  # the test that runs


def session_class(devices, hosts):
    """hosts: the providers that Fulmen's takes the place of."""

    class Session(onnxruntime.InferenceSession):
        def __init__(self, model, sess_options=None, providers=None, *others, **named):
            names = [p if isinstance(p, str) else p[0] for p in providers or ()]
            if set(names) - hosts:
                return super().__init__(model, sess_options, providers, *others, **named)
            options = sess_options or onnxruntime.SessionOptions()
            options.log_severity_level = 2
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
            # Hundreds of sessions are alive; their idle threads shall sleep.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            if not options.has_providers():
                options.add_provider_for_devices(devices, {})
            with tempfile.TemporaryFile() as log:
                kept = os.dup(2)
                os.dup2(log.fileno(), 2)
                try:
                    super().__init__(model, options)
                finally:
                    os.dup2(kept, 2)
                    os.close(kept)
                    log.seek(0)
                    test.reasons.update(REASON.findall(log.read().decode(errors="replace")))
            test.sessions += 1
            for part in self.get_provider_graph_assignment_info():
                for node in part.get_nodes():
                    if node.op_type in NODES:
                        test.nodes[node.op_type, part.ep_name] += 1

    return Session


class Report:
    def __init__(self, verbose, without):
        self.verbose, self.without = verbose, without
        self.all = Seen()
        self.tests = collections.Counter()
        self.skipped = collections.Counter()
        self.failed = []

    def pytest_collection_modifyitems(self, items):
        out = [item for item in items if any(word in item.nodeid for word in self.without)]
        items[:] = [item for item in items if item not in out]
        self.tests["left out"] = len(out)
        for module in {item.module for item in items} if self.without else ():
            cuda_cases.without_kernels(module)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        test.__init__()
        result = yield
        self.all.add(test)
        return result

    def pytest_runtest_logreport(self, report):
        if report.skipped and report.when in ("setup", "call"):
            self.tests["skipped"] += 1
            self.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1
        elif report.failed:
            self.tests["failed"] += 1
            self.failed.append(report)
        elif report.when == "call":
            ours, others = test.of(True), test.of(False)
            self.tests["passed"] += 1
            self.tests[WHOSE[2 if not ours else 1 if others else 0]] += 1
            if self.verbose:
                print(f"{report.nodeid}: {ours} nodes Fulmen's, {others} others'")

    def pytest_collectreport(self, report):
        if report.failed:
            self.tests["failed"] += 1
            self.failed.append(report)

    def print(self):
        for report in self.failed:
            print(f"\n--- failed: {report.nodeid}\n{report.longreprtext[-6000:]}")
        t = self.tests
        print(f"\n{t['passed']} passed, {t['failed']} failed, {t['skipped']} skipped")
        print(f"  {t['left out']} left out: of a CUDA provider alone")
        for what in WHOSE:
            print(f"  {t[what]} passed with {what}")
        for why, count in self.skipped.most_common():
            print(f"  {count} skipped: {why}")
        print(f"{self.all.sessions} sessions with Fulmen's provider")
        for (op, provider), count in sorted(self.all.nodes.items()):
            print(f"  {count} nodes {op}: {provider}")
        for why, count in self.all.reasons.most_common():
            print(f"  {count} sessions: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("library")
    parser.add_argument("--revision", default=REVISION, help="or a tag: v1.32.0")
    parser.add_argument("--tests", type=pathlib.Path, help="a folder that has them")
    parser.add_argument("--cuda-cases", action="store_true", help="those of CUDA, on the host")
    parser.add_argument("--verbose", "-v", action="store_true", help="each test's nodes")
    parser.add_argument("pytest", nargs="*", help="of pytest: files, -k and others")
    options = parser.parse_intermixed_args()
    folder = options.tests or fetch(options.revision)
    library = str(pathlib.Path(options.library).resolve())
    onnxruntime.register_execution_provider_library("Fulmen", library)
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME][:1]
    hosts = {"CPUExecutionProvider"}
    if options.cuda_cases:
        cuda_cases.pretend()
        hosts.add(cuda_cases.CUDA)
    onnxruntime.InferenceSession = session_class(devices, hosts)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    report = Report(options.verbose, cuda_cases.ABOUT_CUDA if options.cuda_cases else ())
    chosen = [word for word in options.pytest if word.startswith("test_")]
    words = options.pytest if chosen else [*options.pytest, *filter(os.path.exists, FILES)]
    pytest.main(["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", *words], [report])
    print(f"onnxruntime {onnxruntime.__version__}")
    report.print()
    if report.tests["failed"]:
        sys.exit(1)
    if not report.all.of(True):
        sys.exit("upstream_tests.py: Fulmen had no node")


if __name__ == "__main__":
    main()
