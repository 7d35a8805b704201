#!/usr/bin/env python3
"""Writes a random lc0 network of a named geometry: for checks and timings, it plays no chess.

The message classes come from lc0's own proto/net.proto, by protoc, or from a net_pb2 that is there.
"""

import argparse
import gzip
import importlib.util
import pathlib
import random
import subprocess
import sys
import tempfile

# name: width, heads, smolgen
GEOMETRIES = {
    "t82": (768, 24, True),
    "12x64": (768, 12, True),
    "8x96": (768, 8, True),
    "6x128": (768, 6, True),
    "32x32": (1024, 32, True),
    "t82-plain": (768, 24, False),
}
SQUARES = 64
INPUT_CHANNELS = 112 + 64  # planes, and the position encoding


def messages(proto: pathlib.Path):
    """The module that protoc makes of net.proto, or made before where it is in PYTHONPATH."""
    name = f"{proto.stem}_pb2"
    if importlib.util.find_spec(name):
        return importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["protoc", f"--proto_path={proto.parent}", f"--python_out={folder}", proto.name],
            check=True,
        )
        sys.path.insert(0, folder)
        return importlib.import_module(name)


class Writer:
    """Fills layers with numbers of 16 bits between two bounds, lc0's LINEAR16."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def uniform(self, layer, count: int, low: float, high: float) -> None:
        layer.min_val, layer.max_val = low, high
        layer.params = self.random.randbytes(2 * count)

    def dense(self, message, name: str, inputs: int, outputs: int) -> None:
        """name_w and name_b, with a variance of 1 / inputs: activations keep their size."""
        self.matrix(getattr(message, f"{name}_w"), inputs, outputs)
        self.uniform(getattr(message, f"{name}_b"), outputs, -0.1, 0.1)

    def matrix(self, layer, inputs: int, outputs: int) -> None:
        bound = (3.0 / inputs) ** 0.5
        self.uniform(layer, inputs * outputs, -bound, bound)

    def norm(self, message, name: str, size: int) -> None:
        self.uniform(getattr(message, f"{name}_gammas"), size, 0.8, 1.2)
        self.uniform(getattr(message, f"{name}_betas"), size, -0.1, 0.1)


def add_encoder(write: Writer, layer, width: int, heads: int, smolgen: bool) -> None:
    mha = layer.mha
    for name in ("q", "k", "v", "dense"):
        write.dense(mha, name, width, width)
    if smolgen:
        write.matrix(mha.smolgen.compress, width, 32)
        write.dense(mha.smolgen, "dense1", 32 * SQUARES, 256)
        write.norm(mha.smolgen, "ln1", 256)
        write.dense(mha.smolgen, "dense2", 256, 256 * heads)
        write.norm(mha.smolgen, "ln2", 256 * heads)
    write.norm(layer, "ln1", width)
    write.dense(layer.ffn, "dense1", width, 1024)
    write.dense(layer.ffn, "dense2", 1024, width)
    write.norm(layer, "ln2", width)


def add_heads(write: Writer, weights, width: int) -> None:
    for name in ("ip_pol", "ip2_pol", "ip3_pol"):
        write.dense(weights, name, width, width)
    write.matrix(weights.ip4_pol_w, width, 4)
    write.dense(weights, "ip_val", width, 32)
    write.dense(weights, "ip1_val", 32 * SQUARES, 128)
    write.dense(weights, "ip2_val", 128, 3)
    write.dense(weights, "ip_mov", width, 8)
    write.dense(weights, "ip1_mov", 8 * SQUARES, 128)
    write.dense(weights, "ip2_mov", 128, 1)


def set_format(pb, net) -> None:
    net.magic = 0x1C0
    net.license = "random numbers"
    net.min_version.major, net.min_version.minor, net.min_version.patch = 0, 30, 0
    net.format.weights_encoding = pb.Format.LINEAR16
    network, form = net.format.network_format, pb.NetworkFormat
    network.input = form.INPUT_112_WITH_CANONICALIZATION_V2
    network.output = form.OUTPUT_WDL
    network.network = form.NETWORK_ATTENTIONBODY_WITH_HEADFORMAT
    network.policy = form.POLICY_ATTENTION
    network.value = form.VALUE_WDL
    network.moves_left = form.MOVES_LEFT_V1
    network.default_activation = form.DEFAULT_ACTIVATION_MISH
    network.smolgen_activation = form.ACTIVATION_SWISH
    network.ffn_activation = form.ACTIVATION_RELU_2
    network.input_embedding = form.INPUT_EMBEDDING_PE_MAP


def make_net(pb, geometry: str, layers: int, seed: int):
    width, heads, smolgen = GEOMETRIES[geometry]
    net, write = pb.Net(), Writer(seed)
    set_format(pb, net)
    weights = net.weights
    write.dense(weights, "ip_emb", INPUT_CHANNELS, width)
    write.uniform(weights.ip_mult_gate, width * SQUARES, 0.5, 1.5)
    write.uniform(weights.ip_add_gate, width * SQUARES, -0.5, 0.5)
    weights.headcount = heads
    for _ in range(layers):
        add_encoder(write, weights.encoder.add(), width, heads, smolgen)
    if smolgen:
        write.matrix(weights.smolgen_w, 256, SQUARES * SQUARES)
    add_heads(write, weights, width)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lc0", type=pathlib.Path, help="lc0's source folder")
    parser.add_argument("out", type=pathlib.Path, help="the network to write, NAME.pb.gz")
    parser.add_argument("--geometry", choices=GEOMETRIES, default="t82")
    parser.add_argument("--layers", type=int, default=2, help="encoder layers (default 2)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    pb = messages(args.lc0 / "proto" / "net.proto")
    net = make_net(pb, args.geometry, args.layers, args.seed)
    args.out.write_bytes(gzip.compress(net.SerializeToString(), compresslevel=1, mtime=0))


if __name__ == "__main__":
    main()
