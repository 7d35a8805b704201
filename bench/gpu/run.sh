#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and PyTorch: verify, then the benchmark beside PyTorch's own kernels.
#   bench/gpu/run.sh FOLDER [bench.py's options]   FOLDER holds fulmen and libfulmen.so.0.2; results go to $OUT, or to build/gpu
# Where the Python package is installed, it is checked and measured, too (bench/python/gpu.py, models/models.py).
set -euo pipefail
build=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "$0")")"
out=${OUT:-../../build/gpu}
mkdir -p "$out"
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} FULMEN_LIBRARY=$build/libfulmen.so.0.2 FULMEN_CACHE_DIR=${FULMEN_CACHE_DIR:-/tmp/fulmen-cache}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
"$build/fulmen" devices | grep -A4 '^cuda'
if [[ ${VERIFY:-quick} != none ]]; then
  for dtype in ${DTYPES:-bf16 fp16 fp32}; do "$build/fulmen" verify --device cuda:0 --grid "${VERIFY:-quick}" --dtype "$dtype"; done
  for dtype in ${DTYPES:-bf16 fp16 fp32}; do "$build/fulmen" verify --backward --device cuda:0 --grid "${VERIFY:-quick}" --dtype "$dtype"; done
fi
# Each family once, forward and backward, under the tools that watch memory and races.
sanitize() # TOOL LENGTH_Q LENGTH_K HEAD_DIM [options]
{
  local folder
  folder=$(mktemp -d)
  python3 -c 'import sys, numpy as np
folder, queries, keys, dim = sys.argv[1], *map(int, sys.argv[2:])
for name, length in dict(q=queries, k=keys, v=keys, dout=queries).items():
    np.save(f"{folder}/{name}.npy", np.random.standard_normal((2, length, 2, dim)).astype(np.float16))
np.save(f"{folder}/bias.npy", np.random.standard_normal((1, 2, queries, keys)).astype(np.float16))' "$folder" "${@:2:3}"
  local arguments=(--device cuda:0 --dtype fp16 --verify --backward "${@:5}")
  for name in q k v bias dout out dq dk dv; do arguments+=("--$name" "$folder/$name.npy"); done
  if timeout 240 compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 9 "$build/fulmen" run "${arguments[@]}" >"$folder/log" 2>&1; then
    echo "$*: $(sed -n 's/.* by //p' "$folder/log" | sort -u | paste -sd' '), $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$folder/log" | tail -1)"
  else
    echo "$*: FAILED" && cat "$folder/log" && return 1
  fi
  rm -r "$folder"
}
if type -P compute-sanitizer >/dev/null && [[ ${SANITIZE:-yes} != no ]]; then
  running=()
  for tool in memcheck racecheck; do
    for problem in "64 64 32" "64 64 128" "130 150 32" "130 150 32 --no-deterministic" "130 150 64" "130 150 64 --no-deterministic" "400 450 128" \
      "100 80 256" "2 600 64"; do
      sanitize $tool $problem &
      running+=($!)
    done
  done
  for job in "${running[@]}"; do wait "$job"; done
fi
python3 first_use.py
python3 bench.py --json "$out/bench.json" "${@:2}"
if python3 -P -c 'import fulmen.torch' 2>/dev/null; then
  python3 ../python/gpu.py --json "$out/python.json"
  python3 models/models.py --prepare 8 --json "$out/models.json"
fi
