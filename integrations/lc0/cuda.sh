#!/usr/bin/env bash
# Checks and times lc0's CUDA backend with Fulmen on this machine. Builds and fetches nothing.
set -euo pipefail

if [ $# -lt 2 ]; then
  cat <<TEXT
usage: cuda.sh FOLDER NET [attention|check|bench]...

FOLDER holds what runs:
  lc0             built with CUDA and Fulmen
  attention_cuda  bench_cuda.py --help says how to link it
  drop_bias.so    cc -shared -fPIC -I FULMEN/include -o drop_bias.so drop_bias.c -ldl
NET is a network: make_net.py LC0 NET --layers 15. Does what is named, or all three: attention alone,
lc0's checks, and whole evaluations (ROUNDS times, 2 unless set).
LD_LIBRARY_PATH names libfulmen, cuBLAS and the CUDA runtime where the loader does not find them.
TEXT
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
program=$folder/lc0
net=$2
shift 2
steps=("$@")
[ $# -gt 0 ] || steps=(attention check bench)
for step in "${steps[@]}"; do
  case $step in attention | check | bench) ;; *) echo "cuda.sh: '$step' is no step: attention, check or bench"; exit 2 ;; esac
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# compare WHAT SIZE MODE ONE: lc0's check backend, one with its options beside cuBLAS in fp32.
compare() {
  "$program" backendbench "--weights=$net" --backend=check --batches=2 "--start-batch-size=$2" "--max-batch-size=$2" \
    "--backend-opts=mode=$3,freq=1.0,one($4),other(backend=cuda,fulmen=false)" >"$log" 2>&1 </dev/null || { tail "$log"; exit 1; }
  if [ "$3" = check ]; then
    echo "$1, batch $2: $(grep -c "Check passed" "$log") passed, $(grep -c "ERROR check failed" "$log") failed"
  else
    echo "$1, batch $2: largest error of$(grep -m2 -E "^ *(value|policy): " "$log" | tr '\n' ' ' | tr -s ' ')"
  fi
}

check() {
  local fused="backend=cuda-fp16,fulmen=true"
  compare "fp32 with Fulmen" 16 check "backend=cuda,fulmen=true"
  if ! grep -q "Check passed" "$log" || grep -q "ERROR check failed" "$log"; then echo "FAILED"; exit 1; fi
  # The check itself: a bias that is not added must be seen.
  LD_PRELOAD=$folder/drop_bias.so compare "fp32 with Fulmen and no bias" 16 check "backend=cuda,fulmen=true,graph_capture=false"
  grep -q "ERROR check failed" "$log" || { echo "FAILED: the check does not see a dropped bias"; exit 1; }
  # The check's tolerance is fp32's, and fp16 fails it in every way: errors are to be alike.
  for size in 1 256; do
    compare "fp16 with Fulmen" $size display "$fused"
    compare "fp16 with fusedMHA" $size display "backend=cuda-fp16,fulmen=false,fused_mha=true"
    compare "fp16 with cuBLAS" $size display "backend=cuda-fp16,fulmen=false,fused_mha=false"
  done
  LD_PRELOAD=$folder/drop_bias.so compare "fp16 with Fulmen and no bias" 256 display "$fused,graph_capture=false"
  # Each call against Fulmen's reference, for which a stream must not be captured.
  "$program" backendbench "--weights=$net" --backend=cuda-fp16 \
    --backend-opts=fulmen=true,fulmen_verify=true,graph_capture=false --batches=2 --start-batch-size=8 \
    --max-batch-size=8 >"$log" 2>&1 </dev/null || { tail "$log"; exit 1; }
  grep -E "fused attention|Fused attention failed|^ +8," "$log"
}

for step in "${steps[@]}"; do
  case $step in
    attention) "$folder/attention_cuda" ;;
    check) check ;;
    bench) python3 "$here/bench_cuda.py" "$program" "$net" --rounds "${ROUNDS:-2}" ;;
  esac
done
