#!/usr/bin/env bash
# The GPU check on a machine without network: correctness in four minutes, then speed, then what else fits in nine.
#
#   bash tools/gpu_check/run.sh           in the root of a clone, with a Python that has torch
#   TOY=1 bash tools/gpu_check/run.sh     on a CPU: tests this script, not the GPU
#
# Nothing is downloaded. Packages that this Python lacks are installed from the wheels in WHEELS, which another machine
# has downloaded for the same version of Python, as with
#   pip download --no-deps --only-binary=:all: --python-version 3.12 -d tools/gpu_check/wheels \
#     pydantic pydantic-core annotated-types typing-inspection simplejpeg
#
# PY: the Python; OUT: the folder of the results; LIMIT, CORRECT_S, SPEED_S, MORE_S: seconds of all and of each part;
# SITE: the folder for the packages from WHEELS.
set -uo pipefail
cd "$(dirname "$0")/../.."
PY=${PY:-python3} OUT=${OUT:-$PWD/results} LIMIT=${LIMIT:-540} WHEELS=${WHEELS:-tools/gpu_check/wheels}
toy=()
[ -z "${TOY:-}" ] || toy=(--toy)
mkdir -p "$OUT"
export PYTHONPATH=$PWD/tools:$PWD/scripts PYTHONUNBUFFERED=1
if compgen -G "$WHEELS/*.whl" > /dev/null; then
  SITE=${SITE:-$(mktemp -d)}
  "$PY" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$SITE" "$WHEELS"/*.whl || exit 3
  export PYTHONPATH=$PYTHONPATH:$SITE
fi
{
  nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.sm,power.limit --format=csv
  "$PY" -c 'import sys, torch, torchvision; print(sys.version.split()[0], torch.__version__, torchvision.__version__)'
  git log -1 --format=%h
} 2>&1 | tee "$OUT/machine.txt"

remaining() { echo $((LIMIT - SECONDS)); }

# part NAME SECONDS CHECK...: run these checks, in so many seconds at most
part() {
  local name=$1 seconds=$2 most
  shift 2
  most=$(($(remaining) - 35)) # a check that hangs takes 30 s more
  [ "$seconds" -le "$most" ] || seconds=$most
  if [ "$seconds" -lt 15 ]; then
    echo "== $name: no time left"
    failed=1
    return
  fi
  echo "== $name: at most $seconds s, after $SECONDS s"
  mkdir -p "$OUT/$name"
  "$PY" -m gpu_check one "$@" "${toy[@]}" --minutes "$((seconds / 60)).$(printf %02d $((seconds % 60 * 100 / 60)))" \
    --out "$OUT/$name" > "$OUT/$name/log.txt" 2>&1 || failed=1
  grep -E '^\[ *[0-9]+ s\] ' "$OUT/$name/log.txt" | cut -c1-220
}

failed=0
part correct "${CORRECT_S:-250}" environment ceilings telemetry data numerics bad_loss fp16 objective augmentation resume \
  syncs share one_rank two_ranks stop failing_rank kept
part speed "${SPEED_S:-140}" resnet50
seconds=$(($(remaining) - 40))
[ "$seconds" -lt 75 ] || seconds=75
if [ "$seconds" -ge 15 ]; then
  echo "== plain script: at most $seconds s, after $SECONDS s"
  timeout -k 5 $((seconds + 25)) "$PY" tools/gpu_check/plain_resnet50.py "${toy[@]}" --seconds "$seconds" \
    2> "$OUT/plain.log" | tee "$OUT/plain.jsonl"
fi
part more "${MORE_S:-600}" launch memory compile mps compiled_sweep
echo "== ended after $SECONDS s; not run: small, profile, shared"
exit "$failed"
