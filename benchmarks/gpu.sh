#!/usr/bin/env bash
# Everything that only a GPU can show, in less than nine minutes, in this order: heads, CTC, search, training steps, NCCL,
# recognition, language models and commands against a CPU; time and memory of the heads, Table 2 and Figure 4 of p-tHSM; the
# rate of training; recognition in fp32 and bf16. Each part writes OUT/parts/NAME.json when it ends, and OUT/notes/NAME.json if
# it measures; these stay if a later part fails or the machine ends. A part that fails does not end the others; the exit code
# is then 1. At the end one table is printed, and written with the notes to OUT/gpu.md, all figures to OUT/gpu.json. The log
# is OUT/gpu.log.
#   benchmarks/gpu.sh --out benchmarks/notes            on a machine with a GPU
#   benchmarks/gpu.sh --out /tmp/gpu --small            on a CPU: whether every part runs; the table says "not measured"
#   benchmarks/gpu.sh --out DIR --wheels DIR            first installs these packages, on a machine without a network
# The Python is $PYTHON, that of .venv, or python3. It needs the packages of setup.py; nothing is installed into it.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${OUT:-} small="" wheels=""
while [ $# -gt 0 ]; do
  case $1 in
    --small) small=--small && shift ;;
    --out | --wheels) [ $# -ge 2 ] || { echo "$0: $1 needs a folder" >&2; exit 2; }; printf -v "${1#--}" '%s' "$2"; shift 2 ;;
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"; exit 0 ;;
    *) echo "$0: unknown option '$1' (try --help)" >&2; exit 2 ;;
  esac
done
[ -n "$out" ] || { echo "$0: --out DIR is required (try --help)" >&2; exit 2; }
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
failed=0 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out/parts" "$out/notes" "$work/site"
out=$(cd "$out" && pwd) log=$out/gpu.log
: > "$log"
rm -f "$out"/parts/*.json "$out"/notes/*.{json,md,svg} "$out"/gpu.{json,md}

# The packages, and the metadata of this one, in a folder of their own.
export PYTHONPATH=$root:$work/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
[ -z "$wheels" ] || "$python" -m pip install -q --no-index --no-deps --target "$work/site" "$wheels"/*.whl
cd "$root"
"$python" -c 'from importlib.metadata import version; version("wenet_hs")' 2> /dev/null ||
  "$python" setup.py -q egg_info --egg-base "$work/site" >> "$log" 2>&1
modules=(jinja2 matplotlib numba numpy praatio pydantic rapidfuzz regex rich scipy sentencepiece soundfile soxr tensorboard torch yaml)
find='import sys; from importlib.util import find_spec; print(*(name for name in sys.argv[1:] if not find_spec(name)))'
lacking=$("$python" -c "$find" "${modules[@]}")
[ -z "$lacking" ] || {
  echo "$0: $python has no $lacking; install the packages of setup.py, or give their files with --wheels" >&2; exit 2; }
device=cpu threads=1
if [ -z "$small" ]; then
  device=cuda threads=$("$python" -c 'import os; print(min(16, os.cpu_count()))')
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null ||
    { echo "$0: PyTorch finds no GPU here; --small runs the small form on the CPU" >&2; exit 2; }
fi
export OMP_NUM_THREADS=$threads

# run NAME LIMIT COMMAND…: runs it for at most LIMIT seconds and what the parts before it left of theirs.
run() {
  local name=$1 begin=$SECONDS code=0 result=ok found limit
  due=$((due + $2)) limit=$((due > SECONDS ? due - SECONDS : 1))
  shift 2
  echo "== $name: $*" >> "$log"
  timeout -k 5 "$limit" "$@" > "$work/part.log" 2>&1 || code=$?
  cat "$work/part.log" >> "$log"
  [ "$code" = 0 ] || failed=1
  [ ! -f "$out/parts/${name##* }.json" ] || return 0  # checks write what they found
  found="see below: $name"
  [ "$code" = 0 ] || { result=failed found=$(tail -1 "$work/part.log"); }
  [ "$code" != 124 ] || found="not done in $limit s"
  part "$name" "$result" $((SECONDS - begin)) "$found"
}
part() {  # NAME RESULT SECONDS FOUND
  "$python" -c 'import json, sys; print(json.dumps(dict(zip(("part", "result", "seconds", "found"), sys.argv[1:]))))' "$@" > "$out/parts/$1.json"
}
check() { local limit=$1; shift; run "$*" "$limit" "$python" benchmarks/gpu_checks.py "$@" --device "$device" $small --out "$out/parts"; }
benchmark() {  # NAME LIMIT OPTIONS…
  local name=$1 limit=$2; shift 2
  run "$name" "$limit" "$python" "benchmarks/$name.py" --device "$device" --threads "$threads" --out "$out/notes/$name" "$@"
}

due=10
if [ -n "$small" ]; then  # one process for all checks: most of the time is loading libraries
  check 200 heads ctc search steps-fp32 steps-bf16 one-rank recognition language-models commands
  benchmark head_training 60 --units 150 --rounds 1 --quick --smoothing none leaf
  benchmark p_thsm_table2 60 --units 1000 --rounds 1 --quick
  benchmark lm_step 60 --sizes 300 --rounds 1
  benchmark head_search 60 --units 150 --rows 1 --rounds 1
  benchmark training_rate 60 --quick
  benchmark recognize 60 --quick --parts languages --dtypes fp32 bf16
else  # a process per part: after an error of the GPU a process can compute nothing more. The limits are 520 s together
  check 60 heads
  check 20 ctc
  check 30 search
  check 30 steps-fp32
  check 25 steps-bf16
  check 15 one-rank
  check 45 recognition
  check 25 language-models
  check 30 commands
  benchmark head_training 75 --rounds 3 --smoothing none leaf
  benchmark p_thsm_table2 25 --rounds 3
  benchmark lm_step 30 --sizes 10000 33278 267735 --rounds 3
  benchmark head_search 20 --units 300 10000 267735 --rows 10 160 --rounds 3
  benchmark training_rate 40 --rounds 3
  benchmark recognize 50 --rounds_of_heads 2 --parts languages --dtypes fp32 bf16
fi
"$python" benchmarks/gpu_note.py --out "$out" --device "$device" --command "benchmarks/gpu.sh${small:+ }$small" > "$work/note.md"
sed -n '1,/^## /p' "$work/note.md" | sed '/^## /d'
echo "$out/gpu.md"
exit "$failed"
