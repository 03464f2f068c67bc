#!/usr/bin/env bash
# The study of the UCLA corpus: one training per line and seed, and the tables made from them.
#   ./grid.sh --corpus /data/ucla                      all tables; run it again to go on, trainings with results are skipped
#   ./grid.sh --corpus /data/ucla --tables table3      one table
#   ./grid.sh --corpus /data/ucla --minutes 150        starts no training after 150 minutes
#   ./grid.sh --list true                              only lists the trainings that are to do
# A training has results if results/TABLE/SYSTEM-seedN.json exists. RESULTS.md is written at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=                       # one folder for each language: text.txt, audio/
tables="table3 curves"        # folders of results/
minutes=100000                # no training starts later
jobs=2                        # trainings at a time, one core each
list=false                    # true: list the trainings and end
# shellcheck source=tools/parse_options.sh
. "$here/../../../tools/parse_options.sh"

# Prints the options of run.sh for a training of $seed, unless it has results or the system has fewer seeds.
cell() {  # TABLE SYSTEM SEEDS OPTIONS…
  [[ " $tables " == *" $1 "* ]] && [ "$seed" -le "$3" ] || return 0
  [ -f "$here/results/$1/$2-seed$seed.json" ] || echo "--seeds $seed --results $here/results/$1 ${*:4}"
}

cells() {  # seed by seed, so that every system has the first seeds early
  local seed share
  for seed in 1 2 3 4 5; do
    cell table3 softmax 5 --head softmax
    cell table3 hsoftmax 5 --head hsoftmax
    cell table3 hsoftmax-random 5 --head hsoftmax --tree random
    cell table3 hsoftmax-permuted 3 --head hsoftmax --tree permuted
    cell table3 hsoftmax-per_language 3 --head hsoftmax --weighting per_language
    for tree in brown embedding articulatory; do cell table3 "hsoftmax-$tree" 3 --head hsoftmax --tree "$tree"; done
    cell table3 class 3 --head class
    cell table3 hsoftmax-ctc_hsoftmax 3 --head hsoftmax --ctc_head hsoftmax
    for share in 0.25 0.5; do
      cell curves "softmax-$share" 3 --head softmax --train_share "$share"
      cell curves "hsoftmax-$share" 3 --head hsoftmax --train_share "$share"
      cell curves "hsoftmax-random-$share" 3 --head hsoftmax --tree random --train_share "$share"
    done
  done
}

if [ "$list" = true ]; then cells; exit; fi
PATH="$(cd "$here/../../.." && pwd)/.venv/bin:$PATH"
deadline=$(($(date +%s) + 60 * minutes))
modes="ctc_greedy_search attention joint attention_rescoring"
export here corpus deadline modes
for share in 1 0.5 0.25; do  # the data of all cells
  "$here/run.sh" --corpus "$corpus" --train_share "$share" --stop_stage 3
done
mkdir -p "$here/logs"
cells | xargs -P "$jobs" -d '\n' -I{} bash -c '
  options=({})
  [ "$(date +%s)" -lt "$deadline" ] || exit 0
  log=$here/logs/$(tr -cs "A-Za-z0-9.\n" _ <<< "${options[*]}" | cut -c 1-120).log
  echo "$(date +%T) ${options[*]}"
  "$here/run.sh" --corpus "$corpus" --stage 2 --modes "$modes" "${options[@]}" > "$log" 2>&1 || { echo "failed: see $log" >&2; exit 1; }
'
read -ra _tables <<< "$tables"
wenet-hs report --tables "${_tables[@]/#/$here/results/}" --markdown "$here/RESULTS.md"
