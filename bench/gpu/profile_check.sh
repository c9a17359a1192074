#!/usr/bin/env bash
# Everything that wants a GPU, once: `run`, `profile` and `trace` on a small real job, and the grid of attention kernels.
#
#     bench/gpu/profile_check.sh [FOLDER]         evidence into FOLDER (default: $OUT, else ./gpu-evidence)
#     bench/gpu/profile_check.sh --cpu [FOLDER]   the same way, tiny and without a GPU: does the script itself work?
#
# Needs no network. Needs a Python (PYTHON=..., default python3) of 3.11 or later with torch, transformers, accelerate,
# tokenizers, numpy and msgspec; rich, jinja2 and vl_convert draw report.html, which `stepprobe report` can do elsewhere.
# What is missing can come as wheels: WHEELS=/folder/of/wheels bench/gpu/profile_check.sh
# Ends within SECONDS_IN_ALL; each part has its own limit, and one that fails leaves the others alone.
# Exit code: 0 every part did what it should, 1 some did not, 2 something is missing, 3 no GPU.
set -u -o pipefail

SECONDS_IN_ALL=${SECONDS_IN_ALL:-450}
PYTHON=${PYTHON:-python3}
cpu=no
[ "${1:-}" = --cpu ] && { cpu=yes; shift; }
out=${1:-${OUT:-gpu-evidence}}
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
mkdir -p "$out" && out=$(cd "$out" && pwd) || { echo "profile_check: $out cannot be written" >&2; exit 2; }
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1

if [ -n "${WHEELS:-}" ]; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$scratch/site" "$WHEELS"/*.whl || {
    echo "profile_check: the wheels in $WHEELS cannot be installed for $("$PYTHON" -V 2>&1)" >&2; exit 2; }
  export PYTHONPATH="$PYTHONPATH:$scratch/site"
fi

"$PYTHON" - "$cpu" <<'CHECK' || exit $?
import importlib.util
import sys

if sys.version_info < (3, 11):
    sys.exit(print(f"profile_check: Python {sys.version.split()[0]} is older than 3.11; name another: PYTHON=...", file=sys.stderr) or 2)
needed = ("torch", "transformers", "accelerate", "tokenizers", "numpy", "msgspec")
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    print(f"profile_check: {sys.executable} lacks {', '.join(missing)}; install them, or bring wheels: WHEELS=folder", file=sys.stderr)
    sys.exit(2)
pages = [name for name in ("rich", "jinja2", "vl_convert") if importlib.util.find_spec(name) is None]
if pages:
    print(f"profile_check: without {', '.join(pages)} no report.html is drawn here; the evidence is complete all the same")
import torch

if sys.argv[1] == "no" and not torch.cuda.is_available():
    print("profile_check: no GPU is visible to torch; try the script itself with --cpu", file=sys.stderr)
    sys.exit(3)
device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
print(f"profile_check: {device}, torch {torch.__version__}, Python {sys.version.split()[0]}")
CHECK

if [ $cpu = yes ]; then
  job=("$root/examples/sft_trainer.py" --batch-size 2 --hidden 64 --layers 2 --max-length 64)
  steps=12 trace_steps=2 grid=3
else
  job=("$root/examples/sft_trainer.py" --gpu --batch-size 16 --hidden 1024 --layers 12 --max-length 512)
  steps=60 trace_steps=3 grid=0
fi
summary=$out/summary.txt
: >"$summary"
failed=0

# part NAME LIMIT_S WANTED_CODE COMMAND...: output to NAME.json and NAME.log; one line of summary
part() {
  local name=$1 limit=$2 wanted=$3 began=$SECONDS code
  shift 3
  local left=$((SECONDS_IN_ALL - SECONDS))
  [ $left -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    echo "$name: left out, the $SECONDS_IN_ALL s are up" | tee -a "$summary"
    failed=1
    return 1
  fi
  timeout --kill-after=5 "$limit" "$@" >"$scratch/$name.json" 2>"$scratch/$name.log"
  code=$?
  local verdict=ok
  if [ $code -ne "$wanted" ]; then
    verdict="FAILED (exit code $code, wanted $wanted)"
    failed=1
    tail -n 15 "$scratch/$name.log"
  fi
  echo "$name: $verdict, $((SECONDS - began)) s" | tee -a "$summary"
  [ $code -eq "$wanted" ]
}

stepprobe=("$PYTHON" -m stepprobe)
runs=$scratch/runs
part run 100 0 "${stepprobe[@]}" run --json --out "$runs" -- "$PYTHON" "${job[@]}" --steps $steps
if "${stepprobe[@]}" profile --help >/dev/null 2>&1; then
  part profile 170 0 "${stepprobe[@]}" profile --json --anyway --out "$runs" -- "$PYTHON" "${job[@]}" --steps $steps
else
  echo "profile: FAILED (this stepprobe has no such command)" | tee -a "$summary"
  failed=1
fi
part traced 70 0 "$PYTHON" "$root/bench/gpu/traced.py" "$scratch/kineto.json" 4 $trace_steps "${job[@]}" --steps $((5 + trace_steps)) &&
  part trace 60 0 "${stepprobe[@]}" trace "$scratch/kineto.json" --json --out "$runs"
part sdpa_grid 180 $grid "$PYTHON" "$root/bench/gpu/sdpa_grid.py" --out "$scratch/sdpa-grid.json"

# Home in few files: folders with everything, and what a person looks at first.
for folder in "$runs"/*/; do
  [ -d "$folder" ] && part "verify-$(basename "$folder")" 60 0 "${stepprobe[@]}" verify "$folder"
done
tar -czf "$out/evidence.tar.gz" -C "$scratch" --exclude=site --exclude=kineto.json . || failed=1
[ -f "$scratch/kineto.json" ] && gzip -c "$scratch/kineto.json" >"$out/kineto.json.gz"
for name in run profile trace; do
  [ -s "$scratch/$name.json" ] && cp "$scratch/$name.json" "$out/$name.json"
done
[ -f "$scratch/sdpa-grid.json" ] && gzip -c "$scratch/sdpa-grid.json" >"$out/sdpa-grid.json.gz"
echo "profile_check: ${SECONDS} s, evidence in $out" | tee -a "$summary"
exit $failed
