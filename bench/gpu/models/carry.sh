#!/usr/bin/env bash
# The suite's packages for a machine with an NVIDIA GPU, Python 3.12 and PyTorch, but no network: Fulmen, FlashAttention 4, cuEquivariance.
#   carry.sh make FOLDER SITE   here: packs SITE/fulmen (pip install's folder) and the peers' wheels into FOLDER/1 and FOLDER/2, 55 MB at most
#                               each, for two trips; parts that FOLDER has are kept, but for Fulmen's. Ten minutes for the peers
#   carry.sh unpack PART...     there: puts the parts FOLDER/1 and FOLDER/2 together in $SITE (/tmp/site); /tmp/parts keeps them between trips
# Then: PYTHONPATH=/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages python3 bench/gpu/models/models.py
set -euo pipefail

wheels() # NAME[==VERSION]...: into the folder that is current
{
  python3 -m pip download -q --pre --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 -d wheels "$@"
  # pip --target must not unpack FlashAttention 4's: its wheels share a folder and it would keep one of them.
  for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" site; done
}

make() # FOLDER SITE
{
  local folder package work
  folder=$(readlink -m "$1") package=$(readlink -f "$2")/fulmen work=$(mktemp -d)
  mkdir -p "$folder/1" "$folder/2"
  cd "$work"
  if [[ ! -e $folder/2/flash4.ab ]]; then
    wheels flash-attn-4==4.0.0b36 nvidia-cutlass-dsl==4.8.1 nvidia-cutlass-dsl-libs-{core,base,cu13}==4.8.1 apache-tvm-ffi==0.1.11 \
      torch-c-dlpack-ext==0.1.5 quack-kernels==0.6.5
    rm -r site/nvidia_cutlass_dsl/cu13/lib/{stubs,*.a}
    tar c -C site . | xz -9 -T0 | split -b 48000000 - flash4.
    mv flash4.aa "$folder/1" && mv flash4.ab "$folder/2" && rm -r site wheels
  fi
  if [[ ! -e $folder/2/cuequivariance.tar.xz ]]; then
    wheels cuequivariance{,-torch,-ops-cu13,-ops-torch-cu13}==0.13.0 nvidia-ml-py platformdirs
    find site/cuequivariance_ops/triton/cache -name '*.json' ! -name '*.9.0.json' -delete  # another chip's choices
    rm -rf site/lib64 site/include
    tar c -C site . | xz -9 -T0 >"$folder/2/cuequivariance.tar.xz" && rm -r site wheels
  fi
  wheels nanobind-backend
  cp -r "$package" site/
  find site -name __pycache__ -prune -exec rm -r {} +
  tar c -C site . | xz >"$folder/2/fulmen.tar.xz"
  rm -r "$work"
  ls -l "$folder"/*
}

unpack() # PART...
{
  local site=${SITE:-/tmp/site} parts=/tmp/parts
  mkdir -p "$site" "$parts"
  for part in "$@"; do cp "$part"/* "$parts/"; done
  if [[ -e $parts/flash4.aa && -e $parts/flash4.ab ]]; then cat "$parts"/flash4.a[ab] | tar xJ -C "$site"; fi
  for packed in "$parts"/*.tar.xz; do
    if [[ -e $packed ]]; then tar xJ -C "$site" <"$packed"; fi
  done
}

case ${1:-} in
  make | unpack) "$@" ;;
  *) sed -n 2,6p "$0" && exit 2 ;;
esac
