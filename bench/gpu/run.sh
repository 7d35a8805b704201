#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and PyTorch: verify, then the benchmark beside PyTorch's own kernels.
#   bench/gpu/run.sh FOLDER [bench.py's options]   FOLDER holds fulmen and libfulmen.so.0; results go to $OUT, or to build/gpu
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
fi
python3 bench.py --json "$out/bench.json" "${@:2}"
