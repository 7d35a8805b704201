#!/usr/bin/env python3
"""Writes a GGUF file of a llama with random weights, which llama-bench and logits.cpp run.

make_model.py LLAMA_CPP OUT.gguf [--layers 4] [--heads 16] [--kv-heads 4] [--head-dim 64]
              [--vocab 512] [--seed 1]

Needs NumPy; the package gguf is taken from LLAMA_CPP, the source of llama.cpp. Attention and little
else: the feed-forward layers are as narrow as ggml allows, so that a ratio shows the attention."""

import argparse
import pathlib
import sys

import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("out")
    for name, default in {
        "layers": 4,
        "heads": 16,
        "kv-heads": 4,
        "head-dim": 64,
        "vocab": 512,
        "seed": 1,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    sys.path.insert(0, str(options.llama_cpp / "gguf-py"))
    import gguf

    random = np.random.default_rng(options.seed)
    width, dim = options.heads * options.head_dim, options.head_dim
    writer = gguf.GGUFWriter(options.out, "llama")
    writer.add_name("random")
    writer.add_context_length(131072)
    writer.add_embedding_length(width)
    writer.add_block_count(options.layers)
    writer.add_feed_forward_length(256)
    writer.add_head_count(options.heads)
    writer.add_head_count_kv(options.kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(options.vocab)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name, rows, columns):
        numbers = random.standard_normal((rows, columns), np.float32) / np.sqrt(columns)
        writer.add_tensor(name, numbers.astype(np.float16))

    matrix("token_embd.weight", options.vocab, width)
    matrix("output.weight", options.vocab, width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(options.layers):
        block = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{name}.weight", np.ones(width, np.float32))
        for name, rows in {"attn_q": options.heads, "attn_k": options.kv_heads}.items():
            matrix(f"{block}{name}.weight", rows * dim, width)
        matrix(f"{block}attn_v.weight", options.kv_heads * dim, width)
        matrix(f"{block}attn_output.weight", width, width)
        for name in ("ffn_gate", "ffn_up"):
            matrix(f"{block}{name}.weight", 256, width)
        matrix(f"{block}ffn_down.weight", width, 256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
