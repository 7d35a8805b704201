#!/usr/bin/env bash
# Applies the patches to a checkout of lc0, builds it, checks it against Eigen and times it. Fetches and installs nothing.
# README.md of this folder has what it needs.
set -euo pipefail

usage() {
  cat <<TEXT
usage: run.sh LC0_CHECKOUT [check|attention|bench]...

Applies the patches of this folder to LC0_CHECKOUT (commit $upstream), builds it in
LC0_CHECKOUT/build/fulmen, and then checks it (check), times its attention alone (attention) and whole
evaluations (bench), or all three (the default).

Environment:
  PKG_CONFIG_PATH  where fulmen.pc lies, for an installation outside of /usr
  GEOMETRY, LAYERS, SEED  the random network (t82, 2, 1; make_net.py --help has the geometries)
  SIZES, ROUNDS, THREADS  what bench times (1,8,32,128,256; 5; 1); SIZES also what attention times
TEXT
}

upstream=909a40826db9e8b221d9209a487daba6ab57e3b7
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -eq 0 ] || [ "$1" = --help ] || [ "$1" = -h ]; then usage; exit $(($# == 0 ? 2 : 0)); fi
[ -f "$1/src/neural/backends/blas/network_blas.cc" ] ||
  { echo "run.sh: '$1' is no checkout of lc0: src/neural/backends/blas/network_blas.cc is missing"; exit 2; }
lc0=$(cd "$1" && pwd)
shift
steps=("$@")
[ $# -gt 0 ] || steps=(check attention bench)
for step in "${steps[@]}"; do
  case $step in check | attention | bench) ;; *) echo "run.sh: '$step' is no step: check, attention or bench"; exit 2 ;; esac
done

say_what_is_missing() {
  local missing=() tool
  for tool in git meson ninja pkg-config protoc python3 c++ cc; do
    command -v "$tool" >/dev/null || missing+=("the program $tool")
  done
  python3 -c 'import google.protobuf' 2>/dev/null || missing+=("the Python package protobuf")
  if command -v pkg-config >/dev/null; then
    for tool in fulmen eigen3 openblas zlib absl_flat_hash_map; do
      pkg-config --exists "$tool" || missing+=("the library $tool, by pkg-config")
    done
  fi
  [ ${#missing[@]} -eq 0 ] && return
  echo "run.sh: missing:"
  printf '  %s\n' "${missing[@]}"
  echo "README.md of this folder names the packages; PKG_CONFIG_PATH says where fulmen.pc lies."
  exit 1
}

apply_patches() {
  local patch
  for patch in "$here"/*.patch; do
    if git -C "$lc0" apply --reverse --check "$patch" 2>/dev/null; then
      echo "$(basename "$patch") is applied"
    else
      git -C "$lc0" apply "$patch" ||
        { echo "run.sh: $(basename "$patch") does not apply: it is for lc0's commit $upstream"; exit 1; }
    fi
  done
}

build() {
  [ -f "$build/build.ninja" ] ||
    meson setup "$build" "$lc0" --buildtype=release -Dfulmen=enabled -Dgtest=false -Db_lto=false >"$build.log" ||
    { tail -20 "$build.log"; exit 1; }
  ninja -C "$build" >>"$build.log" || { tail -20 "$build.log"; exit 1; }
}

# check_run WHAT COMMAND...: lc0 in its check mode; the log must say that batches passed, none failed, and attention was fused.
check_run() {
  local what=$1 passed
  shift
  "$@" >"$log" 2>&1 </dev/null || { tail "$log"; echo "FAILED: $what: lc0 ended with an error"; exit 1; }
  grep -q "Successfully using fused attention" "$log" || { echo "FAILED: $what: attention was not fused"; exit 1; }
  if grep -m3 "ERROR check failed" "$log"; then echo "FAILED: $what"; exit 1; fi
  passed=$(grep -c "Check passed" "$log") || { echo "FAILED: $what: nothing was checked"; exit 1; }
  echo "ok: $what: $passed batches"
}

check() {
  local options="freq=1.0,blas(fulmen=true),eigen(fulmen=false)" size
  for size in 1 2 3 7 8 16 31 64 256; do
    check_run "batch $size, two threads" "$program" backendbench "--weights=$net" --backend=check \
      "--backend-opts=$options" --threads=2 --batches=1 "--start-batch-size=$size" "--max-batch-size=$size"
  done
  check_run "search, two threads" "$program" benchmark "--weights=$net" --backend=check "--backend-opts=$options" \
    --threads=2 --nodes=300 --num-positions=2
  check_run "each call against Fulmen's reference" "$program" backendbench "--weights=$net" --backend=check \
    "--backend-opts=freq=1.0,blas(fulmen=true,fulmen_verify=true),eigen(fulmen=false)" --batches=1 \
    --start-batch-size=3 --max-batch-size=3
  # The check itself: a bias that is not added must be seen.
  # shellcheck disable=SC2046  # pkg-config answers several words
  cc -shared -fPIC -O1 $(pkg-config --cflags fulmen) -o "$build/drop_bias.so" "$here/drop_bias.c" -ldl
  LD_PRELOAD="$build/drop_bias.so" "$program" backendbench "--weights=$net" --backend=check "--backend-opts=$options" \
    --batches=1 --start-batch-size=4 --max-batch-size=4 >"$log" 2>&1 </dev/null || { tail "$log"; exit 1; }
  grep -q "ERROR check failed" "$log" || { echo "FAILED: the check does not see a dropped bias"; exit 1; }
  echo "ok: a dropped bias fails the check"
}

# attention_blas.cc with lc0's own objects: it has the same softmax, compiled with the same options.
attention() {
  local objects
  mapfile -t objects < <(find "$build/lc0.p" -name '*.o' ! -name 'src_main.cc.o' ! -name '*backends_cuda*')
  # shellcheck disable=SC2046  # pkg-config answers several words
  c++ -O2 -std=c++20 -DUSE_FULMEN -I"$lc0/src" "$here/attention_blas.cc" "${objects[@]}" -o "$build/attention_blas" \
    $(pkg-config --cflags --libs fulmen openblas zlib absl_flat_hash_map) -pthread
  # shellcheck disable=SC2086  # a list
  "$build/attention_blas" ${SIZES//,/ }
}

say_what_is_missing
build=$lc0/build/fulmen
program=$build/lc0
log=$build/check.log
net=$build/${GEOMETRY:-t82}-${LAYERS:-2}-${SEED:-1}.pb.gz
SIZES=${SIZES:-1,8,32,128,256}
mkdir -p "$lc0/build"
apply_patches
build
LD_LIBRARY_PATH=$(pkg-config --variable=libdir fulmen)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
python3 "$here/make_net.py" "$lc0" "$net" --geometry "${GEOMETRY:-t82}" --layers "${LAYERS:-2}" --seed "${SEED:-1}"
for step in "${steps[@]}"; do
  case $step in
    check) check ;;
    attention) attention ;;
    bench) python3 "$here/bench.py" "$program" "$net" --sizes "$SIZES" --rounds "${ROUNDS:-5}" \
      --threads "${THREADS:-1}" ;;
  esac
done
