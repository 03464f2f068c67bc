#!/usr/bin/env bash
# The study of the UCLA corpus: one training per line and seed, and the tables made from them in RESULTS.md.
#   ./grid.sh --corpus /data/ucla                      all tables; run it again to go on, trainings with results are skipped
#   ./grid.sh --corpus /data/ucla --tables table3      one table
#   ./grid.sh --corpus /data/ucla --minutes 150        starts no training after 150 minutes
#   ./grid.sh --list true                              only lists the trainings that are to do
# A training has results if results/TABLE/SYSTEM-seedN.json exists.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
corpus=                       # one folder for each language: text.txt, audio/
tables="table3 curves"        # folders of results/
# shellcheck source=tools/grid.sh
. "$here/../../../tools/grid.sh"

cells() {  # seed by seed, so that every system has the first seeds early
  local seed share tree
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
for share in 1 0.5 0.25; do "$here/run.sh" --corpus "$corpus" --train_share "$share" --stop_stage 3; done
run_cells --corpus "$corpus" --modes "ctc_greedy_search attention joint attention_rescoring"
