#!/usr/bin/env bash
# Everything that only a GPU can show, in less than nine minutes: heads, Triton search, training steps, NCCL, recognition and
# commands against a CPU, then the benchmarks in a short form. Prints one table, and writes it with the notes of the benchmarks
# to OUT/gpu.md, all figures to OUT/gpu.json and the log to OUT/gpu.log. A part that fails does not end the others; the exit
# code is then 1.
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
deadline=$((SECONDS + 530)) failed=0 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/site" "$work/notes"
out=$(cd "$out" && pwd) log=$out/gpu.log
: > "$log"; : > "$work/rows.tsv"

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

# run NAME LIMIT COMMAND…: runs it for at most LIMIT seconds and what is left, and adds a row if it wrote none.
run() {
  local name=$1 limit=$(($2 < deadline - SECONDS ? $2 : deadline - SECONDS)) begin=$SECONDS code=0 lines result="ok" found
  lines=$(wc -l < "$work/rows.tsv")
  shift 2
  echo "== $name: $*" >> "$log"
  if [ "$limit" -gt 0 ]; then timeout -k 5 "$limit" "$@" > "$work/part.log" 2>&1 || code=$?; else code=124; fi
  cat "$work/part.log" >> "$log"
  [ "$code" = 0 ] || failed=1
  [ "$(wc -l < "$work/rows.tsv")" = "$lines" ] || return 0  # the checks write their own rows
  found="see below: $name"
  [ "$code" = 0 ] || { result=failed found=$(tail -1 "$work/part.log" | tr '\t' ' '); }
  [ "$code" != 124 ] || found="not done in $limit s"
  printf '%s\t%s\t%s\t%s\n' "$name" "$result" $((SECONDS - begin)) "$found" >> "$work/rows.tsv"
}
check() { local limit=$1; shift; run "$*" "$limit" "$python" benchmarks/gpu_checks.py "$@" --device "$device" $small --rows "$work/rows.tsv"; }
benchmark() {  # NAME LIMIT OPTIONS…
  local name=$1 limit=$2; shift 2
  run "$name" "$limit" "$python" "benchmarks/$name.py" --device "$device" --threads "$threads" --out "$work/notes/$name" "$@"
}

if [ -n "$small" ]; then  # one process for all checks: most of the time is loading libraries
  check 300 heads search steps-fp32 steps-bf16 one-rank recognition commands
  benchmark head_training 100 --units 150 --rounds 1 --quick
  benchmark head_search 100 --units 150 --rows 1 --rounds 1
  benchmark p_thsm_table2 100 --units 1000 --rounds 1 --quick
  for name in training_speed recognize; do  # minutes, and tested by themselves
    printf '%s\t%s\t%s\t%s\n' $name "not run" – "benchmarks/$name.py --quick is its small form" >> "$work/rows.tsv"
  done
else  # a process per part: after an error of the GPU a process can compute nothing more
  check 90 heads
  check 90 search
  check 60 steps-fp32
  check 60 steps-bf16
  check 40 one-rank
  check 100 recognition
  check 60 commands
  benchmark p_thsm_table2 60 --rounds 5
  benchmark head_search 60 --units 300 10000 267735 --rows 1 10 160 --rounds 5
  benchmark head_training 80 --units 300 10000 267735 --rounds 3
  benchmark training_speed 90 --rounds 3 --no_compile
  benchmark recognize 90 --rounds 2 --rounds_of_heads 2
fi
"$python" benchmarks/gpu_note.py --rows "$work/rows.tsv" --notes "$work/notes" --device "$device" \
  --command "benchmarks/gpu.sh${small:+ }$small" --out "$out/gpu" > "$work/note.md"
sed -n '1,/^## /p' "$work/note.md" | sed '/^## /d'
echo "$out/gpu.md"
exit "$failed"
