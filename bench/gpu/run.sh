#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and PyTorch: verify, then the benchmark beside PyTorch's own kernels.
#   bench/gpu/run.sh FOLDER [bench.py's options]   FOLDER holds fulmen and libfulmen.so.0; results go to $OUT, or to build/gpu
# Where the Python package is installed, it is checked and measured, too (bench/python/gpu.py).
set -euo pipefail
build=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "$0")")"
out=${OUT:-../../build/gpu}
mkdir -p "$out"
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} FULMEN_LIBRARY=$build/libfulmen.so.0 FULMEN_CACHE_DIR=${FULMEN_CACHE_DIR:-/tmp/fulmen-cache}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
"$build/fulmen" devices | grep -A4 '^cuda'
if [[ ${VERIFY:-quick} != none ]]; then
  for dtype in ${DTYPES:-bf16 fp16 fp32}; do "$build/fulmen" verify --device cuda:0 --grid "${VERIFY:-quick}" --dtype "$dtype"; done
  for dtype in ${DTYPES:-bf16 fp16 fp32}; do "$build/fulmen" verify --backward --device cuda:0 --grid "${VERIFY:-quick}" --dtype "$dtype"; done
fi
# Each family once, under the tools that watch memory and races.
if type -P compute-sanitizer >/dev/null && [[ ${SANITIZE:-yes} != no ]]; then
  inputs=$(mktemp -d)
  for tool in memcheck racecheck; do
    for lengths in "64 64" "130 150" "2 600"; do
      python3 -c 'import sys, numpy as np
folder, queries, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for name, length in zip("qkv", (queries, keys, keys)):
    np.save(f"{folder}/{name}.npy", np.random.standard_normal((2, length, 2, 64)).astype(np.float16))' "$inputs" $lengths
      timeout 120 compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 "$build/fulmen" run --device cuda:0 --dtype fp16 --verify \
        --q "$inputs/q.npy" --k "$inputs/k.npy" --v "$inputs/v.npy" --out "$inputs/out.npy" | grep -v '^$'
    done
  done
  rm -r "$inputs"
fi
python3 first_use.py
python3 bench.py --json "$out/bench.json" "${@:2}"
if python3 -P -c 'import fulmen.torch' 2>/dev/null; then python3 ../python/gpu.py --json "$out/python.json"; fi
