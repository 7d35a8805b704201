#!/usr/bin/env bash
# On a machine with several NVIDIA GPUs and PyTorch: is attention spread over them right, and how fast is it. All in BUDGET seconds.
#   bench/gpu/ring.sh FOLDER [parts]   FOLDER holds the Python packages fulmen and nanobind_backend; results go to $OUT, or build/ring
# Each part is a job of its own with its own limit: one that fails or hangs costs no other part its rows.
set -uo pipefail
site=$(readlink -f "$1")
shift
cd "$(dirname "$(readlink -f "$0")")"
out=${OUT:-../../build/ring}
mkdir -p "$out"
budget=${BUDGET:-465} gpus=${GPUS:-$(nvidia-smi -L | wc -l)}
# NVLink multicast can put a shared host's GPUs out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONSAFEPATH=1 PYTHONPATH=$site:$(readlink -f ../python) PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
export FULMEN_CACHE_DIR=${FULMEN_CACHE_DIR:-/tmp/fulmen-cache} TORCH_NCCL_DUMP_ON_TIMEOUT=0
# Where a process has died, torch's watchdog waits so long between the timeout and the end of the others.
export TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=1000

part() # LIMIT NAME COMMAND...: at most so many seconds, and no more than are left
{
  local limit=$1 name=$2 left=$((budget - SECONDS)) start=$SECONDS
  shift 2
  if ((left < 20)); then
    echo "== $name: left out, $left s are left" | tee -a "$out/ring.log"
    return
  fi
  timeout --kill-after 5 $((limit < left ? limit : left)) "$@" >"$out/part.log" 2>&1
  echo "== $name: exit status $?, $((SECONDS - start)) s" | tee -a "$out/ring.log"
  grep -vE 'UserWarning|FutureWarning|^\{|^$' "$out/part.log" | tail -n "${LINES_OF_LOG:-25}" >>"$out/ring.log"
  grep '^{' "$out/part.log" | cut -c1-300
}

# One process for each GPU, as torchrun would start them, but that one's end is not the others': in one group that `timeout` ends.
spread()
{
  local rank status=0 running=() port=$((20000 + RANDOM % 10000))
  for ((rank = 0; rank < gpus; rank++)); do
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=$gpus RANK=$rank LOCAL_RANK=$rank python3 ring.py "$@" --json "$out/ring.json" &
    running+=($!)
  done
  for rank in "${!running[@]}"; do
    wait "${running[rank]}" || { status=$? && echo "process $rank ended with status $status after $SECONDS s"; }
  done
  return "$status"
}
export -f spread
export out gpus

{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  nvidia-smi topo -m
  python3 -c 'import torch; print("torch", torch.__version__, "NCCL", torch.cuda.nccl.version())'
} >"$out/machine.txt" 2>&1
rm -f "$out/ring.json" "$out/ring.log"
for name in ${*:-check time profile peer fail long longest methods gloo}; do
  case $name in
    check) part 110 check bash -c 'spread check' ;;
    time) part 120 time bash -c 'spread time --seqlen 32768 131072' ;;
    profile) part 60 profile bash -c 'spread profile --seqlen 131072' ;;
    peer) part 100 peer bash -c 'spread peer --seqlen 131072 --rounds 2' ;;
    fail) part 130 fail bash -c 'spread fail --timeout 20' ;;
    long) part 80 long bash -c 'spread long --seqlen 262144 524288' ;;
    longest) part 140 longest bash -c 'spread long --seqlen 1048576' ;;
    methods) part 60 methods bash -c 'spread methods --seqlen 4096 8192 16384 65536' ;;
    gloo) part 60 gloo bash -c 'spread check --backend gloo' ;;
    *) echo "$name: check, time, profile, peer, fail, long, longest, methods and gloo are parts" >&2 ;;
  esac
done
rm -f "$out/part.log"
