"""Programs that people run, with their own attention and with Fulmen's, in one process.

  python bench/python/hosts.py [host ...] [--rounds N] [--threads N] [--processor-time]

Markdown on stdout.

Hosts are the names below; without one, all that can be imported. Models have random weights, but
for sentence encoders: the time does not depend on them. The two take turns in every round; a figure
is the median over the rounds, and the ratio the median of the rounds' ratios. `difference` is the
largest difference of a result, divided by its largest value, the largest of all results. Memory is
what a run touches at its peak beyond what there was before it. Where other work shares the machine,
`--threads 1 --processor-time` counts what the process itself has taken.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from host import Host
from hosts_folding import pairformer_of
from hosts_images import comfyui, flux, neighbourhood, stable_diffusion, vae
from hosts_language import continuous_batching, sentence_transformers
from memory import peak_of

HOSTS: dict[str, Callable[[], Host]] = {
    "sd15": stable_diffusion,
    "vae": vae,
    "flux": flux,
    "comfyui": comfyui,
    "comfy-kitchen": neighbourhood,
    "transformers": continuous_batching,
    "sentence-transformers": sentence_transformers,
    "boltz-64": pairformer_of(64),
    "boltz-128": pairformer_of(128),
    "boltz-256": pairformer_of(256),
}


def timed(host: Host, clock: Callable[[], float]) -> float:
    start = clock()
    host.run()
    return clock() - start


def difference(found: torch.Tensor, right: torch.Tensor) -> float:
    largest = right.abs().max()
    return ((found - right).abs().max() / largest).item() if largest > 0 else 0.0


def row_of(name: str, host: Host, rounds: int, clock: Callable[[], float]) -> str:
    right = host.run()
    with host.served():
        found = host.run()
    differs = max(difference(*pair) for pair in zip(found, right, strict=True))
    del found, right
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        default = timed(host, clock)
        with host.served():
            times.append((default, timed(host, clock)))
    peaks = [peak_of(host.run, "cpu")]
    with host.served():
        peaks.append(peak_of(host.run, "cpu"))
    default, ours = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(theirs / mine for theirs, mine in times)
    about = " ".join((HOSTS[name].__doc__ or "").split()).rstrip(".")
    memory = " | ".join(f"{peak / 2**20:.0f}" for peak in peaks)
    return (
        f"| {host.version} | {about} | {default:.3f} | {ours:.3f} | {ratio:.2f} "
        f"| {memory} | {differs:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hosts", nargs="*", metavar="host", help=", ".join(HOSTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--processor-time", action="store_true", help="instead of the clock's")
    arguments = parser.parse_args()
    unknown = set(arguments.hosts) - set(HOSTS)
    if unknown:
        parser.error(f"host is {min(unknown)}: {', '.join(HOSTS)} are accepted")
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.processor_time else time.perf_counter
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, fp32\n")
    print(
        "| host | model | its own, s | Fulmen, s | ratio | its own, MiB | Fulmen, MiB "
        "| difference |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with torch.no_grad():
        for name in arguments.hosts or HOSTS:
            try:
                host = HOSTS[name]()
            except ImportError as error:
                if arguments.hosts:
                    raise
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(row_of(name, host, arguments.rounds, clock), flush=True)


if __name__ == "__main__":
    main()
