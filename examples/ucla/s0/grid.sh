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
tables="table3 curves table3_pretrained"  # folders of results/
seeds="1 2 3 4 5"             # of the trainings; some systems have only the first three
# shellcheck source=tools/grid.sh
. "$here/../../../tools/grid.sh"

cells() {  # seed by seed, so that every system has the first seeds early
  local seed of suffix options tree share
  for seed in $seeds; do
    for of in "table3" "table3_pretrained -simulated-14 --pretrain 14"; do
      read -r of suffix options <<< "$of"
      cell "$of" "softmax$suffix" 5 --head softmax "$options"
      cell "$of" "hsoftmax$suffix" 5 --head hsoftmax "$options"
      cell "$of" "hsoftmax-random$suffix" 5 --head hsoftmax --tree random "$options"
      cell "$of" "hsoftmax-per_language$suffix" 3 --head hsoftmax --weighting per_language "$options"
      for tree in permuted brown embedding articulatory; do
        cell "$of" "hsoftmax-$tree$suffix" 3 --head hsoftmax --tree "$tree" "$options"
      done
      cell "$of" "class$suffix" 3 --head class "$options"
      cell "$of" "hsoftmax-ctc_hsoftmax$suffix" 3 --head hsoftmax --ctc_head hsoftmax "$options"
    done
    for share in 0.25 0.5; do
      cell curves "softmax-$share" 3 --head softmax --train_share "$share"
      cell curves "hsoftmax-$share" 3 --head hsoftmax --train_share "$share"
      cell curves "hsoftmax-random-$share" 3 --head hsoftmax --tree random --train_share "$share"
    done
  done
}

if [ "$list" = true ]; then cells; exit; fi
shared=(--corpus "$corpus" --modes "ctc_greedy_search attention joint attention_rescoring")
for table in $tables; do
  case $table in
    table3) prepare data/global_cmvn 5 ;;
    table3_pretrained) prepare data/tree-huffman-simulated-14.json 5 --pretrain 14 ;;
    curves) for share in 0.25 0.5; do prepare "data-$share/global_cmvn" 3 --train_share "$share"; done ;;
  esac
done
run_cells
