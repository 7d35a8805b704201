#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: what tuning gains there over the defaults, and the results as files that may be shipped.
#   bench/gpu/tune.sh FOLDER [options of fulmen tune]
# FOLDER holds fulmen and libfulmen.so.0.2. Results go to $OUT, or to build/gpu: tune.txt has the table, tune.html plots, tuned.json
# is for `fulmen tune --import`, and shipped/<chip>.json has the winners as data/tuned takes them.
set -euo pipefail
build=$(readlink -f "$1")
out=${OUT:-$(dirname "$(readlink -f "$0")")/../../build/gpu}
mkdir -p "$out/shipped"
# A cache folder of its own: existing results would be exported, too.
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} FULMEN_CACHE_DIR=${FULMEN_CACHE_DIR:-/tmp/fulmen-tune-cache}
device=${DEVICE:-cuda:0}
[[ $device != cuda* ]] || nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
status=0
"$build/fulmen" tune --device "$device" --json "$out/tune.json" --csv "$out/tune.csv" --html "$out/tune.html" "${@:2}" |
  tee "$out/tune.txt" || status=$?
"$build/fulmen" tune --export "$out/tuned.json"
python3 - "$out" <<'END'
import json, sys
for chip in json.load(open(sys.argv[1] + "/tuned.json")):
    chip["entries"] = [entry for entry in chip["entries"] if not entry["is_default"]]
    for entry in chip["entries"]:  # the compiler's name and version, not its path there
        entry["compiler"] = " ".join(entry["compiler"].split()[:2])
    print(f"{chip['chip']}: {len(chip['entries'])} winners")
    if chip["entries"]:
        with open(f"{sys.argv[1]}/shipped/{chip['chip']}.json", "w") as file:
            file.write(json.dumps(chip, indent=1) + "\n")
END
# Tuned results are used, and their source is named.
"$build/fulmen" explain --device "$device" --dtype bf16 --heads 32 --kv-heads 8 --seqlen-q 4096 --head-dim 128 --causal | head -4
exit "$status"
