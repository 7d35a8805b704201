#!/usr/bin/env bash
# Checks and times lc0's CUDA backend with Fulmen on this machine. Builds and fetches nothing.
set -euo pipefail

if [ $# -ne 2 ]; then
  cat <<TEXT
usage: cuda.sh FOLDER NET

FOLDER holds lc0, built with CUDA and Fulmen, and attention_cuda (bench_cuda.py --help says how to link it).
NET is a network: make_net.py LC0 NET --layers 15. Prints attention alone, lc0's checks, and whole evaluations.
LD_LIBRARY_PATH names libfulmen, cuBLAS and the CUDA runtime where the loader does not find them.
TEXT
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
program=$1/lc0
net=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# check WHAT SIZE ONE OTHER: lc0's check backend, two backends with their options against each other.
check() {
  "$program" backendbench "--weights=$net" --backend=check "--backend-opts=freq=1.0,one($3),other($4)" --batches=2 \
    "--start-batch-size=$2" "--max-batch-size=$2" >"$log" 2>&1 </dev/null || { tail "$log"; exit 1; }
  echo "check: $1, batch $2: $(grep -c "Check passed" "$log") passed, $(grep -c "ERROR check failed" "$log") failed"
}

"$1/attention_cuda"
exact="backend=cuda,fulmen=false"
check "fp32 with Fulmen against fp32 without" 16 "backend=cuda,fulmen=true" "$exact"
check "fp16 with Fulmen against fp32 without" 1 "backend=cuda-fp16,fulmen=true" "$exact"
check "fp16 with Fulmen against fp32 without" 300 "backend=cuda-fp16,fulmen=true" "$exact"
check "fp16 without Fulmen against fp32 without" 300 "backend=cuda-fp16,fulmen=false,fused_mha=false" "$exact"
# Each call against Fulmen's reference, for which a stream must not be captured.
"$program" backendbench "--weights=$net" --backend=cuda-fp16 --backend-opts=fulmen=true,fulmen_verify=true,graph_capture=false \
  --batches=2 --start-batch-size=8 --max-batch-size=8 2>&1 </dev/null | grep -E "fused attention|Fused attention failed|^ +8,"
python3 "$here/bench_cuda.py" "$program" "$net"
