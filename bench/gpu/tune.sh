#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: what tuning gains there over the defaults, and the results as a file that may be shipped.
#   bench/gpu/tune.sh FOLDER [options of fulmen tune]
# FOLDER holds fulmen and libfulmen.so.0.1; results go to $OUT, or to build/gpu.
set -euo pipefail
build=$(readlink -f "$1")
out=${OUT:-$(dirname "$(readlink -f "$0")")/../../build/gpu}
mkdir -p "$out"
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} FULMEN_CACHE_DIR=${FULMEN_CACHE_DIR:-/tmp/fulmen-cache}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
"$build/fulmen" tune --device cuda:0 --json "$out/tune.json" --csv "$out/tune.csv" "${@:2}" | tee "$out/tune.txt"
"$build/fulmen" tune --export "$out/tuned.json"
# Tuned results are used, and their source is named.
"$build/fulmen" explain --device cuda:0 --dtype bf16 --heads 32 --kv-heads 8 --seqlen-q 4096 --head-dim 128 --causal | head -4
