#!/usr/bin/env python3
"""Builds llama.cpp and libggml-fulmen, checks one beside the other, and times them in turn.

run.py [build] [ops] [logits] [bench] [depth]     all five without an argument

  build   llama.cpp (llama-bench, test-backend-ops) from --source, then libggml-fulmen
  ops     ggml's own test-backend-ops of FLASH_ATTN_EXT, Fulmen beside the CPU backend
  logits  a random model: the same greedy tokens, and logits within --tolerance
  bench   llama-bench with and without Fulmen in turn: tokens/s of each, and their ratio
  depth   the same behind long contexts, which Fulmen computes once, into files

fetch brings the source to build/llama.cpp. Needs cmake, ninja, a C++20 compiler and NumPy; Fulmen
is found by CMAKE_PREFIX_PATH."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Runs:
    def __init__(self, options):
        self.options = options
        self.source = options.source.resolve()
        self.build = options.build_dir.resolve()
        self.programs = self.build / "llama.cpp/bin"
        self.plugin = self.build / "fulmen/libggml-fulmen.so"

    def environment(self, fulmen):
        environment = dict(os.environ)
        environment.pop("GGML_BACKEND_PATH", None)
        if fulmen:
            environment["GGML_BACKEND_PATH"] = str(self.plugin)
        return environment

    def call(self, *command, fulmen=False, **keywords):
        command = [str(part) for part in command]
        done = subprocess.run(command, env=self.environment(fulmen), text=True, **keywords)
        if done.returncode != 0:
            sys.exit(f"run.py: {' '.join(command[:2])} ended with {done.returncode}")
        return done

    def build_all(self):
        jobs = f"-j{self.options.jobs}"
        off = ("CURL", "OPENSSL", "BUILD_EXAMPLES", "BUILD_SERVER", "BUILD_UI")
        self.call(
            "cmake", "-G", "Ninja", "-S", self.source, "-B", self.build / "llama.cpp",
            "-DCMAKE_BUILD_TYPE=Release", *(f"-DLLAMA_{name}=OFF" for name in off),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self.call("ninja", "-C", self.build / "llama.cpp", jobs, "llama-bench", "test-backend-ops")
        self.call(
            "cmake", "-G", "Ninja", "-S", HERE, "-B", self.build / "fulmen",
            f"-DLLAMA_CPP_SOURCE={self.source}", f"-DLLAMA_CPP_LIBRARIES={self.programs}",
        )  # fmt: skip
        self.call("ninja", "-C", self.build / "fulmen", jobs)
        includes = (f"-I{self.source}/include", f"-I{self.source}/ggml/include")
        for name in ("logits", "depth"):
            self.call(
                "c++", "-O1", "-std=c++17", *includes, HERE / f"{name}.cpp", "-o",
                self.build / name, f"-L{self.programs}", "-lllama", "-lggml", "-lggml-base",
                f"-Wl,-rpath,{self.programs}",
            )  # fmt: skip

    def ops(self):
        program = [self.programs / "test-backend-ops", "test", "-o", "FLASH_ATTN_EXT", "-b"]
        if self.options.params:
            program += ["Fulmen", "-p", self.options.params]
        else:
            program += ["Fulmen"]
        log = self.build / "ops.log"
        with log.open("w") as file:
            self.call(*program, fulmen=True, stdout=file, stderr=subprocess.STDOUT)
        cases = [line for line in log.read_text().split("\n") if "FLASH_ATTN_EXT(" in line]
        refused = sum("not supported" in line for line in cases)
        if "serves FLASH_ATTN_EXT" not in log.read_text() or len(cases) == refused:
            sys.exit(f"run.py: Fulmen served nothing: {log}")
        print(f"ops: {len(cases) - refused} cases OK, {refused} are ggml's own ({log})")

    def model(self, layers=4, heads=16, kv_heads=4, head_dim=64):
        path = self.build / f"random-{layers}-{heads}-{kv_heads}-{head_dim}.gguf"
        if not path.exists():
            self.call(
                sys.executable, HERE / "make_model.py", self.source, path, "--layers", layers,
                "--heads", heads, "--kv-heads", kv_heads, "--head-dim", head_dim,
            )  # fmt: skip
        return path

    def logits(self):
        import numpy as np

        for types in (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("bf16", "bf16")):
            said = []
            for fulmen in (False, True):
                done = self.call(
                    self.build / "logits", self.model(), 700, 24, *types, self.options.threads,
                    fulmen=fulmen, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )  # fmt: skip
                said.append(
                    np.array([line.split() for line in done.stdout.split("\n")[:-1]], float)
                )
                if fulmen != ("serves FLASH_ATTN_EXT" in done.stderr):
                    sys.exit(f"run.py: logits with fulmen={fulmen}: {done.stderr}")
            own, ours = said
            error = np.sum((ours - own)[:, 1:] ** 2) / np.sum(own[:, 1:] ** 2)
            same = int(np.sum(ours[:, 0] == own[:, 0]))
            print(
                f"logits, K {types[0]} V {types[1]}: {same} of {len(own)} tokens, nmse {error:.1e}"
            )
            if error > self.options.tolerance:
                sys.exit(f"run.py: more than {self.options.tolerance}")

    def bench(self):
        for types in self.options.types:
            for depth in self.options.depths:
                for name, tokens in (("-p", 512), ("-n", 32)):
                    rates = ([], [])
                    for _ in range(self.options.rounds):
                        for fulmen in (False, True):
                            done = self.call(
                                self.programs / "llama-bench", "-m", self.model(), "-fa", 1,
                                "-t", self.options.threads, "-d", depth, "-r", 1, "-o", "json",
                                "-ctk", types, "-ctv", types, "-p", 0, "-n", 0, name, tokens,
                                fulmen=fulmen, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            )  # fmt: skip
                            rates[fulmen].append(json.loads(done.stdout)[0]["avg_ts"])
                    own, ours = map(statistics.median, rates)
                    what = "prompt of 512" if name == "-p" else "new tokens"
                    print(
                        f"{types}, {what} after {depth}: {own:.1f} tokens/s, with Fulmen "
                        f"{ours:.1f}: {ours / own:.2f}",
                        flush=True,
                    )

    def depth(self):
        import numpy as np

        def run(fulmen, state, context, types, prompt=128, new=16):
            done = self.call(
                self.build / "depth", self.model(layers=1), state, context, prompt, new, types,
                types, self.options.threads, self.options.clock, fulmen=fulmen,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            if fulmen != ("serves FLASH_ATTN_EXT" in done.stderr):
                sys.exit(f"run.py: depth with fulmen={fulmen}: {done.stderr}")
            return done.stdout.split()

        for types in self.options.types:
            for context in self.options.contexts:
                state = self.build / f"context-{types}-{context}"
                if not state.exists():
                    run(True, state, context, types)
                rounds = []
                for _ in range(self.options.rounds):
                    rounds.append([run(fulmen, state, context, types) for fulmen in (False, True)])
                own, ours = (np.array(said, float) for said in zip(*rounds, strict=True))
                error = np.sum((ours - own)[0, 2:] ** 2) / np.sum(own[0, 2:] ** 2)
                for column, what in enumerate(("prompt of 128", "new tokens")):
                    rates = np.median(own[:, column]), np.median(ours[:, column])
                    print(
                        f"{types}, {what} after {context}: {rates[0]:.1f} tokens/s, with Fulmen "
                        f"{rates[1]:.1f}: {np.median(ours[:, column] / own[:, column]):.2f}",
                        flush=True,
                    )
                print(f"{types} after {context}: the logits' nmse is {error:.1e}", flush=True)
                # ggml adds up f16 values in f16, whose errors grow with the number of keys.
                allowed = self.options.tolerance * context / 4096
                if error > allowed:
                    sys.exit(f"run.py: more than {allowed:.1e}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = ("build", "ops", "logits", "bench", "depth")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="of these five")
    parser.add_argument("--source", type=pathlib.Path, default=ROOT / "build/llama.cpp")
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build/llama.cpp.build")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--params", help="ops: of the cases those that match; all are an hour")
    parser.add_argument("--tolerance", type=float, default=5e-4, help="logits: of the nmse")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 2048, 8192])
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help="depth: its")
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 32768], help="depth: of")
    parser.add_argument("--types", nargs="+", default=["f16", "q8_0"])
    options = parser.parse_args()
    unknown = set(options.steps) - set(steps)
    if unknown:
        parser.error(f"{sorted(unknown)[0]} is no step: {', '.join(steps)}")
    if not (options.source / "ggml/src/ggml-backend-impl.h").exists():
        parser.error(f"--source {options.source} has no llama.cpp: fetch brings it there")
    runs = Runs(options)
    for step in options.steps or steps:
        getattr(runs, {"build": "build_all"}.get(step, step))()


if __name__ == "__main__":
    main()
